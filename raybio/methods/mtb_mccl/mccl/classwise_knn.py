"""Classwise k-nearest-neighbor scores (Zhou et al., 2023, Section 3.4).

A query's score for a class is its mean cosine to the k nearest members of that class. This would
take one faiss index per class, and faiss's exact indices compute the same matrix products. So this
module uses matrix products, and the reference set may stay on the GPU, divided over the workers.

Shape letters: Q queries, N rows of the reference set, R classes, D width, K neighbors kept per
class, B queries of a block, C members at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from raybio.core.interfaces import Collective
from raybio.ops.scores import check_finite
from raybio.ops.similarity import matmul, normalize, scores_at_once

_MAX_QUERIES = 1024


@dataclass(frozen=True)
class ClassNeighbors:
    """The nearest members of each class in a reference set, or in a part of it.

    Attributes:
        cosine_QRK: cosines of the nearest min(K, members), descending; -inf for missing members.
    """

    cosine_QRK: Tensor

    def merge(self, *others: "ClassNeighbors") -> "ClassNeighbors":
        """Merge the neighbors in several parts of a reference set into those in the whole set."""
        all_QRX = torch.cat([self.cosine_QRK, *(other.cosine_QRK for other in others)], dim=2)
        return ClassNeighbors(all_QRX.topk(self.cosine_QRK.shape[2], dim=2).values)

    def mean(self) -> Tensor:
        """Return the mean cosine (Q, R) of the existing neighbors; -inf without members."""
        exists_QRK = self.cosine_QRK > -torch.inf
        num_QR = exists_QRK.sum(2)
        mean_QR = torch.where(exists_QRK, self.cosine_QRK, 0.0).sum(2) / num_QR.clamp(min=1)
        return mean_QR.masked_fill(num_QR == 0, -torch.inf)


def classwise_means(
    query_QD: Tensor,
    reference_ND: Tensor,
    label_NR: Tensor,
    *,
    ks: Sequence[int],
    collective: Collective | None = None,
) -> dict[int, Tensor]:
    """Return each query's mean cosine (Q, R) to the min(k, members) nearest of a class, for each k.

    A class without members has the score -inf.

    A reference row with several labels is a member of each class. Results are exact and without
    gradient. Only a block of queries is scored against a block of members at once. To predict, add
    the classes' biases to the result.

    Args:
        query_QD: embeddings to classify.
        reference_ND: embeddings with known labels.
        label_NR: their labels, bool.
        ks: numbers of neighbors per class, >= 1.
        collective: workers that each hold a part of the reference set, empty parts included, and
            the same queries; every worker gets the result for the whole set.

    Raises:
        ValueError: if a k < 1, shapes do not fit together, or embeddings are not finite.
    """
    means: dict[int, list[Tensor]] = {k: [] for k in ks}
    # Blocks must be equal on all workers, so their size does not depend on the reference set.
    for query_BD in torch.split(query_QD, _MAX_QUERIES):
        neighbors = nearest_members(query_BD, reference_ND, label_NR, k=max(ks))
        if collective is not None:
            gathered = collective.all_gather(neighbors.cosine_QRK).row_MD
            by_worker = gathered.view(collective.world, *neighbors.cosine_QRK.shape)
            first, *others = map(ClassNeighbors, by_worker)
            neighbors = first.merge(*others)
        for k, mean in means.items():
            # Neighbors are sorted, so the first k are the k nearest.
            mean.append(ClassNeighbors(neighbors.cosine_QRK[:, :, :k]).mean())
    return {k: torch.cat(mean) for k, mean in means.items()}


def nearest_members(
    query_QD: Tensor, reference_ND: Tensor, label_NR: Tensor, *, k: int
) -> ClassNeighbors:
    """Return the nearest min(k, members) of each class: Q x R x k numbers.

    Arguments as ``classwise_means``.
    """
    _check(query_QD, reference_ND, label_NR, k)
    query_QD = normalize(query_QD.detach())
    reference_ND = normalize(reference_ND.detach())
    num_queries = len(query_QD)
    num_classes = label_NR.shape[1]
    max_entries = scores_at_once(query_QD.device)
    cosine_QRK = query_QD.new_full((num_queries, num_classes, k), -torch.inf)
    for number in range(num_classes):
        member_X = torch.nonzero(label_NR[:, number])[:, 0]
        if not len(member_X):
            continue
        for member_C in torch.split(member_X, max(k, max_entries // max(1, num_queries))):
            kept_QK = cosine_QRK[:, number]
            score_QC = matmul(query_QD, reference_ND[member_C].T)
            best_QK = score_QC.topk(min(k, len(member_C)), dim=1).values
            kept_QK.copy_(torch.cat([kept_QK, best_QK], dim=1).topk(k, dim=1).values)
    return ClassNeighbors(cosine_QRK)


def class_centroids(reference_ND: Tensor, label_NR: Tensor) -> Tensor:
    """Return the mean (R, D) of each class's rows after scaling them to length 1; 0 without rows.

    A nearest centroid classifier scores a query by its cosine to each centroid.
    """
    _check(reference_ND, reference_ND, label_NR, 1)
    reference_ND = normalize(reference_ND.detach())
    member_NR = label_NR.to(reference_ND.dtype)
    return matmul(member_NR.T, reference_ND) / member_NR.sum(0).clamp(min=1)[:, None]


def _check(query_QD: Tensor, reference_ND: Tensor, label_NR: Tensor, k: int) -> None:
    if k < 1:
        raise ValueError(f"k is {k}, want at least 1 neighbor")
    if query_QD.shape[1:] != reference_ND.shape[1:]:
        raise ValueError(
            f"queries are {query_QD.shape[1]} wide, reference rows {reference_ND.shape[1]}; want "
            "one encoder"
        )
    if label_NR.ndim != 2 or len(label_NR) != len(reference_ND) or label_NR.dtype != torch.bool:
        raise ValueError(
            f"labels are {label_NR.dtype} of shape {tuple(label_NR.shape)}, want torch.bool, a row "
            f"for each of the {len(reference_ND)} rows of the reference set"
        )
    check_finite(query_QD, "queries")
    check_finite(reference_ND, "reference rows")
