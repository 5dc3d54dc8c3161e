"""Checks of paths before long work, and folders that are written as a whole or not at all."""

import contextlib
import ctypes
import errno
import fcntl
import glob
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any, BinaryIO

from raybio.core.errors import ConfigError
from raybio.core.location import is_uri, without_credentials

RUN = "run.json"
"""The record that makes a folder a run: method, configuration, store, precision."""

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk or quota."""

_DISK_ERRORS = (*FULL, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE)
_GONE = (errno.EHOSTDOWN, errno.ENODEV, errno.ENOTCONN, errno.ETIMEDOUT)
"""Errors of network disks that do not answer, and of sockets, which name no file."""
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Errors of ``flock`` on disks without file locks, such as Lustre in its usual setting."""
_PERMISSION_ERRORS = (errno.EACCES, errno.EPERM)

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class NoLocksError(OSError):
    """The disk of a file has no file locks (``flock``)."""


class TooLargeError(Exception):
    """A file is larger than what raybio writes; the message names it and its size."""


def check_local(path: str | Path, option: str) -> None:
    """Refuse a URI such as ``s3://bucket/store``, which would become a local folder named ``s3:``.

    Raises:
        ConfigError: naming ``option``.
    """
    if is_uri(path):
        raise ConfigError(
            f"{option}: got the URI {without_credentials(os.fspath(path))!r}, want a local path: "
            "object storage is not supported here, but where --help says PATH|URI or MODEL|URI"
        )


def check_writable_folder(path: Path, option: str = "--out") -> None:
    """Refuse a path that neither is a writable folder nor can become one, before long work starts.

    The folder of a run is refused too: reports have files of the same names.

    Raises:
        ConfigError: naming ``option``.
    """
    _check_writable(path, path, option, "folder")
    if (path / RUN).exists():
        raise ConfigError(
            f"{option} {path}: holds a run or a sweep, whose files would be lost; choose another "
            "folder"
        )


def check_replaceable_folder(path: Path, own: Sequence[str], option: str = "--out") -> None:
    """Refuse a folder that cannot be written, or holds anything but what a command wrote before.

    Args:
        path: a folder that is to be replaced as a whole.
        own: patterns of the names that the command writes. A folder without a match of the first
            pattern is not one of the command's.
        option: the option that names the folder.

    Raises:
        ConfigError: naming ``option``.
    """
    check_writable_folder(path, option)
    names = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    foreign = [name for name in names if not any(fnmatch(name, pattern) for pattern in own)]
    if not any(fnmatch(name, own[0]) for name in names):
        foreign = names
    if foreign:
        raise ConfigError(
            f"{option} {path}: holds {foreign[0]!r}, which this command has not written, and would "
            "be replaced as a whole; want a new or empty folder"
        )


def check_writable_file(path: Path, option: str = "--out") -> None:
    """Refuse a path at which no file can be written.

    Args:
        path: the file, which need not exist.
        option: the option that names the file.

    Raises:
        ConfigError: naming ``option``.
    """
    if path.is_file():
        if not os.access(path, os.W_OK):
            raise ConfigError(f"{option} {path}: cannot be written; choose another file")
        return
    if path.exists():
        kind = "a folder" if path.is_dir() else "a device or a pipe"
        raise ConfigError(f"{option} {path}: is {kind}; want a file, which may exist or not")
    _check_writable(path, path.absolute().parent, option, "file")


def check_not_input(out: Path, inputs: Sequence[Path]) -> None:
    """Refuse an output that would replace one of the command's inputs.

    Raises:
        ConfigError: naming ``--out``.
    """
    for path in inputs:
        if out.exists() and path.exists() and out.samefile(path):
            raise ConfigError(f"--out {out}: is an input, which would be lost; choose another file")


def check_model_sources(models: Sequence[str], option: str = "--model") -> None:
    """Refuse names that are neither a model folder nor a hub id, before anything heavy is loaded.

    Raises:
        ConfigError: naming ``option``.
    """
    for model in models:
        check_local(model, option)
        folder = Path(model).expanduser()
        if folder.is_dir():
            _check_model_folder(model, folder, option)
        elif folder.exists() or _looks_like_path(model):
            raise ConfigError(
                f"{option} {model}: no such folder; want the export/ of a run, a model folder or a "
                "hub id"
            )


def _check_model_folder(model: str, folder: Path, option: str) -> None:
    if (folder / RUN).is_file():
        raise ConfigError(
            f"{option} {model}: is a run's folder; want its model, {folder / 'export'}"
        )
    if not [*folder.glob("config.json"), *folder.glob("*/config.json")]:
        raise ConfigError(
            f"{option} {model}: has no config.json; want the export/ of a run, or a model folder"
        )


