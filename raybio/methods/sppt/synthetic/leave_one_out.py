"""Leave-one-out classification of nodes by their nearest neighbors, the measure of Table 1.

Shape letters: N nodes, D embedding width, C classes, k neighbors.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from raybio.core.arrays import Floats
from raybio.core.final_report import UnitScores
from raybio.evaluation.unit_scores import sample_units
from raybio.ops.scores import without_rounding_noise
from raybio.ops.significance import mean_interval

NUM_NEIGHBORS = 3


class LeaveOneOut(NamedTuple):
    """Contribution of each node to the scores, which are means over nodes.

    Attributes:
        accuracy_N: 1 where the class with the most votes is the node's own, else 0. Among equal
            classes the lowest number wins.
        auroc_N: linearized contribution to the macro average of one-vs-rest areas under the ROC
            curve, which is the mean over nodes (ties count half). A node raises the area of its
            own class by the nodes of other classes that have fewer votes for it, and lowers the
            areas of other classes by their nodes with fewer votes (DeLong et al. 1988).
    """

    accuracy_N: Floats
    auroc_N: Floats

    def scores(self, seed: int = 0) -> dict[str, dict[str, float]]:
        """Return ``{"auroc" | "accuracy": {"value", "low", "high"}}``.

        The 95 % intervals are bootstrap intervals over nodes.
        """
        scores = {}
        for name, value_N in {"auroc": self.auroc_N, "accuracy": self.accuracy_N}.items():
            scores[name] = mean_interval(value_N, np.random.default_rng(seed))._asdict()
        return scores

    def units(self) -> UnitScores:
        """Return the scores of the nodes, for paired comparisons of runs."""
        return sample_units(
            np.arange(len(self.auroc_N)), {"auroc": self.auroc_N, "accuracy": self.accuracy_N}
        )


def leave_one_out(embedding_ND: Floats, label_N: NDArray[np.int64]) -> LeaveOneOut:
    """Classify each node by its ``NUM_NEIGHBORS`` nearest other nodes, and return the scores.

    Among equally distant nodes the first ones count.

    As in the authors' code, a vote weighs the inverse of the Euclidean distance. If some distances
    are 0, only those neighbors vote. A class without a neighbor gets no votes.

    Args:
        embedding_ND: embeddings; rows that differ only by rounding of their precision are equal.
        label_N: classes, numbered from 0 without gaps.

    Raises:
        ValueError: for fewer than two classes.
    """
    from scipy.stats import rankdata  # imported here: it takes half a second

    label_N = np.asarray(label_N)
    num_classes = int(label_N.max()) + 1
    if num_classes < 2:
        raise ValueError("all nodes have one class, want two at least")
    given_ND = torch.from_numpy(np.asarray(embedding_ND))
    embedding_ND = without_rounding_noise(given_ND.double(), given_ND.dtype).numpy()
    vote_NC = _votes(embedding_ND, label_N, num_classes)
    auroc_N = np.zeros(len(label_N))
    for label in range(num_classes):
        own = np.flatnonzero(label_N == label)
        others = np.flatnonzero(label_N != label)
        # Rank among all nodes minus rank on its side: the number of nodes below on the other side.
        rank_N = rankdata(vote_NC[:, label])
        share_below = (rank_N[own] - rankdata(vote_NC[own, label])) / len(others)
        share_above = 1 - (rank_N[others] - rankdata(vote_NC[others, label])) / len(own)
        area = share_below.mean()
        auroc_N += area / num_classes
        scale = len(label_N) / num_classes
        auroc_N[own] += scale * (share_below - area) / len(own)
        auroc_N[others] += scale * (share_above - area) / len(others)
    is_right_N = vote_NC.argmax(axis=1) == label_N
    return LeaveOneOut(is_right_N.astype(np.float64), auroc_N)


def _votes(embedding_ND: Floats, label_N: NDArray[np.int64], num_classes: int) -> Floats:
    """Return the share of votes of each class (N, C)."""
    num_nodes = len(label_N)
    square_N = (embedding_ND**2).sum(axis=1)
    squared_NN = np.maximum(square_N[:, None] + square_N - 2 * embedding_ND @ embedding_ND.T, 0)
    np.fill_diagonal(squared_NN, np.inf)
    order_NN = np.argsort(squared_NN, axis=1, kind="stable")
    nearest_Nk = order_NN[:, : min(NUM_NEIGHBORS, num_nodes - 1)]
    # Recomputed: above, equal rows of different norm round to different distances.
    distance_Nk = np.linalg.norm(embedding_ND[:, None] - embedding_ND[nearest_Nk], axis=2)
    is_zero_Nk = distance_Nk == 0
    inverse_Nk = 1 / np.where(is_zero_Nk, 1, distance_Nk)
    weight_Nk = np.where(is_zero_Nk.any(axis=1, keepdims=True), is_zero_Nk, inverse_Nk)
    vote_NC = np.zeros((num_nodes, num_classes))
    np.add.at(vote_NC, (np.arange(num_nodes)[:, None], label_N[nearest_Nk]), weight_Nk)
    return np.asarray(vote_NC / vote_NC.sum(axis=1, keepdims=True))
