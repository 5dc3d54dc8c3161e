"""What the nearest neighbours say: how near those of each class are (facts §6), and what most of them are.

Products of matrices and no index of faiss: the nearest of *each* class are wanted, which would take an index a class,
and faiss's exact ones compute the same products. So the bank may stay on the GPU, divided over the workers.

Q queries, N rows of a bank, R classes, D width, K neighbours kept of a class, B queries of a block, C members at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from raybio.core.interfaces import Collective
from raybio.ops.scores import check_finite
from raybio.ops.similarity import matmul, normalise

_ENTRIES_AT_ONCE = {"cpu": 1 << 20, "cuda": 1 << 25}


_MOST_QUERIES = 1024


@dataclass(frozen=True)
class Neighbours:
    """The nearest members of each class, found in one bank or in parts of it.

    Attributes:
        cosine_QRK: cosines of the nearest min(K, members), descending; -inf for each that a class lacks.
    """

    cosine_QRK: Tensor

    def merge(self, *others: "Neighbours") -> "Neighbours":
        """Those of several parts of a bank together, for the same queries: exactly what one bank would give."""
        every_QRX = torch.cat([self.cosine_QRK, *(other.cosine_QRK for other in others)], dim=2)
        return Neighbours(every_QRX.topk(self.cosine_QRK.shape[2], dim=2).values)

    def mean(self) -> Tensor:
        """Mean cosine (Q, R) of the neighbours that there are; -inf for a class without members."""
        is_there_QRK = self.cosine_QRK > -torch.inf
        num_QR = is_there_QRK.sum(2)
        mean_QR = torch.where(is_there_QRK, self.cosine_QRK, 0.0).sum(2) / num_QR.clamp(min=1)
        return mean_QR.masked_fill(num_QR == 0, -torch.inf)


def classwise_knn(
    query_QD: Tensor,
    bank_ND: Tensor,
    label_NR: Tensor,
    *,
    k: int,
    collective: Collective | None = None,
) -> Tensor:
    """Mean cosine (Q, R) of each query to the nearest min(k, members) of each class; -inf for one without members.

    A bank row with several labels is a member of each class. Exact; never more than a block of queries against a block
    of members is scored at once. Without gradient. Add the classes' biases to the result to predict.

    Args:
        query_QD: what is asked.
        bank_ND: the known pairs.
        label_NR: bool.
        k: how many neighbours of a class count, >= 1.
        collective: workers that hold a part each of the bank, empty parts included, and ask the same queries; every
            worker gets the result for the whole bank.

    Raises:
        ValueError: if k < 1, shapes do not fit together, or embeddings are not finite.
    """
    return classwise_means(query_QD, bank_ND, label_NR, ks=(k,), collective=collective)[k]


def classwise_means(
    query_QD: Tensor,
    bank_ND: Tensor,
    label_NR: Tensor,
    *,
    ks: Sequence[int],
    collective: Collective | None = None,
) -> dict[int, Tensor]:
    """``classwise_knn`` for several numbers of neighbours at once; never more than Q x R numbers each are held.

    Raises:
        ValueError: as ``classwise_knn``.
    """
    means: dict[int, list[Tensor]] = {k: [] for k in ks}
    # Blocks must be alike on all workers, so their size does not depend on the bank.
    for query_BD in torch.split(query_QD, _MOST_QUERIES):
        near = nearest_members(query_BD, bank_ND, label_NR, k=max(ks))
        if collective is not None:
            gathered = collective.all_gather(near.cosine_QRK).row_MD
            first, *others = map(
                Neighbours, gathered.view(collective.world, *near.cosine_QRK.shape)
            )
            near = first.merge(*others)
        for k, mean in means.items():
            # Neighbours are sorted: those of a smaller number are the first.
            mean.append(Neighbours(near.cosine_QRK[:, :, :k]).mean())
    return {k: torch.cat(mean) for k, mean in means.items()}


def nearest_members(query_QD: Tensor, bank_ND: Tensor, label_NR: Tensor, *, k: int) -> Neighbours:
    """The nearest min(k, members) of each class; holds Q x R x k numbers. Arguments as for ``classwise_knn``."""
    _check(query_QD, bank_ND, label_NR, k)
    query_QD, bank_ND = normalise(query_QD.detach()), normalise(bank_ND.detach())
    num_queries, num_classes = len(query_QD), label_NR.shape[1]
    at_once = _ENTRIES_AT_ONCE.get(query_QD.device.type, _ENTRIES_AT_ONCE["cuda"])
    block_rows = max(1, min(num_queries, _MOST_QUERIES))
    cosine_QRK = query_QD.new_full((num_queries, num_classes, k), -torch.inf)
    for number in range(num_classes):
        member_X = torch.nonzero(label_NR[:, number])[:, 0]
        for member_C in (
            torch.split(member_X, max(k, at_once // block_rows)) if len(member_X) else ()
        ):
            member_CD = bank_ND[member_C]
            for start in range(0, num_queries, block_rows):
                kept_BK = cosine_QRK[start : start + block_rows, number]
                score_BC = matmul(query_QD[start : start + block_rows], member_CD.T)
                best_BK = score_BC.topk(min(k, len(member_C)), dim=1).values
                kept_BK.copy_(torch.cat([kept_BK, best_BK], dim=1).topk(k, dim=1).values)
    return Neighbours(cosine_QRK)


def class_centroids(bank_ND: Tensor, label_NR: Tensor) -> Tensor:
    """Mean direction (R, D) of the rows of each class, each row counted at length 1; zero for a class without rows.

    The query's cosine to it decides in a nearest centroid classifier: one cluster for a class.
    """
    _check(bank_ND, bank_ND, label_NR, 1)
    bank_ND = normalise(bank_ND.detach())
    member_NR = label_NR.to(bank_ND.dtype)
    return matmul(member_NR.T, bank_ND) / member_NR.sum(0).clamp(min=1)[:, None]


def majority_vote(label_QK: Tensor, num_classes: int) -> Tensor:
    """The class (Q,) that most of each query's K neighbours have; of several, that of the nearest neighbour among them.

    Every neighbour has one vote, however far it is. Where classes have equally many, scikit-learn's
    ``KNeighborsClassifier`` takes the smallest label instead.

    Args:
        label_QK: classes of the neighbours, the nearest first, int64.
        num_classes: R.

    Raises:
        ValueError: without neighbours, or for labels that are not in [0, R).
    """
    if label_QK.ndim != 2 or label_QK.shape[1] == 0 or label_QK.dtype != torch.int64:
        raise ValueError(
            f"labels are {label_QK.dtype} of shape {tuple(label_QK.shape)}, want torch.int64 (Q, K), at least 1 each"
        )
    if len(label_QK) and not 0 <= int(label_QK.min()) <= int(label_QK.max()) < num_classes:
        raise ValueError(
            f"labels span [{int(label_QK.min())}, {int(label_QK.max())}], want [0, {num_classes})"
        )
    num_queries, k = label_QK.shape
    place_QK = torch.arange(k, device=label_QK.device).expand(num_queries, k)
    votes_QR = label_QK.new_zeros(num_queries, num_classes).scatter_add_(
        1, label_QK, torch.ones_like(label_QK)
    )
    first_QR = label_QK.new_full((num_queries, num_classes), k).scatter_reduce_(
        1, label_QK, place_QK, "amin"
    )
    # No two classes that have votes begin at one place.
    return (votes_QR * (k + 1) - first_QR).argmax(1)


def _check(query_QD: Tensor, bank_ND: Tensor, label_NR: Tensor, k: int) -> None:
    if k < 1:
        raise ValueError(f"k is {k}, want at least 1 neighbour")
    if query_QD.shape[1:] != bank_ND.shape[1:]:
        raise ValueError(
            f"queries are {query_QD.shape[1]} wide, the bank {bank_ND.shape[1]}; want one encoder"
        )
    if label_NR.ndim != 2 or len(label_NR) != len(bank_ND) or label_NR.dtype != torch.bool:
        raise ValueError(
            f"labels are {label_NR.dtype} of shape {tuple(label_NR.shape)}, want torch.bool, a row for each of the "
            f"{len(bank_ND)} rows of the bank"
        )
    check_finite(query_QD, "queries")
    check_finite(bank_ND, "rows of the bank")
