"""Graphlet degree vectors: how often each node occupies each orbit of a small connected subgraph.

The 15 orbits of induced connected subgraphs of two to four nodes are numbered as by Przulj
(*Biological network comparison using graphlet degree distribution*, 2007):

    0 edge | path of 3: 1 end, 2 middle | 3 triangle
    path of 4: 4 end, 5 inside | star: 6 leaf, 7 center | 8 cycle of 4
    triangle with a tail: 9 the tail's end, 10 corners without it, 11 corner with it
    4-clique without an edge: 12 ends of the missing edge, 13 the others | 14 4-clique

Only triangles and 4-cliques are enumerated. All other counts follow from the number of ways to
extend a path or triangle by a node (Hocevar and Demsar, *A combinatorial approach to graphlet
counting*, 2014). So the stars of a hub need not be enumerated.

Shape letters: N nodes, M directed edges (two entries for each edge), O = 15 orbits.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from raybio.core.extras import from_extra
from raybio.methods.sppt.graph.csr import Graph

with from_extra("numba", "synthetic"):
    import numba

NUM_ORBITS = 15


def graphlet_degrees(graph: Graph) -> NDArray[np.int64]:
    """Return the graphlet degree vector of each node (N, 15).

    Time is proportional to the number of paths of three nodes plus the number of 4-cliques.
    """
    indptr = np.asarray(graph.indptr, np.int64)
    indices = np.asarray(graph.indices, np.int64)
    triangles_M = _triangles(indptr, indices)
    cliques_N = _cliques(indptr, indices)
    orbit_NO: NDArray[np.int64] = _orbits(indptr, indices, triangles_M, cliques_N)
    return orbit_NO


def _compiled(function: Any) -> Any:
    return numba.njit(function)


@_compiled
def _first_from(indptr: Any, indices: Any, node: int, lowest: int) -> int:
    """Return the position of a node's first neighbor that is ``lowest`` or beyond."""
    first = indptr[node]
    last = indptr[node + 1]
    while first < last:
        middle = (first + last) // 2
        if indices[middle] < lowest:
            first = middle + 1
        else:
            last = middle
    return int(first)


@_compiled
def _mark(is_near_N: Any, indptr: Any, indices: Any, node: int, is_near: bool) -> None:
    """Set the entries of a node's neighbors."""
    for edge in range(indptr[node], indptr[node + 1]):
        is_near_N[indices[edge]] = is_near


@_compiled
def _is_linked(indptr: Any, indices: Any, node: int, other: int) -> bool:
    position = _first_from(indptr, indices, node, other)
    return bool(position < indptr[node + 1] and indices[position] == other)


@_compiled
def _triangles(indptr: Any, indices: Any) -> Any:
    """Return the number of triangles at each directed edge (M,)."""
    num_nodes = len(indptr) - 1
    count_M = np.zeros(len(indices), np.int64)
    is_near_N = np.zeros(num_nodes, np.bool_)
    for x in range(num_nodes):
        _mark(is_near_N, indptr, indices, x, True)
        for edge in range(indptr[x], indptr[x + 1]):
            y = indices[edge]
            for other in range(indptr[y], indptr[y + 1]):
                count_M[edge] += is_near_N[indices[other]]
        _mark(is_near_N, indptr, indices, x, False)
    return count_M


@_compiled
def _common_beyond(common_N: Any, indptr: Any, indices: Any, x: int, edge: int) -> int:
    """Write the common neighbors of x and y that are beyond y, ascending; return their number.

    y is the neighbor of x at ``edge``.
    """
    y = indices[edge]
    size = 0
    left = edge + 1
    right = _first_from(indptr, indices, y, y)
    while left < indptr[x + 1] and right < indptr[y + 1]:
        if indices[left] == indices[right]:
            common_N[size] = indices[left]
            size += 1
        step = indices[left] <= indices[right]
        right += indices[right] <= indices[left]
        left += step
    return size


@_compiled
def _cliques(indptr: Any, indices: Any) -> Any:
    """Return the number of 4-cliques of each node (N,)."""
    num_nodes = len(indptr) - 1
    count_N = np.zeros(num_nodes, np.int64)
    common_N = np.empty(num_nodes, np.int64)
    for x in range(num_nodes):
        for edge in range(indptr[x], indptr[x + 1]):
            y = indices[edge]
            if y < x:
                continue
            # Each clique is found once: from its two lowest nodes.
            size = _common_beyond(common_N, indptr, indices, x, edge)
            for first in range(size):
                for second in range(first + 1, size):
                    if _is_linked(indptr, indices, common_N[first], common_N[second]):
                        for node in (x, y, common_N[first], common_N[second]):
                            count_N[node] += 1
    return count_N


