"""A store of random texts, for the rows about stores that are larger than memory."""

from pathlib import Path

import numpy as np
from _measure import SMALL

from raybio.store.columns import ArrowColumn, column_tables
from raybio.store.ragged import Ragged
from raybio.store.store import Store
from raybio.store.writer import Draft

ROWS = "rows.arrow"
NUM_ROWS = 10_000 if SMALL else 1_500_000
MEAN_BYTES = 1_200
"""A title and an abstract of PubMed."""


class TextStore(Store):
    """An open store of texts."""

    kind = "benchmark texts"

    text = ArrowColumn(ROWS, "text")


def large_store(folder: str | Path) -> TextStore:
    """Write a store of 1.8 GB and return it open."""
    rng = np.random.default_rng(0)
    length_N = rng.integers(MEAN_BYTES // 2, MEAN_BYTES * 3 // 2, NUM_ROWS)
    indptr_N1 = np.concatenate([[0], np.cumsum(length_N)])
    letter_T = rng.integers(97, 123, indptr_N1[-1], dtype=np.uint8)
    tables = column_tables(TextStore, {"text": Ragged(letter_T, indptr_N1).to_arrow()})
    with Draft(Path(folder) / "store") as draft:
        return draft.commit(TextStore, tables, {"rows": NUM_ROWS}, {})
