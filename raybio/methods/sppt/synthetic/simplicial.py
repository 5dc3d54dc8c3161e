"""Surfaces of equilateral triangles, and geodesic distances between points on them.

These are the manifolds of the synthetic experiments of McDermott et al. Each triangle is the
standard simplex, whose edges have length sqrt(2). A point lies in a triangle at barycentric
coordinates.

Points of the plane are complex numbers, so that turns and reflections are products.

Shape letters: P points, T triangles, X points of one triangle.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from raybio.core.arrays import Floats, Integers
from raybio.methods.sppt.synthetic.config import TRIANGLE_HEIGHT

EDGE = 2**0.5
"""Length of a triangle's edges."""

_CORNERS = np.array([0, EDGE, EDGE * np.exp(1j * np.pi / 3)])
"""Corners of a triangle in its own plane."""

_SLACK = 1e-12
"""Tolerance for rounding of points on an edge or at a corner."""

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
"""The paper's surfaces: the corners of each triangle, as hexadecimal digits from 1."""


def surface(name: str) -> NDArray[np.int64]:
    """Return the triangles (T, 3) of one of ``SURFACES``: corner numbers from 0."""
    return np.array([[int(corner, 16) - 1 for corner in triangle] for triangle in SURFACES[name]])


def geodesic_distances(
    triangle_T3: Integers, triangle_P: Integers, weight_P3: Floats, *, up_to: float
) -> Floats:
    """Return the lengths (P, P) of the shortest paths on the surface, inf beyond ``up_to``.

    A shortest path either passes a corner or is straight once its triangles are unfolded into a
    plane. For straight paths, triangles are unfolded through the edges visible from each point, and
    the distance to a visible point is Euclidean. A path through a corner has the sum of the two
    points' distances to that corner.

    Args:
        triangle_T3: three distinct corners of each triangle. Triangles with two common corners
            share that edge.
        triangle_P: triangle of each point.
        weight_P3: barycentric coordinates of each point, in the order of its triangle's corners.
        up_to: maximum length, below ``TRIANGLE_HEIGHT`` so that no path passes two corners.

    Raises:
        ValueError: for triangles with equal corners, invalid coordinates, or ``up_to`` out of
            range.
    """
    triangle_T3 = np.asarray(triangle_T3)
    triangle_P = np.asarray(triangle_P)
    weight_P3 = np.asarray(weight_P3, np.float64)
    _check(triangle_T3, triangle_P, weight_P3, up_to)
    distance_PP = np.full((len(triangle_P), len(triangle_P)), np.inf)
    points_by_triangle = [
        np.flatnonzero(triangle_P == number) for number in range(len(triangle_T3))
    ]
    triangles_by_edge = _triangles_by_edge(triangle_T3)
    for point, (triangle, weight_3) in enumerate(zip(triangle_P.tolist(), weight_P3, strict=True)):
        viewer = weight_3 @ _CORNERS
        for view in _unfold(triangle_T3, triangles_by_edge, triangle, viewer, up_to):
            others = points_by_triangle[view.triangle]
            target_X = weight_P3[others] @ view.corner_3
            length_X = np.where(view.shows(viewer, target_X), np.abs(target_X - viewer), np.inf)
            distance_PP[point, others] = np.minimum(distance_PP[point, others], length_X)
    for corner in np.unique(triangle_T3).tolist():
        to_corner_P = _distance_to_corner(triangle_T3, triangle_P, weight_P3, corner)
        points = np.flatnonzero(to_corner_P <= up_to)
        through_corner = to_corner_P[points, None] + to_corner_P[None, points]
        block = np.ix_(points, points)
        distance_PP[block] = np.minimum(distance_PP[block], through_corner)
    # The two directions differ only by rounding.
    shortest_PP: Floats = np.minimum(distance_PP, distance_PP.T)
    np.fill_diagonal(shortest_PP, 0)
    shortest_PP[shortest_PP > up_to] = np.inf
    return shortest_PP


class _View(NamedTuple):
    """A triangle unfolded into the viewer's plane, and the rays between which it is visible.

    Attributes:
        triangle: index of the triangle.
        corner_3: its corners in the viewer's plane.
        right: a point on the right bounding ray; None for the viewer's own triangle.
        left: a point on the left bounding ray; None for the viewer's own triangle.
    """

    triangle: int
    corner_3: NDArray[np.complex128]
    right: complex | None = None
    left: complex | None = None

    def shows(self, viewer: complex, target_X: NDArray[np.complex128]) -> NDArray[np.bool_]:
        """Return whether each target (X,) lies between the two rays."""
        if self.right is None or self.left is None:
            return np.ones(len(target_X), dtype=np.bool_)
        is_left_of_right_X = _turn(self.right - viewer, target_X - viewer) >= -_SLACK
        is_right_of_left_X = _turn(self.left - viewer, target_X - viewer) <= _SLACK
        is_visible_X: NDArray[np.bool_] = is_left_of_right_X & is_right_of_left_X
        return is_visible_X


