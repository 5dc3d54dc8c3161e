"""P4: link batches (anchor, neighbor, negative), 200 k nodes and 4 M edges, beside PyG's link loader.

PyG's LinkNeighborLoader needs pyg-lib or torch-sparse, which are not built for every torch. What it does before it
expands neighborhoods needs neither and is measured here, which flatters it: a shuffled torch DataLoader over edge
numbers, their ends, and its own ``neg_sample``. Its epoch is shuffled once, outside the timing.
"""

import numpy as np
import torch
from _measure import compare
from torch.utils.data import DataLoader
from torch_geometric.sampler import NegativeSampling
from torch_geometric.sampler.neighbor_sampler import neg_sample

from raybio.core.randomness import keyed_permutation
from raybio.methods.sppt.graph.csr import Graph

NUM_NODES, NUM_EDGES, BATCH, NUM_BATCHES = 200_000, 4_000_000, 512, 100

rng = np.random.default_rng(0)
graph = Graph.from_edges(rng.integers(0, NUM_NODES, (NUM_EDGES, 2)), NUM_NODES, None)
assert graph.degree_N.min() > 0
source = np.repeat(np.arange(NUM_NODES), graph.degree_N)
edge_index = torch.from_numpy(np.stack([source, graph.indices]).astype(np.int64))


def our_batches() -> list[np.ndarray]:
    batches = []
    for step in range(NUM_BATCHES):
        anchor = keyed_permutation(
            np.arange(step * BATCH, (step + 1) * BATCH), num_rows=NUM_NODES, key=1
        )
        ends = graph.sample_neighbors(anchor, 1, rng), graph.sample_negatives(anchor, 1, rng)
        batches.append(np.column_stack([anchor, *ends]))
    return batches


def collate(edges: list[int]) -> torch.Tensor:
    left, right = edge_index[:, torch.tensor(edges)]
    return torch.stack(
        [left, right, neg_sample(left, NegativeSampling("triplet"), NUM_NODES, None, None, "dst")],
        1,
    )


epoch = iter(
    DataLoader(range(edge_index.shape[1]), batch_size=BATCH, shuffle=True, collate_fn=collate)
)


def pyg_batches() -> list[torch.Tensor]:
    return [next(epoch) for _ in range(NUM_BATCHES)]


def false_negatives(triplets: np.ndarray) -> int:
    return int(
        (graph.has_edge(triplets[:, 0], triplets[:, 2]) | (triplets[:, 0] == triplets[:, 2])).sum()
    )


mine, theirs = np.concatenate(our_batches()), torch.cat(pyg_batches()).numpy()
assert graph.has_edge(mine[:, 0], mine[:, 1]).all()
assert false_negatives(mine) == 0
note = f"{NUM_BATCHES} batches of {BATCH}; false negatives: theirs {false_negatives(theirs)} of {len(theirs)}, ours 0"
compare("P4", "PyG link loader less its neighbor expansion", our_batches, pyg_batches, note=note)
