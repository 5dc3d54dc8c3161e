"""Contrastive losses with any number of positives per anchor.

Each positive is contrasted only with the negatives, not with the other positives. A term is an
ordered pair (i, j) of an anchor and one of its positives; with cosines s and temperature tau it is

    -log( e^(s_ij / tau) / (e^(s_ij / tau) + sum over negatives k of i of e^(s_ik / tau)) )

which is L_rel of Zhou et al., 2023 (Section 3.2). The losses differ in their positives and
negatives:

    matching_the_blanks    same entity pair; other entity pairs of another type    (MTB, L_rel)
    supervised_contrast    same class; other classes                               (SupCon)
                           a shared label; no shared label                         (ours)

Shape letters: N anchors, M candidates, D embedding width, R classes, B anchors of a block.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from raybio.core.interfaces import Collective
from raybio.ops.contrastive import check_temperature, values_on_host
from raybio.ops.similarity import matmul, normalize, scores_at_once

Relate = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Rows (B,) of the candidates -> masks of each row's positives and negatives, bool (B, M) each.

These are masks, not selections: the host would wait for the size of a selection on the device.
"""

BlockSums = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
"""Anchors (B, D), candidates (M, D), numbers of the anchors (B,) -> sums over the block."""


class PairRows(NamedTuple):
    """Entity pairs of documents: anchors, or candidates.

    Attributes:
        embedding_ND: their embeddings; as anchors N of them, as candidates M.
        id_N: int64, equal for occurrences of the same entity pair; a row with -1 is a positive of
            no row, not even of another -1.
        type_N: int64, equal for the same (subject type, object type).
    """

    embedding_ND: Tensor
    id_N: Tensor
    type_N: Tensor


class LabeledRows(NamedTuple):
    """Labeled pairs: anchors, or candidates.

    Attributes:
        embedding_ND: their embeddings; as anchors N of them, as candidates M.
        label_N: the class of each, int64 (N,), or its labels, bool (N, R).
    """

    embedding_ND: Tensor
    label_N: Tensor


Rows = TypeVar("Rows", bound=tuple[Tensor, ...])


class ContrastSum(NamedTuple):
    """The sum of the terms of this worker's anchors, and the number of terms (int64).

    Sums, counts and gradients add up over workers to those of one worker with all rows.
    """

    total: Tensor
    num_terms: Tensor

    def share(self, collective: Collective) -> Tensor:
        """Return this worker's share of the mean over the terms of all workers; 0 without terms."""
        return self.total / collective.all_sum(self.num_terms).clamp(min=1)


def matching_the_blanks(
    anchors: PairRows,
    *,
    temperature: float | Tensor,
    type_filter: bool = True,
    others: PairRows | None = None,
    offset: int = 0,
    block_rows: int | None = None,
) -> ContrastSum:
    """Return the sum of L_rel: occurrences of an entity pair attract, pairs of other types repel.

    Positives are rows with the same entity pair. Negatives are rows of other entity pairs whose
    type differs; other entity pairs of the same type are neither. A term without negatives is 0.

    Args:
        anchors: N pairs; the length of embeddings does not matter.
        temperature: tau > 0; may be a learned scalar.
        type_filter: False makes all other entity pairs negatives, of the same type too (the paper's
            ablation).
        others: candidates: with several workers the pairs of all of them, gathered with gradient;
            None: the anchors.
        offset: the anchors are rows ``offset`` to ``offset + N - 1`` of the candidates.
        block_rows: anchors scored at once; None chooses.

    Raises:
        ValueError: for a temperature that is not positive, or rows that do not fit together.
    """
    other_MD, id_M, type_M = candidate_rows(anchors, others, offset)
    relate = by_entity_pair(id_M, type_M, type_filter=type_filter)
    return contrast_sum(anchors.embedding_ND, other_MD, relate, offset, temperature, block_rows)


