"""TAPE's LMDB files (Rao et al., 2019): a pickle a record, read without running what it may ask for."""

import io
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from raybio.core.errors import DataError

COUNT = b"num_examples"
"""The key of the number of records; they are "0", "1" and so on."""


SOUND_TYPE = re.compile("[<>=|]?(b1|[iuf][1248])")


class _Type:
    """What a pickle says of a dtype, which numpy itself would believe whatever it is."""

    def __init__(self, name: str, *_: object) -> None:
        if not SOUND_TYPE.fullmatch(name):
            raise pickle.UnpicklingError(f"it holds values of type {name!r}")
        self.name, self.order = name.lstrip("<>=|"), "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = "=" if state[1] == "|" else str(state[1])

    def values(self, content: bytes) -> np.ndarray:
        return np.frombuffer(content, np.dtype(self.name).newbyteorder(self.order))  # type: ignore[arg-type]


class _Array:
    """An array of numbers, flat; of others than numbers a pickle holds a list, which has no bytes to be read."""

    def __init__(self, *_: object) -> None:
        self.values = np.zeros(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, _, type_, _, content = state
        self.values = type_.values(content)


def _encoded(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return text.encode(encoding)


# What pickles of arrays and numbers ask for, by numpy 1 and 2: in its place stands what believes nothing unseen.
ALLOWED: dict[tuple[str, str], Any] = {("numpy", "ndarray"): _Array, ("numpy", "dtype"): _Type}


ALLOWED["_codecs", "encode"] = _encoded


for _core in ("numpy.core", "numpy._core"):
    ALLOWED[f"{_core}.multiarray", "_reconstruct"] = _Array
    ALLOWED[f"{_core}.multiarray", "scalar"] = lambda type_, content: type_.values(content)[
        0
    ].item()


def lmdb_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records in their order; an array among their values is flat.

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
    """Arrays and what needs no name to be built; nothing but ``ALLOWED`` can be called."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return ALLOWED[module, name]


def _unpickled(path: Path, key: bytes, content: bytes | None) -> Any:
    if content is None:
        raise DataError(
            f"{path}: has no record {key.decode()!r}, want TAPE's layout: num_examples, 0, 1, ..."
        )
    try:
        found = _NumbersAlone(io.BytesIO(content)).load()
    except Exception as error:  # a damaged pickle may raise anything
        raise DataError(
            f"{path}, record {key.decode()}: cannot be read ({error}), want a pickle of texts, numbers and arrays"
        ) from None
    if isinstance(found, dict):
        return {name: one.values if isinstance(one, _Array) else one for name, one in found.items()}
    return found
