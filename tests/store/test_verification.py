"""A store is read as a whole once a machine; what has changed since is read again."""

import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from raybio.core import verification
from raybio.core.cache import cache_folder
from raybio.core.errors import RaybioError, StoreError
from raybio.core.records import read_record, write_record
from raybio.store.store import Store, open_store
from tests.store.test_store import parts, write_store


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))
    return cache_folder() / "verified_files"


@pytest.fixture
def store(tmp_path: Path, cache: Path) -> Store:
    return write_store(tmp_path / "store", **parts())


@pytest.fixture
def read_files(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], list[str]]:
    """Open a store as a start does, and return the names of the files that were read as a whole."""
    read: list[str] = []
    really_read = verification.sha256_of

    def sha256_of(path: Path, error: type[RaybioError]) -> str:
        read.append(Path(path).name)
        return really_read(path, error)

    monkeypatch.setattr(verification, "sha256_of", sha256_of)

    def start(path: Path) -> list[str]:
        read.clear()
        open_store(path, verify=True)
        return list(read)

    return start


def flip_a_byte(path: Path) -> None:
    """In place: size and inode stay."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    with path.open("r+b") as file:
        file.write(content)


def advance_time(path: Path) -> None:
    """Change the times of a file by a second, however coarse the clock of the file system is."""
    now = path.stat().st_mtime_ns + 10**9
    os.utime(path, ns=(now, now))


def forget_change(cache: Path, changed: Path) -> None:
    """Let the record hold the state of a file as it is now: the disk has changed it unseen."""
    (path,) = cache.glob("*.json")
    record = read_record(path, "verified files")
    status = changed.stat()
    record["files"][changed.name] = [
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_ino,
        status.st_dev,
    ]
    write_record(path, "verified files", record)


def test_a_start_reads_only_files_that_have_changed_since_they_were_verified(store, read_files):
    names = list(store.manifest["files"])
    assert read_files(store.path) == names
    assert read_files(store.path) == []
    advance_time(store.path / names[1])
    assert read_files(store.path) == [names[1]]
    assert read_files(store.path) == []
    # A copy of the same bytes is another file.
    content = (store.path / names[0]).read_bytes()
    (store.path / "copy").write_bytes(content)
    os.replace(store.path / "copy", store.path / names[0])
    assert read_files(store.path) == [names[0]]


def test_another_store_at_the_same_path_and_the_same_store_elsewhere_are_read(
    store, tmp_path, read_files
):
    names = list(store.manifest["files"])
    assert read_files(store.path) == names
    write_store(store.path, force=True, **parts(["ACD", "EFGH", "IKLMN", "P", "QRT"]))
    assert read_files(store.path) == names
    moved = store.path.rename(tmp_path / "moved")
    assert read_files(moved) == names


def test_a_byte_that_is_flipped_after_verification_is_found_at_the_next_start(store, read_files):
    read_files(store.path)
    for name in store.manifest["files"]:
        path = store.path / name
        flip_a_byte(path)
        advance_time(path)
        for _ in range(2):
            with pytest.raises(StoreError, match=f"{name}: sha256 is .* damaged or changed"):
                open_store(store.path, verify=True)
        flip_a_byte(path)
        advance_time(path)
        assert read_files(store.path) == [name]


def test_a_flipped_byte_whose_time_of_change_is_restored_is_found(store, read_files):
    read_files(store.path)
    path = store.path / next(iter(store.manifest["files"]))
    before = path.stat()
    flip_a_byte(path)
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        # The clock of an older kernel has ticks of some milliseconds.
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    with pytest.raises(StoreError, match="damaged or changed"):
        open_store(store.path, verify=True)


def test_damage_that_leaves_no_trace_is_found_by_reading_everything_and_by_later_starts(
    store, cache, read_files
):
    read_files(store.path)
    path = store.path / next(iter(store.manifest["files"]))
    flip_a_byte(path)
    forget_change(cache, path)
    assert read_files(store.path) == []
    with pytest.raises(StoreError, match="damaged or changed"):
        open_store(store.path).verify()
    with pytest.raises(StoreError, match="damaged or changed"):
        open_store(store.path, verify=True)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "verified files", "version": 99}'])
def test_a_record_that_cannot_be_read_counts_as_none(store, cache, read_files, content):
    names = list(store.manifest["files"])
    read_files(store.path)
    (path,) = cache.glob("*.json")
    path.write_text(content)
    assert read_files(store.path) == names
    assert read_files(store.path) == []


def test_without_a_writable_cache_every_start_reads_everything_and_says_so(
    store, tmp_path, monkeypatch, read_files, caplog
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        caplog.clear()
        assert read_files(store.path) == list(store.manifest["files"])
        assert caplog.text.count("so every start reads all of") == 1
        assert "RAYBIO_CACHE" in caplog.text


def verify_often(path: Path) -> None:
    for _ in range(20):
        open_store(path).verify()


def test_processes_that_verify_a_store_at_once_leave_a_whole_record(store, cache, read_files):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=verify_often, args=(store.path,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    assert sorted(path.suffix for path in cache.iterdir()) == [".json", ".lock"]
    assert read_files(store.path) == []


def test_starts_at_one_time_read_each_file_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    is_read_twice = threading.Event()
    other = threading.Thread(target=open_store, args=(store.path,), kwargs={"verify": True})
    really_read = verification.sha256_of

    def sha256_of(path: Path, error: type[RaybioError]) -> str:
        read.append(path.name)
        if len(read) == 1:
            other.start()
            # The other start comes so far if nothing holds it back.
            is_read_twice.wait(timeout=1)
        elif path.name == read[0]:
            is_read_twice.set()
        return really_read(path, error)

    monkeypatch.setattr(verification, "sha256_of", sha256_of)
    open_store(store.path, verify=True)
    other.join()
    assert sorted(read) == sorted(set(read))
    assert not is_read_twice.is_set()
