"""Queries of the evaluation: one occurrence of a recurring entity pair, to be found elsewhere."""

from typing import NamedTuple

import numpy as np

from raybio.core.randomness import hash_uniform
from raybio.methods.mtb_mccl.mtb.recurring_pairs import RecurringPairs


class PairQueries(NamedTuple):
    """Occurrences of entity pairs, and the documents to search for the same pairs.

    Shape letters: Q queries, S searched documents.

    Attributes:
        row_Q: document of each query.
        key_Q2: keys of its two entities, the smaller first.
        row_S: documents to search, ascending; no document of a query is among them.
    """

    row_Q: np.ndarray
    key_Q2: np.ndarray
    row_S: np.ndarray


def pair_queries(pairs: RecurringPairs, number_K: np.ndarray, seed: int) -> PairQueries:
    """Return one query for each of the pairs ``number_K``.

    Documents are divided at random into query documents and searched documents. Pairs without a
    document on either side are skipped.
    """
    rows = []
    keys = []
    searched = []
    for number in number_K.tolist():
        row_O = pairs.documents(number)
        is_query_O = hash_uniform(seed, row_O) < 0.5
        if is_query_O.any() and not is_query_O.all():
            rows.append(row_O[is_query_O][0])
            keys.append(pairs.key_K2[number])
            searched.append(row_O[~is_query_O][0])
    return PairQueries(
        np.array(rows, dtype=np.int64),
        np.array(keys) if keys else np.zeros((0, 2), dtype=np.int64),
        np.unique(np.array(searched, dtype=np.int64)),
    )
