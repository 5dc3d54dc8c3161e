"""Writing of stores: files go into a hidden draft folder, which one rename turns into the store.

A draft that a killed process left behind is never opened. The next writer of the same store clears
it.
"""

import errno
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from raybio.core.digest import canonical_json, json_digest, sha256_of
from raybio.core.errors import StoreError
from raybio.core.files import check_local, replace_folder, sync, try_lock
from raybio.store.manifest import DERIVED, MANIFEST, SCHEMA_VERSION, is_file_of_store
from raybio.store.store import S, open_store

LOCK = "lock"
"""Name of the lock file in a draft."""

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}
"""Errors of a full, read-only or broken disk."""


class Draft:
    """A store being written; a context manager that removes the draft unless ``commit`` succeeded.

    Args:
        path: folder of the future store.
        force: replace an existing store.

    Raises:
        ConfigError: if the path is a URI.
        StoreError: if a store exists already, another process is writing it, or the path cannot be
            written.
    """

    def __init__(self, path: str | Path, *, force: bool = False) -> None:
        """Check the path; nothing is written before the context is entered."""
        check_local(path, "--out")
        self.path = Path(path).resolve()
        self.folder = self.path.parent / f".{self.path.name}.draft"
        self.force = force
        self._is_moved = False
        try:
            self._check_existing()
        except OSError as error:
            raise StoreError(
                f"{self.path}: cannot be read ({error.strerror}). Choose another --out."
            ) from None

    def __enter__(self) -> Self:
        """Create and lock the draft folder; the kernel releases the lock when the process dies."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / LOCK).open("a")
            is_alone = try_lock(self._lock)
        except OSError as error:
            raise StoreError(
                f"{self.path}: cannot be written ({error.strerror}). Choose another --out."
            ) from None
        if not is_alone:
            self._lock.close()
            raise StoreError(f"{self.path}: another process is preparing this store. Wait for it.")
        for leftover in self.folder.iterdir():
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover)
            elif leftover.name != LOCK:
                leftover.unlink()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the draft, unless it was committed.

        Raises:
            StoreError: in place of an error of ``DISK_ERRORS``.
        """
        # After a draft was moved, the same folder may be another process's draft.
        if not self._is_moved and self.folder.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            raise StoreError(
                f"{self.path}: cannot be written ({error}). Free some space or choose another "
                "--out."
            ) from None

    def commit(
        self,
        kind: type[S],
        tables: Mapping[str, Mapping[str, pa.Array]],
        counts: Mapping[str, int],
        provenance: Mapping[str, Any],
        written: Sequence[str] = (),
    ) -> S:
        """Write all files, then the manifest, then rename the folder; return the open store.

        Args:
            kind: class of the store.
            tables: file name -> column name -> values; arrays may be mapped from files in the
                draft's folder.
            counts: counts for the manifest; ``rows`` is one of them.
            provenance: the manifest's record of the input: ``sources``, ``parameters``,
                ``quarantine``.
            written: names of more files of the store, which lie in the draft's folder already.

        Raises:
            StoreError: if the store cannot be written.
        """
        for name, columns in tables.items():
            self._write(name, columns)
        names = [*tables, *written]
        for leftover in self.folder.iterdir():
            if leftover.name not in (LOCK, *names):
                leftover.unlink()
        files = {}
        for name in names:
            file = self.folder / name
            files[name] = {"bytes": file.stat().st_size, "sha256": sha256_of(file, StoreError)}
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "kind": kind.kind,
            "counts": counts,
            "files": files,
        }
        self._write_manifest({**manifest, **provenance})
        self._move_into_place()
        return open_store(self.path, kind)

    def _write(self, name: str, columns: Mapping[str, pa.Array]) -> None:
        batch = pa.record_batch(list(columns.values()), names=list(columns))
        options = pa.ipc.IpcWriteOptions(allow_64bit=True)
        with (
            open(self.folder / name, "wb") as file,
            pa.ipc.new_file(file, batch.schema, options=options) as writer,
        ):
            writer.write_batch(batch)
        sync(self.folder / name)

    def _write_manifest(self, manifest: dict[str, Any]) -> None:
        manifest = {**manifest, "checksum": json_digest(manifest)}
        unfinished = self.folder / (MANIFEST + ".unfinished")
        unfinished.write_bytes(canonical_json(manifest))
        sync(unfinished)
        unfinished.rename(self.folder / MANIFEST)

    def _move_into_place(self) -> None:
        whole = self.path.with_name(f".{self.path.name}.whole")
        replaced = self.path.with_name(f".{self.path.name}.replaced")
        shutil.rmtree(whole, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)
        self._check_existing()
        # From here on, another process may begin a draft.
        self.folder.rename(whole)
        self._is_moved = True
        (whole / LOCK).unlink()
        # Sync after deleting the lock: a power loss must not bring it back, since stores have no
        # such file.
        sync(whole)
        replace_folder(whole, self.path, replaced)
        shutil.rmtree(whole, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)

    def _check_existing(self) -> None:
        """Refuse an existing path, except an empty folder, and a store if ``force`` is set."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise StoreError(
                f"{self.path}: is a file, want a folder that does not exist yet. Choose another "
                "--out."
            )
        names = {entry.name for entry in self.path.iterdir()}
        others = names - {LOCK, DERIVED}
        # A store's folder appears with its manifest, so Arrow files without one are not a store's.
        if others and (MANIFEST not in others or not all(map(is_file_of_store, others))):
            raise StoreError(
                f"{self.path}: holds files that belong to no store. Choose another --out."
            )
        if names and not self.force:
            raise StoreError(
                f"{self.path}: a store exists already. Replace it with --force, or choose another "
                "--out."
            )
