"""Rivals of MTB's retrieval: rankings of entity pairs that need no training of an encoder.

- ``entity types``: candidates whose head and tail have the query's types, before all others.
- ``TF-IDF``: cosine of the words and types of pairs (``pair_words``), where words are what encoders
  read, with the same entities blanked. Weights are fitted to the searched documents.

Equal scores are ranked in random order.

Shape letters: Q queries, C candidates, B queries of a block.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from raybio.evaluation.lexical import with_random_ties
from raybio.methods.mtb_mccl.pair_words import PairTfidf, PairWords
from raybio.ops.retrieval import Scores

DECIMALS = 6
"""Scores that agree to this number of decimals tie."""


def pair_rivals(query: PairWords, candidate: PairWords) -> Iterator[tuple[str, Scores]]:
    """Yield the name of each rival and its scores of all candidates for all queries."""
    num_queries = query.num_pairs
    num_candidates = candidate.num_pairs
    type_Q = query.type_P
    type_C = candidate.type_P

    def by_type(first: int, end: int) -> Tensor:
        return torch.from_numpy(type_Q[first:end, None] == type_C)

    tfidf = PairTfidf.fit(candidate)
    query_QF = tfidf.vectors(query)
    candidate_FC = tfidf.vectors(candidate).T.tocsr()

    def by_words(first: int, end: int) -> Tensor:
        return torch.from_numpy((query_QF[first:end] @ candidate_FC).toarray())

    for name, block in {"entity types": by_type, "TF-IDF": by_words}.items():
        scores = Scores(block, num_queries, num_candidates)
        yield name, with_random_ties(scores, decimals=DECIMALS)
