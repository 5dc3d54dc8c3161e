"""TAPE's LMDB files (Rao et al., 2019): a pickle a record, read without running what it may ask for."""

import codecs
import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy._core import multiarray

from raybio.errors import DataError

COUNT = b"num_examples"
"""The key of the number of records; they are "0", "1" and so on."""

# What an array or a number was pickled as, by numpy 1 and 2; none of these runs what it is given.
ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): codecs.encode,
}
for _core in ("numpy.core", "numpy._core"):
    ALLOWED[f"{_core}.multiarray", "_reconstruct"] = multiarray._reconstruct
    ALLOWED[f"{_core}.multiarray", "scalar"] = multiarray.scalar


def lmdb_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records in their order.

    Args:
        path: the file, or the folder with ``data.mdb`` that lmdb makes of a name.

    Raises:
        DataError: if it is not there or damaged, a record is missing, or a pickle asks for more than arrays.
    """
    # Only now: whoever has TAPE's JSON does without it.
    try:
        import lmdb
    except ImportError:
        raise DataError(f"{path}: to read it pip install lmdb; or take TAPE's JSON files") from None
    try:
        # Neither a lock file nor anything else is written beside it.
        file = lmdb.open(str(path), subdir=path.is_dir(), readonly=True, lock=False, create=False)
        with file, file.begin() as view:
            for number in range(_unpickled(path, COUNT, view.get(COUNT))):
                key = str(number).encode()
                yield _unpickled(path, key, view.get(key))
    except lmdb.Error as error:
        raise DataError(f"{path}: is no LMDB file, or damaged ({error}). Fetch it again.") from None


class _NumbersAlone(pickle.Unpickler):
    """Arrays and what Python has built in without a name: no function can be called, so that no code runs."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return ALLOWED[module, name]


def _unpickled(path: Path, key: bytes, content: bytes | None) -> Any:
    if content is None:
        raise DataError(f"{path}: has no record {key.decode()!r}, want TAPE's layout: num_examples, 0, 1, ...")
    try:
        return _NumbersAlone(io.BytesIO(content)).load()
    except Exception as error:  # a damaged pickle may raise anything
        raise DataError(
            f"{path}, record {key.decode()}: cannot be read ({error}), want a pickle of texts, numbers and arrays"
        ) from None
