"""A rival of link retrieval that trains a graph network, and no encoder.

Two graph convolutions (Kipf and Welling, 2017) over the embeddings of the initial encoder, which
stay frozen:

    Z = A relu(A X W1) W2,  A = D^-1/2 (G + I) D^-1/2,  D the degrees of G + I

They are trained on the training links G: binary cross entropy of the logit z_i · z_j, with a link
as a positive and its first end with a random node of the same group as a negative. If this row
reaches the trained encoder's, the graph need not be in the encoder.

Shape letters: N nodes, L directed links, S nodes of an evaluation, D and H widths, B a batch.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from raybio.core.arrays import Floats
from raybio.core.interfaces import Collective
from raybio.core.randomness import derive_seed
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.rivals import BlockScores, Rival

NAME = "GCN on initial"
NAME_ON_MODEL = "GCN on model"
"""Row of a model whose initial encoder is unknown; the network reads the model's embeddings."""

MAX_NODES = 50_000
"""With more nodes there is no such row, since each step reads all nodes."""

NUM_STEPS = 200
WIDTH = 128
LEARNING_RATE = 0.01
MAX_LINKS_PER_STEP = 100_000


def gnn_rival(
    feature_ND: Tensor,
    graph: Graph,
    node_S: np.ndarray,
    collective: Collective,
    *,
    seed: int,
    name: str = NAME,
) -> Rival:
    """Train the network and return its ranking; the first worker trains for all.

    Args:
        feature_ND: embeddings of all nodes by the frozen encoder.
        graph: training links.
        node_S: nodes of the evaluation.
        collective: workers, which get the same ranking.
        seed: of weights and negatives.
        name: of its row.
    """
    if collective.rank == 0:
        state_NH = train_gnn(feature_ND.float().cpu(), graph, seed=seed)
    else:
        state_NH = torch.zeros(0, WIDTH)
    state_NH = collective.all_gather(state_NH.to(feature_ND.device)).row_MD.cpu()
    state_SH = state_NH[torch.from_numpy(np.asarray(node_S))].double().numpy()

    def in_group(node_G: np.ndarray) -> BlockScores:
        state_GH = state_SH[node_G]

        def scores(anchors: slice) -> Floats:
            score_BG: Floats = state_GH[anchors] @ state_GH.T
            return score_BG

        return scores

    return Rival(name, in_group)


def train_gnn(feature_ND: Tensor, graph: Graph, *, seed: int, num_steps: int = NUM_STEPS) -> Tensor:
    """Return the states (N, H) of nodes after training, float32 on the CPU."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "gnn rival") % 2**63)
    head_L = torch.from_numpy(np.repeat(np.arange(graph.num_nodes), graph.degree_N))
    tail_L = torch.from_numpy(np.asarray(graph.indices, np.int64))
    group_N = np.asarray(graph.group_N)
    first_N = torch.from_numpy(np.searchsorted(group_N, group_N, "left"))
    size_N = torch.from_numpy(np.searchsorted(group_N, group_N, "right")) - first_N
    scaled_ND = (feature_ND - feature_ND.mean(0)) / feature_ND.std(0).clamp(min=1e-6)
    weight_NN = propagation(graph)
    # Features are frozen, so that their first propagation is the same in all steps.
    near_ND = weight_NN @ scaled_ND
    layers = [
        (torch.randn(rows, WIDTH, generator=generator) / rows**0.5).requires_grad_()
        for rows in (near_ND.shape[1], WIDTH)
    ]
    optimizer = torch.optim.Adam(layers, lr=LEARNING_RATE)
    for _ in range(num_steps):
        link_B = torch.arange(len(head_L))
        if len(head_L) > MAX_LINKS_PER_STEP:
            link_B = torch.randint(len(head_L), (MAX_LINKS_PER_STEP,), generator=generator)
        head_B = head_L[link_B]
        drawn_B = torch.rand(len(head_B), generator=generator, dtype=torch.float64)
        other_B = first_N[head_B] + (drawn_B * size_N[head_B]).long()
        state_NH = propagate(near_ND, weight_NN, *layers)
        positive_B = (state_NH[head_B] * state_NH[tail_L[link_B]]).sum(1)
        negative_B = (state_NH[head_B] * state_NH[other_B]).sum(1)
        loss = functional.softplus(-positive_B).mean() + functional.softplus(negative_B).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return propagate(near_ND, weight_NN, *layers)


def propagation(graph: Graph) -> Tensor:
    """Return D^-1/2 (G + I) D^-1/2 as a sparse matrix (N, N), float32."""
    num_nodes = graph.num_nodes
    loop_N = np.arange(num_nodes)
    head_X = np.concatenate([np.repeat(loop_N, graph.degree_N), loop_N])
    tail_X = np.concatenate([np.asarray(graph.indices, np.int64), loop_N])
    scale_N = (np.asarray(graph.degree_N) + 1.0) ** -0.5
    value_X = torch.from_numpy(scale_N[head_X] * scale_N[tail_X]).float()
    index_2X = torch.from_numpy(np.stack([head_X, tail_X]))
    size = (num_nodes, num_nodes)
    return torch.sparse_coo_tensor(index_2X, value_X, size, check_invariants=False).coalesce()


def propagate(near_ND: Tensor, weight_NN: Tensor, first_DH: Tensor, second_HH: Tensor) -> Tensor:
    """Return A relu(A X W1) W2 (N, H), where ``near_ND`` is A X."""
    return torch.sparse.mm(weight_NN, torch.relu(near_ND @ first_DH) @ second_HH)
