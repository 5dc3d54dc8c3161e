"""Surfaces of equilateral triangles, and how far points on them are from each other along the surface.

The manifolds of SPPT's synthetic experiments (facts §7.1): each triangle is the standard simplex, whose edges have the
length sqrt(2), and a point lies in a triangle at barycentric coordinates.

P points, T triangles. Points of the plane are complex numbers, and angles so are products.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from raybio.methods.sppt.synthetic.config import HEIGHT
from raybio.ops.segments import Integers

EDGE = 2**0.5


_CORNERS = np.array([0, EDGE, EDGE * np.exp(1j * np.pi / 3)])


_SLACK = 1e-12
"""What roundings may move a point of an edge or a corner beside it."""


Floats = NDArray[np.float64]


SURFACES: dict[str, tuple[str, ...]] = {
    "plane": ("123", "234"),
    "moebius": ("123", "234", "345", "456", "567", "671", "712"),
    "sphere": (
        *("123", "234", "245", "346", "127", "278", "258", "78A"),
        *("137", "379", "369", "79A", "89A", "489", "458", "469"),
    ),
    "torus": (
        *("123", "245", "416", "235", "456", "163", "357", "568", "639"),
        *("578", "689", "397", "781", "892", "974", "812", "924", "741"),
    ),
}
"""The paper's, corner by corner."""


def surface(name: str) -> NDArray[np.int64]:
    """Triangles (T, 3) of one of ``SURFACES``: numbers of their corners, from 0."""
    return np.array([[int(corner, 16) - 1 for corner in triangle] for triangle in SURFACES[name]])


def geodesic_distances(
    triangle_T3: Integers, place_P: Integers, weight_P3: Floats, *, up_to: float
) -> Floats:
    """Lengths (P, P) of the shortest ways on the surface, inf for those that are longer than ``up_to``.

    A shortest way is straight where the triangles that it crosses are unfolded into a plane, but for corners, where it
    may bend. From each point on, triangles are unfolded through the edges that it sees, and what it sees of them is
    near in a straight line; ways around a corner are the sum of two edges' lengths at that corner.

    Args:
        triangle_T3: three different corners of each triangle; triangles with two corners in common are joined there.
        place_P: triangle of each point.
        weight_P3: barycentric coordinates of each point, in the order of its triangle's corners.
        up_to: below ``HEIGHT``, so that no way meets two corners.

    Raises:
        ValueError: for triangles with equal corners, coordinates that are none, or ``up_to`` out of range.
    """
    triangle_T3, place_P, weight_P3 = (
        np.asarray(triangle_T3),
        np.asarray(place_P),
        np.asarray(weight_P3, np.float64),
    )
    _check(triangle_T3, place_P, weight_P3, up_to)
    distance_PP = np.full((len(place_P), len(place_P)), np.inf)
    mine_T = [np.flatnonzero(place_P == number) for number in range(len(triangle_T3))]
    joined = _joined(triangle_T3)
    for point, (place, weight_3) in enumerate(zip(place_P.tolist(), weight_P3, strict=True)):
        at = weight_3 @ _CORNERS
        for seen in _unfolded(triangle_T3, joined, place, at, up_to):
            others = mine_T[seen.triangle]
            there = weight_P3[others] @ seen.corner_3
            near = np.where(seen.shows(at, there), np.abs(there - at), np.inf)
            distance_PP[point, others] = np.minimum(distance_PP[point, others], near)
    for corner in np.unique(triangle_T3).tolist():
        near_P = _to_corner(triangle_T3, place_P, weight_P3, corner)
        points = np.flatnonzero(near_P <= up_to)
        around = near_P[points, None] + near_P[None, points]
        distance_PP[np.ix_(points, points)] = np.minimum(
            distance_PP[np.ix_(points, points)], around
        )
    shortest_PP: Floats = np.minimum(distance_PP, distance_PP.T)  # they are equal but for roundings
    np.fill_diagonal(shortest_PP, 0)
    shortest_PP[shortest_PP > up_to] = np.inf
    return shortest_PP


class _Seen(NamedTuple):
    """A triangle, unfolded into the plane of the point that looks, and between which rays it is seen.

    Attributes:
        triangle: its number.
        corner_3: its corners in that plane.
        right: the point sees what is not to the right of the ray through here; None: it lies in this triangle.
        left: and not to the left of the ray through here.
    """

    triangle: int
    corner_3: NDArray[np.complex128]
    right: complex | None = None
    left: complex | None = None

    def shows(self, at: complex, there_X: NDArray[np.complex128]) -> NDArray[np.bool_]:
        if self.right is None or self.left is None:
            return np.ones(len(there_X), dtype=np.bool_)
        is_seen_X: NDArray[np.bool_] = (_turn(self.right - at, there_X - at) >= -_SLACK) & (
            _turn(self.left - at, there_X - at) <= _SLACK
        )
        return is_seen_X


