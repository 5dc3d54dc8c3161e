"""A table of labels: an id and a class or number a line, tab-separated, with a header, ``.gz`` too."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raybio.data.assemble import find
from raybio.data.source_files import bounded_lines, open_source
from raybio.errors import DataError

WANTED = "a table with a header and two tab-separated columns: id and label"


class NodeLabels(NamedTuple):
    """Labels of a store's rows.

    Attributes:
        text_N: as the table writes them; "" for rows without.
        unknown: ids of the table that the store does not have.
    """

    text_N: NDArray[np.object_]
    unknown: list[str]

    def classes(self) -> tuple[NDArray[np.int64], list[str]]:
        """Number of each row's class (N,), -1 for none, and the classes by the alphabet."""
        names = sorted({text for text in self.text_N if text})
        number = {name: place for place, name in enumerate(names)} | {"": -1}
        return np.array([number[text] for text in self.text_N], dtype=np.int64), names

    def numbers(self) -> NDArray[np.float64]:
        """Each row's number (N,), NaN for none.

        Raises:
            DataError: for a label that is no finite number.
        """
        try:
            value_N = np.array([float(text) if text else np.nan for text in self.text_N])
        except ValueError as error:
            raise DataError(f"labels are not all numbers ({error}); leave --numbers out for classes") from None
        if np.isinf(value_N).any():
            raise DataError("a label is infinite, want finite numbers")
        return value_N


def read_node_labels(path: Path, keys: pa.Array) -> NodeLabels:
    """Read labels of the rows with these ids.

    Raises:
        DataError: for a line that has not two columns, an id without a label, or one that comes twice, naming the line;
            if the header is missing, or no id of the table is in the store.
    """
    ids: list[str] = []
    labels: list[str] = []
    line_by_id: dict[str, int] = {}
    with open_source(path, WANTED) as file:
        for number, line in enumerate(bounded_lines(file, path), start=1):
            try:
                parts = line.decode("utf-8").rstrip("\r\n").split("\t")
            except UnicodeDecodeError:
                raise DataError(f"{path}, line {number}: is not UTF-8, want {WANTED}") from None
            if len(parts) != 2 or not all(part.strip() for part in parts):
                raise DataError(f"{path}, line {number}: got {len(parts)} columns {parts!r:.80}, want {WANTED}")
            name, label = (part.strip() for part in parts)
            if number == 1:
                if find(pa.array([name], pa.string()), keys)[0] >= 0:
                    raise DataError(
                        f"{path}, line 1: {name} is an id of the store, and the first line a header; add one"
                    )
                continue
            if (first := line_by_id.setdefault(name, number)) != number:
                raise DataError(f"{path}, line {number}: {name} had its label in line {first}; want one line an id")
            ids.append(name)
            labels.append(label)
    place_L = find(pa.array(ids, pa.string()), keys)
    if not (place_L >= 0).any():
        got, wanted = (found[0] if len(found) else "none" for found in (ids, keys))
        raise DataError(f"{path}: none of its {len(ids):,} ids ({got}, ...) is in the store; want such as {wanted}")
    text_N = np.full(len(keys), "", dtype=object)
    text_N[place_L[place_L >= 0]] = np.array(labels, dtype=object)[place_L >= 0]
    return NodeLabels(text_N, [name for name, place in zip(ids, place_L, strict=True) if place < 0])
