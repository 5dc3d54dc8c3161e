"""InfoNCE: each anchor's positive against all other candidates, in blocks of anchors.

Shape letters: N anchors, M candidates, D embedding width, B anchors of a block.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from raybio.ops.similarity import matmul, normalise

_ENTRIES_AT_ONCE = 1 << 20  # scores of a block stay in the cache


def info_nce(
    anchor_ND: Tensor,
    candidate_MD: Tensor,
    positive_index_N: Tensor,
    *,
    temperature: float | Tensor,
    ignore_NM: Tensor | None = None,
    block_rows: int | None = None,
) -> Tensor:
    """Mean over anchors of -log softmax(cos(anchor, candidate) / temperature) at the anchor's positive.

    van den Oord et al., 2018, with cosines. The (N, M) scores never exist at once: blocks of rows are scored and their
    gradient is taken on the spot, which costs the three matrix products of the plain loss and no memory that grows
    with N x M (as Cheng et al., 2024, "Inf-CL", but without their second scoring in the backward pass). It can be
    differentiated once.

    Args:
        anchor_ND: anchors.
        candidate_MD: candidates, on several workers those of all of them.
        positive_index_N: int64 index of each anchor's positive among the candidates.
        temperature: > 0; may be a learned scalar.
        ignore_NM: bool; True leaves a candidate out of an anchor's sum. The positive always stays.
        block_rows: anchors scored at once; None chooses.

    Raises:
        ValueError: for a temperature that is not positive, or shapes or positives that do not fit the candidates.
    """
    num_anchors, num_candidates = len(anchor_ND), len(candidate_MD)
    check_temperature(temperature)
    if positive_index_N.shape != (num_anchors,):
        raise ValueError(
            f"positive_index_N has shape {tuple(positive_index_N.shape)}, want ({num_anchors},)"
        )
    if ignore_NM is not None and ignore_NM.shape != (num_anchors, num_candidates):
        raise ValueError(
            f"ignore_NM has shape {tuple(ignore_NM.shape)}, want ({num_anchors}, {num_candidates})"
        )
    if num_anchors == 0:
        return (anchor_ND.sum() + candidate_MD.sum()) * 0
    low, high = int(positive_index_N.min()), int(positive_index_N.max())
    if low < 0 or high >= num_candidates:
        raise ValueError(f"positive_index_N spans [{low}, {high}], want [0, {num_candidates})")
    rows = block_rows or max(1, _ENTRIES_AT_ONCE // num_candidates)
    query_ND = normalise(anchor_ND) / temperature
    loss: Tensor = _BlockedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        query_ND, normalise(candidate_MD), positive_index_N, ignore_NM, rows
    )
    return loss


def equal_rows(row_ND: Tensor) -> Tensor:
    """Return as many rows (N, 1), all equal: what a contrastive loss makes of them is its chance level.

    Where all cosines are equal, the loss of an anchor is the logarithm of the number of its candidates: ln M for
    ``info_nce`` with M of them.
    """
    return row_ND.new_ones(len(row_ND), 1)


def check_temperature(temperature: float | Tensor) -> None:
    """Refuse a temperature that is not positive.

    Raises:
        ValueError: naming it.
    """
    value = temperature.item() if isinstance(temperature, Tensor) else temperature
    if not value > 0:
        raise ValueError(f"temperature is {value}, want a number > 0")


class _BlockedCrossEntropy(torch.autograd.Function):
    """Mean cross entropy of ``query @ key.T`` whose gradient is made, block by block, along with the loss."""

    @staticmethod
    def forward(
        ctx: Any,
        query_ND: Tensor,
        key_MD: Tensor,
        positive_N: Tensor,
        ignore_NM: Tensor | None,
        block_rows: int,
    ) -> Tensor:
        """The loss; the gradients by queries and keys are kept for ``backward``."""
        wants_query, wants_key = ctx.needs_input_grad[:2]
        query_gradient_ND = torch.empty_like(query_ND) if wants_query else None
        key_gradient_MD = torch.zeros_like(key_MD) if wants_key else None
        total = query_ND.new_zeros(())
        for start in range(0, len(query_ND), block_rows):
            rows = slice(start, start + block_rows)
            query_BD, positive_B1 = query_ND[rows], positive_N[rows, None]
            weight_BM = matmul(query_BD, key_MD.T)
            score_B1 = weight_BM.gather(1, positive_B1)
            if ignore_NM is not None:
                weight_BM.masked_fill_(ignore_NM[rows], -torch.inf).scatter_(
                    1, positive_B1, score_B1
                )
            largest_B1 = weight_BM.amax(1, keepdim=True)
            weight_BM.sub_(largest_B1).exp_()
            sum_B1 = weight_BM.sum(1, keepdim=True)
            total += (sum_B1.log() + largest_B1 - score_B1).sum()
            # The softmax is weight / sum; dividing the narrow side spares a pass over the wide one.
            if query_gradient_ND is not None:
                torch.mm(weight_BM, key_MD, out=query_gradient_ND[rows])
                query_gradient_ND[rows].div_(sum_B1).sub_(key_MD[positive_B1[:, 0]])
            if key_gradient_MD is not None:
                key_gradient_MD.addmm_(weight_BM.T, query_BD / sum_B1)
                key_gradient_MD.index_add_(0, positive_B1[:, 0], query_BD, alpha=-1)
        ctx.save_for_backward(query_gradient_ND, key_gradient_MD)
        ctx.num_anchors = len(query_ND)
        return total / len(query_ND)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        """The kept gradients, times that of the loss."""
        query_gradient_ND, key_gradient_MD = ctx.saved_tensors
        scale = gradient / ctx.num_anchors
        return (
            None if query_gradient_ND is None else query_gradient_ND * scale,
            None if key_gradient_MD is None else key_gradient_MD * scale,
            None,
            None,
            None,
        )
