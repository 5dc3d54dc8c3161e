"""Objects of a bucket: list, read, write with a condition, upload, delete.

It is built on ``obstore`` (the Rust crate ``object_store``), since a lease of a run needs
conditional writes, which neither ``pyarrow.fs`` nor ``fsspec`` have. ``obstore`` also retries,
resumes truncated responses, and reads ranges without holding Python's interpreter lock. It is
imported when a bucket is first used, so local paths do not need it.

Credentials and endpoint come from the environment. They never appear in an error.
"""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from raybio.core.errors import MissingObjectError, StorageError, named_by
from raybio.core.files import TooLargeError
from raybio.core.location import BucketPath
from raybio.store.bucket_client import client, explained

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PART_BYTES = 8 << 20
"""Size of the parts of an upload; Amazon S3 requires at least 5 MiB."""

NUM_PARALLEL_PARTS = 4
"""Parts of a file that are uploaded at once; few, so that each ends in time on a slow network."""

MAX_PARTS = 9000
"""Maximum number of parts of an upload; Amazon S3 allows 10,000."""

NUM_TRIES = 6
"""Number of tries of a request whose response is truncated."""

_CUT = ("response body error", "list response body")

Result = TypeVar("Result")


class ObjectVersion(NamedTuple):
    """The version of an object, on which its next write can be conditioned."""

    etag: str | None
    generation: str | None


class ObjectInfo(NamedTuple):
    """An object of a listing.

    Attributes:
        name: its path below the folder.
        num_bytes: its size.
        modified: when it was written, in seconds since 1970 by the clock of the server.
        version: its version.
    """

    name: str
    num_bytes: int
    modified: float
    version: ObjectVersion


