"""Token ids of the texts of a store, in the cache of this machine: each text is tokenized once.

Tokenizing takes 2 to 5 µs of one core per token; reading its id takes a fiftieth of that. Batches
are equal with and without the cache, so a process reads the cache if it exists and tokenizes
otherwise. One process per machine makes the cache while training runs. The cache is one of the
copies of ``bucket_cache.py``: its size is checked before it is written and counts towards
``RAYBIO_CACHE_SIZE``, and unused copies are removed to make room. ``progress.json`` holds the
sha256 of what has been written to both files. A machine verifies the files against it once for each
state of the files.

Shape letters: N rows of the store, R some rows, T tokens of these rows, end to end.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from raybio.core.digest import json_digest
from raybio.core.errors import RecordError, StorageError
from raybio.core.records import is_count, read_record, write_record
from raybio.core.verification import Verification, file_state, first_damage
from raybio.ops.segments import take_segments
from raybio.store.bucket_cache import cached_copy, held_copy, remove_copy
from raybio.store.prefetch import request_slices

_log = logging.getLogger(__name__)

TOKENS = "tokens.bin"
POINTERS = "pointers.bin"
PROGRESS = "progress.json"

_KIND = "token cache"

ROWS_PER_BLOCK = 1 << 16
"""Rows that are tokenized at once. Blocks that an interrupted process has written are kept."""

NUM_SAMPLES = 1024
"""Rows from which the size of a cache is estimated."""

MARGIN = 1.1
"""Factor on the estimated size, in case the sampled rows are shorter than the others."""

NUM_CHECKED = 32
"""Number of rows that each process tokenizes to check a cache before using it."""

MIN_READS = 1_000_000
"""Below this number of rows read, a run needs no cache: tokenizing them takes seconds."""

_OPENED: dict[str, "_Cached"] = {}
"""Caches that this process has checked."""

_UNUSABLE: set[str] = set()
"""Caches that this process has found unusable and cannot remove."""


class _Cached(NamedTuple):
    """Token ids of all rows end to end, and row pointers (N + 1,), mapped."""

    token_T: np.ndarray
    indptr_N1: np.ndarray


class _Written(NamedTuple):
    """The part of a cache that has been written.

    Attributes:
        num_rows: rows.
        num_tokens: tokens of these rows.
        hash_by_name: name of a file -> its running ``hashlib`` hash.
    """

    num_rows: int
    num_tokens: int
    hash_by_name: dict[str, Any]


@dataclass(frozen=True)
class CachedTokens:
    """Texts of a store as token ids, read from the cache of this machine if it exists.

    It is a function of row numbers, and pickles without the tokens.

    Attributes:
        read: rows -> texts.
        tokenize: texts -> tokens (T,) and row pointers (R + 1,).
        num_rows: N.
        identity: names everything that the tokens depend on: the digest of the store, the texts,
            the tokenizer, and where texts are cut.
        num_reads: rows that the run reads.
    """

    read: Callable[[np.ndarray], list[str]]
    tokenize: Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]
    num_rows: int
    identity: str
    num_reads: float = 0

    def __call__(self, row_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens (T,) of rows and row pointers (R + 1,), as ``tokenize`` does."""
        cached = self._open_cached()
        if cached is None:
            return self.tokenize(self.read(row_R))
        request_slices(cached.token_T, cached.indptr_N1[row_R], cached.indptr_N1[row_R + 1])
        return take_segments(cached.token_T, cached.indptr_N1, row_R)

    @property
    def pays(self) -> bool:
        """Whether the run reads enough rows that it is worth tokenizing all of them."""
        # A cache of rows that are read only once would not pay.
        return self.num_reads >= max(2 * self.num_rows, MIN_READS)

    def make(self) -> None:
        """Tokenize all texts into the cache of this machine, if another process has not.

        Raises:
            StorageError: if the cache has no room or cannot be written.
        """
        # An existing cache may be unusable; opening it then removes it.
        if self._open_cached() is None:
            cached_copy(self._name, self._estimated_bytes(), self._write)

    @cached_property
    def _name(self) -> str:
        # Another version of the library may tokenize differently with the same tokenizer.
        content = f"{self.identity}\ntokenizers {version('tokenizers')}"
        return f"tokens-{hashlib.sha256(content.encode()).hexdigest()[:32]}"

    def _open_cached(self) -> _Cached | None:
        if self._name in _OPENED:
            return _OPENED[self._name]
        if self._name in _UNUSABLE:
            return None
        folder = held_copy(self._name)
        if folder is None:
            return None
        cached = self._open(folder)
        if cached is None:
            self._remove(folder)
            return None
        _OPENED[self._name] = cached
        return cached

    def _remove(self, folder: Path) -> None:
        """Remove a cache; one that cannot be removed is not read again."""
        try:
            remove_copy(folder)
            outcome = "was removed"
        except OSError as error:
            _UNUSABLE.add(self._name)
            outcome = f"cannot be removed ({error.strerror or error})"
        _log.warning(
            "%s: is damaged or of another version of raybio, and %s; its texts are tokenized again",
            folder,
            outcome,
        )

    def _open(self, folder: Path) -> _Cached | None:
        """Return the content of a cache; None if it is not what ``make`` writes."""
        try:
            if not _is_whole(folder):
                return None
            indptr_N1 = _map(folder / POINTERS, np.dtype(np.int64))
            token_T = _map(folder / TOKENS, self._dtype)
        except (OSError, ValueError, RecordError, StorageError):
            return None
        if len(indptr_N1) != self.num_rows + 1 or indptr_N1[-1] != len(token_T):
            return None
        cached = _Cached(token_T, indptr_N1)
        row_R = _spread(self.num_rows, NUM_CHECKED)
        expected = self.tokenize(self.read(row_R))
        kept = take_segments(token_T, indptr_N1, row_R)
        is_equal = all(map(np.array_equal, kept, expected))
        return cached if is_equal else None

    @property
    def _dtype(self) -> np.dtype:
        return self.tokenize([])[0].dtype

    def _estimated_bytes(self) -> int:
        row_R = _spread(self.num_rows, NUM_SAMPLES)
        token_T, _ = self.tokenize(self.read(row_R))
        num_tokens = MARGIN * len(token_T) / max(len(row_R), 1) * self.num_rows
        return int(num_tokens * token_T.itemsize) + 8 * (self.num_rows + 1)

    def _write(self, folder: Path) -> None:
        """Write the files; continue where an interrupted call stopped."""
        itemsize = self._dtype.itemsize
        written = _written(folder, itemsize)
        num_tokens = written.num_tokens
        with (folder / TOKENS).open("ab") as tokens, (folder / POINTERS).open("ab") as pointers:
            # Drop what was written after the last record of progress.
            tokens.truncate(num_tokens * itemsize)
            pointers.truncate(8 * (written.num_rows + 1) if written.num_rows else 0)

            def write(token_T: np.ndarray, pointer_R: np.ndarray, num_rows: int) -> None:
                for file, name, array in (
                    (tokens, TOKENS, token_T),
                    (pointers, POINTERS, pointer_R),
                ):
                    file.write(array.data)
                    written.hash_by_name[name].update(array.data)
                    file.flush()
                    os.fsync(file.fileno())
                progress = {
                    "rows": num_rows,
                    "tokens": num_tokens,
                    "sha256": _digests(written.hash_by_name),
                }
                write_record(folder / PROGRESS, _KIND, progress)

            if not written.num_rows:
                write(np.empty(0, self._dtype), np.zeros(1, np.int64), 0)
            for first in range(written.num_rows, self.num_rows, ROWS_PER_BLOCK):
                end = min(first + ROWS_PER_BLOCK, self.num_rows)
                token_T, indptr_R1 = self.tokenize(self.read(np.arange(first, end)))
                pointer_R = num_tokens + indptr_R1[1:].astype(np.int64)
                num_tokens += len(token_T)
                write(token_T, pointer_R, end)
        self._note_verified(folder, _digests(written.hash_by_name))

    def _note_verified(self, folder: Path, sha256_by_name: dict[str, str]) -> None:
        """Record the files as verified, so that processes of this machine need not read them."""
        # Their folder is renamed yet, which leaves the state of the files.
        final = folder.resolve().with_name(self._name)
        verification = Verification(final, json_digest(sha256_by_name))
        for name in sha256_by_name:
            verification.add(name, file_state(folder / name, StorageError))


