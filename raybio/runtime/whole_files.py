"""Files of one folder, local or in a bucket, that are read and replaced as a whole."""

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from raybio.core.errors import MissingObjectError
from raybio.core.files import replace_bytes
from raybio.core.location import BucketPath, Location
from raybio.store.bucket import BucketFolder


class WholeFiles(Protocol):
    """The files of a folder, which exists as soon as it has one."""

    def names(self) -> set[str]:
        """Return the names of all files."""
        ...

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            FileNotFoundError: if there is none.
        """
        ...

    def write(self, name: str, content: bytes | memoryview) -> None:
        """Write a file in one step that survives a kill and a power loss."""
        ...

    def delete(self, names: Collection[str]) -> None:
        """Delete files; one that does not exist is no error."""
        ...


def whole_files(folder: Location) -> WholeFiles:
    """Return the files of a folder."""
    return _InBucket(folder) if isinstance(folder, BucketPath) else _Local(folder)


class _Local:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> set[str]:
        if not self._folder.is_dir():
            return set()
        return {path.name for path in self._folder.iterdir()}

    def read(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def write(self, name: str, content: bytes | memoryview) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_bytes(self._folder / name, content)

    def delete(self, names: Collection[str]) -> None:
        for name in names:
            (self._folder / name).unlink(missing_ok=True)


class _InBucket:
    def __init__(self, folder: BucketPath) -> None:
        self._bucket = BucketFolder(folder)

    def names(self) -> set[str]:
        return {info.name for info in self._bucket.list()}

    def read(self, name: str) -> bytes:
        try:
            return self._bucket.read(name)
        except MissingObjectError as error:
            raise FileNotFoundError(2, "there is no such object", str(error)) from None

    def write(self, name: str, content: bytes | memoryview) -> None:
        self._bucket.write(name, bytes(content))

    def delete(self, names: Collection[str]) -> None:
        self._bucket.delete(sorted(names))
