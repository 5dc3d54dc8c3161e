"""Fetching PubMed's files from NLM: resumable, checked by MD5, patient with a busy server.

``https://ftp.ncbi.nlm.nih.gov/pubmed/baseline/`` holds the year's baseline, ``.../updatefiles/`` the daily updates: an
HTML index, and beside each ``pubmed25n0001.xml.gz`` a file ``pubmed25n0001.xml.gz.md5``.

Reading from a web server that may be busy, cut connections or go away for a while.
"""

import hashlib
import http.client
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from raybio.core.errors import DataError

FILE_NAME = re.compile(r"pubmed[0-9]{2}n([0-9]{4,6})\.xml\.gz")


LINK = re.compile(r"""href\s*=\s*["']\s*([^"'\s<>]{1,200})\s*["']""", re.IGNORECASE)


MD5_LINES = (
    re.compile(r"MD5\s*\(([^()]+)\)\s*=\s*([0-9a-fA-F]{32})"),
    re.compile(r"([0-9a-fA-F]{32})\s+\*?(\S+)"),
)


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
        raise DataError(
            f"{folder}: cannot be written ({error}). Free some space or choose another folder."
        ) from None
    return paths


def _chosen(
    index: bytes, url: str, first: int | None, last: int | None, limit: int | None
) -> list[str]:
    """Names of files in order; whatever else the index links to is not looked at."""
    number_by_name = {
        link: int(match[1])
        for link in LINK.findall(index.decode("utf-8", "replace"))
        if (match := FILE_NAME.fullmatch(link))
    }
    if not number_by_name:
        raise DataError(
            f"{url}: lists no file such as pubmed25n0001.xml.gz. Is this PubMed's baseline or updatefiles?"
        )
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


Result = TypeVar("Result")


class PatientHttp:
    """Requests with a bounded number of tries and growing waits between them.

    Args:
        sleep: waits so many seconds.
        timeout_seconds: how long the server may be silent.
        num_tries: tries of each request.
    """

    def __init__(
        self, *, sleep: Callable[[float], None], timeout_seconds: float, num_tries: int
    ) -> None:
        """No request is made yet."""
        self._sleep, self._timeout_seconds, self._num_tries = sleep, timeout_seconds, num_tries
        self._opener = urllib.request.OpenerDirector()
        # Built by hand: the default opener also opens file: and ftp: addresses.
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.UnknownHandler(),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
            _NoOtherScheme(),
        ):
            self._opener.add_handler(handler)

    def read(self, url: str, max_bytes: int) -> bytes:
        """The content of a small document.

        Raises:
            DataError: if it cannot be had or is longer than ``max_bytes``.
        """

        def read_once() -> bytes:
            with self._open(url, {}) as response:
                content: bytes = _received(response, max_bytes + 1)
                if len(content) <= max_bytes and len(content) < (_length(response) or 0):
                    raise _TryAgainError(f"the connection was cut after {len(content):,} bytes")
            return content

        content = self._patiently(url, read_once)
        if len(content) > max_bytes:
            raise DataError(
                f"{url}: is longer than {max_bytes:,} bytes, which is refused. Is this the right address?"
            )
        return content

    def download(self, url: str, part: Path) -> None:
        """Bring ``part`` to the full length of what lies at ``url``, going on where it ends if the server can.

        Raises:
            DataError: if it cannot be had.
            OSError: if ``part`` cannot be written.
        """
        self._patiently(url, lambda: self._download_once(url, part))

    def _download_once(self, url: str, part: Path) -> None:
        num_here = part.stat().st_size if part.exists() else 0
        try:
            response = self._open(url, {"Range": f"bytes={num_here}-"} if num_here else {})
        except urllib.error.HTTPError as error:
            # 416: there is nothing after what is here; if that is too much, the caller's check finds it.
            if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{num_here}":
                return
            part.unlink(missing_ok=True)
            raise _TryAgainError(f"the server does not go on after byte {num_here:,}") from None
        with response:
            begins_at = 0
            if response.status == 206:
                match = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
                begins_at = int(match[1]) if match else -1
                if begins_at != num_here:
                    part.unlink(missing_ok=True)
                    raise _TryAgainError("the server sent another range than was asked for")
            wanted = _length(response)
            with part.open("ab" if begins_at else "wb") as file:
                while block := _received(response, BLOCK_BYTES):
                    file.write(block)
                    if file.tell() > MAX_FILE_BYTES:
                        raise DataError(
                            f"{url}: is longer than {MAX_FILE_BYTES:,} bytes, which is refused"
                        )
                num_here = file.tell()
        if wanted is not None and num_here < begins_at + wanted:
            raise _TryAgainError(f"the connection was cut after {num_here:,} bytes")

    def _open(self, url: str, headers: dict[str, str]) -> Any:
        """The response; HTTPError only for 416."""
        request = urllib.request.Request(url, headers={"User-Agent": "raybio", **headers})
        try:
            return self._opener.open(request, timeout=self._timeout_seconds)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:
                raise
            if error.code in BUSY:
                asked = error.headers.get("Retry-After", "")
                raise _TryAgainError(
                    f"HTTP {error.code}", float(asked) if asked.isdecimal() else None
                ) from None
            raise DataError(
                f"{url}: the server answers {error.code} {error.reason}. Check the address."
            ) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise DataError(
                    f"{url}: the server's certificate is not trusted ({error.reason})"
                ) from None
            raise _TryAgainError(str(error.reason)) from None
        except (OSError, http.client.HTTPException) as error:
            raise _TryAgainError(str(error) or type(error).__name__) from None

    def _patiently(self, url: str, request: Callable[[], Result]) -> Result:
        _refuse_other_schemes(url)
        wait_seconds, reason = FIRST_WAIT_SECONDS, ""
        for number in range(self._num_tries):
            if number:
                self._sleep(wait_seconds)
            try:
                return request()
            except _TryAgainError as error:
                reason = str(error)
                doubled = FIRST_WAIT_SECONDS * 2**number
                wait_seconds = min(max(doubled, error.wait_seconds or 0.0), LONGEST_WAIT_SECONDS)
        raise DataError(
            f"{url}: failed {self._num_tries} times, the last time with: {reason}. Try again later; "
            "what is here already is kept."
        )