def supervised_contrast(
    anchors: LabeledRows,
    *,
    temperature: float | Tensor,
    others: LabeledRows | None = None,
    offset: int = 0,
    block_rows: int | None = None,
) -> ContrastSum:
    """Return the sum of SupCon in the form of Zhou et al., 2023: rows of one class attract.

    The term of an anchor is the mean over its positives, the rows of its class, with all rows of
    other classes as negatives. Anchors without a positive have no term. Unlike Khosla et al.
    (2020), an anchor's other positives are not in the denominator.

    If rows have several labels, rows that share one attract; the paper does not define SupCon for
    this case. Label pairs without a relation as NA: a row without any label is a negative of all.

    Arguments as for ``matching_the_blanks``.
    """
    other_MD, label = candidate_rows(anchors, others, offset)
    wide_MR = label.float()  # counts of shared labels are exact up to 2**24

    def relate(row_B: Tensor) -> tuple[Tensor, Tensor]:
        if label.ndim == 1:
            is_alike_BM = label[row_B, None] == label
        else:
            is_alike_BM = matmul(wide_MR[row_B], wide_MR.T) > 0
        return without_self(row_B, is_alike_BM, ~is_alike_BM)

    pair_ND = anchors.embedding_ND
    return contrast_sum(pair_ND, other_MD, relate, offset, temperature, block_rows, by_anchor=True)


def contrast_sum(
    pair_ND: Tensor,
    other_MD: Tensor,
    relate: Relate,
    offset: int,
    temperature: float | Tensor,
    block_rows: int | None = None,
    *,
    by_anchor: bool = False,
) -> ContrastSum:
    """Sum the terms of all anchors and their positives, as defined at the top of this module.

    Blocks of anchors are scored and their gradient is taken at once, as in ``info_nce``. It can be
    differentiated once. Anchors without a positive are scored, too, and add nothing: skipping them
    would make the host wait for their number.

    Args:
        pair_ND: anchors.
        other_MD: candidates.
        relate: returns positives and negatives of anchors, as numbered by ``offset``. An anchor
            that is a candidate must be neither for itself (``without_self``).
        offset: number of the first anchor: the row of the candidates that it is, or belongs to.
        temperature: tau > 0; may be a learned scalar.
        block_rows: anchors scored at once; None chooses.
        by_anchor: one term per anchor, the mean over its positives, instead of one per positive.

    Raises:
        ValueError: for a temperature that is not positive.
    """
    check_temperature(temperature)
    rows = block_rows or rows_per_block(len(other_MD), pair_ND.device)
    own_N = torch.arange(offset, offset + len(pair_ND), device=pair_ND.device)
    return ContrastSum(
        *_BlockedContrast.apply(  # type: ignore[no-untyped-call]
            normalize(pair_ND) / temperature, normalize(other_MD), own_N, relate, by_anchor, rows
        )
    )


def sum_over_blocks(
    block_sums: BlockSums,
    query_ND: Tensor,
    key_MD: Tensor,
    offset: int,
    block_rows: int | None = None,
) -> tuple[Tensor, ...]:
    """Add the sums of blocks of anchors, which the backward pass computes again.

    Args:
        block_sums: returns the sums of a block.
        query_ND: anchors.
        key_MD: candidates.
        offset: number of the first anchor.
        block_rows: anchors of a block; None chooses.
    """
    rows = block_rows or rows_per_block(len(key_MD), query_ND.device)
    own_N = torch.arange(offset, offset + len(query_ND), device=query_ND.device)
    # Without anchors there is still one block, so that all sums exist and have a gradient.
    blocks = [
        checkpoint(
            block_sums, query_BD, key_MD, own_B, use_reentrant=False, preserve_rng_state=False
        )
        for query_BD, own_B in zip(query_ND.split(rows), own_N.split(rows), strict=True)
    ]
    return tuple(torch.stack(parts).sum(0) for parts in zip(*blocks, strict=True))


