"""Declared columns: a store class declares its columns once, for reading and for writing.

    class TopicStore(Store):
        kind = "topics"
        topic_words = TextColumn("topic_words.arrow", "words")

``store.topic_words`` reads the column at the first access. ``column_tables(TopicStore,
{"topic_words": words})`` returns the files for ``Draft.commit``. A file holds its columns in the
order of declaration.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Self, TypeVar, overload

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike

from raybio.store.store import Store

T = TypeVar("T")


class Column(Generic[T]):
    """A column of a store's file: a descriptor whose value is read once per open store.

    Attributes:
        file: name of the file in the store's folder.
        name: name of the column in the file.
    """

    def __init__(self, file: str, name: str) -> None:
        """Declare the column."""
        self.file = file
        self.name = name

    def __set_name__(self, owner: type[Store], attribute: str) -> None:
        self._attribute = attribute

    @overload
    def __get__(self, store: None, owner: type[Store]) -> Self: ...

    @overload
    def __get__(self, store: Store, owner: type[Store]) -> T: ...

    def __get__(self, store: Store | None, owner: type[Store]) -> Self | T:
        if store is None:
            return self
        value = self.read(store)
        # An instance attribute takes precedence over this descriptor: the column is read once.
        store.__dict__[self._attribute] = value
        return value

    def read(self, store: Store) -> T:
        """Return the value of the column in an open store."""
        raise NotImplementedError

    def arrays(self, value: Any) -> dict[str, pa.Array]:
        """Return the Arrow array that stores ``value``, by name of the column."""
        raise NotImplementedError


class ArrowColumn(Column[pa.Array]):
    """A column that is read as an Arrow array, without a copy."""

    def __init__(self, file: str, name: str, arrow_type: pa.DataType | None = None) -> None:
        """Declare the column; ``arrow_type`` None: the type of the values."""
        super().__init__(file, name)
        self.arrow_type = arrow_type

    def read(self, store: Store) -> pa.Array:
        """Return the mapped array."""
        return store.column(self.file, self.name)

    def arrays(self, value: Any) -> dict[str, pa.Array]:
        """Return the values in the declared type."""
        if not isinstance(value, pa.Array):
            return {self.name: pa.array(value, self.arrow_type)}
        return {self.name: value if self.arrow_type is None else value.cast(self.arrow_type)}


class TextColumn(Column[tuple[str, ...]]):
    """A short column of texts, read as a tuple."""

    def __init__(self, file: str, name: str, arrow_type: pa.DataType | None = None) -> None:
        """Declare the column; ``arrow_type`` None: strings with 32-bit offsets."""
        super().__init__(file, name)
        self.arrow_type = pa.string() if arrow_type is None else arrow_type

    def read(self, store: Store) -> tuple[str, ...]:
        """Return the texts."""
        return tuple(store.column(self.file, self.name).to_pylist())

    def arrays(self, value: Sequence[str]) -> dict[str, pa.Array]:
        """Return the texts as an Arrow array."""
        return {self.name: pa.array(value, self.arrow_type)}


class NumberColumn(Column[np.ndarray]):
    """A column of numbers, read as a memory-mapped numpy array."""

    def __init__(
        self, file: str, name: str, dtype: DTypeLike | None = None, *, width: int | None = None
    ) -> None:
        """Declare the column.

        Args:
            file: name of the file.
            name: name of the column.
            dtype: dtype of the stored numbers; bool is stored as uint8; None: int32 if the numbers
                fit, else int64.
            width: number of columns of a matrix, which is stored in row-major order; None: the
                array is flat.
        """
        super().__init__(file, name)
        self.dtype = None if dtype is None else np.dtype(dtype)
        self.width = width

    def read(self, store: Store) -> np.ndarray:
        """Return the mapped array."""
        array = store.column(self.file, self.name).to_numpy(zero_copy_only=True)
        if self.dtype == np.bool_:
            array = array.view(np.bool_)
        return array if self.width is None else array.reshape(-1, self.width)

    def arrays(self, value: np.ndarray) -> dict[str, pa.Array]:
        """Return the numbers in the declared dtype."""
        array = value if self.width is None else np.ascontiguousarray(value).reshape(-1)
        if self.dtype is None:
            return {self.name: pa.array(compact_int(array))}
        stored = np.uint8 if self.dtype == np.bool_ else self.dtype
        return {self.name: pa.array(array.astype(stored, copy=False))}


def column_tables(kind: type[Store], values: Mapping[str, Any]) -> dict[str, dict[str, pa.Array]]:
    """Return the files of declared columns: name of a file -> name of a column -> Arrow array.

    Args:
        kind: the class of the store.
        values: value of each declared column, by the name of its attribute.

    Raises:
        TypeError: if a declared column has no value, or a value no column.
    """
    columns: dict[str, Column[Any]] = {}
    # Columns of base classes come first, as in the order of their declaration.
    for base in reversed(kind.__mro__):
        columns |= {name: item for name, item in vars(base).items() if isinstance(item, Column)}
    if columns.keys() != values.keys():
        differing = sorted(columns.keys() ^ values.keys())
        raise TypeError(f"{kind.__name__}: missing or undeclared columns {', '.join(differing)}")
    tables: dict[str, dict[str, pa.Array]] = {}
    for name, column in columns.items():
        tables.setdefault(column.file, {}).update(column.arrays(values[name]))
    return tables


def numbered_texts(text: pa.Array, start: int, end: int) -> tuple[pa.Array, pa.Array]:
    """Return the numbers of rows, from 1, and their texts, as ``Store.inputs`` of unnamed rows."""
    keys = pa.array(range(start + 1, end + 1), pa.int64()).cast(pa.string())
    return keys, text.slice(start, end - start).cast(pa.large_binary())


def compact_int(array: np.ndarray) -> np.ndarray:
    """Return the integers as int32 where they fit, else as int64."""
    is_small = len(array) == 0 or (array.max() < 2**31 and array.min() >= -(2**31))
    return array.astype(np.int32 if is_small else np.int64, copy=False)
