"""Download of an object of a bucket into a file: in parallel ranges, resumed, verified."""

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from raybio.core.digest import file_digest
from raybio.core.errors import DamagedObjectError, MissingObjectError, StorageError
from raybio.core.files import replace_text
from raybio.store.bucket import BucketFolder, ObjectInfo

RANGE_BYTES = 8 << 20
"""Size of the ranges of a download."""

NUM_PARALLEL = 8
"""Number of ranges of a file that are downloaded at once."""


def download_listed(folder: BucketFolder, info: ObjectInfo, file: Path) -> None:
    """Download an object into ``file``, in the version that was listed, unless the file exists.

    Raises:
        StorageError: if it was replaced since, or the bucket cannot be read.
        OSError: if the file cannot be written.
    """
    if file.is_file():
        return
    # A listing lacks the version numbers of versioned buckets, and rounds times differently.
    now = folder.info(info.name)
    if now is None or (now.num_bytes, now.version.etag) != (info.num_bytes, info.version.etag):
        raise StorageError(
            f"{folder.path / info.name}: was replaced while it was read. Give the command again"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    download_object(folder, info.name, file, info=now)


def download_object(
    folder: BucketFolder,
    name: str,
    file: Path,
    *,
    info: ObjectInfo | None = None,
    sha256: str | None = None,
) -> None:
    """Download an object in parallel ranges into ``file``, which appears when it is complete.

    An interrupted download resumes: finished ranges lie in ``<file>.part``, and
    ``<file>.ranges`` names them and the version of the object that they are of. One process at
    a time may download into a file.

    Args:
        folder: where the object lies.
        name: its name.
        file: where it goes; its folder exists.
        info: the version that is wanted; None: the one that is there.
        sha256: its digest in hex, if it is known.

    Raises:
        MissingObjectError: if there is no such object.
        DamagedObjectError: if the content has another sha256, twice.
        StorageError: if the bucket cannot be read.
        OSError: if the file cannot be written.
    """
    info = info or folder.info(name)
    if info is None:
        raise MissingObjectError(f"{folder.path / name}: there is no such object")
    # Without a digest, a range that a power loss destroyed would go unnoticed.
    download = _Download(folder, info, name, file, is_synced=sha256 is None)
    num_whole = 0
    while True:
        was_resumed = download.run()
        digest = None if sha256 is None else file_digest(download.part)
        if digest == sha256:
            break
        download.remove()
        # A power loss may have destroyed ranges of an earlier call, so only whole downloads count.
        num_whole += not was_resumed
        if num_whole == 2:
            raise DamagedObjectError(
                f"{folder.path / name}: its sha256 is {str(digest)[:16]}…, want "
                f"{str(sha256)[:16]}…: the object was damaged or changed. Upload it again"
            )
    download.part.replace(file)
    download.remove()


class _Download:
    """The download of one object into a file: ranges that have arrived, and the rest."""

    def __init__(
        self, folder: BucketFolder, info: ObjectInfo, name: str, file: Path, *, is_synced: bool
    ) -> None:
        self.part = file.with_name(f"{file.name}.part")
        self._journal = file.with_name(f"{file.name}.ranges")
        self._folder = folder
        self._info = info
        self._name = name
        self._is_synced = is_synced
        header = [info.num_bytes, RANGE_BYTES, info.version.etag, info.version.generation]
        self._header = json.dumps(header)

    def run(self) -> bool:
        """Download what is missing, and return whether something was there already."""
        num_bytes = self._info.num_bytes
        arrived = self._arrived()
        if not arrived:
            self.remove()
        # Rewrite the journal without a partial line that a killed process may have left.
        lines = [self._header, *map(str, sorted(arrived))]
        replace_text(self._journal, "".join(f"{line}\n" for line in lines))
        missing = [start for start in range(0, num_bytes, RANGE_BYTES) if start not in arrived]
        descriptor = os.open(self.part, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            os.ftruncate(descriptor, num_bytes)
            with self._journal.open("a", encoding="utf-8") as journal:
                for start, content in self._fetch_ranges(missing):
                    _write_all(descriptor, content, start)
                    # Record a range only after its content, so that every recorded range was
                    # written.
                    if self._is_synced:
                        os.fdatasync(descriptor)
                    journal.write(f"{start}\n")
                    journal.flush()
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return bool(arrived)

    def remove(self) -> None:
        """Forget what has arrived."""
        self.part.unlink(missing_ok=True)
        self._journal.unlink(missing_ok=True)

    def _arrived(self) -> set[int]:
        """Return the first bytes of the ranges that have arrived, of this version."""
        if not (self.part.is_file() and self._journal.is_file()):
            return set()
        header, *lines = self._journal.read_text(encoding="utf-8", errors="replace").split("\n")
        if header != self._header:
            return set()
        # The last element is a partial line of a killed process; a power loss may leave any
        # content.
        return {int(line) for line in lines[:-1] if line.isdecimal()}

    def _fetch_ranges(self, starts: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Yield (first byte, content) of ranges as they arrive; few are held at a time."""
        waiting = iter(starts)
        with ThreadPoolExecutor(NUM_PARALLEL) as pool:
            running: dict[Future[bytes], int] = {}
            try:
                while True:
                    while (
                        len(running) < NUM_PARALLEL and (start := next(waiting, None)) is not None
                    ):
                        running[pool.submit(self._fetch, start)] = start
                    if not running:
                        return
                    for done in wait(running, return_when=FIRST_COMPLETED).done:
                        yield running.pop(done), done.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _fetch(self, start: int) -> bytes:
        end = min(start + RANGE_BYTES, self._info.num_bytes)
        content = self._folder.read_range(self._name, start, end, self._info.version)
        if len(content) != end - start:
            raise StorageError(
                f"{self._folder.path / self._name}: {len(content):,} bytes came of a range of "
                f"{end - start:,}. Give the command again"
            )
        return content


def _write_all(descriptor: int, content: bytes, offset: int) -> None:
    view = memoryview(content)
    while view:
        num_written = os.pwrite(descriptor, view, offset)
        view = view[num_written:]
        offset += num_written