class BucketFolder:
    """The objects below a path of a bucket; a folder exists as soon as it has an object.

    Every method raises ``StorageError`` if the bucket is missing, refuses, or does not answer.

    Args:
        path: the path.
        is_patient: retry for minutes, as long work should; otherwise for seconds, as checks before
            work should.
    """

    def __init__(self, path: BucketPath, *, is_patient: bool = True) -> None:
        """Make no request yet."""
        self.path = path
        self.is_patient = is_patient

    @cached_property
    def _store(self) -> "ObjectStore":
        return client(self.path, self.is_patient)

    def list(self, below: str = "") -> list[ObjectInfo]:
        """Return all objects whose names begin with the folder ``below``, sorted by name."""
        import obstore

        def collect() -> list[Any]:
            return list(obstore.list(self._store, below.strip("/") or None).collect())

        infos = sorted(_info(meta) for meta in self._call("list", below, collect))
        return _without_markers(infos)

    def has_objects(self) -> bool:
        """Return whether the folder exists; the first page of its listing is read."""
        import obstore

        page = self._call("list", "", lambda: next(iter(obstore.list(self._store)), []))
        return any(meta["path"] for meta in page)

    def children(self) -> tuple[set[str], set[str]]:
        """Return the names of the objects and of the folders directly below this one."""
        import obstore

        result = self._call("list", "", lambda: obstore.list_with_delimiter(self._store))
        files = {meta["path"] for meta in result["objects"]} - {""}
        return files, {prefix.rstrip("/") for prefix in result["common_prefixes"]}

    def info(self, name: str) -> ObjectInfo | None:
        """Return size and version of an object; None if the object or its bucket does not exist.

        The server's response to this request does not distinguish the two.
        """
        import obstore

        try:
            return _info(self._call("read", name, lambda: obstore.head(self._store, name)))
        except MissingObjectError:
            return None

    def read(self, name: str, max_bytes: int | None = None) -> bytes:
        """Return the content of a small object; arguments and errors as ``read_version``."""
        return self.read_version(name, max_bytes)[0]

    def read_version(self, name: str, max_bytes: int | None = None) -> tuple[bytes, ObjectVersion]:
        """Return the content of a small object and its version.

        Args:
            name: the object.
            max_bytes: its maximum size; None: any.

        Raises:
            MissingObjectError: if there is none.
            TooLargeError: if it is larger; its content is not fetched.
        """
        import obstore

        def get() -> tuple[bytes, ObjectVersion]:
            response = obstore.get(self._store, name)
            num_bytes = response.meta["size"]
            if max_bytes is not None and num_bytes > max_bytes:
                raise TooLargeError(
                    f"{self.path / name}: holds {num_bytes:,} bytes, want at most {max_bytes:,}"
                )
            return bytes(response.bytes()), _version(response.meta)

        return self._call("read", name, get)

    def write(self, name: str, content: bytes) -> ObjectVersion:
        """Write a small object as a whole, in place of any other; return its version."""
        import obstore

        def put() -> ObjectVersion:
            return _version(obstore.put(self._store, name, content, use_multipart=False))

        return self._call("write", name, put)

    def create(self, name: str, content: bytes) -> ObjectVersion | None:
        """Write an object if there is none of this name; return its version, or None.

        ``content`` should be unique to the writer: after a lost answer the object is read, and
        equal content counts as one's own.
        """
        return self._write_if(name, content, "create")

    def replace(self, name: str, content: bytes, version: ObjectVersion) -> ObjectVersion | None:
        """Write an object if its version is still ``version``; return the new one, or None.

        ``content`` should be unique to the writer, as in ``create``.
        """
        if self.path.scheme == "gs" and not version.generation:
            # Google's condition is a number, which listings lack.
            info = self.info(name)
            if info is None or info.version.etag != version.etag:
                return None
            version = info.version
        update = {"e_tag": version.etag, "version": version.generation}
        return self._write_if(name, content, {key: value for key, value in update.items() if value})

    def _write_if(self, name: str, content: bytes, mode: Any) -> ObjectVersion | None:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        def put() -> ObjectVersion | None:
            try:
                return _version(obstore.put(self._store, name, content, mode=mode))
            except (AlreadyExistsError, PreconditionError):
                return None

        # For a deleted object, servers report either that it is missing or that its version
        # differs.
        with contextlib.suppress(MissingObjectError):
            version = self._call("write", name, put)
            if version is not None:
                return version
        try:
            written, version = self.read_version(name)
        except MissingObjectError:
            return None
        return version if written == content else None

    def delete(self, names: str | Sequence[str]) -> None:
        """Delete objects; one that does not exist is no error."""
        import obstore

        names = [names] if isinstance(names, str) else list(names)
        if not names:
            return
        try:
            self._call("delete", names[0], lambda: obstore.delete(self._store, names))
        except MissingObjectError:
            # Where a service has no request for many objects, the client stops at a missing one.
            if len(names) > 1:
                for name in names:
                    self.delete(name)

    def upload(self, file: Path, name: str) -> None:
        """Upload a file of any size. The object appears when all of it has arrived.

        Raises:
            OSError: if the file cannot be read.
        """
        import obstore

        part_bytes = max(PART_BYTES, -(-file.stat().st_size // MAX_PARTS))
        self._call(
            "write",
            name,
            lambda: obstore.put(
                self._store,
                name,
                file,
                chunk_size=part_bytes,
                max_concurrency=NUM_PARALLEL_PARTS,
            ),
        )

    def read_range(self, name: str, start: int, end: int, version: ObjectVersion) -> bytes:
        """Return bytes ``start`` to ``end`` (exclusive) of one version of an object.

        Raises:
            StorageError: also if the object is of another version now.
        """
        import obstore

        options: Any = {"range": (start, end)}
        if version.etag:
            options["if_match"] = version.etag

        def get() -> bytes:
            return bytes(obstore.get(self._store, name, options=options).bytes())

        return self._call("read", name, get)

    def check_writable(self, option: str) -> None:
        """Write and delete a small object, before long work starts.

        Raises:
            StorageError: naming ``option``.
        """
        import obstore

        name = f".raybio-{os.getpid()}-{os.urandom(4).hex()}"
        with named_by(option):
            # The name is left out of errors, since the user does not know the object.
            self._call("write", "", lambda: obstore.put(self._store, name, b""))
            self._call("delete", "", lambda: obstore.delete(self._store, [name]))

    def check_conditional_writes(self, option: str) -> None:
        """Try every operation that a lease needs on a small object, before work starts.

        Raises:
            StorageError: naming ``option``; also if the server ignores conditions, so that two
                drivers could hold one lease.
        """
        # It gets a folder of its own, since listing this one may take long.
        folder = f".raybio-{os.getpid()}-{os.urandom(4).hex()}"
        name = f"{folder}/probe"
        with named_by(option):
            try:
                version = self.create(name, b"1")
                try:
                    problem = self._problem_of(name, version)
                finally:
                    self.delete(name)
            except StorageError as error:
                # Remove the names of object and folder, which the user does not know.
                text = str(error).replace(f"/{name}", "").replace(f"/{folder}", "")
                raise StorageError(text) from None
            if problem:
                raise StorageError(f"{self.path}: {problem}")

    def _problem_of(self, name: str, version: ObjectVersion | None) -> str:
        """Return what is wrong with conditional writes and reads of an object that was created."""
        if self.create(name, b"2") is not None:
            return (
                "the server ignores conditions of writes, so two drivers could hold one lease. "
                "Want a server that knows If-None-Match and If-Match"
            )
        changed = None if version is None else self.replace(name, b"3", version)
        if version is None or changed is None or self.replace(name, b"4", version) is not None:
            return "the server does not replace an object by its version (If-Match)"
        if self.read(name) != b"3":
            return "what was written is not what is read"
        if [info.name for info in self.list(name.split("/")[0])] != [name]:
            return "a listing lacks an object that was written before it"
        return ""

    def _call(self, action: str, name: str, request: Callable[[], Result]) -> Result:
        """Return the result of a request; errors become ``StorageError``.

        The client retries temporary failures except truncated responses, which are retried here.
        Each request may be repeated, since it is read-only or writes the same content again.
        """
        from obstore.exceptions import BaseError

        num_tries = NUM_TRIES if self.is_patient else 2
        for number in range(1, num_tries + 1):
            try:
                return request()
            except (BaseError, FileNotFoundError) as error:
                is_cut = any(words in str(error) for words in _CUT)
                if number == num_tries or not is_cut:
                    raise explained(self.path / name, action, error) from None
                time.sleep(0.1 * 2**number)
        raise AssertionError("the last try returns or raises")


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["last_modified"].timestamp(), _version(meta))


def _without_markers(infos: list[ObjectInfo]) -> list[ObjectInfo]:
    """Drop the empty objects that cloud consoles create to represent folders.

    Their names end in a slash, which the client removes.
    """
    if all(info.num_bytes for info in infos):
        return infos
    folders = {""}
    for info in infos:
        folders.update(parent.as_posix() for parent in PurePosixPath(info.name).parents)
    return [info for info in infos if info.num_bytes or info.name not in folders]


def _version(meta: Any) -> ObjectVersion:
    etag = meta.get("e_tag")
    # Listings of Azure lack the quotes that its other answers have, and that conditions need.
    if etag and not etag.endswith('"'):
        etag = f'"{etag}"'
    return ObjectVersion(etag, meta.get("version"))
