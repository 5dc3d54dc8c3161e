"""Download of files: resumable, with their lengths and checksums verified.

A file is downloaded to ``<name>.part`` and renamed once it is verified. Unless its sha256 is known
beforehand, its checksum is written next to it: ``<name>.md5`` as the server publishes it, or
``<name>.sha256`` of what was received. A file that agrees with its checksum is not downloaded
again, and an interrupted call resumes. One process at a time downloads a file: it holds
``.<name>.lock``, which is removed afterwards.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from raybio.core.digest import file_digest
from raybio.core.errors import DataError
from raybio.core.files import replace_bytes, try_lock
from raybio.store.retrying_http import RetryingHttp, check_space

MD5_LINES = (
    re.compile(r"MD5\s*\(([^()]+)\)\s*=\s*([0-9a-fA-F]{32})"),
    re.compile(r"([0-9a-fA-F]{32})\s+\*?(\S+)"),
)
SHA256_LINE = re.compile(r"([0-9a-f]{64})  (\S+)\n")

MAX_SUM_BYTES = 4 << 10
MAGIC = {".gz": b"\x1f\x8b", ".zip": b"PK"}
"""Ending of a file -> its first bytes. A page of a portal or an error begins with ``<``."""


class RemoteFile(NamedTuple):
    """A file of a server.

    Attributes:
        url: its address.
        path: where it goes, below the folder of the download.
        num_bytes: its size, None if it is not known.
        md5_url: address of its MD5 sum, "" if none is published.
        sha256: its known checksum in hex, "" if none is known.
    """

    url: str
    path: str
    num_bytes: int | None = None
    md5_url: str = ""
    sha256: str = ""


def download_files(
    http: RetryingHttp,
    files: Sequence[RemoteFile],
    folder: str | Path,
    progress: Callable[[str, int, int], None] = lambda path, num_done, num_files: None,
) -> list[Path]:
    """Download files, except those already present.

    Args:
        http: the client.
        files: what is downloaded, in this order.
        folder: destination; created if missing.
        progress: called with (path, files done, number of files) after each file.

    Returns:
        The files, in the given order.

    Raises:
        DataError: if the server keeps failing, a file has another length or checksum than
            announced, the folder cannot be written or lacks space, or another process downloads
            one of the files into it.
    """
    folder = Path(folder)
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_space(files, folder)
        for file in files:
            path = folder / file.path
            if not _is_complete(path, file):
                path.parent.mkdir(parents=True, exist_ok=True)
                with _alone(path):
                    if not _is_complete(path, file):
                        _download(http, file, path)
            paths.append(path)
            progress(file.path, len(paths), len(files))
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be written ({error}). Free some space or choose another folder."
        ) from None
    return paths


def _check_space(files: Sequence[RemoteFile], folder: Path) -> None:
    """Refuse a download whose known sizes do not fit, before anything is downloaded."""
    num_missing = 0
    for file in files:
        path = folder / file.path
        part = _part(path)
        num_here = path.stat().st_size if path.is_file() else 0
        num_here += part.stat().st_size if part.is_file() else 0
        num_missing += max((file.num_bytes or 0) - num_here, 0)
    check_space(folder, num_missing, shutil.disk_usage(folder).free)


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock of a file's download for a ``with`` block.

    Raises:
        DataError: if another process has it.
    """
    lock_path = path.with_name(f".{path.name}.lock")
    while True:
        with lock_path.open("a") as lock:
            if not try_lock(lock):
                raise DataError(
                    f"{path}: another command downloads it. Wait for it, or choose another folder."
                )
            if os.fstat(lock.fileno()).st_nlink == 0:
                # The last owner of the lock has removed its file meanwhile.
                continue
            try:
                yield
            finally:
                lock_path.unlink(missing_ok=True)
            return


