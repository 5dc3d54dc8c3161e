"""Multi-token mask prediction: X-FACTR (Jiang et al., 2020) as the Contrastive-Probe paper uses it as a baseline.

A query with one gap is asked with m = 1 .. M masks in it; each version is decoded, and the m with the highest mean
log-probability a token is the answer. The language model is a function, so nothing here knows where it comes from.

Q queries of a block, L padded length, M masks in the gap, J of them asked about, K hypotheses (at most the beam), B
tokens tried for each, V vocabulary. Differences from the authors' code: a query's answer does not depend on the others
of its batch (theirs stops when the whole batch has settled), and in the beam of "confidence" the B best (mask, token)
pairs are tried, whichever masks they lie in.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raybio.methods.contrastive_probe.config import DecodeConfig

LogProbabilities = Callable[[Tensor, Tensor], Tensor]
"""(token ids (N, L), padded on the right; places (N, J)) -> log-probabilities (N, J, V) of the tokens there."""


_OPEN = -1  # a mask that has no token yet


class Prediction(NamedTuple):
    """The answer to a query: its token ids, and their mean log-probability."""

    tokens: tuple[int, ...]
    mean_log_prob: float


@dataclass(frozen=True)
class _Asker:
    """Queries of a block with M masks each, and the language model."""

    token_QL: Tensor
    gap_Q: Tensor  # where the masks begin
    mask_id: int
    log_probs: LogProbabilities

    def take(self, rows: Tensor) -> "_Asker":
        """Some of the queries."""
        return _Asker(self.token_QL[rows], self.gap_Q[rows], self.mask_id, self.log_probs)

    def __call__(self, token_QKM: Tensor, place_QKJ: Tensor) -> Tensor:
        """Log-probabilities (Q, K, J, V) at places 0 .. M - 1 of each hypothesis, whose open places are masks."""
        num_queries, num_hypotheses, num_masks = token_QKM.shape
        filled_QKM = token_QKM.masked_fill(token_QKM == _OPEN, self.mask_id)
        gap_Q11 = self.gap_Q[:, None, None]
        row_QKL = self.token_QL[:, None].repeat(1, num_hypotheses, 1)
        row_QKL.scatter_(2, (gap_Q11 + torch.arange(num_masks)).expand_as(filled_QKM), filled_QKM)
        answer = self.log_probs(row_QKL.flatten(0, 1), (gap_Q11 + place_QKJ).flatten(0, 1))
        return answer.unflatten(0, (num_queries, num_hypotheses))


class _Beam(NamedTuple):
    """Hypotheses, the best first; one of log-probability -inf does not count."""

    token_QKM: Tensor
    log_prob_QKM: Tensor

    def take(self, rows: Tensor) -> "_Beam":
        """The hypotheses of some queries."""
        return _Beam(self.token_QKM[rows], self.log_prob_QKM[rows])


def predict_answers(
    queries: Sequence[np.ndarray],
    log_probs: LogProbabilities,
    config: DecodeConfig,
    *,
    mask_id: int,
    pad_id: int,
    queries_at_once: int = 64,
) -> list[Prediction]:
    """The most likely answer of 1 to ``config.max_masks`` tokens to each query; of equal ones the shortest.

    All queries of a block take a step together, those of like length in one block.

    Args:
        queries: token ids of each, with ``mask_id`` once, where the answer belongs.
        log_probs: the language model.
        config: how masks are filled.
        mask_id: id of the mask.
        pad_id: id of padding.
        queries_at_once: a block; the model is asked for up to ``beam`` times as many rows at once.

    Raises:
        ValueError: if a query has not exactly one mask.
    """
    gaps = [_gap(number, tokens, mask_id) for number, tokens in enumerate(queries)]
    answers: list[Prediction] = [Prediction((), -np.inf)] * len(queries)
    for rows in _blocks([len(tokens) for tokens in queries], queries_at_once):
        for num_masks in range(1, config.max_masks + 1):
            texts = [_widened(queries[row], gaps[row], num_masks) for row in rows]
            token_QL = torch.full((len(rows), max(map(len, texts))), pad_id)
            for place, text in enumerate(texts):
                token_QL[place, : len(text)] = torch.from_numpy(text)
            asker = _Asker(token_QL, torch.tensor([gaps[row] for row in rows]), mask_id, log_probs)
            token_QM, mean_log_prob_Q = _decode(asker, num_masks, config)
            for row, tokens, mean in zip(
                rows, token_QM.tolist(), mean_log_prob_Q.tolist(), strict=True
            ):
                if not answers[row].tokens or mean > answers[row].mean_log_prob:
                    answers[row] = Prediction(tuple(tokens), mean)
    return answers


def is_right(
    predictions: Sequence[Prediction], gold: Sequence[Collection[tuple[int, ...]]]
) -> np.ndarray:
    """(Q,) whether each prediction is, token for token, one of its query's gold answers."""
    return np.array(
        [one.tokens in set(golds) for one, golds in zip(predictions, gold, strict=True)], dtype=bool
    )


