"""Folders that are written to: checked beforehand, and such as appear whole or not at all."""

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from raybio.core.errors import ConfigError

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""One slash, since ``Path`` makes ``s3:/bucket`` of ``s3://bucket``; a scheme has two letters at least."""


def check_local(path: str | Path, option: str) -> None:
    """Refuse a URI such as ``s3://bucket/store``, which would become a local folder named ``s3:``.

    Raises:
        ConfigError: with the option that named it.
    """
    if _URI.match(os.fspath(path)):
        raise ConfigError(
            f"{option}: got the URI {os.fspath(path)!r}, want a local path; object storage is not supported yet. Give "
            "a path of a file system that all nodes mount"
        )


def check_writable_folder(path: Path, option: str = "--out") -> None:
    """Refuse a path at which no folder is and none can be made, before hours go into what is to be written there.

    Raises:
        ConfigError: with the option that named it.
    """
    _demand(path, path, option, "folder")


def check_writable_file(path: Path, option: str = "--out") -> None:
    """Refuse a path at which no file can be written.

    Raises:
        ConfigError: with the option that named it.
    """
    if path.is_file():
        if not os.access(path, os.W_OK):
            raise ConfigError(f"{option} {path}: cannot be written; choose another file")
        return
    if path.is_dir():
        raise ConfigError(f"{option} {path}: is a folder; want a file, which may be there or not")
    _demand(path, path.absolute().parent, option, "file")


def check_model_sources(models: Sequence[str], option: str = "--model") -> None:
    """Refuse what can be neither a model's folder nor a hub id, before anything heavy is loaded.

    Raises:
        ConfigError: with the option that named it.
    """
    for model in models:
        check_local(model, option)
        folder = Path(model).expanduser()
        if folder.is_dir():
            if (folder / "run.json").is_file():
                raise ConfigError(
                    f"{option} {model}: is a run's folder; want its model, {folder / 'export'}"
                )
            if not [*folder.glob("config.json"), *folder.glob("*/config.json")]:
                raise ConfigError(
                    f"{option} {model}: has no config.json; want the export/ of a run, or a model folder"
                )
        elif (
            folder.exists()
            or model.startswith((".", "/", "~"))
            or model.count("/") > 1
            or "\\" in model
        ):
            raise ConfigError(
                f"{option} {model}: no such folder; want the export/ of a run, a model folder or a hub id"
            )


def _demand(path: Path, folder: Path, option: str, kind: str) -> None:
    """``folder`` must be one or be one that can be made; errors speak of ``path``, which is a ``kind``."""
    check_local(path, option)
    try:
        there = next(one for one in (folder, *folder.absolute().parents) if _is_there(one))
        is_folder = there.is_dir()
    except OSError as error:
        raise ConfigError(
            f"{option} {path}: cannot be written ({error.strerror}); choose another {kind}"
        ) from None
    if not is_folder:
        what = "is a file" if there == path else f"{there} is a file"
        raise ConfigError(f"{option} {path}: {what}; want a {kind}, which may be there or not")
    try:
        # Not by permissions: root has them all, and yet nothing can be made in /proc or on a disk that is read-only.
        os.rmdir(tempfile.mkdtemp(prefix=".raybio-", dir=there))
    except OSError as error:
        raise ConfigError(
            f"{option} {path}: {there} cannot be written ({error.strerror}); choose another {kind}"
        ) from None


def _is_there(path: Path) -> bool:
    """Whether the name is taken, be it by a link to nowhere; unlike ``exists``, raises for a name that cannot be."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes ``path`` when the block ends well; an older ``path`` is replaced.

    After an error or a kill, ``path`` is what it was before (at worst, for an instant between two renames, absent with
    its old content beside it). Where it is a link, what it points to is replaced.

    Raises:
        ConfigError: if ``path`` is a URI.
        FileExistsError: if ``path`` is a file.
    """
    check_local(path, "folder")
    path = path.resolve()
    if path.exists() and not path.is_dir():
        raise FileExistsError(
            f"{path} is a file; want a folder's path. Remove it or choose another one."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    workshop = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    fresh, aside = workshop / "new", workshop / "old"
    try:
        fresh.mkdir()
        yield fresh
        _sync_all(fresh)
        if path.exists():
            path.rename(aside)
        fresh.rename(path)
        sync(path.parent)
    finally:
        # Whatever came between the two renames, Ctrl-C too: the older folder stood aside.
        if aside.exists() and not path.exists():
            aside.rename(path)
        shutil.rmtree(workshop, ignore_errors=True)


def _sync_all(folder: Path) -> None:
    """Force files to disk with the mode that the umask gives, so that a rename is not seen before what it names."""
    # safetensors makes its files readable by their owner alone, whatever the umask says; the folder is made by it.
    mode = folder.stat().st_mode & 0o666
    for file in [*folder.rglob("*"), folder]:
        if file.is_file() and not file.is_symlink() and stat.S_IMODE(file.stat().st_mode) != mode:
            file.chmod(mode)
        sync(file)


def replace_text(path: Path, text: str) -> None:
    """Write a UTF-8 file in one atomic step that survives a power loss; an older one is replaced.

    Raises:
        OSError: if it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    # Without it a power loss can take the new name back.
    sync(path.parent)


def sync(path: Path) -> None:
    """Force a file's content, or a folder's list of names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