def rows_per_block(num_columns: int, device: torch.device) -> int:
    """Return how many rows of a score matrix with ``num_columns`` columns to compute at once.

    A loss and its gradient hold some five to seven matrices of a block's size.
    """
    return max(1, scores_at_once(device) // max(num_columns, 1))


def candidate_rows(anchors: Rows, others: Rows | None, offset: int) -> Rows:
    """Return the candidates, which are the anchors if no others are given.

    Raises:
        ValueError: if ids or labels are not one per row, or the anchors are not the rows from
            ``offset`` on.
    """
    candidates = anchors if others is None else others
    num_anchors = len(anchors[0])
    num_candidates = len(candidates[0])
    if not 0 <= offset <= num_candidates - num_anchors:
        raise ValueError(
            f"offset is {offset}, want it in [0, {num_candidates - num_anchors}]: anchors are rows "
            "of the candidates"
        )
    for code, other in zip(anchors[1:], candidates[1:], strict=True):
        if len(code) != num_anchors or len(other) != num_candidates:
            raise ValueError(
                f"{len(code)} and {len(other)} ids or labels for {num_anchors} anchors and "
                f"{num_candidates} candidates; "
                "want one each"
            )
        own_value = values_on_host(code)
        other_value = values_on_host(other)
        if own_value is None or other_value is None:
            continue
        if not np.array_equal(other_value[offset : offset + num_anchors], own_value):
            raise ValueError(
                f"the anchors' ids or labels differ from those of the candidates from row {offset} "
                "on; gather pairs and labels in the same order"
            )
    return candidates


def by_entity_pair(id_M: Tensor, type_M: Tensor, *, type_filter: bool) -> Relate:
    """Return the relation of rows by their entity pairs.

    Args:
        id_M: int64, equal for occurrences of the same entity pair; -1 is a positive of no row.
        type_M: int64, equal for the same (subject type, object type).
        type_filter: negatives are of another type; False: they are all other entity pairs.
    """

    def relate(row_B: Tensor) -> tuple[Tensor, Tensor]:
        id_B1 = id_M[row_B, None]
        positive_BM = (id_B1 == id_M) & (id_B1 >= 0)
        negative_BM = ~positive_BM
        if type_filter:
            negative_BM &= type_M[row_B, None] != type_M
        return without_self(row_B, positive_BM, negative_BM)

    return relate


def without_self(row_B: Tensor, positive_BM: Tensor, negative_BM: Tensor) -> tuple[Tensor, Tensor]:
    """Return positives and negatives of rows, none of which is the row itself."""
    own_B1 = row_B[:, None]
    return positive_BM.scatter(1, own_B1, False), negative_BM.scatter(1, own_B1, False)


class _BlockedContrast(torch.autograd.Function):
    """Sum of log(1 + exp(n_i - s_ij)), n_i = logsumexp over negatives, with its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        query_ND: Tensor,
        key_MD: Tensor,
        own_N: Tensor,
        relate: Relate,
        by_anchor: bool,
        block_rows: int,
    ) -> tuple[Tensor, Tensor]:
        """Return the sum and its number of terms; keep the gradients for ``backward``."""
        wants_query, wants_key = ctx.needs_input_grad[:2]
        query_gradient_ND = torch.empty_like(query_ND) if wants_query else None
        key_gradient_MD = torch.zeros_like(key_MD) if wants_key else None
        total = query_ND.new_zeros(())
        num_terms = own_N.new_zeros(())
        for start in range(0, len(query_ND), block_rows):
            rows = slice(start, start + block_rows)
            positive_BM, negative_BM = relate(own_N[rows])
            score_BM = matmul(query_ND[rows], key_MD.T)
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
            # Without negatives the pull is 0; the clamp avoids -inf - -inf.
            push_BM.sub_(all_push_B1.clamp(min=torch.finfo(score_BM.dtype).min)).exp_()
            gradient_BM = push_BM.mul_(pull_BM.sum(1, keepdim=True)).sub_(pull_BM)
            if query_gradient_ND is not None:
                torch.mm(gradient_BM, key_MD, out=query_gradient_ND[rows])
            if key_gradient_MD is not None:
                key_gradient_MD.addmm_(gradient_BM.T, query_ND[rows])
        ctx.save_for_backward(query_gradient_ND, key_gradient_MD)
        ctx.mark_non_differentiable(num_terms)
        return total, num_terms

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(
        ctx: Any, gradient: Tensor, _: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        """Return the kept gradients times the gradient of the sum."""
        query_gradient_ND, key_gradient_MD = ctx.saved_tensors
        return (
            None if query_gradient_ND is None else query_gradient_ND * gradient,
            None if key_gradient_MD is None else key_gradient_MD * gradient,
            None,
            None,
            None,
            None,
        )
