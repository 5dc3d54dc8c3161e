"""P3: exact negatives for 200 k anchors on 4 M edges; the peers' false negatives are counted, and ours are none."""

import numpy as np
import torch
from _measure import SMALL, compare
from torch_geometric.utils import negative_sampling, structured_negative_sampling

from raybio.methods.sppt.graph.csr import Graph

SCALE = 100 if SMALL else 1
NUM_NODES, NUM_EDGES, NUM_ANCHORS = 200_000 // SCALE, 4_000_000 // SCALE, 200_000 // SCALE

rng = np.random.default_rng(0)
graph = Graph.from_edges(rng.integers(0, NUM_NODES, (NUM_EDGES, 2)), NUM_NODES, None)
source = np.repeat(np.arange(NUM_NODES), graph.degree_N)
edge_index = torch.from_numpy(np.stack([source, graph.indices]).astype(np.int64))
anchors = rng.integers(0, NUM_NODES, NUM_ANCHORS)
# PyG's structured sampler draws a negative for each edge that it is given and checks against these edges alone. Given
# the anchors' it is fast and wrong; given all it answers for all 8 M of them, 40 times what is wanted.
anchor_edges = edge_index[:, torch.from_numpy(rng.choice(len(source), NUM_ANCHORS, replace=False))]


def ours() -> np.ndarray:
    return graph.sample_negatives(anchors, 1, rng)[:, 0]


def structured(of: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    left, _, right = structured_negative_sampling(
        of, num_nodes=NUM_NODES, contains_neg_self_loops=False
    )
    return left.numpy(), right.numpy()


def pairs() -> torch.Tensor:
    return negative_sampling(edge_index, NUM_NODES, num_neg_samples=NUM_ANCHORS, method="sparse")


def false_negatives(left: np.ndarray, right: np.ndarray) -> str:
    return f"{int(graph.has_edge(left, right).sum())} in {len(left)} are edges"


mine = ours()
assert not graph.has_edge(anchors, mine).any()
assert (mine != anchors).all()
own = f"ours: {false_negatives(anchors, mine)}, exact by construction"
compare(
    "P3",
    "PyG structured_negative_sampling, anchors' edges",
    ours,
    lambda: structured(anchor_edges),
    note=f"its fastest use: {false_negatives(*structured(anchor_edges))}; {own}",
)
compare(
    "P3",
    'PyG negative_sampling(method="sparse")',
    ours,
    pairs,
    note=f"not tied to anchors; {false_negatives(*pairs().numpy())}; {own}",
)
