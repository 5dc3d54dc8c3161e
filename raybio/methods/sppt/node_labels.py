"""Labels of a store's rows, read from a table.

The table has a header and two tab-separated columns: id, and class or number. It may be gzip.

Shape letters: N rows of the store, L labels of the table.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raybio.core.errors import DataError
from raybio.methods.sppt.ids import find_ids
from raybio.store.sources import bounded_lines, open_source

WANTED = "a table with a header and two tab-separated columns: id and label"


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
        DataError: if a line does not have two columns, an id has no label or two of them, the
            header is missing, or no id of the table is in the store. The message names file and
            line.
    """
    label_by_id: dict[str, str] = {}
    line_by_id: dict[str, int] = {}
    with open_source(path, WANTED) as file:
        for number, line in enumerate(bounded_lines(file, path), start=1):
            row_id, label = _columns(line, f"{path}, line {number}")
            if number == 1:
                _check_header(row_id, keys, path)
                continue
            first = line_by_id.setdefault(row_id, number)
            if first != number:
                raise DataError(
                    f"{path}, line {number}: {row_id} had its label in line {first}; want one line "
                    "an id"
                )
            label_by_id[row_id] = label
    ids = list(label_by_id)
    row_L = find_ids(pa.array(ids, pa.string()), keys)
    is_known_L = row_L >= 0
    if not is_known_L.any():
        got = ids[0] if ids else "none"
        wanted = keys[0] if len(keys) else "none"
        raise DataError(
            f"{path}: none of its {len(ids):,} ids ({got}, ...) is in the store; want such as "
            f"{wanted}"
        )
    text_N = np.full(len(keys), "", dtype=object)
    text_N[row_L[is_known_L]] = np.array(list(label_by_id.values()), dtype=object)[is_known_L]
    unknown = [row_id for row_id, row in zip(ids, row_L, strict=True) if row < 0]
    return NodeLabels(text_N, unknown)


def _columns(line: bytes, where: str) -> tuple[str, str]:
    """Return id and label of a line."""
    try:
        parts = line.decode("utf-8").rstrip("\r\n").split("\t")
    except UnicodeDecodeError:
        raise DataError(f"{where}: is not UTF-8, want {WANTED}") from None
    if len(parts) != 2 or not all(part.strip() for part in parts):
        raise DataError(f"{where}: got {len(parts)} columns {parts!r:.80}, want {WANTED}")
    return parts[0].strip(), parts[1].strip()


def _check_header(name: str, keys: pa.Array, path: Path) -> None:
    if find_ids(pa.array([name], pa.string()), keys)[0] >= 0:
        raise DataError(
            f"{path}, line 1: {name} is an id of the store, want a header line; add one, such as "
            "id and label"
        )