def _gap(number: int, tokens: np.ndarray, mask_id: int) -> int:
    gaps = np.flatnonzero(tokens == mask_id)
    if len(gaps) != 1:
        raise ValueError(
            f"query {number} has {len(gaps)} masks (token {mask_id}), want one where its answer belongs"
        )
    return int(gaps[0])


def _blocks(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), size):
        yield order[start : start + size].tolist()


def _widened(tokens: np.ndarray, gap: int, num_masks: int) -> np.ndarray:
    return np.insert(tokens.astype(np.int64), gap, [tokens[gap]] * (num_masks - 1))


def _decode(ask: _Asker, num_masks: int, config: DecodeConfig) -> tuple[Tensor, Tensor]:
    """The best tokens (Q, M) of each query and their mean log-probability (Q,)."""
    shape = (len(ask.token_QL), 1, num_masks)
    beam = _FILL[config.decode](
        ask, _Beam(torch.full(shape, _OPEN), torch.zeros(shape, dtype=torch.float64)), config.beam
    )
    if config.refine != "none":
        beam = _refine(ask, _padded(beam, config.beam), config)
    log_prob_QKM = _rescored(ask, beam) if config.rescore else beam.log_prob_QKM
    sum_QK = log_prob_QKM.sum(2)
    best_Q = sum_QK.argmax(1)
    row_Q = torch.arange(len(best_Q))
    return beam.token_QKM[row_Q, best_Q], sum_QK[row_Q, best_Q] / num_masks


def _fill_independently(ask: _Asker, beam: _Beam, size: int) -> _Beam:
    log_prob_QKM, token_QKM = ask(beam.token_QKM, _all_places(beam)).max(3)
    return _Beam(token_QKM.cpu(), log_prob_QKM.cpu().double())


def _fill_in_order(ask: _Asker, beam: _Beam, size: int) -> _Beam:
    for place in range(beam.token_QKM.shape[2]):
        beam = _predict_at(ask, beam, torch.full((*beam.token_QKM.shape[:2], 1), place), size)
    return beam


def _fill_by_confidence(ask: _Asker, beam: _Beam, size: int) -> _Beam:
    num_masks = beam.token_QKM.shape[2]
    for num_filled in range(num_masks):
        log_prob_QKMV = ask(beam.token_QKM, _all_places(beam))
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


def _refine(ask: _Asker, beam: _Beam, config: DecodeConfig) -> _Beam:
    """Predict tokens anew until a query's hypotheses stay what they are; settled queries are not asked again."""
    token_QKM, log_prob_QKM = beam.token_QKM.clone(), beam.log_prob_QKM.clone()
    active = torch.arange(len(token_QKM))
    for _ in range(config.max_iterations):
        before = now = _Beam(token_QKM[active], log_prob_QKM[active])
        asked = ask.take(active)
        if config.refine == "order":
            for place in range(token_QKM.shape[2]):
                now = _predict_at(
                    asked, now, torch.full((*now.token_QKM.shape[:2], 1), place), config.beam
                )
        else:
            now = _predict_at(asked, now, now.log_prob_QKM.argmin(2, keepdim=True), config.beam)
        token_QKM[active], log_prob_QKM[active] = now
        active = active[(now.token_QKM != before.token_QKM).flatten(1).any(1)]
        if not len(active):
            break
    return _Beam(token_QKM, log_prob_QKM)


def _rescored(ask: _Asker, beam: _Beam) -> Tensor:
    """Each token's log-probability (Q, K, M) where it alone is masked."""
    log_prob_QKM = torch.empty_like(beam.log_prob_QKM)
    for place in range(beam.token_QKM.shape[2]):
        place_QK1 = torch.full((*beam.token_QKM.shape[:2], 1), place)
        log_prob_QKV = ask(beam.token_QKM.scatter(2, place_QK1, _OPEN), place_QK1)[:, :, 0]
        token_QK1 = beam.token_QKM[:, :, place : place + 1].to(log_prob_QKV.device)
        log_prob_QKM[:, :, place] = log_prob_QKV.gather(2, token_QK1)[:, :, 0].double().cpu()
    return log_prob_QKM.where(torch.isfinite(beam.log_prob_QKM.sum(2, keepdim=True)), -torch.inf)


