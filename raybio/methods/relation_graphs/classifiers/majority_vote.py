"""Majority vote of nearest neighbors.

Shape letters: Q queries, K neighbors of a query, R classes.
"""

import torch
from torch import Tensor


def majority_vote(label_QK: Tensor, num_classes: int) -> Tensor:
    """Return each query's most frequent neighbor class (Q,); the nearest neighbor breaks ties.

    Every neighbor has one vote, whatever its distance. On a tie scikit-learn's
    ``KNeighborsClassifier`` takes the smallest label instead.

    Args:
        label_QK: classes of the neighbors, the nearest first, int64.
        num_classes: R.

    Raises:
        ValueError: without neighbors, or for labels outside [0, R).
    """
    if label_QK.ndim != 2 or label_QK.shape[1] == 0 or label_QK.dtype != torch.int64:
        raise ValueError(
            f"labels are {label_QK.dtype} of shape {tuple(label_QK.shape)}, want torch.int64 "
            "(Q, K), at least 1 each"
        )
    if len(label_QK) and not 0 <= int(label_QK.min()) <= int(label_QK.max()) < num_classes:
        raise ValueError(
            f"labels span [{int(label_QK.min())}, {int(label_QK.max())}], want [0, {num_classes})"
        )
    num_queries, k = label_QK.shape
    position_QK = torch.arange(k, device=label_QK.device).expand(num_queries, k)
    votes_QR = label_QK.new_zeros(num_queries, num_classes).scatter_add_(
        1, label_QK, torch.ones_like(label_QK)
    )
    first_QR = label_QK.new_full((num_queries, num_classes), k).scatter_reduce_(
        1, label_QK, position_QK, "amin"
    )
    # Two classes with votes never share their first position, so the maximum is unique.
    return (votes_QR * (k + 1) - first_QR).argmax(1)