def _looks_like_path(model: str) -> bool:
    return model.startswith((".", "/", "~")) or model.count("/") > 1 or "\\" in model


def _check_writable(path: Path, folder: Path, option: str, kind: str) -> None:
    """Check that ``folder`` exists or can be created.

    Args:
        path: what is to be written, as errors name it.
        folder: the path itself, or its parent.
        option: the option that gave the path.
        kind: "file" or "folder".
    """
    check_local(path, option)
    try:
        nearest = next(parent for parent in (folder, *folder.absolute().parents) if _exists(parent))
        is_folder = nearest.is_dir()
    except OSError as error:
        raise ConfigError(
            f"{option} {path}: cannot be written ({error.strerror}); choose another {kind}"
        ) from None
    if not is_folder:
        problem = "is a file" if nearest == path else f"{nearest} is a file"
        raise ConfigError(f"{option} {path}: {problem}; want a {kind}, which may exist or not")
    try:
        # Permission bits are no proof: root has all of them, yet cannot write to /proc or to a
        # read-only disk.
        os.rmdir(tempfile.mkdtemp(prefix=".raybio-", dir=nearest))
    except OSError as error:
        raise ConfigError(
            f"{option} {path}: {nearest} cannot be written ({error.strerror}); choose another "
            f"{kind}"
        ) from None


def _exists(path: Path) -> bool:
    """Return whether the name is taken, even by a dangling link; raise if the name is invalid."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def nearest_existing(path: Path) -> Path:
    """Return the path or its nearest parent that exists."""
    path = path.absolute()
    return next(parent for parent in (path, *path.parents) if os.path.exists(parent))


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces ``path`` if the block succeeds.

    After an error or a kill, ``path`` is what it was before. On file systems that cannot exchange
    two names (some network disks), a kill between two renames may leave ``path`` absent and its
    old content next to it. If ``path`` is a link, its target is replaced.

    Raises:
        ConfigError: if ``path`` is a URI.
        FileExistsError: if ``path`` is a file.
        OSError: if the disk refuses, also what safetensors and tokenizers write.
    """
    check_local(path, "folder")
    path = path.resolve()
    if path.exists() and not path.is_dir():
        raise FileExistsError(
            f"{path} is a file; want a folder's path. Remove it or choose another one."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    workshop = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    new = workshop / "new"
    old = workshop / "old"
    try:
        new.mkdir()
        try:
            yield new
        except Exception as error:
            if (of_disk := _os_error(error, path)) is None:
                raise
            raise of_disk from error
        _sync_all(new)
        replace_folder(new, path, old)
    finally:
        # Ctrl-C may come between the two renames; then the old folder must go back.
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(workshop, ignore_errors=True)


def _os_error(error: Exception, path: Path) -> OSError | None:
    """Return the error of the disk that a library in Rust has put into the text of its own."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    if found is None:
        return None
    number = int(found[1])
    return OSError(number, os.strerror(number), str(path))


def delete_leftovers(path: Path) -> None:
    """Delete leftovers of killed processes next to an output that only this process writes.

    These are folders of ``atomic_folder`` and files of ``replaced_file``. An old folder whose
    replacement did not come goes back to ``path``. What cannot be deleted stays.
    """
    path = path.resolve()
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*"):
        end = leftover.name.removeprefix(f".{path.name}.")
        if leftover.is_dir() and re.fullmatch(r"[a-z0-9_]{8}", end):
            # A hidden folder of the user may have such a name.
            names = {entry.name for entry in leftover.iterdir()}
            if names and names <= {"new", "old"}:
                old = leftover / "old"
                if old.exists() and not path.exists():
                    old.rename(path)
                shutil.rmtree(leftover, ignore_errors=True)
        elif leftover.is_file() and end.isdecimal():
            with contextlib.suppress(OSError):
                leftover.unlink()


def replace_folder(new: Path, path: Path, old: Path) -> None:
    """Rename a fully written folder to ``path``, in one atomic step that survives a power loss.

    A folder that was at ``path`` is then at ``new``. On file systems that cannot exchange two
    names, it is at ``old``, and a kill between two renames may leave ``path`` absent.
    """
    if not path.exists() or not _exchange(new, path):
        if path.exists():
            path.rename(old)
        new.rename(path)
    sync(path.parent)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one atomic step; return False where the file system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    paths = os.fsencode(first), os.fsencode(second)
    return bool(rename(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0)


def _sync_all(folder: Path) -> None:
    """Flush all files to disk with the mode that the umask gives.

    Flushing comes first, so that a rename is never visible before the content that it names.
    """
    # safetensors makes its files readable by the owner only, whatever the umask; the folder has
    # the mode that the umask gives.
    mode = folder.stat().st_mode & 0o666
    for file in [*folder.rglob("*"), folder]:
        if file.is_file() and not file.is_symlink() and stat.S_IMODE(file.stat().st_mode) != mode:
            file.chmod(mode)
        sync(file)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file within a block; other processes wait.

    The file is created if it does not exist.

    Raises:
        NoLocksError: if its disk has no locks.
        OSError: if the file cannot be written.
    """
    with path.open("a") as file:
        # The system releases it when the process ends, in whatever way.
        flock(file.fileno(), fcntl.LOCK_EX, path)
        yield


def try_lock(file: IO[Any]) -> bool:
    """Take an exclusive lock on a file until it is closed; return False if another one has it.

    Raises:
        NoLocksError: if its disk has no locks.
    """
    try:
        flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, file.name)
        return True
    except BlockingIOError:
        return False


