"""Contrast with any number of positives of an anchor: each against the negatives alone, not against each other.

N anchors, M candidates, of which the anchors are rows, A anchors with a positive, D width, B anchors of a block.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from raybio.ops.similarity import matmul, normalise

_ENTRIES_AT_ONCE = 1 << 20  # scores of a block stay in the cache


Relate = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Rows (B,) of the candidates -> which candidates are positives of each, and which negatives: bool (B, M)."""


class ContrastSum(NamedTuple):
    """The terms of this worker's anchors, added up, and how many they are (int64).

    Both add up over workers to those of one worker with all rows, and so do their gradients. A worker's share of the
    mean is ``total / collective.all_sum(num_terms).clamp(min=1)``.
    """

    total: Tensor
    num_terms: Tensor

    def mean(self) -> Tensor:
        """The mean of one worker alone; 0 if there are no terms."""
        return self.total / self.num_terms.clamp(min=1)


def contrast_sum(
    pair_ND: Tensor,
    other_MD: Tensor,
    relate: Relate,
    has_positive_N: Tensor,
    offset: int,
    temperature: float | Tensor,
    block_rows: int | None,
    *,
    by_anchor: bool,
) -> ContrastSum:
    """Sum over anchors i and positives j of -log(e^s_ij / (e^s_ij + sum over negatives k of e^s_ik)), s = cos / tau.

    In blocks, whose gradient is taken on the spot as in ``info_nce``. It can be differentiated once.

    Args:
        pair_ND: anchors.
        other_MD: candidates; the anchors are its rows from ``offset`` on, and no candidates of themselves.
        relate: tells positives and negatives.
        has_positive_N: bool; anchors without a positive add nothing, and the others alone are scored.
        offset: of the anchors among the candidates.
        temperature: tau > 0; may be a learned scalar.
        block_rows: anchors scored at once; None chooses.
        by_anchor: a term is an anchor's mean over its positives, not each of them.

    Raises:
        ValueError: for a temperature that is not positive.
    """
    check_temperature(temperature)
    used_A = torch.nonzero(has_positive_N)[:, 0]
    rows = block_rows or max(1, _ENTRIES_AT_ONCE // max(len(other_MD), 1))
    query_AD = normalise(pair_ND)[used_A] / temperature
    return ContrastSum(
        *_BlockedContrast.apply(  # type: ignore[no-untyped-call]
            query_AD, normalise(other_MD), used_A + offset, relate, by_anchor, rows
        )
    )


def with_others(
    pair_ND: Tensor,
    code_N: tuple[Tensor, ...],
    other_MD: Tensor | None,
    code_M: tuple[Tensor | None, ...],
    offset: int,
) -> tuple[Tensor, ...]:
    """The candidates and their ids or labels: those that were given, or the anchors' own.

    Raises:
        ValueError: if some of them were not given, or the anchors are not the rows from ``offset`` on.
    """
    num_given = sum(given is not None for given in (other_MD, *code_M))
    if num_given not in (0, 1 + len(code_M)):
        raise ValueError(
            "the others' rows and what is known of them go together; give all of them or none"
        )
    every: tuple[Tensor, ...] = (pair_ND, *code_N)
    if num_given:
        every = tuple(given for given in (other_MD, *code_M) if given is not None)
    num_anchors, num_others = len(pair_ND), len(every[0])
    if not 0 <= offset <= num_others - num_anchors:
        raise ValueError(
            f"offset is {offset}, want it in [0, {num_others - num_anchors}]: anchors are rows of other_MD"
        )
    for code, other in zip(code_N, every[1:], strict=True):
        if len(code) != num_anchors or len(other) != num_others:
            raise ValueError(
                f"{len(code)} and {len(other)} ids or labels for {num_anchors} anchors and {num_others} others; want "
                "one each"
            )
        if not torch.equal(other[offset : offset + num_anchors], code):
            raise ValueError(
                f"the anchors' ids or labels are not those of the others from row {offset} on; gather pairs and labels "
                "alike"
            )
    return every


def by_entity_pair(id_M: Tensor, type_M: Tensor, *, type_filter: bool) -> tuple[Relate, Tensor]:
    """What tells the occurrences of the same entity pair from those of others, and which rows have another such one.

    Args:
        id_M: int64, the same for occurrences of the same entity pair; -1: the positive of none, not even of another -1.
        type_M: int64, the same for the same (subject type, object type).
        type_filter: negatives are of another type; False: they are all other entity pairs.
    """

    def relate(row_B: Tensor) -> tuple[Tensor, Tensor]:
        id_B1 = id_M[row_B, None]
        positive_BM = (id_B1 == id_M) & (id_B1 >= 0)
        return positive_BM, (
            type_M[row_B, None] != type_M
        ) & ~positive_BM if type_filter else ~positive_BM

    _, place_M, num_I = torch.unique(id_M, return_inverse=True, return_counts=True)
    return relate, (num_I[place_M] > 1) & (id_M >= 0)


def check_temperature(temperature: float | Tensor) -> None:
    """Refuse a temperature that is not positive.

    Raises:
        ValueError: naming it.
    """
    value = temperature.item() if isinstance(temperature, Tensor) else temperature
    if not value > 0:
        raise ValueError(f"temperature is {value}, want a number > 0")


class _BlockedContrast(torch.autograd.Function):
    """Sum of log(1 + exp(n_i - s_ij)), n_i = log of the sum over negatives; its gradient is made along with it."""

    @staticmethod
    def forward(
        ctx: Any,
        query_AD: Tensor,
        key_MD: Tensor,
        own_A: Tensor,
        relate: Relate,
        by_anchor: bool,
        block_rows: int,
    ) -> tuple[Tensor, Tensor]:
        """The sum and its number of terms; the gradients by queries and keys are kept for ``backward``."""
        wants_query, wants_key = ctx.needs_input_grad[:2]
        query_gradient_AD = torch.empty_like(query_AD) if wants_query else None
        key_gradient_MD = torch.zeros_like(key_MD) if wants_key else None
        total, num_terms = query_AD.new_zeros(()), own_A.new_zeros(())
        for start in range(0, len(query_AD), block_rows):
            rows = slice(start, start + block_rows)
            positive_BM, negative_BM = relate(own_A[rows])
            positive_BM.scatter_(1, own_A[rows, None], False)
            negative_BM.scatter_(1, own_A[rows, None], False)
            score_BM = matmul(query_AD[rows], key_MD.T)
            push_BM = score_BM.masked_fill(~negative_BM, -torch.inf)
            all_push_B1 = push_BM.logsumexp(1, keepdim=True)
            excess_BM = (all_push_B1 - score_BM).masked_fill_(~positive_BM, -torch.inf)
            num_B1 = positive_BM.sum(1, keepdim=True)
            num_terms += (num_B1 > 0).sum() if by_anchor else num_B1.sum()
            weight_B1 = (
                num_B1.clamp(min=1).to(score_BM.dtype).reciprocal()
                if by_anchor
                else score_BM.new_ones(())
            )
            total += (torch.logaddexp(excess_BM, excess_BM.new_zeros(())) * weight_B1).sum()
            if not (wants_query or wants_key):
                continue
            pull_BM = excess_BM.sigmoid_().mul_(weight_B1)
            # Without negatives the pull is 0, and -inf - -inf must not come up.
            push_BM.sub_(all_push_B1.clamp(min=torch.finfo(score_BM.dtype).min)).exp_()
            gradient_BM = push_BM.mul_(pull_BM.sum(1, keepdim=True)).sub_(pull_BM)
            if query_gradient_AD is not None:
                torch.mm(gradient_BM, key_MD, out=query_gradient_AD[rows])
            if key_gradient_MD is not None:
                key_gradient_MD.addmm_(gradient_BM.T, query_AD[rows])
        ctx.save_for_backward(query_gradient_AD, key_gradient_MD)
        ctx.mark_non_differentiable(num_terms)
        return total, num_terms

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(
        ctx: Any, gradient: Tensor, _: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        """The kept gradients, times that of the sum."""
        query_gradient_AD, key_gradient_MD = ctx.saved_tensors
        return (
            None if query_gradient_AD is None else query_gradient_AD * gradient,
            None if key_gradient_MD is None else key_gradient_MD * gradient,
            None,
            None,
            None,
            None,
        )