def _fetch(http: PatientHttp, base: str, path: Path) -> None:
    md5_url, part = f"{base}{path.name}.md5", path.with_name(path.name + ".part")
    content = http.read(md5_url, MAX_MD5_BYTES)
    wanted = _md5_in(content, path.name)
    if wanted is None:
        raise DataError(
            f"{md5_url}: holds {content[:80]!r}, want 'MD5({path.name})= ' and 32 hex digits"
        )
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
    raise DataError(
        f"{base}{path.name}: its MD5 is {found}, want {wanted}, twice. Try later, or from another mirror."
    )


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


BLOCK_BYTES = 1 << 20


MAX_FILE_BYTES = 16 << 30


FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 120.0


BUSY = {408, 425, 429, 500, 502, 503, 504}


SCHEMES = ("http", "https")


CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-[0-9]+/(?:[0-9]+|\*)")


class _TryAgainError(Exception):
    """The request failed in a way that may pass."""

    def __init__(self, reason: str, wait_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.wait_seconds = wait_seconds


class _NoOtherScheme(urllib.request.HTTPRedirectHandler):
    """Follows a redirect to http and https only, and never from https back to http."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        """The request to the new address."""
        scheme = urlsplit(newurl).scheme.lower()
        if scheme not in SCHEMES or (req.type == "https" and scheme == "http"):
            raise DataError(
                f"{req.full_url}: the server sends us on to {newurl[:200]}, which is refused"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _refuse_other_schemes(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_good = (
            parts.scheme.lower() in SCHEMES
            and bool(parts.hostname)
            and url.isascii()
            and url.isprintable()
        )
    except ValueError:
        is_good = False
    if not is_good or " " in url:
        _wrong_address(url)


def _wrong_address(url: str) -> NoReturn:
    raise DataError(
        f"{url!r}: want an address that begins with https:// or http:// and names a server"
    )


def _received(response: Any, num_bytes: int) -> bytes:
    """The next bytes of a response; trouble on the way is a reason to try again, unlike trouble with the disk."""
    try:
        content: bytes = response.read(num_bytes)
    except (OSError, http.client.HTTPException) as error:
        raise _TryAgainError(f"the connection was cut ({error or type(error).__name__})") from None
    return content


def _length(response: Any) -> int | None:
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None
