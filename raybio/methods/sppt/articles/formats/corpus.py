"""A corpus of articles, as every reader of this folder returns it."""

import numpy as np
import pyarrow as pa

from raybio.methods.sppt.corpus import Corpus

SINGLE_GROUP = ["all"]
NOUN = "articles with a text"


def single_group_corpus(keys: pa.Array, spooled_N: np.ndarray, edge_E2: np.ndarray) -> Corpus:
    """Return the articles as one group, so that any two unlinked articles are a negative pair.

    Args:
        keys: id of each article (N,), strings.
        spooled_N: row of its text in the spool, -1 for articles without a text.
        edge_E2: distinct links between articles (E, 2).
    """
    group_N = np.zeros(len(keys), np.int32)
    return Corpus(keys, group_N, spooled_N, edge_E2, SINGLE_GROUP, SINGLE_GROUP, NOUN)
