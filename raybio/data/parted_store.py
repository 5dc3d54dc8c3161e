"""A store whose rows have several of some things each: words of a sentence, mentions of a document."""

from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa

from raybio.data.store import Store
from raybio.data.store_writer import small

POINTERS = "pointers.arrow"


class PartedStore(Store):
    """An open store of parts: each is a file of columns, for all N rows end to end."""

    parts: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """What a row has several of -> the columns of its file, in all parts of different names."""

    def _of(self, part: str, column: str, row: int) -> np.ndarray:
        """A row's entries in a column, int64."""
        indptr_N1 = self._arrays[part, ""]
        return self._arrays[part, column][indptr_N1[row] : indptr_N1[row + 1]].astype(np.int64)

    @cached_property
    def _arrays(self) -> dict[tuple[str, str], np.ndarray]:
        """Every array by its part and column; its pointers, by its part and ""."""
        pointers = self._batch(POINTERS)
        arrays = {(part, ""): pointers.column(part).to_numpy(zero_copy_only=True) for part in self.parts}
        for part, columns in self.parts.items():
            batch = self._batch(_file(part))
            arrays |= {(part, name): batch.column(name).to_numpy(zero_copy_only=True) for name in columns}
        return arrays


def part_tables(
    parts: Mapping[str, tuple[str, ...]], indptr_by_part: Mapping[str, np.ndarray], columns: Mapping[str, np.ndarray]
) -> dict[str, dict[str, pa.Array]]:
    """The files of all parts, and that of the pointers, for ``Draft.commit``.

    Args:
        parts: as the store's.
        indptr_by_part: which entries are whose (N + 1,), for each part.
        columns: integers, of all parts.
    """
    tables = {POINTERS: {part: pa.array(indptr_by_part[part].astype(np.int64, copy=False)) for part in parts}}
    for part, names in parts.items():
        tables[_file(part)] = {name: pa.array(small(columns[name])) for name in names}
    return tables


def _file(part: str) -> str:
    return f"{part}.arrow"