def _predict_at(ask: _Asker, beam: _Beam, place_QK1: Tensor, size: int) -> _Beam:
    """Put the likeliest tokens at one place of each hypothesis, whatever was there before."""
    log_prob_QKV = ask(beam.token_QKM.scatter(2, place_QK1, _OPEN), place_QK1)[:, :, 0]
    log_prob_QKB, token_QKB = _largest(log_prob_QKV, min(size, log_prob_QKV.shape[2]))
    return _best(beam, place_QK1.expand_as(token_QKB), token_QKB, log_prob_QKB, size)


def _best(
    beam: _Beam, place_QKB: Tensor, token_QKB: Tensor, log_prob_QKB: Tensor, size: int
) -> _Beam:
    """The best ``size`` different hypotheses (by summed log-probability) of all with one place replaced."""
    num_tried, num_masks = place_QKB.shape[2], beam.token_QKM.shape[2]

    def replaced(old_QKM: Tensor, new_QKB: Tensor) -> Tensor:
        old_QKBM = old_QKM[:, :, None].repeat(1, 1, num_tried, 1)
        return old_QKBM.scatter_(3, place_QKB[..., None], new_QKB[..., None]).flatten(1, 2)

    token_QCM = replaced(beam.token_QKM, token_QKB)
    log_prob_QCM = replaced(beam.log_prob_QKM, log_prob_QKB)
    order_QC = log_prob_QCM.sum(2).argsort(dim=1, descending=True, stable=True)
    token_QCM = token_QCM.gather(1, order_QC[..., None].expand(-1, -1, num_masks))
    log_prob_QCM = log_prob_QCM.gather(1, order_QC[..., None].expand(-1, -1, num_masks))
    # The same tokens may come about in several ways: the first is the likeliest, and the others do not count.
    is_out_QC = _is_copy(token_QCM) | ~torch.isfinite(log_prob_QCM.sum(2))
    # A dead hypothesis is dead in all its places: one predicted anew does not bring it back.
    log_prob_QCM = log_prob_QCM.masked_fill(is_out_QC[..., None], -torch.inf)
    kept_QK = is_out_QC.int().argsort(dim=1, stable=True)[:, :size]
    rows_Q1 = torch.arange(len(kept_QK))[:, None]
    return _Beam(token_QCM[rows_Q1, kept_QK], log_prob_QCM[rows_Q1, kept_QK])


def _is_copy(token_QCM: Tensor) -> Tensor:
    """(Q, C) whether the same tokens stand further ahead in a query; needs no more memory than the tokens do."""
    num_queries, num_candidates = token_QCM.shape[:2]
    query_QC1 = torch.arange(num_queries)[:, None, None].expand(-1, num_candidates, 1)
    row_NM = torch.cat([query_QC1, token_QCM], dim=2).flatten(0, 1)
    number_N = torch.unique(row_NM, dim=0, return_inverse=True)[1]
    place_N = torch.arange(len(number_N))
    first_N = torch.full_like(number_N, len(number_N)).scatter_reduce_(0, number_N, place_N, "amin")
    return (first_N[number_N] < place_N).unflatten(0, (num_queries, num_candidates))


def _padded(beam: _Beam, size: int) -> _Beam:
    """Dead hypotheses up to ``size``, so that the beam has one shape while queries settle one after the other."""
    missing = size - beam.token_QKM.shape[1]
    token_QKM = torch.cat([beam.token_QKM, beam.token_QKM[:, :1].repeat(1, missing, 1)], dim=1)
    dead_QKM = torch.full_like(beam.log_prob_QKM[:, :1], -torch.inf).repeat(1, missing, 1)
    return _Beam(token_QKM, torch.cat([beam.log_prob_QKM, dead_QKM], dim=1))


def _largest(log_prob_QKN: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Values, wide enough for sums that compare, and places of the largest of each hypothesis, where the beam lies."""
    values, places = log_prob_QKN.topk(number, 2)
    return values.cpu().double(), places.cpu()


def _all_places(beam: _Beam) -> Tensor:
    """(Q, K, M): every place of the gap, for a question about all that are still open."""
    return torch.arange(beam.token_QKM.shape[2]).expand_as(beam.token_QKM)
