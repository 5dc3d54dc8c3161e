import errno
import json
import multiprocessing
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raybio.core import records, verification
from raybio.core.cache import cache_folder
from raybio.core.digest import json_digest
from raybio.core.errors import RaybioError, StorageError
from raybio.encoders.tokenization import TokenizerSource
from raybio.encoders.word_tokenizer import build_word_tokenizer
from raybio.store import bucket_cache, prefetch, token_cache
from raybio.store.token_cache import CachedTokens, preparation

NUM_ROWS = 300


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test is a process of a machine of its own."""
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RAYBIO_CACHE_SIZE", raising=False)
    monkeypatch.setattr(token_cache, "_OPENED", {})
    monkeypatch.setattr(token_cache, "_UNUSABLE", set())
    monkeypatch.setattr(token_cache, "ROWS_PER_BLOCK", 64)
    return cache_folder() / "buckets"


@dataclass
class Texts:
    """300 texts of 0 to 40 words, and a count of those that were read."""

    text_N: list[str] = field(default_factory=list)
    num_read: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        for row in range(NUM_ROWS):
            words = rng.integers(0, 50, int(rng.integers(0, 41)))
            self.text_N.append(f"row{row} " + " ".join(f"word{word}" for word in words))
        self.text_N[7] = ""

    def __call__(self, row_R: np.ndarray) -> list[str]:
        self.num_read += len(row_R)
        return [self.text_N[row] for row in row_R.tolist()]


def tokens_of(texts: Texts, *, max_length: int = 24, num_reads: float = 0) -> CachedTokens:
    tokenizer = build_word_tokenizer({f"word{word}": 1 for word in range(50)}, size=300)
    source = TokenizerSource.of(tokenizer)
    return CachedTokens(
        texts,
        partial(source.tokenize, max_length=max_length),
        num_rows=NUM_ROWS,
        identity=f"store, {source.identity(max_length)}",
        num_reads=num_reads,
    )


def assert_tokenized_now(tokens: CachedTokens, row_R: np.ndarray) -> None:
    expected_T, expected_R1 = tokens.tokenize(tokens.read(row_R))
    token_T, indptr_R1 = tokens(row_R)
    np.testing.assert_array_equal(token_T, expected_T)
    np.testing.assert_array_equal(indptr_R1, expected_R1)
    assert token_T.dtype == expected_T.dtype
    assert indptr_R1.dtype == expected_R1.dtype


def test_cached_tokens_are_those_that_are_tokenized_now(cache: Path) -> None:
    rng = np.random.default_rng(1)
    batches = [rng.integers(0, NUM_ROWS, size) for size in (1, 17, 1000, 0)]
    batches += [np.array([7, 7, 0, NUM_ROWS - 1])]
    texts = Texts()
    tokens = tokens_of(texts)
    for rows in batches:
        assert_tokenized_now(tokens, rows)
    tokens.make()
    tokens(batches[0])
    num_read = texts.num_read
    for rows in batches:
        tokens(rows)
    assert texts.num_read == num_read
    for rows in batches:
        assert_tokenized_now(tokens, rows)
    # It travels without tokens, and another process finds the cache.
    again = pickle.loads(pickle.dumps(tokens))
    assert len(pickle.dumps(tokens)) < 64_000
    for rows in batches:
        assert_tokenized_now(again, rows)
    # Tokens of 2 bytes, pointers of 8, and one file more.
    (folder,) = cache.glob("tokens-*")
    all_T, _ = tokens.tokenize(texts(np.arange(NUM_ROWS)))
    assert (folder / "tokens.bin").stat().st_size == 2 * len(all_T)
    assert (folder / "pointers.bin").stat().st_size == 8 * (NUM_ROWS + 1)


def test_pages_of_the_tokens_that_are_read_are_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tokens_of(Texts())
    tokens.make()
    row_R = np.array([NUM_ROWS - 1, 3])
    tokens(row_R)
    cached = token_cache._OPENED[tokens._name]
    assert cached.token_T.itemsize == 2
    requested: list[int] = []
    monkeypatch.setattr(prefetch, "is_large", lambda _: True)
    monkeypatch.setattr(
        prefetch, "_madvise", lambda page, length, advice: requested.append(page + length)
    )
    tokens(row_R)
    address = cached.token_T.ctypes.data
    assert requested == [address + 2 * int(cached.indptr_N1[row + 1]) for row in row_R]


def test_each_length_store_and_tokenizer_has_a_cache_of_its_own() -> None:
    texts = Texts()
    short = tokens_of(texts, max_length=5)
    short.make()
    assert_tokenized_now(short, np.arange(NUM_ROWS))
    for other in (tokens_of(texts), replace(short, identity="another store")):
        assert_tokenized_now(other, np.arange(NUM_ROWS))
        assert other._name != short._name


def make_and_die_in_the_third_block(tokens: CachedTokens) -> None:
    def write_record(path: Path, kind: str, content: Mapping[str, Any]) -> None:
        if content["rows"] == 192:
            # The block's tokens are in the file, and no progress says so.
            raise KeyboardInterrupt
        records.write_record(path, kind, content)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(token_cache, "write_record", write_record)
        tokens.make()


def test_an_interrupted_writing_goes_on_where_it_stopped() -> None:
    texts = Texts()
    tokens = tokens_of(texts)
    make_and_die_in_the_third_block(tokens)
    assert_tokenized_now(tokens, np.arange(NUM_ROWS))
    texts.num_read = 0
    tokens.make()
    num_samples = min(token_cache.NUM_SAMPLES, NUM_ROWS)
    assert texts.num_read == num_samples + NUM_ROWS - 128
    assert_tokenized_now(tokens, np.arange(NUM_ROWS))


def flip_a_byte(path: Path, position: int) -> None:
    """In place: size and inode stay."""
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1]))


PROGRESS = {"rows": 128, "tokens": 500, "sha256": {}}
DAMAGED_PROGRESS = [
    "{",
    "[]",
    '{"rows": 1e999, "tokens": 1}',
    '{"rows": -64, "tokens": 0}',
    '{"rows": 64, "tokens": -2}',
    *(
        json.dumps(record | {"checksum": json_digest(record)})
        for change in ({}, {"rows": -64}, {"tokens": -2}, {"rows": 1.5}, {"rows": None})
        for record in [records.to_record("token cache", PROGRESS | change)]
    ),
]


@pytest.mark.parametrize("progress", [*DAMAGED_PROGRESS, "tokens.bin", "pointers.bin"])
def test_what_is_damaged_of_an_interrupted_writing_is_made_again(
    progress: str, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = Texts()
    tokens = tokens_of(texts)
    make_and_die_in_the_third_block(tokens)
    (folder,) = cache.glob(".tokens-*.partial")
    if progress.endswith(".bin"):
        flip_a_byte(folder / progress, 17)
    else:
        (folder / "progress.json").write_text(progress)
    texts.num_read = 0
    tokens.make()
    assert "is damaged; its texts are tokenized again" in caplog.text
    assert texts.num_read == min(token_cache.NUM_SAMPLES, NUM_ROWS) + NUM_ROWS
    assert_tokenized_now(tokens, np.arange(NUM_ROWS))
    assert tokens._name in token_cache._OPENED


@pytest.mark.parametrize("name", ["tokens.bin", "pointers.bin", "progress.json"])
def test_one_flipped_byte_of_a_cache_is_found_wherever_it_is(
    name: str, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = tokens_of(Texts())
    tokens.make()
    (folder,) = cache.glob("tokens-*")
    _, indptr_N1 = tokens.tokenize(tokens.read(np.arange(NUM_ROWS)))
    # Of a row that is not among those that each process tokenizes.
    row = 5
    assert row not in token_cache._spread(NUM_ROWS, token_cache.NUM_CHECKED)
    position = {"tokens.bin": 2 * int(indptr_N1[row]), "pointers.bin": 8 * row}.get(name, 30)
    flip_a_byte(folder / name, position)
    assert_tokenized_now(tokens, np.arange(NUM_ROWS))
    assert "is damaged or of another version of raybio, and was removed" in caplog.text
    assert not folder.exists()


def test_a_cache_is_read_as_a_whole_once_a_machine_and_state_of_its_files(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    sha256_of = verification.sha256_of

    def counted(path: Path, error: type[RaybioError]) -> str:
        read.append(path.name)
        return sha256_of(path, error)

    monkeypatch.setattr(verification, "sha256_of", counted)
    tokens = tokens_of(Texts())
    tokens.make()
    for _ in range(2):  # processes
        token_cache._OPENED.clear()
        tokens(np.arange(3))
    # Whoever wrote it has computed them.
    assert read == []
    (folder,) = cache.glob("tokens-*")
    now = (folder / "tokens.bin").stat().st_mtime_ns + 10**9
    os.utime(folder / "tokens.bin", ns=(now, now))
    for _ in range(2):  # processes
        token_cache._OPENED.clear()
        tokens(np.arange(3))
    assert read == ["tokens.bin"]


def of_an_earlier_version(folder: Path) -> None:
    """Write the record of progress as caches had it before records had a version."""
    progress = json.loads((folder / "progress.json").read_text())
    (folder / "progress.json").write_text(
        json.dumps({name: progress[name] for name in ("rows", "tokens")})
    )


@pytest.mark.parametrize("is_old", [False, True])
def test_a_run_makes_an_unusable_cache_again(
    is_old: bool, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was removed by the first batch, and nobody made it again until the next start."""
    tokens = tokens_of(Texts())
    tokens.make()
    (folder,) = cache.glob("tokens-*")
    if is_old:
        of_an_earlier_version(folder)
    else:
        flip_a_byte(folder / "tokens.bin", 17)
    token_cache._OPENED.clear()
    tokens.make()
    assert_tokenized_now(tokens, np.arange(NUM_ROWS))
    assert tokens._name in token_cache._OPENED
    assert "is damaged or of another version of raybio, and was removed" in caplog.text