def _is_complete(path: Path, file: RemoteFile) -> bool:
    """Return whether the file exists and agrees with its announced size and checksum."""
    if not path.is_file() or file.num_bytes not in (None, path.stat().st_size):
        return False
    if file.sha256:
        return file_digest(path, "sha256") == file.sha256
    sum_path = path.with_name(path.name + (".md5" if file.md5_url else ".sha256"))
    if not sum_path.is_file():
        return False
    with sum_path.open("rb") as sum_file:
        content = sum_file.read(MAX_SUM_BYTES)
    if file.md5_url:
        wanted = _md5_in(content, path.name)
        return wanted is not None and file_digest(path, "md5") == wanted
    match = SHA256_LINE.fullmatch(content.decode("utf-8", "replace"))
    return match is not None and match[2] == path.name and file_digest(path, "sha256") == match[1]


def _download(http: RetryingHttp, file: RemoteFile, path: Path) -> None:
    """Download one file, verify it, and write its checksum."""
    part = _part(path)
    if file.sha256:
        _download_checked(http, file, part, "sha256", file.sha256)
        part.replace(path)
    elif file.md5_url:
        content = http.read(file.md5_url, MAX_SUM_BYTES)
        wanted = _md5_in(content, path.name)
        if wanted is None:
            raise DataError(
                f"{file.md5_url}: holds {content[:80]!r}, want 'MD5({path.name})= ' and 32 hex "
                "digits"
            )
        _download_checked(http, file, part, "md5", wanted)
        part.replace(path)
        replace_bytes(path.with_name(path.name + ".md5"), content)
    else:
        http.download(file.url, part, is_checked=False)
        _check_length(file, part)
        _check_kind(file, part, path)
        digest = file_digest(part, "sha256")
        part.replace(path)
        replace_bytes(path.with_name(path.name + ".sha256"), f"{digest}  {path.name}\n".encode())


def _download_checked(
    http: RetryingHttp, file: RemoteFile, part: Path, algorithm: str, wanted: str
) -> None:
    """Download a file whose digest is known.

    Raises:
        DataError: if the digest differs twice; the first time, the download may have continued a
            damaged part.
    """
    for _ in range(2):
        http.download(file.url, part, is_checked=True)
        _check_length(file, part)
        digest = file_digest(part, algorithm)
        if digest == wanted:
            return
        part.unlink()
    raise DataError(
        f"{file.url}: its {algorithm} is {digest}, want {wanted}, twice. Has it been replaced? "
        "Try later, or from another mirror."
    )


def _check_length(file: RemoteFile, part: Path) -> None:
    num_bytes = part.stat().st_size
    if file.num_bytes not in (None, num_bytes):
        part.unlink()
        raise DataError(
            f"{file.url}: has {num_bytes:,} bytes, but {file.num_bytes:,} are announced. It may "
            "have been replaced: give the command again, or choose another mirror"
        )


def _check_kind(file: RemoteFile, part: Path, path: Path) -> None:
    """Refuse an HTML page in place of the file, as portals and some errors send it."""
    magic = MAGIC.get(path.suffix, b"")
    with part.open("rb") as content:
        begin = content.read(40)
    if not begin.startswith(magic) or begin.lstrip().startswith(b"<"):
        part.unlink()
        raise DataError(
            f"{file.url}: begins with {begin[:20]!r}, want a {path.suffix} file. Is a portal or "
            "proxy in between?"
        )


def _md5_in(content: bytes, name: str) -> str | None:
    """Return the digest of ``name`` in the content of an .md5 file, None if there is none."""
    text = content.decode("ascii", "replace").strip()
    bsd_match = MD5_LINES[0].fullmatch(text)
    gnu_match = MD5_LINES[1].fullmatch(text)
    if bsd_match:
        listed_name = bsd_match[1].strip()
        digest = bsd_match[2]
    elif gnu_match:
        digest = gnu_match[1]
        listed_name = gnu_match[2]
    else:
        return None
    return digest.lower() if listed_name.rpartition("/")[2] == name else None