def _turn(first: complex, second: NDArray[np.complex128] | complex) -> NDArray[np.float64]:
    """Return the cross product: > 0 if the second vector points to the left of the first."""
    return np.asarray((np.conj(first) * second).imag)


def _unfold(
    triangle_T3: Integers,
    triangles_by_edge: dict[frozenset[int], list[int]],
    triangle: int,
    viewer: complex,
    up_to: float,
) -> Iterator[_View]:
    """Yield all triangles visible from a point within ``up_to``, once for each path to them."""
    # With each view: the position of the corner opposite the edge through which it was entered.
    stack = [(_View(triangle, _CORNERS), -1)]
    while stack:
        view, entered_opposite = stack.pop()
        yield view
        corners = triangle_T3[view.triangle]
        for opposite in range(3):
            first = (opposite + 1) % 3
            second = (opposite + 2) % 3
            a = view.corner_3[first]
            b = view.corner_3[second]
            window = _window(view, viewer, a, b)
            if window is None or opposite == entered_opposite:
                continue
            if _distance_to_segment(viewer, *window) > up_to:
                continue
            edge = frozenset((int(corners[first]), int(corners[second])))
            # The neighboring triangle's third corner is this one's, mirrored at the edge.
            c = view.corner_3[opposite]
            mirrored = a + (b - a) * np.conj((c - a) / (b - a))
            known = {int(corners[first]): a, int(corners[second]): b}
            for other in triangles_by_edge[edge]:
                if other == view.triangle:
                    continue
                other_corners = triangle_T3[other].tolist()
                corner_3 = np.array([known.get(corner, mirrored) for corner in other_corners])
                third = next(
                    index for index, corner in enumerate(other_corners) if corner not in edge
                )
                stack.append((_View(other, corner_3, *window), third))


def _window(view: _View, viewer: complex, a: complex, b: complex) -> tuple[complex, complex] | None:
    """Return the right and left end of the visible part of the edge from a to b, if any."""
    turn = float(_turn(a - viewer, b - viewer))
    if abs(turn) <= _SLACK:
        return None  # the viewer looks along the edge: paths beyond it pass a corner
    right, left = (a, b) if turn > 0 else (b, a)
    if view.right is None or view.left is None:
        return right, left
    if _turn(right - viewer, view.right - viewer) > 0:
        right = _intersection(viewer, view.right, right, left)
    if _turn(view.left - viewer, left - viewer) > 0:
        left = _intersection(viewer, view.left, right, left)
    return (right, left) if _turn(right - viewer, left - viewer) > _SLACK else None


def _intersection(viewer: complex, through: complex, a: complex, b: complex) -> complex:
    """Return where the ray from the viewer through a point meets the line through a and b."""
    direction = through - viewer
    share = float(_turn(direction, viewer - a)) / float(_turn(direction, b - a))
    return a + share * (b - a)


def _distance_to_segment(point: complex, a: complex, b: complex) -> float:
    """Return the distance from a point to the segment from a to b."""
    share = ((point - a) * np.conj(b - a)).real / abs(b - a) ** 2
    return float(abs(a + min(max(share, 0.0), 1.0) * (b - a) - point))


def _distance_to_corner(
    triangle_T3: Integers, triangle_P: Integers, weight_P3: Floats, corner: int
) -> Floats:
    """Return the distance (P,) to a corner within each point's triangle, inf where it has none."""
    is_corner_P3 = triangle_T3[triangle_P] == corner
    target_P = is_corner_P3 @ _CORNERS
    return np.where(is_corner_P3.any(axis=1), np.abs(weight_P3 @ _CORNERS - target_P), np.inf)


def _triangles_by_edge(triangle_T3: Integers) -> dict[frozenset[int], list[int]]:
    """Return the triangles at each edge, by the edge's two corners."""
    triangles: dict[frozenset[int], list[int]] = {}
    for number, corners in enumerate(triangle_T3.tolist()):
        for opposite in range(3):
            edge = frozenset(corners[:opposite] + corners[opposite + 1 :])
            triangles.setdefault(edge, []).append(number)
    return triangles


def _check(triangle_T3: Integers, triangle_P: Integers, weight_P3: Floats, up_to: float) -> None:
    is_table = triangle_T3.ndim == 2 and triangle_T3.shape[1] == 3
    if not is_table or any(len(set(corners)) < 3 for corners in triangle_T3.tolist()):
        raise ValueError("triangles are rows of three different corners")
    is_valid = weight_P3.shape == (len(triangle_P), 3) and not (weight_P3 < 0).any()
    if not is_valid or not np.allclose(weight_P3.sum(axis=1), 1):
        raise ValueError("barycentric coordinates are three numbers >= 0 a point that sum to 1")
    if not 0 < up_to < TRIANGLE_HEIGHT:
        raise ValueError(
            f"up_to is {up_to}, want a length above 0 and below a triangle's height, "
            f"{TRIANGLE_HEIGHT:.4f}"
        )