def _turn(first: complex, second: NDArray[np.complex128] | complex) -> NDArray[np.float64]:
    """> 0 if the second one lies to the left of the first one."""
    return np.asarray((np.conj(first) * second).imag)


def _unfolded(
    triangle_T3: Integers,
    joined: dict[frozenset[int], list[int]],
    place: int,
    at: complex,
    up_to: float,
) -> Iterator[_Seen]:
    """All triangles that a point sees within ``up_to``, once for each way to them."""
    waiting = [(_Seen(place, _CORNERS), -1)]
    while waiting:
        seen, behind = waiting.pop()
        yield seen
        corners = triangle_T3[seen.triangle]
        for opposite in range(3):
            first, second = (opposite + 1) % 3, (opposite + 2) % 3
            edge = frozenset((int(corners[first]), int(corners[second])))
            window = _window(seen, at, seen.corner_3[first], seen.corner_3[second])
            if window is None or opposite == behind or _distance(at, *window) > up_to:
                continue
            for other in joined[edge]:
                if other != seen.triangle:
                    # The third corner's mirror image behind the edge.
                    a, b, c = seen.corner_3[first], seen.corner_3[second], seen.corner_3[opposite]
                    beyond = a + (b - a) * np.conj((c - a) / (b - a))
                    known = {int(corners[first]): a, int(corners[second]): b}
                    corner_3 = np.array(
                        [known.get(corner, beyond) for corner in triangle_T3[other].tolist()]
                    )
                    new = next(
                        number
                        for number, corner in enumerate(triangle_T3[other].tolist())
                        if corner not in edge
                    )
                    waiting.append((_Seen(other, corner_3, *window), new))


def _window(seen: _Seen, at: complex, a: complex, b: complex) -> tuple[complex, complex] | None:
    """What the point sees of the edge from a to b: its right and its left end; None for nothing."""
    turn = float(_turn(a - at, b - at))
    if abs(turn) <= _SLACK:
        return None  # it looks along the edge: what is behind it is seen past corners
    right, left = (a, b) if turn > 0 else (b, a)
    if seen.right is None or seen.left is None:
        return right, left
    if _turn(right - at, seen.right - at) > 0:
        right = _meet(at, seen.right, right, left)
    if _turn(seen.left - at, left - at) > 0:
        left = _meet(at, seen.left, right, left)
    return (right, left) if _turn(right - at, left - at) > _SLACK else None


def _meet(at: complex, through: complex, a: complex, b: complex) -> complex:
    """Where the ray from a point through another meets the line through a and b."""
    way = through - at
    share = float(_turn(way, at - a)) / float(_turn(way, b - a))
    return a + share * (b - a)


def _distance(at: complex, a: complex, b: complex) -> float:
    """From a point to a stretch of a line."""
    share = ((at - a) * np.conj(b - a)).real / abs(b - a) ** 2
    return float(abs(a + min(max(share, 0.0), 1.0) * (b - a) - at))


def _to_corner(triangle_T3: Integers, place_P: Integers, weight_P3: Floats, corner: int) -> Floats:
    """How far points are from a corner of their own triangle (P,); inf where it has no such corner."""
    is_there_P3 = triangle_T3[place_P] == corner
    target_P = is_there_P3 @ _CORNERS
    return np.where(is_there_P3.any(axis=1), np.abs(weight_P3 @ _CORNERS - target_P), np.inf)


def _joined(triangle_T3: Integers) -> dict[frozenset[int], list[int]]:
    """Which triangles have an edge, by the corners at its ends."""
    found: dict[frozenset[int], list[int]] = {}
    for number, corners in enumerate(triangle_T3.tolist()):
        for opposite in range(3):
            found.setdefault(frozenset(corners[:opposite] + corners[opposite + 1 :]), []).append(
                number
            )
    return found


def _check(triangle_T3: Integers, place_P: Integers, weight_P3: Floats, up_to: float) -> None:
    if (
        triangle_T3.ndim != 2
        or triangle_T3.shape[1] != 3
        or any(len(set(three)) < 3 for three in triangle_T3.tolist())
    ):
        raise ValueError("triangles are rows of three different corners")
    if (
        weight_P3.shape != (len(place_P), 3)
        or (weight_P3 < 0).any()
        or not np.allclose(weight_P3.sum(axis=1), 1)
    ):
        raise ValueError("barycentric coordinates are three numbers >= 0 a point that sum to 1")
    if not 0 < up_to < HEIGHT:
        raise ValueError(
            f"up_to is {up_to}, want a length above 0 and below a triangle's height, {HEIGHT:.4f}"
        )
