"""Records of verified files, so that a start does not read them again.

A record lies in the cache and not in the folder of the files, which may be read-only or shared. It
holds the digest of what the files should be and a state of each one, which changes whenever the
file is written. Damage of the disk under an unchanged state is found only by reading:
``Store.verify``.
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from raybio.core.cache import VARIABLE, cache_folder
from raybio.core.digest import sha256_of
from raybio.core.errors import RaybioError, RecordError
from raybio.core.files import locked
from raybio.core.records import read_record, write_record

_log = logging.getLogger(__name__)

FileState = list[int]
"""Size, time of the last change of content and of anything (ns), inode and device of a file."""


class Damage(NamedTuple):
    """A file that is not what was written.

    Attributes:
        name: its name in its folder.
        sha256: its digest now, in hex.
    """

    name: str
    sha256: str


def first_damage(
    folder: Path,
    sha256_by_name: Mapping[str, str],
    digest: str,
    error: type[RaybioError],
    *,
    again: bool = False,
) -> Damage | None:
    """Return the first file that is not what was written; None if all are.

    Args:
        folder: absolute path of the folder of the files.
        sha256_by_name: name of a file -> its digest when it was written, in hex.
        digest: changes with ``sha256_by_name``.
        error: the error to raise if a file cannot be read.
        again: also read files that this machine has verified and that have not changed since.

    Raises:
        RaybioError: ``error``.
    """
    verification = Verification(folder, digest)
    for name, wanted in sha256_by_name.items():
        path = folder / name
        state = file_state(path, error)
        if not again and verification.covers(name, state):
            continue
        with verification.lock():
            if not again and verification.covers(name, state):
                continue
            sha256 = sha256_of(path, error)
            if sha256 != wanted:
                verification.remove(name)
                return Damage(name, sha256)
            # If a file changes while it is read, its sha256 belongs to no known state.
            if file_state(path, error) == state:
                verification.add(name, state)
    return None


def file_state(path: Path, error: type[RaybioError]) -> FileState:
    """Return the state of a file.

    Args:
        path: the file.
        error: the error to raise if it cannot be read.

    Raises:
        RaybioError: ``error``.
    """
    try:
        status = path.stat()
    except OSError as problem:
        raise error(f"{path}: cannot be read ({problem.strerror}).") from None
    return [
        status.st_size,
        status.st_mtime_ns,
        # Programs cannot set this time: it reveals a change after which the old mtime was restored.
        status.st_ctime_ns,
        status.st_ino,
        status.st_dev,
    ]


class Verification:
    """The record of a folder: which of its files are verified, in which state.

    Attributes:
        path: file of the record. Folders at different paths have different ones.
    """

    def __init__(self, folder: Path, digest: str) -> None:
        """Read the record of a folder; ignore a record of earlier files at the same path.

        Args:
            folder: absolute path of the folder.
            digest: identifies the files that should be there.
        """
        name = f"{folder.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}.json"
        self.path = cache_folder() / "verified_files" / name
        self._folder = folder
        self._digest = digest
        self._state_by_name = self._read()
        self._is_writable = True

    def covers(self, name: str, state: FileState) -> bool:
        """Return whether a file was verified in this state."""
        return self._state_by_name.get(name) == state

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Wait until no other process reads a file of the folder; then know what it has found.

        Without it, all runs that start on a node would read a large store at once.
        """
        with ExitStack() as stack:
            # A cache that cannot be written has no record; ``add`` says so.
            with suppress(OSError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(self.path.with_suffix(".lock")))
                self._state_by_name = self._read()
            yield

    def add(self, name: str, state: FileState) -> None:
        """Record that a file is verified."""
        self._state_by_name[name] = state
        self._write()

    def remove(self, name: str) -> None:
        """Record that a file is not verified."""
        if self._state_by_name.pop(name, None) is not None:
            self._write()

    def _read(self) -> dict[str, FileState]:
        try:
            content = read_record(self.path, "verified files") or {}
        except (RecordError, OSError):
            # All files are then read again, and the record is rewritten.
            return {}
        if content.get("folder") != str(self._folder) or content.get("digest") != self._digest:
            return {}
        return dict(content.get("files", {}))

    def _write(self) -> None:
        if not self._is_writable:
            return
        content = {
            "folder": str(self._folder),
            "digest": self._digest,
            "files": self._state_by_name,
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_record(self.path, "verified files", content)
        except OSError as error:
            self._is_writable = False
            _log.warning(
                "%s: cannot be written (%s), so every start reads all of %s; set %s to a folder "
                "that can be written",
                self.path,
                error.strerror or error,
                self._folder,
                VARIABLE,
            )
