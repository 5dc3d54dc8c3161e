"""Leave-one-out classification of nodes by their nearest neighbours (SPPT's zero-shot measure; facts §7).

Shape letters: N nodes, D embedding width, C classes, k neighbours.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from raybio.core.final_report import UnitScores
from raybio.evaluation.unit_scores import sample_units
from raybio.ops.scores import without_rounding_noise
from raybio.ops.significance import Interval, mean_interval

Floats = NDArray[np.float64]


class LeftOut(NamedTuple):
    """What each node adds to the scores, which are the means over nodes.

    Attributes:
        accuracy_N: 1 where the class with the most votes is the node's own; of equal ones the lowest number counts.
        auroc_N: the share of nodes of other classes that have fewer votes for the node's class than it has, half of
            those with equal votes, times N / (C size of the class): its mean is the macro average over classes of the
            area under the ROC curve, one against the rest.
    """

    accuracy_N: Floats
    auroc_N: Floats

    def scores(self, seed: int = 0) -> dict[str, dict[str, float]]:
        """``{"auroc" | "accuracy": {"value", "low", "high"}}`` with 95 % bootstrap intervals over nodes."""
        named: dict[str, Floats] = {"auroc": self.auroc_N, "accuracy": self.accuracy_N}
        return {name: _interval(value_N, seed)._asdict() for name, value_N in named.items()}

    def units(self) -> UnitScores:
        """For comparisons in pairs."""
        return sample_units(
            np.arange(len(self.auroc_N)), {"auroc": self.auroc_N, "accuracy": self.accuracy_N}
        )


def leave_one_out(
    embedding_ND: Floats, label_N: NDArray[np.int64], num_neighbours: int = 3
) -> LeftOut:
    """Each node's class by its nearest other nodes.

    Votes weigh the inverse of the Euclidean distance, as in the authors' code; where some are 0, those count alone.
    A class that no neighbour has gets no vote.

    Args:
        embedding_ND: one row a node; rows that differ by the rounding of their own precision alone are equal.
        label_N: numbers of classes, from 0 without gaps.
        num_neighbours: k; all others if there are fewer. Of equally near ones those that come first.

    Raises:
        ValueError: for fewer than two classes.
    """
    from scipy.stats import rankdata  # half a second to import

    label_N = np.asarray(label_N)
    num_classes = int(label_N.max()) + 1
    if num_classes < 2:
        raise ValueError("all nodes have one class, want two at least")
    made = torch.from_numpy(np.asarray(embedding_ND))
    embedding_ND = without_rounding_noise(made.double(), made.dtype).numpy()
    vote_NC = _votes(embedding_ND, label_N, num_classes, num_neighbours)
    size_C = np.bincount(label_N, minlength=num_classes)
    auroc_N = np.empty(len(label_N))
    for label in range(num_classes):
        own = np.flatnonzero(label_N == label)
        # The rank of a node among all, less its rank among its own class: how many others lie below it.
        below = rankdata(vote_NC[:, label])[own] - rankdata(vote_NC[own, label])
        auroc_N[own] = (
            below / (len(label_N) - len(own)) * len(label_N) / (num_classes * size_C[label])
        )
    return LeftOut((vote_NC.argmax(axis=1) == label_N).astype(np.float64), auroc_N)


def _votes(
    embedding_ND: Floats, label_N: NDArray[np.int64], num_classes: int, num_neighbours: int
) -> Floats:
    square_N = (embedding_ND**2).sum(axis=1)
    squared_NN = np.maximum(square_N[:, None] + square_N - 2 * embedding_ND @ embedding_ND.T, 0)
    np.fill_diagonal(squared_NN, np.inf)
    nearest_Nk = np.argsort(squared_NN, axis=1, kind="stable")[
        :, : min(num_neighbours, len(label_N) - 1)
    ]
    # Anew, since equal rows of different length round to different differences above.
    distance_Nk = np.linalg.norm(embedding_ND[:, None] - embedding_ND[nearest_Nk], axis=2)
    is_zero_Nk = distance_Nk == 0
    weight_Nk = np.where(
        is_zero_Nk.any(axis=1, keepdims=True), is_zero_Nk, 1 / np.where(is_zero_Nk, 1, distance_Nk)
    )
    vote_NC = np.zeros((len(label_N), num_classes))
    np.add.at(vote_NC, (np.arange(len(label_N))[:, None], label_N[nearest_Nk]), weight_Nk)
    return np.asarray(vote_NC / vote_NC.sum(axis=1, keepdims=True))


def _interval(value_N: Floats, seed: int) -> Interval:
    return mean_interval(value_N, np.random.default_rng(seed))
