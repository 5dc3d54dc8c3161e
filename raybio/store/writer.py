"""Writing a store: everything goes into a hidden draft folder beside it, which becomes the store by one rename.

A draft that a killed process left behind is never opened, and the next writer of the same store clears it.
"""

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from raybio.core.errors import StoreError
from raybio.core.files import check_local, sync
from raybio.store.store import MANIFEST, SCHEMA_VERSION, S, canonical_json, open_store, sha256_of

LOCK = "lock"


DISK_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}


class Draft:
    """A store in the making; as a context it removes itself unless ``commit`` was reached.

    Args:
        path: where the store will be.
        force: replace a store that is already there.

    Raises:
        ConfigError: if the path is a URI.
        StoreError: if a store is there already, another process is writing it, or the place cannot be written.
    """

    def __init__(self, path: str | Path, *, force: bool = False) -> None:
        """Check the place; nothing is written before the context is entered."""
        check_local(path, "--out")
        self.path = Path(path).resolve()
        self.folder = self.path.parent / f".{self.path.name}.draft"
        self.force = force
        try:
            self._refuse_what_is_there()
        except OSError as error:
            raise StoreError(
                f"{self.path}: cannot be read ({error.strerror}). Choose another --out."
            ) from None

    def __enter__(self) -> Self:
        """Make the draft folder and lock it; the kernel frees the lock when the process dies, however it dies."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder / LOCK, os.O_CREAT | os.O_RDWR)
        except OSError as error:
            raise StoreError(
                f"{self.folder}: cannot be written ({error.strerror}). Choose another --out."
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise StoreError(
                f"{self.path}: another process is preparing this store. Wait for it."
            ) from None
        for leftover in self.folder.iterdir():
            if leftover.name != LOCK:
                leftover.unlink()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the draft (after a commit there is none) and say it in our words if the disk was the trouble."""
        if self.folder.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)
        if isinstance(error, OSError) and error.errno in DISK_TROUBLE:
            raise StoreError(
                f"{self.path}: cannot be written ({error}). Free some space or choose another --out."
            ) from None

    def commit(
        self,
        kind: type[S],
        tables: Mapping[str, Mapping[str, pa.Array]],
        counts: Mapping[str, int],
        provenance: Mapping[str, Any],
    ) -> S:
        """Write all files, then the manifest, then move the folder into place.

        Args:
            kind: the store that it becomes.
            tables: file name -> column name -> values; arrays may be mapped from files in the draft's folder.
            counts: of what it holds; ``rows`` is one of them.
            provenance: the manifest's account of the input: ``sources``, ``parameters``, ``quarantine``.

        Raises:
            StoreError: if the place cannot be written.
        """
        for name, columns in tables.items():
            self._write(name, columns)
        for leftover in self.folder.iterdir():
            if leftover.name not in (LOCK, *tables):
                leftover.unlink()
        files = {
            name: {
                "bytes": (self.folder / name).stat().st_size,
                "sha256": sha256_of(self.folder / name),
            }
            for name in tables
        }
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
        manifest = {**manifest, "checksum": hashlib.sha256(canonical_json(manifest)).hexdigest()}
        unfinished = self.folder / (MANIFEST + ".unfinished")
        unfinished.write_bytes(canonical_json(manifest))
        sync(unfinished)
        unfinished.rename(self.folder / MANIFEST)

    def _move_into_place(self) -> None:
        sync(self.folder)
        replaced = self.path.with_name(f".{self.path.name}.replaced")
        shutil.rmtree(replaced, ignore_errors=True)
        self._refuse_what_is_there()
        if self.path.exists():
            self.path.rename(replaced)
        self.folder.rename(self.path)
        (self.path / LOCK).unlink()
        sync(self.path.parent)
        shutil.rmtree(replaced, ignore_errors=True)

    def _refuse_what_is_there(self) -> None:
        """--force replaces a store (or an empty folder), never a folder of something else."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise StoreError(
                f"{self.path}: is a file, want a folder that does not exist yet. Choose another --out."
            )
        names = {entry.name for entry in self.path.iterdir()}
        if any(name not in (MANIFEST, LOCK) and not name.endswith(".arrow") for name in names):
            raise StoreError(f"{self.path}: holds files that are no store's. Choose another --out.")
        if names and not self.force:
            raise StoreError(
                f"{self.path}: a store is there already. Replace it with --force, or choose another --out."
            )
