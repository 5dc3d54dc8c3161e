"""A corpus of articles, as every reader of this folder returns it."""

import re

import numpy as np
import pyarrow as pa

from raybio.methods.sppt.corpus import Corpus

SINGLE_GROUP = ["all"]
NOUN = "articles with a text"


def single_group_corpus(
    keys: pa.Array,
    spooled_N: np.ndarray,
    edge_E2: np.ndarray,
    date_N: np.ndarray | None = None,
) -> Corpus:
    """Return the articles as one group, so that any two unlinked articles are a negative pair.

    Args:
        keys: id of each article (N,), strings.
        spooled_N: row of its text in the spool, -1 for articles without a text.
        edge_E2: distinct links between articles (E, 2).
        date_N: date of each article, as in ``Corpus``.
    """
    group_N = np.zeros(len(keys), np.int32)
    return Corpus(keys, group_N, spooled_N, edge_E2, SINGLE_GROUP, SINGLE_GROUP, NOUN, date_N)


_DATE = re.compile(r"(\d{4})(?:\.0|-(\d\d)(?:-(\d\d)(?:[ T]\d\d:.*)?)?)?")


def date_number(text: str) -> int:
    """Return the date of ``YYYY``, ``YYYY-MM`` or ``YYYY-MM-DD`` as yyyymmdd; -1 for other texts.

    A time of day is ignored, and ``2018.0`` is a year, as pandas writes it.
    """
    match = _DATE.fullmatch(text.strip())
    if not match:
        return -1
    year, month, day = (int(part or 0) for part in match.groups())
    if month > 12 or day > 31 or (day and not month):
        return -1
    return year * 10_000 + month * 100 + day
