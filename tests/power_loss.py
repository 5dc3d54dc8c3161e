"""What a power loss leaves: everything that was not forced to the disk is gone.

The content of a file is that of its last ``fsync``, or nothing. Of names, two extremes are looked
at: those of the last ``fsync`` of their folder, and those of now, since a disk may write names
earlier. Before and after each ``fsync``, both are recorded.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

State = dict[str, bytes] | None
"""Relative path -> content of the files of a folder, "" for a file itself; None: it is absent."""


class Disk:
    """A folder on a disk that loses what was not forced to it.

    Attributes:
        states: what power losses at each moment leave of ``target``; the last two are those after
            the block of ``watched``.
    """

    def __init__(self, root: Path, target: Path) -> None:
        """Take all that is in ``root`` now as being on the disk."""
        self.states: list[State] = []
        self._root = root
        self._target = target
        self._content: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._held: list[int] = []
        for path in [root, *root.rglob("*")]:
            self._force(path)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Lose the power before and after each ``fsync`` of the block, and at its end."""
        fsync = os.fsync

        def forced(descriptor: int) -> None:
            self._lose()
            fsync(descriptor)
            self._force(Path(f"/proc/self/fd/{descriptor}").readlink())
            self._lose()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", forced)
            yield
        self._lose()
        for descriptor in self._held:
            os.close(descriptor)

    def now(self) -> State:
        """Return what is in ``target`` without a power loss."""
        if not self._target.is_dir():
            return {"": self._target.read_bytes()} if self._target.exists() else None
        return {name: path.read_bytes() for name, path in self._files()}

    def _force(self, path: Path) -> None:
        # Held, so that no other file gets its number.
        self._held.append(os.open(path, os.O_RDONLY))
        number = path.stat().st_ino
        if path.is_dir():
            self._names[number] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self._content[number] = path.read_bytes()

    def _lose(self) -> None:
        self.states += [self._with_names_of_now(), self._with_forced_names()]

    def _files(self) -> list[tuple[str, Path]]:
        found = [path for path in sorted(self._target.rglob("*")) if path.is_file()]
        return [(path.relative_to(self._target).as_posix(), path) for path in found]

    def _with_names_of_now(self) -> State:
        if not self._target.exists():
            return None
        files = self._files() if self._target.is_dir() else [("", self._target)]
        return {name: self._content.get(path.stat().st_ino, b"") for name, path in files}

    def _with_forced_names(self) -> State:
        number = self._root.stat().st_ino
        for name in self._target.relative_to(self._root).parts:
            if name not in self._names.get(number, {}):
                return None
            number = self._names[number][name]
        return dict(self._below(number, ""))

    def _below(self, number: int, path: str) -> Iterator[tuple[str, bytes]]:
        if number not in self._names:
            yield path, self._content.get(number, b"")
            return
        for name, child in self._names[number].items():
            yield from self._below(child, f"{path}/{name}" if path else name)
