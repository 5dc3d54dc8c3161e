"""Download of PubMed's files from NLM: resumable and checked by MD5.

``https://ftp.ncbi.nlm.nih.gov/pubmed/baseline/`` has the year's baseline and ``.../updatefiles/``
the daily updates: an HTML index, and a file ``pubmed25n0001.xml.gz.md5`` for each
``pubmed25n0001.xml.gz``.
"""

import hashlib
import re
import time
from collections.abc import Callable
from pathlib import Path

from raybio.core.errors import DataError
from raybio.methods.biostransformers.formats.retrying_http import RetryingHttp

FILE_NAME = re.compile(r"pubmed[0-9]{2}n([0-9]{4,6})\.xml\.gz")
LINK = re.compile(r"""href\s*=\s*["']\s*([^"'\s<>]{1,200})\s*["']""", re.IGNORECASE)
MD5_LINES = (
    re.compile(r"MD5\s*\(([^()]+)\)\s*=\s*([0-9a-fA-F]{32})"),
    re.compile(r"([0-9a-fA-F]{32})\s+\*?(\S+)"),
)


MAX_INDEX_BYTES = 16 << 20
MAX_MD5_BYTES = 4 << 10
HASH_BYTES = 1 << 20


def download_pubmed(
    url: str,
    folder: str | Path,
    *,
    first: int | None = None,
    last: int | None = None,
    limit: int | None = None,
    progress: Callable[[str, int, int], None] = lambda name, num_done, num_files: None,
    sleep: Callable[[float], None] = time.sleep,
    timeout_seconds: float = 60.0,
    num_tries: int = 6,
) -> list[Path]:
    """Download the files that an index lists, except those already present.

    A file is downloaded to ``<name>.part`` and renamed when its MD5 is right; then ``<name>.md5``
    is written next to it. A file that agrees with its ``.md5`` is not downloaded again. An
    interrupted call resumes.

    Args:
        url: the index, http or https.
        folder: destination of the files; created if missing.
        first: lowest file number (1 for ``pubmed25n0001.xml.gz``).
        last: highest file number, inclusive.
        limit: maximum number of files, lowest names first.
        progress: called with (name, files done, number of files) after each file.
        sleep: waits for a number of seconds before a retry.
        timeout_seconds: maximum silence of the server.
        num_tries: tries of each request.

    Returns:
        The files in order of name.

    Raises:
        DataError: if the URL is invalid, the index lists no such file, the server keeps failing,
            the MD5 is wrong twice, or the folder cannot be written.
    """
    base = url.rstrip("/") + "/"
    folder = Path(folder)
    http = RetryingHttp(sleep=sleep, timeout_seconds=timeout_seconds, num_tries=num_tries)
    names = _select_names(http.read(base, MAX_INDEX_BYTES), base, first, last, limit)
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            path = folder / name
            if not _is_complete(path):
                _download(http, base, path)
            paths.append(path)
            progress(name, len(paths), len(names))
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be written ({error}). Free some space or choose another folder."
        ) from None
    return paths


def _select_names(
    index: bytes, url: str, first: int | None, last: int | None, limit: int | None
) -> list[str]:
    """Return the names of the selected files in order. Other links of the index are ignored."""
    number_by_name = {
        link: int(match[1])
        for link in LINK.findall(index.decode("utf-8", "replace"))
        if (match := FILE_NAME.fullmatch(link))
    }
    if not number_by_name:
        raise DataError(
            f"{url}: lists no file such as pubmed25n0001.xml.gz. Is this PubMed's baseline or "
            "updatefiles?"
        )
    low = 0 if first is None else first
    high = max(number_by_name.values()) if last is None else last
    names = sorted(name for name, number in number_by_name.items() if low <= number <= high)[:limit]
    if not names:
        numbers = sorted(number_by_name.values())
        raise DataError(
            f"{url}: lists the numbers {numbers[0]} to {numbers[-1]}, none from first={low} to "
            f"last={high} with limit={limit}"
        )
    return names


def _is_complete(path: Path) -> bool:
    """Return whether the file exists and agrees with the MD5 next to it."""
    md5_path = path.with_name(path.name + ".md5")
    if not (path.is_file() and md5_path.is_file()):
        return False
    with md5_path.open("rb") as file:
        wanted = _md5_in(file.read(MAX_MD5_BYTES), path.name)
    return wanted is not None and _md5_of(path) == wanted


def _download(http: RetryingHttp, base: str, path: Path) -> None:
    """Download one file and its MD5."""
    md5_url = f"{base}{path.name}.md5"
    part = path.with_name(path.name + ".part")
    content = http.read(md5_url, MAX_MD5_BYTES)
    wanted = _md5_in(content, path.name)
    if wanted is None:
        raise DataError(
            f"{md5_url}: holds {content[:80]!r}, want 'MD5({path.name})= ' and 32 hex digits"
        )
    digest = ""
    for _ in range(2):
        http.download(base + path.name, part)
        digest = _md5_of(part)
        if digest == wanted:
            part.replace(path)
            md5_path = path.with_name(path.name + ".md5")
            draft = md5_path.with_name(md5_path.name + ".part")
            draft.write_bytes(content)
            draft.replace(md5_path)
            return
        part.unlink()
    raise DataError(
        f"{base}{path.name}: its MD5 is {digest}, want {wanted}, twice. Try later, or from another "
        "mirror."
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


def _md5_of(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(HASH_BYTES):
            digest.update(block)
    return digest.hexdigest()
