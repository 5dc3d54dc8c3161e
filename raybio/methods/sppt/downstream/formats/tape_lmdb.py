"""Reader of TAPE's LMDB files (Rao et al. 2019): one pickle a record, read without running code.

A pickle may name any function to call. This reader replaces the few that arrays and numbers need by
its own classes, and refuses all others.
"""

import io
import pickle
import pickletools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from raybio.core.errors import DataError
from raybio.core.extras import from_extra

COUNT_KEY = b"num_examples"
"""Key of the number of records. The records' keys are "0", "1" and so on."""

NUMBER_TYPE = re.compile("[<>=|]?(b1|[iuf][1248])")
"""Names of the array types that are read."""


def lmdb_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records in order. Arrays among their values are flat.

    Args:
        path: the file, or the folder with ``data.mdb`` that lmdb creates.

    Raises:
        DataError: if the file is missing or damaged, a record is missing, or a pickle holds
            anything but texts, numbers and arrays of numbers.
        ConfigError: if lmdb is not installed.
    """
    # Imported here, so that TAPE's JSON files need no lmdb.
    with from_extra("lmdb", "tape"):
        import lmdb
    try:
        # Read-only and without a lock file, so that nothing is written.
        file = lmdb.open(str(path), subdir=path.is_dir(), readonly=True, lock=False, create=False)
        with file, file.begin() as view:
            for number in range(_unpickle(path, COUNT_KEY, view.get(COUNT_KEY))):
                key = str(number).encode()
                yield _unpickle(path, key, view.get(key))
    except lmdb.Error as error:
        raise DataError(f"{path}: is no LMDB file, or damaged ({error}). Fetch it again.") from None


def _unpickle(path: Path, key: bytes, content: bytes | None) -> Any:
    if content is None:
        raise DataError(
            f"{path}: has no record {key.decode()!r}, want TAPE's layout: num_examples, 0, 1, ..."
        )
    try:
        _check_sizes(content)
        record = _NumbersOnlyUnpickler(io.BytesIO(content)).load()
    except Exception as error:  # a damaged pickle may raise anything
        raise DataError(
            f"{path}, record {key.decode()}: cannot be read ({error}), want a pickle of texts, "
            "numbers and arrays"
        ) from None
    if not isinstance(record, dict):
        return record
    return {
        name: value.values if isinstance(value, _Array) else value for name, value in record.items()
    }


def _check_sizes(content: bytes) -> None:
    """Refuse a pickle of a few bytes for which the unpickler would reserve gigabytes.

    Raises:
        ValueError: if a length is beyond the end, or a number in the memo beyond the bytes.
    """
    for operation, argument, _ in pickletools.genops(content):
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(content):
            raise ValueError(f"it numbers {argument:,} parts")


class _NumbersOnlyUnpickler(pickle.Unpickler):
    """Unpickler that calls nothing but ``_ALLOWED``."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ALLOWED[module, name]


class _Type:
    """Stands for a numpy dtype. Numpy's own class would accept any state from a pickle."""

    def __init__(self, name: str, *_: object) -> None:
        if not NUMBER_TYPE.fullmatch(name):
            raise pickle.UnpicklingError(f"it holds values of type {name!r}")
        self.name = name.lstrip("<>=|")
        self.order = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = "=" if state[1] == "|" else str(state[1])

    def values(self, content: bytes) -> np.ndarray:
        return np.frombuffer(content, np.dtype(self.name).newbyteorder(self.order))  # type: ignore[arg-type]


class _Array:
    """Stands for a numpy array of numbers, and holds it flat.

    An array of objects has a list instead of bytes in its pickle, so it fails to load.
    """

    def __init__(self, *_: object) -> None:
        self.values = np.zeros(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, _, type_, _, content = state
        self.values = type_.values(content)


def _scalar(type_: _Type, content: bytes) -> Any:
    return type_.values(content)[0].item()


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return text.encode(encoding)


# What pickles of arrays and numbers name, written by numpy 1 (core) or 2 (_core).
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "scalar"): _scalar,
}
