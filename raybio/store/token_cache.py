"""Token ids of the texts of a store, in the cache of this machine: each text is tokenized once.

Tokenizing takes a core 2 to 5 µs a token, reading its ids a fiftieth of that. Batches are equal
with the cache and without it, so a process reads it where it is there, and tokenizes where it is
not. One process of a machine makes it, next to training. It lies among the copies of
``bucket_cache.py``: its size is checked before it is written and counts for ``RAYBIO_CACHE_SIZE``,
and where room is missing, one that nobody uses is removed.

Shape letters: N rows of the store, R some rows, T tokens of these rows, end to end.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np

from raybio.core.errors import StorageError
from raybio.core.files import replace_text
from raybio.ops.segments import take_segments
from raybio.store.bucket_cache import cached_copy, held_copy, remove_copy
from raybio.store.prefetch import request_slices

_log = logging.getLogger(__name__)

TOKENS = "tokens.bin"
POINTERS = "pointers.bin"
PROGRESS = "progress.json"

ROWS_PER_BLOCK = 1 << 16
"""Rows that are tokenized at once; what an interrupted process has written is not made again."""

NUM_SAMPLES = 1024
"""Rows from which the size of a cache is estimated."""

MARGIN = 1.1
"""Of the estimated size, for samples that are shorter than the others."""

NUM_CHECKED = 32
"""Rows that each process tokenizes to compare them with a cache before it uses it."""

MIN_READS = 1_000_000
"""A run that reads fewer rows spends seconds on tokenizing them."""

_OPENED: dict[str, "_Cached"] = {}
"""Caches that this process has checked."""


class _Cached(NamedTuple):
    """Token ids of all rows end to end, and row pointers (N + 1,), mapped."""

    token_T: np.ndarray
    indptr_N1: np.ndarray


@dataclass(frozen=True)
class CachedTokens:
    """Texts of a store as token ids: from the cache of this machine, if it is there.

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
        # A cache of rows that are read once would be made for nothing.
        return self.num_reads >= max(2 * self.num_rows, MIN_READS)

    def make(self) -> None:
        """Tokenize all texts into the cache of this machine, if another process has not.

        Raises:
            StorageError: if the cache has no room or cannot be written.
        """
        if held_copy(self._name) is None:
            cached_copy(self._name, self._estimated_bytes(), self._write)

    @cached_property
    def _name(self) -> str:
        # The same tokenizer gives other tokens in another version of its library, perhaps.
        content = f"{self.identity}\ntokenizers {version('tokenizers')}"
        return f"tokens-{hashlib.sha256(content.encode()).hexdigest()[:32]}"

    def _open_cached(self) -> _Cached | None:
        if self._name in _OPENED:
            return _OPENED[self._name]
        folder = held_copy(self._name)
        if folder is None:
            return None
        cached = self._open(folder)
        if cached is None:
            _log.warning("%s: is damaged and was removed; its texts are tokenized again", folder)
            remove_copy(folder)
            return None
        _OPENED[self._name] = cached
        return cached

    def _open(self, folder: Path) -> _Cached | None:
        """Return the content of a cache; None if it is not what ``make`` writes."""
        try:
            indptr_N1 = _map(folder / POINTERS, np.dtype(np.int64))
            token_T = _map(folder / TOKENS, self._dtype)
        except (OSError, ValueError):
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
        """Write the files, from where an interrupted call stopped."""
        itemsize = self._dtype.itemsize
        num_done, num_tokens = _progress(folder, itemsize)
        with (folder / TOKENS).open("ab") as tokens, (folder / POINTERS).open("ab") as pointers:
            # What was written after the last record of progress.
            tokens.truncate(num_tokens * itemsize)
            pointers.truncate(8 * (num_done + 1) if num_done else 0)
            if not num_done:
                pointers.write(np.zeros(1, np.int64).data)
            for first in range(num_done, self.num_rows, ROWS_PER_BLOCK):
                end = min(first + ROWS_PER_BLOCK, self.num_rows)
                token_T, indptr_R1 = self.tokenize(self.read(np.arange(first, end)))
                tokens.write(token_T.data)
                pointers.write((num_tokens + indptr_R1[1:].astype(np.int64)).data)
                num_tokens += len(token_T)
                for file in (tokens, pointers):
                    file.flush()
                    os.fsync(file.fileno())
                progress = {"rows": end, "tokens": num_tokens}
                replace_text(folder / PROGRESS, json.dumps(progress))


def preparation(readers: Sequence[CachedTokens]) -> Callable[[], None] | None:
    """Return what makes the caches that are worth it for a run; None if none is."""
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
    # A plain array: indexing one of numpy's own maps takes longer.
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))


def _progress(folder: Path, itemsize: int) -> tuple[int, int]:
    """Return the rows and tokens that an interrupted call has written, 0 if they are not there."""
    try:
        progress = json.loads((folder / PROGRESS).read_bytes())
        num_rows = int(progress["rows"])
        num_tokens = int(progress["tokens"])
        has_tokens = (folder / TOKENS).stat().st_size >= num_tokens * itemsize
        has_pointers = (folder / POINTERS).stat().st_size >= 8 * (num_rows + 1)
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 0
    return (num_rows, num_tokens) if has_tokens and has_pointers else (0, 0)