def preparation(readers: Sequence[CachedTokens]) -> Callable[[], None] | None:
    """Return a function that makes the caches that pay for a run; None if there are none."""
    paying = [reader for reader in readers if reader.pays]
    return partial(_make_all, paying) if paying else None


def _make_all(readers: Sequence[CachedTokens]) -> None:
    for reader in readers:
        try:
            reader.make()
        except StorageError as error:
            _log.warning("%s. Texts are tokenized again for each batch", error)


def _spread(num_rows: int, count: int) -> np.ndarray:
    """Return at most ``count`` rows, evenly spaced."""
    count = min(count, num_rows)
    return np.arange(count) * num_rows // max(count, 1)


def _map(path: Path, dtype: np.dtype) -> np.ndarray:
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    # Return a plain array, since indexing an ``np.memmap`` is slower.
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))


def _is_whole(folder: Path) -> bool:
    """Return whether both files are those that were written.

    Raises:
        OSError, RecordError, StorageError: if a file cannot be read or the record is damaged.
    """
    sha256_by_name = (read_record(folder / PROGRESS, _KIND) or {}).get("sha256")
    if not isinstance(sha256_by_name, dict) or sha256_by_name.keys() != {TOKENS, POINTERS}:
        return False
    digest = json_digest(sha256_by_name)
    return first_damage(folder.resolve(), sha256_by_name, digest, StorageError) is None


def _written(folder: Path, itemsize: int) -> _Written:
    """Return what an interrupted call has written; if it is damaged, warn and return nothing."""
    nothing = _Written(0, 0, {TOKENS: hashlib.sha256(), POINTERS: hashlib.sha256()})
    try:
        progress = read_record(folder / PROGRESS, _KIND)
        if progress is None:
            return nothing
        num_rows: Any = progress.get("rows")
        num_tokens: Any = progress.get("tokens")
        if is_count(num_rows) and is_count(num_tokens):
            hash_by_name = {
                TOKENS: _hash_of_start(folder / TOKENS, num_tokens * itemsize),
                POINTERS: _hash_of_start(folder / POINTERS, 8 * (num_rows + 1)),
            }
            if _digests(hash_by_name) == progress.get("sha256"):
                return _Written(num_rows, num_tokens, hash_by_name) if num_rows else nothing
    except (OSError, RecordError):
        pass  # as any other damage
    _log.warning("%s: is damaged; its texts are tokenized again from the first one", folder)
    return nothing


def _digests(hash_by_name: Mapping[str, Any]) -> dict[str, str]:
    return {name: running.hexdigest() for name, running in hash_by_name.items()}


def _hash_of_start(path: Path, num_bytes: int) -> Any:
    """Return the ``hashlib`` hash of the first ``num_bytes`` of a file, or of a shorter file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(min(num_bytes, 1 << 20)):
            digest.update(block)
            num_bytes -= len(block)
    return digest
