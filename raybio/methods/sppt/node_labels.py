"""Labels of a store's rows, read from a table.

The table (``table_rows``) has a header and two columns, id and class or number, or columns of these
names among others.

Shape letters: N rows of the store, L labels of the table.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raybio.core.errors import DataError
from raybio.methods.sppt.ids import find_ids
from raybio.store.table_rows import ID_COLUMNS, choose_columns, read_columns

LABEL_COLUMNS = ("label", "class", "number", "value")

WANTED = "two columns: id and label"


class NodeLabels(NamedTuple):
    """Labels of a store's rows.

    Attributes:
        text_N: labels as the table writes them; "" for rows without a label.
        unknown: ids of the table that the store does not have.
    """

    text_N: NDArray[np.object_]
    unknown: list[str]

    def classes(self) -> tuple[NDArray[np.int64], list[str]]:
        """Return the number of each row's class (N,), -1 for none, and the sorted class names."""
        names = sorted({text for text in self.text_N if text})
        number_by_name = {name: number for number, name in enumerate(names)} | {"": -1}
        return np.array([number_by_name[text] for text in self.text_N], dtype=np.int64), names

    def numbers(self) -> NDArray[np.float64]:
        """Return each row's number (N,), NaN for none.

        Raises:
            DataError: if a label is no finite number.
        """
        try:
            value_N = np.array([float(text) if text else np.nan for text in self.text_N])
        except ValueError as error:
            raise DataError(
                f"labels are not all numbers ({error}); leave --numbers out for classes"
            ) from None
        if np.isinf(value_N).any():
            raise DataError("a label is infinite, want finite numbers")
        return value_N


def read_node_labels(path: Path, keys: pa.Array) -> NodeLabels:
    """Read the labels of the rows with these ids.

    Raises:
        DataError: if a column is missing, an id has no label or two of them, the header is missing,
            or no id of the table is in the store. The message names file and line.
    """
    label_by_id: dict[str, str] = {}
    line_by_id: dict[str, int] = {}
    for rows in read_columns(path, WANTED, partial(_columns, path, keys)):
        for number, row_id, label in zip(rows.lines, *rows.columns, strict=True):
            row_id = row_id.strip()
            label = label.strip()
            if not row_id or not label:
                raise DataError(
                    f"{path}, line {number}: got {[row_id, label]!s:.80}, want id and label"
                )
            first = line_by_id.setdefault(row_id, number)
            if first != number:
                raise DataError(
                    f"{path}, line {number}: {row_id:.60} had its label in line {first}; want one "
                    "line an id"
                )
            label_by_id[row_id] = label
    ids = list(label_by_id)
    row_L = find_ids(pa.array(ids, pa.string()), keys)
    is_known_L = row_L >= 0
    if not is_known_L.any():
        got = ids[0] if ids else "none"
        wanted = keys[0] if len(keys) else "none"
        raise DataError(
            f"{path}: none of its {len(ids):,} ids ({got:.60}, ...) is in the store; want such as "
            f"{wanted}"
        )
    text_N = np.full(len(keys), "", dtype=object)
    text_N[row_L[is_known_L]] = np.array(list(label_by_id.values()), dtype=object)[is_known_L]
    unknown = [row_id for row_id, row in zip(ids, row_L, strict=True) if row < 0]
    return NodeLabels(text_N, unknown)


def _columns(path: Path, keys: pa.Array, names: Sequence[str]) -> Sequence[str]:
    """Return the columns of ids and labels.

    Raises:
        DataError: if one is missing, or the first line is no header.
    """
    row = pc.index(pc.utf8_lower(keys), names[0]).as_py()
    if row >= 0:
        raise DataError(
            f"{path}, line 1: {keys[row]} is an id of the store, want a header line; add one, such "
            "as id and label"
        )
    return names if len(names) == 2 else choose_columns(path, names, (ID_COLUMNS, LABEL_COLUMNS))
