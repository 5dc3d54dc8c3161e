"""Multi-token mask prediction: X-FACTR (Jiang et al., 2020), a baseline of Meng et al. (2022).

A query with one gap is tried with m = 1 .. M masks in the gap. Each version is decoded, and the m
with the highest mean log-probability per token is the answer. The language model is a function
argument.

Q queries of a block, L padded length, M masks in the gap, J positions in the gap, K hypotheses (at
most the beam), B tokens tried for each hypothesis, C candidates of a query, V vocabulary.

Different from the authors' code: the answer of a query does not depend on the other queries of
its batch (their refinement stops when the whole batch has converged). In the beam of
"confidence", the B best (mask, token) pairs are tried, at any of the masks.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raybio.methods.contrastive_probe.config import DecodeConfig

LogProbabilities = Callable[[Tensor, Tensor], Tensor]
"""(token ids (N, L), padded on the right; positions (N, J)) -> log-probabilities (N, J, V)."""

_OPEN = -1
"""A mask without a token so far."""


class Prediction(NamedTuple):
    """The answer to a query: its token ids and their mean log-probability."""

    tokens: tuple[int, ...]
    mean_log_prob: float


@dataclass(frozen=True)
class _GapModel:
    """The language model at the gaps of a block of queries, M masks each."""

    token_QL: Tensor
    gap_Q: Tensor
    """Position of the first mask of each query."""
    mask_id: int
    log_probs: LogProbabilities

    def take(self, rows: Tensor) -> "_GapModel":
        """Return the model for some of the queries."""
        return _GapModel(self.token_QL[rows], self.gap_Q[rows], self.mask_id, self.log_probs)

    def __call__(self, token_QKM: Tensor, position_QKJ: Tensor) -> Tensor:
        """Return log-probabilities (Q, K, J, V) at positions 0 .. M - 1 of each hypothesis.

        Open positions of a hypothesis are masks.
        """
        num_queries, num_hypotheses, num_masks = token_QKM.shape
        filled_QKM = token_QKM.masked_fill(token_QKM == _OPEN, self.mask_id)
        gap_Q11 = self.gap_Q[:, None, None]
        row_QKL = self.token_QL[:, None].repeat(1, num_hypotheses, 1)
        index_QKM = (gap_Q11 + torch.arange(num_masks)).expand_as(filled_QKM)
        row_QKL.scatter_(2, index_QKM, filled_QKM)
        position_NJ = (gap_Q11 + position_QKJ).flatten(0, 1)
        log_prob_NJV = self.log_probs(row_QKL.flatten(0, 1), position_NJ)
        return log_prob_NJV.unflatten(0, (num_queries, num_hypotheses))


class _Beam(NamedTuple):
    """Hypotheses, the best first; one with log-probability -inf is dead."""

    token_QKM: Tensor
    log_prob_QKM: Tensor


def predict_answers(
    queries: Sequence[np.ndarray],
    log_probs: LogProbabilities,
    config: DecodeConfig,
    *,
    mask_id: int,
    pad_id: int,
    queries_per_block: int = 64,
) -> list[Prediction]:
    """Return the most likely answer of 1 to ``config.max_masks`` tokens; the shortest of equals.

    Queries of similar length form a block, which is decoded together.

    Args:
        queries: token ids of each query, with ``mask_id`` once.
        log_probs: the language model.
        config: how masks are filled.
        mask_id: id of the mask.
        pad_id: id of padding.
        queries_per_block: the language model reads up to ``beam`` times as many rows at once.

    Raises:
        ValueError: if a query has not exactly one mask.
    """
    gaps = [_gap(index, tokens, mask_id) for index, tokens in enumerate(queries)]
    answers: list[Prediction] = [Prediction((), -np.inf)] * len(queries)
    for index_Q in blocks_by_length(queries, queries_per_block):
        rows = index_Q.tolist()
        for num_masks in range(1, config.max_masks + 1):
            texts = [_widened(queries[row], gaps[row], num_masks) for row in rows]
            token_QL = torch.full((len(rows), max(map(len, texts))), pad_id)
            for index, text in enumerate(texts):
                token_QL[index, : len(text)] = torch.from_numpy(text)
            gap_Q = torch.tensor([gaps[row] for row in rows])
            gap_model = _GapModel(token_QL, gap_Q, mask_id, log_probs)
            token_QM, mean_log_prob_Q = _decode(gap_model, num_masks, config)
            decoded = zip(rows, token_QM.tolist(), mean_log_prob_Q.tolist(), strict=True)
            for row, tokens, mean in decoded:
                if not answers[row].tokens or mean > answers[row].mean_log_prob:
                    answers[row] = Prediction(tuple(tokens), mean)
    return answers


def blocks_by_length(texts: Sequence[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Yield the indices of ``size`` texts of similar length each, the shortest first."""
    order = np.argsort([len(tokens) for tokens in texts], kind="stable")
    for start in range(0, len(order), size):
        yield order[start : start + size]


