"""Records of verified stores: a start does not read again what this machine has verified.

A record lies in the cache and not in the store, which may be read-only or shared. It holds the
digest of the manifest and a state of each file, which changes whenever the file is written. Damage
of the disk under an unchanged state is found only by reading: ``Store.verify``.
"""

import hashlib
import logging
from pathlib import Path

from raybio.core.cache import VARIABLE, cache_folder
from raybio.core.errors import RecordError, StoreError
from raybio.core.records import read_record, write_record

_log = logging.getLogger(__name__)

FileState = list[int]
"""Size, time of the last change of content and of anything (ns), inode and device of a file."""


def file_state(path: Path) -> FileState:
    """Return the state of a file.

    Raises:
        StoreError: if it cannot be read.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}).") from None
    return [
        status.st_size,
        status.st_mtime_ns,
        # No program can set it: it also differs where a file's old time of change was restored.
        status.st_ctime_ns,
        status.st_ino,
        status.st_dev,
    ]


class Verification:
    """The record of a store: which of its files are verified, in which state.

    Attributes:
        path: file of the record. Stores at different paths have different ones.
    """

    def __init__(self, store: Path, digest: str) -> None:
        """Read the record of a store; that of an earlier store at the same path counts as none.

        Args:
            store: absolute path of the store.
            digest: digest of its manifest.
        """
        name = f"{store.name}-{hashlib.sha256(str(store).encode()).hexdigest()[:16]}.json"
        self.path = cache_folder() / "verified_stores" / name
        self._store = store
        self._digest = digest
        self._state_by_name = self._read()
        self._is_writable = True

    def covers(self, name: str, state: FileState) -> bool:
        """Return whether a file was verified in this state."""
        return self._state_by_name.get(name) == state

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
            content = read_record(self.path, "verified store") or {}
        except (RecordError, OSError):
            # Then everything is read, and the record is written again.
            return {}
        if content.get("store") != str(self._store) or content.get("digest") != self._digest:
            return {}
        return dict(content.get("files", {}))

    def _write(self) -> None:
        if not self._is_writable:
            return
        content = {
            "store": str(self._store),
            "digest": self._digest,
            "files": self._state_by_name,
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_record(self.path, "verified store", content)
        except OSError as error:
            self._is_writable = False
            _log.warning(
                "%s: cannot be written (%s), so every start reads all of %s; set %s to a folder "
                "that can be written",
                self.path,
                error.strerror or error,
                self._store,
                VARIABLE,
            )