def test_an_unusable_cache_of_another_user_is_looked_at_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The collating of a batch ended with a traceback."""
    tokens = tokens_of(Texts())
    tokens.make()
    (folder,) = cache.glob("tokens-*")
    of_an_earlier_version(folder)
    open_lock = bucket_cache._open_lock

    def refuse(path: Path) -> int:
        if path.name.endswith(".making"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_lock(path)

    monkeypatch.setattr(bucket_cache, "_open_lock", refuse)
    token_cache._OPENED.clear()
    for _ in range(2):  # batches
        assert_tokenized_now(tokens, np.arange(NUM_ROWS))
    assert caplog.text.count("cannot be removed (Permission denied)") == 1
    tokens.make()
    assert folder.exists()


@pytest.mark.parametrize("damage", ["truncated", "other tokens", "without pointers"])
def test_a_damaged_cache_is_removed_and_texts_are_tokenized(
    damage: str, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = tokens_of(Texts())
    tokens.make()
    (folder,) = cache.glob("tokens-*")
    if damage == "truncated":
        os.truncate(folder / "tokens.bin", 100)
    elif damage == "other tokens":
        content = np.fromfile(folder / "tokens.bin", np.uint16)
        (folder / "tokens.bin").write_bytes((content + 1).tobytes())
    else:
        (folder / "pointers.bin").unlink()
    assert_tokenized_now(tokens, np.arange(NUM_ROWS))
    assert "is damaged or of another version of raybio, and was removed" in caplog.text
    assert not folder.exists()
    tokens.make()
    assert_tokenized_now(tokens, np.arange(NUM_ROWS))


def test_a_cache_that_has_no_room_is_not_written(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RAYBIO_CACHE_SIZE", "5kB")
    tokens = tokens_of(Texts(), num_reads=1e9)
    with pytest.raises(StorageError, match="exceed RAYBIO_CACHE_SIZE=5kB"):
        tokens.make()
    prepare = preparation([tokens])
    assert prepare is not None
    prepare()
    assert "Texts are tokenized again for each batch" in caplog.text
    assert not list(cache.rglob("*.bin"))
    assert_tokenized_now(tokens, np.arange(NUM_ROWS))


def test_tokens_are_cached_where_a_run_reads_texts_often_enough() -> None:
    reads = token_cache.MIN_READS
    assert not tokens_of(Texts(), num_reads=reads - 1).pays
    assert tokens_of(Texts(), num_reads=reads).pays
    assert not replace(tokens_of(Texts(), num_reads=reads), num_rows=reads).pays
    assert replace(tokens_of(Texts(), num_reads=2 * reads), num_rows=reads).pays
    assert preparation([tokens_of(Texts(), num_reads=1)]) is None


def make_and_count(tokens: CachedTokens, counts: "multiprocessing.Queue[int]") -> None:
    tokens.make()
    assert isinstance(tokens.read, Texts)
    counts.put(tokens.read.num_read)
    assert_tokenized_now(tokens, np.arange(NUM_ROWS))


def test_one_of_several_processes_writes_a_cache() -> None:
    context = multiprocessing.get_context("fork")
    counts: multiprocessing.Queue[int] = context.Queue()
    tokens = tokens_of(Texts())
    workers = [context.Process(target=make_and_count, args=(tokens, counts)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    num_samples = min(token_cache.NUM_SAMPLES, NUM_ROWS)
    *others, writer = sorted(counts.get() for _ in workers)
    assert writer == num_samples + NUM_ROWS
    # Those that found no cache have estimated its size before they waited. One that comes late
    # finds it complete, and compares some of its rows.
    assert set(others) <= {0, num_samples, token_cache.NUM_CHECKED}
