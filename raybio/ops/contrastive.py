"""InfoNCE: each anchor's positive against all other candidates, in blocks of anchors.

Shape letters: N anchors, M candidates, D embedding width, B anchors of a block.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from raybio.ops.similarity import matmul, normalize, scores_at_once


def info_nce(
    anchor_ND: Tensor,
    candidate_MD: Tensor,
    positive_index_N: Tensor,
    *,
    temperature: float | Tensor,
    ignore_NM: Tensor | None = None,
    block_rows: int | None = None,
) -> Tensor:
    """Return InfoNCE with cosines (van den Oord et al., 2018), averaged over anchors.

    An anchor's loss is -log softmax(cos(anchor, candidate) / temperature) at its positive. The
    (N, M) scores never exist at once: each block of anchors is scored and its gradient is computed
    in the forward pass. That costs the three matrix products of the plain loss, and no memory that
    grows with N x M. Cheng et al., 2024 ("Inf-CL") score twice instead. The loss can be
    differentiated once.

    Args:
        anchor_ND: anchors.
        candidate_MD: candidates; with several workers, the candidates of all workers.
        positive_index_N: int64 index of each anchor's positive among the candidates.
        temperature: > 0; may be a learned scalar.
        ignore_NM: bool; True excludes a candidate from an anchor's sum. The positive is never
            excluded.
        block_rows: anchors scored at once; None: chosen by the number of candidates.

    Raises:
        ValueError: if the temperature is not positive, or shapes or positive indices do not fit the
            candidates.
    """
    num_anchors = len(anchor_ND)
    num_candidates = len(candidate_MD)
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
    known = values_on_host(positive_index_N)
    if known is not None and not (known.min() >= 0 and known.max() < num_candidates):
        raise ValueError(
            f"positive_index_N spans [{known.min()}, {known.max()}], want [0, {num_candidates})"
        )
    rows = block_rows or max(1, scores_at_once(anchor_ND.device) // num_candidates)
    query_ND = normalize(anchor_ND) / temperature
    loss: Tensor = _BlockedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        query_ND, normalize(candidate_MD), positive_index_N, ignore_NM, rows
    )
    return loss


def equal_rows(row_ND: Tensor) -> Tensor:
    """Return N equal rows (N, 1), on which a contrastive loss takes its chance level.

    If all cosines are equal, the loss of an anchor is the logarithm of the number of its
    candidates: ln M for ``info_nce`` with M candidates.
    """
    return row_ND.new_ones(len(row_ND), 1)


def check_temperature(temperature: float | Tensor) -> None:
    """Check that a temperature is positive; a tensor is checked on a CPU only.

    Raises:
        ValueError: with its value, if it is not.
    """
    value = values_on_host(temperature) if isinstance(temperature, Tensor) else temperature
    if value is not None and not value > 0:
        raise ValueError(f"temperature is {value}, want a number > 0")


def values_on_host(tensor: Tensor) -> np.ndarray | None:
    """Return the values of a tensor on a CPU, for checks; None on another device.

    Reading values from another device would make the host wait for it.
    """
    return tensor.detach().numpy() if tensor.device.type == "cpu" else None


class _BlockedCrossEntropy(torch.autograd.Function):
    """Mean cross entropy of ``query @ key.T``; the forward pass also computes the gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        query_ND: Tensor,
        key_MD: Tensor,
        positive_N: Tensor,
        ignore_NM: Tensor | None,
        block_rows: int,
    ) -> Tensor:
        """Return the loss; keep the gradients of queries and keys for ``backward``."""
        wants_query, wants_key = ctx.needs_input_grad[:2]
        query_gradient_ND = torch.empty_like(query_ND) if wants_query else None
        key_gradient_MD = torch.zeros_like(key_MD) if wants_key else None
        total = query_ND.new_zeros(())
        for start in range(0, len(query_ND), block_rows):
            rows = slice(start, start + block_rows)
            query_BD = query_ND[rows]
            positive_B1 = positive_N[rows, None]
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
            # The softmax is weight / sum; dividing the (B, D) side saves a pass over (B, M).
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
        """Return the kept gradients, times the gradient of the loss."""
        query_gradient_ND, key_gradient_MD = ctx.saved_tensors
        scale = gradient / ctx.num_anchors
        return (
            None if query_gradient_ND is None else query_gradient_ND * scale,
            None if key_gradient_MD is None else key_gradient_MD * scale,
            None,
            None,
            None,
        )