@_compiled
def _solve(orbit_O: Any, from_end: Any, through: Any) -> None:
    """Fill in orbits 4 to 13 from orbit 14 and the numbers of extensions by one node.

    Each number of extensions is a weighted sum of the counts of two or more orbits. The equations
    are those of Hocevar and Demsar 2014, solved in descending order.
    """
    to_12_14, to_10_13, to_6_9, to_9_12, to_4_8, to_8_12 = from_end
    to_13_14, to_11_13, to_7_11, to_5_8 = through
    six = 6 * orbit_O[14]
    orbit_O[13] = (to_13_14 - six) // 2
    orbit_O[12] = to_12_14 - six // 2
    orbit_O[11] = (to_11_13 - to_13_14 + six) // 2
    orbit_O[10] = to_10_13 - to_13_14 + six
    orbit_O[9] = (to_9_12 - 2 * to_12_14 + six) // 2
    orbit_O[8] = (to_8_12 - 2 * to_12_14 + six) // 2
    orbit_O[7] = (to_13_14 + to_7_11 - to_11_13 - six) // 6
    orbit_O[6] = (2 * to_12_14 + to_6_9 - to_9_12 - six) // 2
    orbit_O[5] = 2 * to_12_14 + to_5_8 - to_8_12 - six
    orbit_O[4] = 2 * to_12_14 + to_4_8 - to_8_12 - six


@_compiled
def _count_shared(shared_N: Any, is_near_N: Any, indptr: Any, indices: Any, x: int) -> None:
    """Count the common neighbors with x, of nodes that are not neighbors of x."""
    for edge in range(indptr[x], indptr[x + 1]):
        y = indices[edge]
        for beyond in range(indptr[y], indptr[y + 1]):
            z = indices[beyond]
            if z != x and not is_near_N[z]:
                shared_N[z] += 1


@_compiled
def _clear_shared(shared_N: Any, indptr: Any, indices: Any, x: int) -> None:
    """Set what ``_count_shared`` has counted to 0."""
    for edge in range(indptr[x], indptr[x + 1]):
        y = indices[edge]
        for beyond in range(indptr[y], indptr[y + 1]):
            shared_N[indices[beyond]] = 0


@_compiled
def _paths_from_end(
    orbit_O: Any,
    indptr: Any,
    indices: Any,
    triangles_M: Any,
    is_near_N: Any,
    shared_N: Any,
    x: int,
) -> Any:
    """Fill in orbit 1, and count the extensions of paths and triangles x, y, z.

    Returns:
        Six numbers, named after the two orbits of x that each one counts without distinguishing
        them.
    """
    to_12_14 = 0
    to_10_13 = 0
    to_6_9 = 0
    to_9_12 = 0
    to_4_8 = 0
    to_8_12 = 0
    for edge in range(indptr[x], indptr[x + 1]):
        y = indices[edge]
        degree_y = indptr[y + 1] - indptr[y]
        with_y = triangles_M[edge]
        for beyond in range(indptr[y], indptr[y + 1]):
            z = indices[beyond]
            if z == x:
                continue
            degree_z = indptr[z + 1] - indptr[z]
            with_y_z = triangles_M[beyond]
            if not is_near_N[z]:
                orbit_O[1] += 1
                to_6_9 += degree_y - 2 - with_y
                to_9_12 += with_y_z
                to_4_8 += degree_z - 1 - with_y_z
                to_8_12 += shared_N[z] - 1
            elif z < y:
                to_12_14 += with_y_z - 1
                to_10_13 += degree_y + degree_z - 2 - 2 * with_y_z
    return to_12_14, to_10_13, to_6_9, to_9_12, to_4_8, to_8_12


@_compiled
def _paths_through(orbit_O: Any, indptr: Any, indices: Any, triangles_M: Any, x: int) -> Any:
    """Fill in orbits 2 and 3, and count the extensions of paths and triangles y, x, z.

    Returns:
        Four numbers, named as those of ``_paths_from_end``.
    """
    to_13_14 = 0
    to_11_13 = 0
    to_7_11 = 0
    to_5_8 = 0
    first = indptr[x]
    last = indptr[x + 1]
    degree_x = last - first
    for edge in range(first, last):
        y = indices[edge]
        degree_y = indptr[y + 1] - indptr[y]
        with_y = triangles_M[edge]
        for other in range(edge + 1, last):
            z = indices[other]
            degree_z = indptr[z + 1] - indptr[z]
            with_z = triangles_M[other]
            if _is_linked(indptr, indices, y, z):
                orbit_O[3] += 1
                to_13_14 += with_y + with_z - 2
                to_11_13 += 2 * degree_x - 2 - with_y - with_z
            else:
                orbit_O[2] += 1
                to_7_11 += 2 * degree_x - 4 - with_y - with_z
                to_5_8 += degree_y + degree_z - 2 - with_y - with_z
    return to_13_14, to_11_13, to_7_11, to_5_8


@_compiled
def _orbits(indptr: Any, indices: Any, triangles_M: Any, cliques_N: Any) -> Any:
    """Return the graphlet degree vector of each node (N, 15)."""
    num_nodes = len(indptr) - 1
    orbit_NO = np.zeros((num_nodes, NUM_ORBITS), np.int64)
    is_near_N = np.zeros(num_nodes, np.bool_)
    shared_N = np.zeros(num_nodes, np.int64)
    for x in range(num_nodes):
        orbit_O = orbit_NO[x]
        orbit_O[0] = indptr[x + 1] - indptr[x]
        orbit_O[14] = cliques_N[x]
        _mark(is_near_N, indptr, indices, x, True)
        _count_shared(shared_N, is_near_N, indptr, indices, x)
        from_end = _paths_from_end(orbit_O, indptr, indices, triangles_M, is_near_N, shared_N, x)
        through = _paths_through(orbit_O, indptr, indices, triangles_M, x)
        _solve(orbit_O, from_end, through)
        _clear_shared(shared_N, indptr, indices, x)
        _mark(is_near_N, indptr, indices, x, False)
    return orbit_NO