def is_exact_match(
    predictions: Sequence[Prediction], gold: Sequence[Collection[tuple[int, ...]]]
) -> np.ndarray:
    """Return whether each prediction (Q,) equals a gold answer of its query, token for token."""
    pairs = zip(predictions, gold, strict=True)
    return np.array(
        [prediction.tokens in set(answers) for prediction, answers in pairs], dtype=bool
    )


def _gap(index: int, tokens: np.ndarray, mask_id: int) -> int:
    gaps = np.flatnonzero(tokens == mask_id)
    if len(gaps) != 1:
        raise ValueError(
            f"query {index} has {len(gaps)} masks (token {mask_id}), "
            "want one where its answer belongs"
        )
    return int(gaps[0])


def _widened(tokens: np.ndarray, gap: int, num_masks: int) -> np.ndarray:
    return np.insert(tokens.astype(np.int64), gap, [tokens[gap]] * (num_masks - 1))


def _decode(model: _GapModel, num_masks: int, config: DecodeConfig) -> tuple[Tensor, Tensor]:
    """Return the best tokens (Q, M) of each query and their mean log-probability (Q,)."""
    shape = (len(model.token_QL), 1, num_masks)
    beam = _Beam(torch.full(shape, _OPEN), torch.zeros(shape, dtype=torch.float64))
    beam = _FILL[config.decode](model, beam, config.beam)
    if config.refine != "none":
        beam = _refine(model, _padded(beam, config.beam), config)
    log_prob_QKM = _rescored(model, beam) if config.rescore else beam.log_prob_QKM
    sum_QK = log_prob_QKM.sum(2)
    best_Q = sum_QK.argmax(1)
    row_Q = torch.arange(len(best_Q))
    return beam.token_QKM[row_Q, best_Q], sum_QK[row_Q, best_Q] / num_masks


def _fill_independently(model: _GapModel, beam: _Beam, size: int) -> _Beam:
    log_prob_QKM, token_QKM = model(beam.token_QKM, _all_positions(beam)).max(3)
    return _Beam(token_QKM.cpu(), log_prob_QKM.cpu().double())


def _fill_in_order(model: _GapModel, beam: _Beam, size: int) -> _Beam:
    for position in range(beam.token_QKM.shape[2]):
        position_QK1 = torch.full((*beam.token_QKM.shape[:2], 1), position)
        beam = _predict_at(model, beam, position_QK1, size)
    return beam


