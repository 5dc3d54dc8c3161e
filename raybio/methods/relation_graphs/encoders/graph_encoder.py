"""One graph convolution over small graphs (Kipf and Welling, 2017), by torch_geometric.

Shape letters: N nodes, E edges, D width.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from raybio.core.extras import from_extra

Activation = Literal["relu", "tanh"]


def graph_convolution() -> Any:
    """Return the class ``torch_geometric.nn.GCNConv``.

    Raises:
        ConfigError: if torch-geometric is not installed.
    """
    with from_extra("torch-geometric", "graphs"):
        from torch_geometric.nn import GCNConv
    return GCNConv


class GraphEncoder(nn.Module):
    """act(A X W + b), where A mixes each node's state with those of its neighbors.

    Attributes:
        convolution: W and b.
        self_loop: λ, the weight of a node's own state, with 1 - λ for each neighbor (CLDR);
            None: D^-1/2 (A + I) D^-1/2, with D the degrees of A + I (CLGS).
        activation: "relu" or "tanh".
    """

    def __init__(self, width: int, *, self_loop: float | None, activation: Activation) -> None:
        """Create Kaiming-normal weights, drawn by torch's generator, and zero biases."""
        super().__init__()
        is_normalized = self_loop is None
        self.convolution = graph_convolution()(
            width, width, normalize=is_normalized, add_self_loops=is_normalized
        )
        nn.init.kaiming_normal_(self.convolution.lin.weight)
        self.self_loop = self_loop
        self.activation = activation

    def forward(self, feature_ND: Tensor, head_E: Tensor, tail_E: Tensor) -> Tensor:
        """Return the states (N, D) of nodes.

        Args:
            feature_ND: features of the nodes of any number of graphs.
            head_E: first node of each edge.
            tail_E: second node of each edge. Edges come in both directions; loops are added here.
        """
        edge_2E = torch.stack([head_E, tail_E])
        weight_E = None
        if self.self_loop is not None:
            loop_N = torch.arange(len(feature_ND), device=head_E.device)
            weight_E = torch.cat(
                [
                    feature_ND.new_full((len(head_E),), 1 - self.self_loop),
                    feature_ND.new_full((len(loop_N),), self.self_loop),
                ]
            )
            edge_2E = torch.cat([edge_2E, loop_N.expand(2, -1)], dim=1)
        state_ND = self.convolution(feature_ND, edge_2E, weight_E)
        return torch.relu(state_ND) if self.activation == "relu" else torch.tanh(state_ND)
