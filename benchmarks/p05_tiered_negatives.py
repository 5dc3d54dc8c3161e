"""P5: tiered negatives from the anchor's own species, 100 k anchors x 8; the same rule a row at a time in Python.

The peers draw from the allowed rows of a species, or from all its rows again until none is a link in a set.
"""

import random

import numpy as np
from _measure import NUM_PAIRS, SMALL, compare

from raybio.methods.sppt.graph.csr import Graph

SCALE = 50 if SMALL else 1
NUM_NODES, NUM_GROUPS, NUM_EDGES = 200_000 // SCALE, 250 // SCALE, 1_000_000 // SCALE
NUM_ANCHORS, NUM = 100_000 // SCALE, 8

rng = np.random.default_rng(0)
group = np.sort(rng.integers(0, NUM_GROUPS, NUM_NODES))
start = np.searchsorted(group, np.arange(NUM_GROUPS + 1))
left = rng.integers(0, NUM_NODES, NUM_EDGES)
low, high = start[group[left]], start[group[left] + 1]
graph = Graph.from_edges(
    np.stack([left, low + (rng.random(NUM_EDGES) * (high - low)).astype(int)], 1), NUM_NODES, group
)
anchors = rng.integers(0, NUM_NODES, NUM_ANCHORS)


def by_row() -> np.ndarray:
    drawn = np.empty((NUM_ANCHORS, NUM), dtype=np.int64)
    for row, node in enumerate(anchors.tolist()):
        first, end = start[group[node]], start[group[node] + 1]
        is_allowed = np.ones(end - first, dtype=bool)
        is_allowed[node - first] = False
        is_allowed[graph.indices[graph.indptr[node] : graph.indptr[node + 1]] - first] = False
        drawn[row] = first + rng.choice(np.flatnonzero(is_allowed), NUM)
    return drawn


linked = [set() for _ in range(NUM_NODES)]
for node in range(NUM_NODES):
    linked[node] = {node, *graph.indices[graph.indptr[node] : graph.indptr[node + 1]].tolist()}


def by_rejecting() -> np.ndarray:
    drawn = []
    for node in anchors.tolist():
        first, end = int(start[group[node]]), int(start[group[node] + 1])
        for _ in range(NUM):
            other = random.randrange(first, end)
            while other in linked[node]:
                other = random.randrange(first, end)
            drawn.append(other)
    return np.array(drawn).reshape(NUM_ANCHORS, NUM)


def ours() -> np.ndarray:
    return graph.sample_negatives(anchors, NUM, rng)


def spread(drawn: np.ndarray) -> np.ndarray:
    """Where in its group each negative lies, as a histogram of 20 bins."""
    first, end = start[group[anchors]][:, None], start[group[anchors] + 1][:, None]
    return np.histogram((drawn - first) / (end - first), bins=20, range=(0, 1))[0]


mine = ours()
assert not graph.has_edge(anchors[:, None], mine).any()
assert (group[mine] == group[anchors][:, None]).all()
one = spread(mine)
for name, peer in (
    ("the same rule, a row at a time", by_row),
    ("rejecting from a set", by_rejecting),
):
    two = spread(peer())
    chi_squared = float(((one - two) ** 2 / (one + two)).sum())
    assert chi_squared < 19 + 6 * np.sqrt(38)
    note = f"histograms agree: chi squared {chi_squared:.0f} for 19"
    compare("P5", name, ours, peer, pairs=NUM_PAIRS, note=note)