def _fill_by_confidence(model: _GapModel, beam: _Beam, size: int) -> _Beam:
    num_masks = beam.token_QKM.shape[2]
    for num_filled in range(num_masks):
        log_prob_QKMV = model(beam.token_QKM, _all_positions(beam))
        is_filled_QKM1 = (beam.token_QKM != _OPEN)[..., None].to(log_prob_QKMV.device)
        log_prob_QKMV = log_prob_QKMV.masked_fill(is_filled_QKM1, -torch.inf)
        num_tokens = log_prob_QKMV.shape[3]
        num_tried = min(size, (num_masks - num_filled) * num_tokens)
        log_prob_QKB, pair_QKB = _largest(log_prob_QKMV.flatten(2), num_tried)
        beam = _best(beam, pair_QKB // num_tokens, pair_QKB % num_tokens, log_prob_QKB, size)
    return beam


_FILL = {
    "independent": _fill_independently,
    "order": _fill_in_order,
    "confidence": _fill_by_confidence,
}


def _refine(model: _GapModel, beam: _Beam, config: DecodeConfig) -> _Beam:
    """Predict tokens again until the hypotheses of a query no longer change."""
    token_QKM = beam.token_QKM.clone()
    log_prob_QKM = beam.log_prob_QKM.clone()
    active = torch.arange(len(token_QKM))
    for _ in range(config.max_iterations):
        before = _Beam(token_QKM[active], log_prob_QKM[active])
        now = before
        active_model = model.take(active)
        if config.refine == "order":
            for position in range(token_QKM.shape[2]):
                position_QK1 = torch.full((*now.token_QKM.shape[:2], 1), position)
                now = _predict_at(active_model, now, position_QK1, config.beam)
        else:
            least_sure_QK1 = now.log_prob_QKM.argmin(2, keepdim=True)
            now = _predict_at(active_model, now, least_sure_QK1, config.beam)
        token_QKM[active] = now.token_QKM
        log_prob_QKM[active] = now.log_prob_QKM
        active = active[(now.token_QKM != before.token_QKM).flatten(1).any(1)]
        if not len(active):
            break
    return _Beam(token_QKM, log_prob_QKM)


def _rescored(model: _GapModel, beam: _Beam) -> Tensor:
    """Return the log-probability (Q, K, M) of each token when only its position is masked."""
    log_prob_QKM = torch.empty_like(beam.log_prob_QKM)
    for position in range(beam.token_QKM.shape[2]):
        position_QK1 = torch.full((*beam.token_QKM.shape[:2], 1), position)
        masked_QKM = beam.token_QKM.scatter(2, position_QK1, _OPEN)
        log_prob_QKV = model(masked_QKM, position_QK1)[:, :, 0]
        token_QK1 = beam.token_QKM[:, :, position : position + 1].to(log_prob_QKV.device)
        log_prob_QKM[:, :, position] = log_prob_QKV.gather(2, token_QK1)[:, :, 0].double().cpu()
    return log_prob_QKM.where(torch.isfinite(beam.log_prob_QKM.sum(2, keepdim=True)), -torch.inf)


def _predict_at(model: _GapModel, beam: _Beam, position_QK1: Tensor, size: int) -> _Beam:
    """Replace the token at one position of each hypothesis by the most likely ones."""
    masked_QKM = beam.token_QKM.scatter(2, position_QK1, _OPEN)
    log_prob_QKV = model(masked_QKM, position_QK1)[:, :, 0]
    log_prob_QKB, token_QKB = _largest(log_prob_QKV, min(size, log_prob_QKV.shape[2]))
    return _best(beam, position_QK1.expand_as(token_QKB), token_QKB, log_prob_QKB, size)


def _best(
    beam: _Beam, position_QKB: Tensor, token_QKB: Tensor, log_prob_QKB: Tensor, size: int
) -> _Beam:
    """Replace one position; return the ``size`` distinct hypotheses with the highest scores.

    The score is the sum of log-probabilities.
    """
    num_tried = position_QKB.shape[2]
    num_masks = beam.token_QKM.shape[2]

    def replaced(old_QKM: Tensor, new_QKB: Tensor) -> Tensor:
        old_QKBM = old_QKM[:, :, None].repeat(1, 1, num_tried, 1)
        return old_QKBM.scatter_(3, position_QKB[..., None], new_QKB[..., None]).flatten(1, 2)

    token_QCM = replaced(beam.token_QKM, token_QKB)
    log_prob_QCM = replaced(beam.log_prob_QKM, log_prob_QKB)
    order_QC = log_prob_QCM.sum(2).argsort(dim=1, descending=True, stable=True)
    token_QCM = token_QCM.gather(1, order_QC[..., None].expand(-1, -1, num_masks))
    log_prob_QCM = log_prob_QCM.gather(1, order_QC[..., None].expand(-1, -1, num_masks))
    # The same tokens may result in several ways; only the first, the most likely, survives.
    is_dead_QC = _is_copy(token_QCM) | ~torch.isfinite(log_prob_QCM.sum(2))
    # Mark all positions dead, so that a new token at one of them does not revive the hypothesis.
    log_prob_QCM = log_prob_QCM.masked_fill(is_dead_QC[..., None], -torch.inf)
    kept_QK = is_dead_QC.int().argsort(dim=1, stable=True)[:, :size]
    rows_Q1 = torch.arange(len(kept_QK))[:, None]
    return _Beam(token_QCM[rows_Q1, kept_QK], log_prob_QCM[rows_Q1, kept_QK])


def _is_copy(token_QCM: Tensor) -> Tensor:
    """Return whether an earlier candidate of the query has the same tokens (Q, C).

    It takes linear memory.
    """
    num_queries, num_candidates = token_QCM.shape[:2]
    query_QC1 = torch.arange(num_queries)[:, None, None].expand(-1, num_candidates, 1)
    row_NM = torch.cat([query_QC1, token_QCM], dim=2).flatten(0, 1)
    id_N = torch.unique(row_NM, dim=0, return_inverse=True)[1]
    index_N = torch.arange(len(id_N))
    first_by_id = torch.full_like(id_N, len(id_N)).scatter_reduce_(0, id_N, index_N, "amin")
    return (first_by_id[id_N] < index_N).unflatten(0, (num_queries, num_candidates))


def _padded(beam: _Beam, size: int) -> _Beam:
    """Append dead hypotheses up to ``size``, so that the shape is constant during refinement."""
    missing = size - beam.token_QKM.shape[1]
    token_QKM = torch.cat([beam.token_QKM, beam.token_QKM[:, :1].repeat(1, missing, 1)], dim=1)
    dead_QKM = torch.full_like(beam.log_prob_QKM[:, :1], -torch.inf).repeat(1, missing, 1)
    return _Beam(token_QKM, torch.cat([beam.log_prob_QKM, dead_QKM], dim=1))


def _largest(log_prob_QKN: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Return the largest values of each hypothesis and their indices, on the CPU.

    Values are float64, so that sums of them compare reliably.
    """
    values, indices = log_prob_QKN.topk(number, 2)
    return values.cpu().double(), indices.cpu()


def _all_positions(beam: _Beam) -> Tensor:
    """Return every position of the gap (Q, K, M)."""
    return torch.arange(beam.token_QKM.shape[2]).expand_as(beam.token_QKM)
