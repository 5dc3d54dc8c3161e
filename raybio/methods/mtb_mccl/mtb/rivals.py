"""Rivals of MTB's retrieval: rankings of entity pairs that need no training of an encoder.

- ``entity types``: candidates whose head and tail have the query's types, before all others.
- ``TF-IDF``: cosine of the words and types of pairs, see ``pair_words``; the words are those that
  encoders read, with the same entities blanked. Weights are those of the searched documents.

Equal scores are ranked in random order.

Shape letters: Q queries, C candidates, B queries of a block.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from raybio.core.randomness import derive_seed, hash_uniform
from raybio.methods.mtb_mccl.pair_words import PairTfidf, PairWords
from raybio.ops.retrieval import Scores

DIGITS = 6
"""Scores that agree to so many decimals tie."""


def pair_rivals(query: PairWords, candidate: PairWords) -> Iterator[tuple[str, Scores]]:
    """Yield the name of each rival and its scores of all candidates for all queries."""
    num_queries = query.num_pairs
    num_candidates = candidate.num_pairs
    type_Q = query.type_P
    type_C = candidate.type_P

    def by_type(first: int, end: int) -> np.ndarray:
        return (type_Q[first:end, None] == type_C).astype(np.float64)

    tfidf = PairTfidf.fit(candidate)
    query_QF = tfidf.vectors(query)
    candidate_FC = tfidf.vectors(candidate).T.tocsr()

    def by_words(first: int, end: int) -> np.ndarray:
        return np.round((query_QF[first:end] @ candidate_FC).toarray(), DIGITS)

    yield "entity types", Scores(_with_random_ties(by_type), num_queries, num_candidates)
    yield "TF-IDF", Scores(_with_random_ties(by_words), num_queries, num_candidates)


def _with_random_ties(
    scores: Callable[[int, int], np.ndarray],
) -> Callable[[int, int], Tensor]:
    """Return scores whose ties are in random order; no draw depends on the size of blocks."""

    def block(first: int, end: int) -> Tensor:
        score_BC = scores(first, end)
        query_B1 = np.arange(first, end)[:, None]
        candidate_C = np.arange(score_BC.shape[1])
        drawn_BC = hash_uniform(derive_seed(0, "order of ties"), query_B1, candidate_C)
        return torch.from_numpy(score_BC + drawn_BC * 0.5 * 10.0**-DIGITS)

    return block
