"""Folders and arrays of the cache are made once, by one process, whole or not at all."""

import os
import threading
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from raybio.core import cache
from raybio.core.cache import cached_folder, shared_beginning
from raybio.core.errors import ConfigError
from raybio.core.files import atomic_folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))


def make_noting(log: Path, folder: Path) -> None:
    with log.open("a") as file:
        file.write(f"{os.getpid()}\n")
    with atomic_folder(folder) as draft:
        (draft / "content").write_text("made")


def cached_at_the_same_time(barrier: threading.Barrier, log: Path) -> None:
    barrier.wait()
    folder = cached_folder("kind/key", lambda folder: make_noting(log, folder))
    assert (folder / "content").read_text() == "made"


def test_one_of_several_processes_makes_a_folder(tmp_path: Path) -> None:
    context = get_context("fork")
    barrier = context.Barrier(4)
    log = tmp_path / "log"
    workers = [
        context.Process(target=cached_at_the_same_time, args=(barrier, log)) for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert len(log.read_text().splitlines()) == 1


def test_a_disk_that_is_full_while_a_folder_is_made_is_an_error_that_names_the_setting(
    tmp_path: Path,
) -> None:
    def fail(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ConfigError, match=r"No space left on device.*set RAYBIO_CACHE"):
        cached_folder("kind/key", fail)
    assert not (tmp_path / "cache" / "kind" / "key").exists()


def test_a_shared_array_that_is_not_what_was_written_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    whole = np.arange(1000)
    made: list[int] = []

    def make() -> np.ndarray:
        made.append(1)
        return whole

    assert np.array_equal(cache.shared_array("series", 3, make), whole)
    path = tmp_path / "shared" / "series" / "3.npy"
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[500] ^= 1
    for damaged in (flipped, content[:-1], content[:-32], b""):
        made.clear()
        path.write_bytes(damaged)
        for _ in range(2):
            assert np.array_equal(cache.shared_array("series", 3, make), whole)
        assert len(made) == 1
        assert path.read_bytes() == content


def test_a_beginning_is_made_only_if_the_cache_has_none_of_that_length() -> None:
    made: list[int] = []

    def beginning(min_length: int, made_length: int) -> list[int]:
        def make() -> np.ndarray:
            made.append(made_length)
            return np.arange(made_length)

        return [int(number) for number in shared_beginning("series", min_length, make)]

    assert beginning(2, 2) == [0, 1]
    assert beginning(2, 5) == [0, 1]
    assert beginning(3, 5) == [0, 1, 2, 3, 4]
    assert beginning(1, 1) == [0, 1, 2, 3, 4]
    assert made == [2, 5]


def test_without_a_cache_a_beginning_is_made_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file"))
    for length in (2, 5, 3):
        assert len(shared_beginning("series", length, partial(np.arange, length))) == length
    assert caplog.text.count("cannot be written") == 1
