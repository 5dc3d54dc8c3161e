"""P2: is (u, v) an edge? 4 M edges, 1 M pairs: half edges, half random."""

import numpy as np
import scipy.sparse
from _measure import SMALL, compare

from raybio.methods.sppt.graph.csr import Graph

SCALE = 100 if SMALL else 1
NUM_NODES, NUM_EDGES, NUM_PAIRS = 200_000 // SCALE, 4_000_000 // SCALE, 1_000_000 // SCALE

rng = np.random.default_rng(0)
edge = rng.integers(0, NUM_NODES, (NUM_EDGES, 2))
graph = Graph.from_edges(edge, NUM_NODES, None)
pair = np.concatenate(
    [
        edge[rng.integers(0, NUM_EDGES, NUM_PAIRS // 2)],
        rng.integers(0, NUM_NODES, (NUM_PAIRS // 2, 2)),
    ]
)
u, v = np.ascontiguousarray(rng.permutation(pair).T)
as_tuples = list(zip(np.minimum(u, v).tolist(), np.maximum(u, v).tolist(), strict=True))

source = np.repeat(np.arange(NUM_NODES), graph.degree_N)
matrix = scipy.sparse.csr_matrix(
    (np.ones(len(source), dtype=bool), (source, graph.indices)), (NUM_NODES, NUM_NODES)
)
links = {
    (low, high)
    for low, high in zip(source.tolist(), graph.indices.tolist(), strict=True)
    if low < high
}


def ask_set() -> np.ndarray:
    return np.fromiter((pair in links for pair in as_tuples), bool, NUM_PAIRS)


def ask_scipy() -> np.ndarray:
    return np.asarray(matrix[u, v]).ravel()


ours = graph.has_edge(u, v)
assert np.array_equal(ours, ask_set())
assert np.array_equal(ours, ask_scipy())
NOTE = f"{graph.num_edges / 1e6:.1f} M edges, {NUM_PAIRS:,} pairs, half of them edges; "
compare(
    "P2",
    "set of tuples",
    lambda: graph.has_edge(u, v),
    ask_set,
    note=NOTE + "its tuples made beforehand",
)
compare(
    "P2", "scipy csr[u, v]", lambda: graph.has_edge(u, v), ask_scipy, note=NOTE + "canonical format"
)