def flock(descriptor: int, operation: int, path: str | Path) -> None:
    """Call ``fcntl.flock`` on an open file.

    Raises:
        NoLocksError: naming ``path``, if its disk has no locks.
        OSError: as ``fcntl.flock``.
    """
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        reason = f"{error.strerror}, its disk has no file locks (flock)"
        raise NoLocksError(error.errno, reason, str(path)) from error


def read_limited(path: Path, max_bytes: int | None) -> bytes:
    """Return the content of a file that is read as a whole.

    Args:
        path: the file.
        max_bytes: its maximum size; None: any.

    Raises:
        OSError: if it cannot be read.
        TooLargeError: if it is larger; it is not read.
    """
    with path.open("rb") as file:
        num_bytes = os.fstat(file.fileno()).st_size
        if max_bytes is not None and num_bytes > max_bytes:
            raise TooLargeError(f"{path}: holds {num_bytes:,} bytes, want at most {max_bytes:,}")
        return file.read()


def replace_text(path: Path, text: str) -> None:
    """Write a UTF-8 file as ``replace_bytes`` does.

    Bytes of file names that are not UTF-8 are escaped; in JSON, the result is valid JSON.
    """
    replace_bytes(path, text.encode(errors="backslashreplace"))


def replace_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a file as ``replaced_file`` does.

    Raises:
        OSError: if it cannot be written, with the path and the bytes that were to be written.
    """
    with named_failure(path, memoryview(content).nbytes), replacing(path) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary file that replaces ``path`` once the block succeeds; as ``replaced_file``."""
    with replaced_file(path) as temporary, open(temporary, "wb") as file:
        yield file


@contextlib.contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Yield a path next to ``path``, whose file replaces it once the block succeeds.

    The replacement is atomic and survives a power loss. If the block fails, an older file stays.

    Raises:
        OSError: if it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        put_in_place(temporary, path)
    except BaseException:
        # A partial file must not take up space on a full disk.
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def put_in_place(written: Path, path: Path) -> None:
    """Rename a written file to ``path``, in one atomic step that survives a power loss.

    Raises:
        OSError: if it cannot be renamed.
    """
    sync(written)
    os.replace(written, path)
    # Without this, a power loss could undo the rename.
    sync(path.parent)


@contextlib.contextmanager
def named_failure(path: Path, num_bytes: int) -> Iterator[None]:
    """Add the path and the number of bytes to write errors of the block, which lack them.

    Raises:
        OSError: the error of the block.
    """
    try:
        yield
    except OSError as error:
        reason = f"{error.strerror}, writing {num_bytes:,} bytes"
        raise OSError(error.errno, reason, os.fspath(path)) from error


def disk_problem(error: OSError) -> str | None:
    """Describe an error of a disk that is full, read-only or gone, or of a path, and what to do.

    Returns:
        Path, reason, free bytes and advice; None for any other error.
    """
    if not isinstance(error.filename, str):
        # Errors of sockets name no file either.
        if error.errno not in _DISK_ERRORS:
            return None
        return f"{error.strerror}. Make room or repair the disk, then give the same command again"
    if error.errno == errno.ENAMETOOLONG:
        return f"{error.filename:.200}…: {error.strerror}. Give a shorter name"
    if isinstance(error, NoLocksError):
        return (
            f"{Path(error.filename).absolute()}: {error.strerror}. Mount the disk with locks, or "
            "choose a folder on another disk"
        )
    if error.errno not in (*_DISK_ERRORS, *_GONE, *_PERMISSION_ERRORS):
        return None
    path = Path(error.filename).absolute()
    free = ""
    for folder in path.parents:
        with contextlib.suppress(OSError):
            free = f"; {shutil.disk_usage(folder).free:,} bytes are free there"
            break
    advice = "Make room" if error.errno in FULL else "Repair the storage or its permissions"
    return f"{path}: {error.strerror}{free}. {advice}, then give the same command again"


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's list of names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
