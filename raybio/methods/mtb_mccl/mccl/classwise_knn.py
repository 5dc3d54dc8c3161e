"""Classwise k-nearest-neighbor scores (Zhou et al., 2023, Section 3.4).

A query's score for a class is its mean cosine to the k nearest members of that class. This would
take one faiss index per class, and faiss's exact indices compute the same matrix products. So this
module uses matrix products, and the reference set may stay on the GPU, divided over the workers.

Shape letters: Q queries, N rows of the reference set, R classes, D width, K neighbors kept per
class, B queries of a block, C members at once, X members of a class.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from raybio.core.interfaces import Collective
from raybio.ops.nearest import largest
from raybio.ops.scores import check_finite
from raybio.ops.similarity import matmul, normalize, scores_at_once

_MAX_QUERIES = 1024
"""Queries whose neighbors are exchanged with other workers at once."""

_QUERIES_AT_ONCE = 128
"""Queries scored at once, few enough for several thousand members next to them."""


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
    _check(query_QD, reference_ND, label_NR, min(ks))
    reference = ReferenceSet.of(reference_ND, label_NR)
    means: dict[int, list[Tensor]] = {k: [] for k in ks}
    # Blocks must be equal on all workers, so their size does not depend on the reference set.
    for query_BD in torch.split(query_QD, _MAX_QUERIES):
        neighbors = reference.nearest(query_BD, max(ks))
        if collective is not None:
            gathered = collective.all_gather(neighbors.cosine_QRK).row_MD
            by_worker = gathered.view(collective.world, *neighbors.cosine_QRK.shape)
            first, *others = map(ClassNeighbors, by_worker)
            neighbors = first.merge(*others)
        for k, mean in means.items():
            # Neighbors are sorted, so the first k are the k nearest.
            mean.append(ClassNeighbors(neighbors.cosine_QRK[:, :, :k]).mean())
    return {k: torch.cat(mean) for k, mean in means.items()}


@dataclass(frozen=True)
class ReferenceSet:
    """Embeddings with known labels, ready for any number of queries.

    Attributes:
        unit_ND: rows of length 1.
        members_R: the row numbers (X,) of each class.
    """

    unit_ND: Tensor
    members_R: Sequence[Tensor]

    @classmethod
    def of(cls, reference_ND: Tensor, label_NR: Tensor) -> "ReferenceSet":
        """Arguments as ``classwise_means``."""
        members_R = [torch.nonzero(is_member_N)[:, 0] for is_member_N in label_NR.T]
        return cls(normalize(reference_ND.detach()), members_R)

    def nearest(self, query_QD: Tensor, k: int) -> ClassNeighbors:
        """Return the nearest min(k, members) of each class: Q x R x k numbers."""
        query_QD = normalize(query_QD.detach())
        max_members = scores_at_once(query_QD.device) // _QUERIES_AT_ONCE
        cosine_QRK = query_QD.new_full((len(query_QD), len(self.members_R), k), -torch.inf)
        for number, member_X in enumerate(self.members_R):
            for member_C in torch.split(member_X, max(k, max_members)):
                unit_DC = self.unit_ND[member_C].T
                blocks = zip(
                    query_QD.split(_QUERIES_AT_ONCE),
                    cosine_QRK[:, number].split(_QUERIES_AT_ONCE),
                    strict=True,
                )
                for query_BD, kept_BK in blocks:
                    best_BK, _ = largest(matmul(query_BD, unit_DC), k)
                    kept_BK.copy_(torch.cat([kept_BK, best_BK], dim=1).topk(k, dim=1).values)
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
