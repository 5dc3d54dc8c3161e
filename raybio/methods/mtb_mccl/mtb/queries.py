"""Queries."""

from typing import NamedTuple

import numpy as np

from raybio.core.randomness import hash_uniform
from raybio.methods.mtb_mccl.mtb.recurring_pairs import RecurringPairs


class PairQueries(NamedTuple):
    """Occurrences of pairs of entities, and the documents in which the same pairs are searched for.

    Attributes:
        row_Q: document of each query.
        key_Q2: numbers of its two entities, the smaller first.
        row_S: documents that are searched, ascending; none is one of the queries'.
    """

    row_Q: np.ndarray
    key_Q2: np.ndarray
    row_S: np.ndarray


def pair_queries(pairs: RecurringPairs, number_K: np.ndarray, seed: int) -> PairQueries:
    """One question each of the pairs ``number_K``; those that have no document on one side are left out.

    Documents are divided at random into those that ask and those that are searched.
    """
    asks = [hash_uniform(seed, pairs.documents(pair)) < 0.5 for pair in number_K.tolist()]
    found = [
        (
            pairs.documents(pair)[is_asking][0],
            pairs.key_K2[pair],
            pairs.documents(pair)[~is_asking][0],
        )
        for pair, is_asking in zip(number_K.tolist(), asks, strict=True)
        if is_asking.any() and not is_asking.all()
    ]
    rows, keys, searched = (
        zip(*found, strict=True) if found else ((), np.zeros((0, 2), dtype=np.int64), ())
    )
    return PairQueries(
        np.array(rows, dtype=np.int64),
        np.array(keys),
        np.unique(np.array(searched, dtype=np.int64)),
    )
