"""Fetching PubMed's files from NLM: resumable, checked by MD5, patient with a busy server.

``https://ftp.ncbi.nlm.nih.gov/pubmed/baseline/`` holds the year's baseline, ``.../updatefiles/`` the daily updates: an
HTML index, and beside each ``pubmed25n0001.xml.gz`` a file ``pubmed25n0001.xml.gz.md5``.
"""

import hashlib
import re
import time
from collections.abc import Callable
from pathlib import Path

from raybio.data.patient_http import PatientHttp
from raybio.errors import DataError

FILE_NAME = re.compile(r"pubmed[0-9]{2}n([0-9]{4,6})\.xml\.gz")
LINK = re.compile(r"""href\s*=\s*["']\s*([^"'\s<>]{1,200})\s*["']""", re.IGNORECASE)
MD5_LINES = (re.compile(r"MD5\s*\(([^()]+)\)\s*=\s*([0-9a-fA-F]{32})"), re.compile(r"([0-9a-fA-F]{32})\s+\*?(\S+)"))
MAX_INDEX_BYTES, MAX_MD5_BYTES = 16 << 20, 4 << 10
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
    """Fetch the files that an index lists, or those of them that are not here yet.

    A file goes to ``<name>.part`` and gets its name when its MD5 is right; then ``<name>.md5`` is put beside it. One
    that is here and agrees with the MD5 beside it is not fetched again. A call that was interrupted goes on where it
    stopped.

    Args:
        url: the index, http or https.
        folder: where the files go; made if missing.
        first: lowest file number (1 for ``pubmed25n0001.xml.gz``).
        last: highest file number, included.
        limit: at most so many files, lowest names first.
        progress: called with (name, files done, files of all) after each file.
        sleep: waits so many seconds before a new try.
        timeout_seconds: how long the server may be silent.
        num_tries: tries of each request before giving up.

    Returns:
        The files in order of name.

    Raises:
        DataError: if the address is wrong, the index lists no such file, the server keeps failing, the MD5 is wrong
            twice, or the folder cannot be written.
    """
    base, folder = url.rstrip("/") + "/", Path(folder)
    http = PatientHttp(sleep=sleep, timeout_seconds=timeout_seconds, num_tries=num_tries)
    names = _chosen(http.read(base, MAX_INDEX_BYTES), base, first, last, limit)
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            path = folder / name
            if not _is_here(path):
                _fetch(http, base, path)
            paths.append(path)
            progress(name, len(paths), len(names))
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error}). Free some space or choose another folder.") from None
    return paths


def _chosen(index: bytes, url: str, first: int | None, last: int | None, limit: int | None) -> list[str]:
    """Names of files in order; whatever else the index links to is not looked at."""
    number_by_name = {
        link: int(match[1])
        for link in LINK.findall(index.decode("utf-8", "replace"))
        if (match := FILE_NAME.fullmatch(link))
    }
    if not number_by_name:
        raise DataError(f"{url}: lists no file such as pubmed25n0001.xml.gz. Is this PubMed's baseline or updatefiles?")
    low = 0 if first is None else first
    high = max(number_by_name.values()) if last is None else last
    names = sorted(name for name, number in number_by_name.items() if low <= number <= high)[:limit]
    if not names:
        numbers = sorted(number_by_name.values())
        raise DataError(
            f"{url}: lists the numbers {numbers[0]} to {numbers[-1]}, none from first={low} to last={high} "
            f"with limit={limit}"
        )
    return names


def _is_here(path: Path) -> bool:
    """Whether the file is here, as the MD5 beside it says."""
    beside = path.with_name(path.name + ".md5")
    if not (path.is_file() and beside.is_file()):
        return False
    with beside.open("rb") as file:
        wanted = _md5_in(file.read(MAX_MD5_BYTES), path.name)
    return wanted is not None and _md5_of(path) == wanted


def _fetch(http: PatientHttp, base: str, path: Path) -> None:
    md5_url, part = f"{base}{path.name}.md5", path.with_name(path.name + ".part")
    content = http.read(md5_url, MAX_MD5_BYTES)
    wanted = _md5_in(content, path.name)
    if wanted is None:
        raise DataError(f"{md5_url}: holds {content[:80]!r}, want 'MD5({path.name})= ' and 32 hex digits")
    found = ""
    for _ in range(2):
        http.download(base + path.name, part)
        found = _md5_of(part)
        if found == wanted:
            part.replace(path)
            beside = path.with_name(path.name + ".md5")
            draft = beside.with_name(beside.name + ".part")
            draft.write_bytes(content)
            draft.replace(beside)
            return
        part.unlink()
    raise DataError(f"{base}{path.name}: its MD5 is {found}, want {wanted}, twice. Try later, or from another mirror.")


def _md5_in(content: bytes, name: str) -> str | None:
    """The digest that the content of an .md5 file gives for ``name``; None if it gives none."""
    text = content.decode("ascii", "replace").strip()
    if match := MD5_LINES[0].fullmatch(text):
        found_name, digest = match[1].strip(), match[2]
    elif match := MD5_LINES[1].fullmatch(text):
        digest, found_name = match[1], match[2]
    else:
        return None
    return digest.lower() if found_name.rpartition("/")[2] == name else None


def _md5_of(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(HASH_BYTES):
            digest.update(block)
    return digest.hexdigest()
