"""The rank of the first correct answer of each query (Q), for ranked names and generated texts."""

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from raybio.ops.retrieval import Retrieval

NO_HIT = np.iinfo(np.int64).max
"""The rank of a query without a correct answer."""


def first_hits_of_ranked(retrieval: Retrieval) -> NDArray[np.int64]:
    """Return the rank of the best gold candidate of each query (Q,)."""
    first_Q = np.full(len(retrieval.num_gold_Q), NO_HIT)
    query_P = np.repeat(np.arange(len(first_Q)), retrieval.num_gold_Q)
    np.minimum.at(first_Q, query_P, retrieval.rank_P)
    return first_Q


def first_hits_of_texts(
    answers: Sequence[Sequence[str]],
    gold: Sequence[Collection[str]],
    normalize: Callable[[str], str] = lambda text: text,
) -> NDArray[np.int64]:
    """Return the rank of the first text of each query (Q,) that is a gold name.

    Args:
        answers: generated texts of each query, the best first.
        gold: gold names of each query.
        normalize: applied to texts and names before the comparison.
    """
    first_Q = np.full(len(answers), NO_HIT)
    for query, (texts, names) in enumerate(zip(answers, gold, strict=True)):
        normalized_names = {normalize(name) for name in names}
        for rank, text in enumerate(texts):
            if normalize(text) in normalized_names:
                first_Q[query] = rank
                break
    return first_Q


def fold(text: str) -> str:
    """Return a text without surrounding spaces and without case."""
    return text.strip().casefold()
