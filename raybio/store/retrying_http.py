"""HTTP client that retries when a server is busy, closes connections or is temporarily down.

It is built on ``urllib`` so that waits, ranges and redirects are under our control: an interrupted
download resumes within a file, and a redirect never leaves http(s) or drops encryption.
"""

import http.client
import logging
import re
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from raybio.core.errors import DataError
from raybio.core.text import size_text

BLOCK_BYTES = 1 << 20
MAX_FILE_BYTES = 16 << 30
"""Maximum size in bytes of a file whose length the server does not announce."""

FIRST_WAIT_SECONDS = 1.0
MAX_WAIT_SECONDS = 120.0

NO_HEAD = {405, 501}
RETRIED_STATUS = {408, 425, 429, 500, 502, 503, 504}
SCHEMES = ("http", "https")
CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-[0-9]+/(?:[0-9]+|\*)")
VALIDATOR = ".etag"
"""Suffix of the file next to a part that records the version of the remote file."""

_log = logging.getLogger(__name__)

Result = TypeVar("Result")


class RetryingHttp:
    """HTTP client with a bounded number of tries and growing waits between them.

    Args:
        sleep: waits for a number of seconds before a retry.
        timeout_seconds: maximum silence of the server.
        num_tries: tries of each request, counted from the last byte that arrived.
        progress: called during a download with the part, the bytes that are in it, and the bytes of
            the whole file (None: the server does not announce them).
    """

    def __init__(
        self,
        *,
        sleep: Callable[[float], None] = time.sleep,
        timeout_seconds: float = 60.0,
        num_tries: int = 6,
        progress: Callable[[Path, int, int | None], None] = lambda part, num_here, num_all: None,
    ) -> None:
        """Make no request yet."""
        self._progress = progress
        self._sleep = sleep
        self._timeout_seconds = timeout_seconds
        self._num_tries = num_tries
        self._opener = urllib.request.OpenerDirector()
        # Built by hand, since the default opener also opens file: and ftp: URLs.
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.UnknownHandler(),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
            _SafeRedirectHandler(),
        ):
            self._opener.add_handler(handler)

    def read(self, url: str, max_bytes: int) -> bytes:
        """Return the content of a small document.

        Raises:
            DataError: if it cannot be read or is longer than ``max_bytes``.
        """

        def read_once() -> bytes:
            with self._open(url, {}) as response:
                content: bytes = _read(response, max_bytes + 1)
                if len(content) <= max_bytes and len(content) < (_length(response) or 0):
                    raise _RetryError(f"the connection was cut after {len(content):,} bytes")
            return content

        content = self._with_retries(url, read_once)
        if len(content) > max_bytes:
            raise DataError(
                f"{url}: is longer than {max_bytes:,} bytes, which is refused. Is this the right "
                "address?"
            )
        return content

    def num_bytes(self, url: str) -> int | None:
        """Return the size of a file, None if the server does not announce it.

        Raises:
            DataError: if there is no such file, or the server keeps failing.
        """

        def length() -> int | None:
            try:
                with self._open(url, {}, method="HEAD") as response:
                    return _length(response)
            except urllib.error.HTTPError:
                return None

        return self._with_retries(url, length)

    def download(self, url: str, part: Path, *, is_checked: bool) -> None:
        """Download ``url`` into ``part``. If the server supports it, resume at the end of ``part``.

        A part is continued only if the server says that the file is still the same (``If-Range``),
        or if the caller compares the result with a published checksum.

        Args:
            url: the file.
            part: where it is written. The version of the remote file is kept next to it.
            is_checked: the caller knows the checksum.

        Raises:
            DataError: if it cannot be downloaded, or needs more space than is free.
            OSError: if ``part`` cannot be written.
        """

        def size() -> int:
            return part.stat().st_size if part.exists() else 0

        self._with_retries(url, lambda: self._download_once(url, part, is_checked), size)
        validator_path(part).unlink(missing_ok=True)

    def _download_once(self, url: str, part: Path, is_checked: bool) -> None:
        validator = _read_validator(part)
        if part.exists() and not (validator or is_checked):
            part.unlink()
        num_here = part.stat().st_size if part.exists() else 0
        headers = {"Range": f"bytes={num_here}-"} if num_here else {}
        if num_here and validator:
            headers["If-Range"] = validator
        try:
            response = self._open(url, headers)
        except urllib.error.HTTPError as error:
            # 416: part is complete, or too long, which the caller's checks detect.
            if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{num_here}":
                return
            part.unlink(missing_ok=True)
            raise _RetryError(f"the server cannot resume at byte {num_here:,}") from None
        with response:
            begins_at = _first_byte(response, part, num_here, validator)
            num_wanted = _length(response)
            if num_wanted is not None:
                check_space(part.parent, num_wanted, shutil.disk_usage(part.parent).free)
            num_here = self._write_body(response, part, url, begins_at, num_wanted)
        if num_wanted is not None and num_here < begins_at + num_wanted:
            raise _RetryError(f"the connection was cut after {num_here:,} bytes")

    def _write_body(
        self, response: Any, part: Path, url: str, begins_at: int, num_wanted: int | None
    ) -> int:
        """Append the bytes of a response to ``part``; return its length."""
        if begins_at == 0 and _validator(response):
            validator_path(part).write_text(_validator(response), encoding="utf-8")
        num_all = None if num_wanted is None else begins_at + num_wanted
        with part.open("ab" if begins_at else "wb") as file:
            while block := _read(response, BLOCK_BYTES):
                file.write(block)
                if num_wanted is None and file.tell() > MAX_FILE_BYTES:
                    raise DataError(
                        f"{url}: is longer than {MAX_FILE_BYTES:,} bytes, and the server does not "
                        "say how long; that is refused"
                    )
                self._progress(part, file.tell(), num_all)
            return file.tell()

    def _open(self, url: str, headers: dict[str, str], method: str = "GET") -> Any:
        """Return the response.

        Raises:
            HTTPError: for status 416, and for a server that does not know HEAD.
            _RetryError: for an error that may pass.
            DataError: for any other error.
        """
        headers = {"User-Agent": "raybio", **headers}
        request = urllib.request.Request(url, headers=headers, method=method)
        try:
            return self._opener.open(request, timeout=self._timeout_seconds)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 or (method == "HEAD" and error.code in NO_HEAD):
                raise
            if error.code in RETRIED_STATUS:
                retry_after = error.headers.get("Retry-After", "")
                wait_seconds = float(retry_after) if retry_after.isdecimal() else None
                raise _RetryError(f"HTTP {error.code}", wait_seconds) from None
            raise DataError(
                f"{url}: the server answers {error.code} {error.reason}. Check the address."
            ) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise DataError(
                    f"{url}: the server's certificate is not trusted ({error.reason})"
                ) from None
            raise _RetryError(str(error.reason)) from None
        except (OSError, http.client.HTTPException) as error:
            raise _RetryError(str(error) or type(error).__name__) from None

    def _with_retries(
        self, url: str, request: Callable[[], Result], num_done: Callable[[], int] = lambda: 0
    ) -> Result:
        """Return the result of a request; tries count anew at each new maximum of ``num_done``."""
        _check_url(url)
        reason = ""
        number = 0
        most_done = num_done()
        while number < self._num_tries:
            try:
                return request()
            except _RetryError as error:
                reason = str(error)
                number = 1 if num_done() > most_done else number + 1
                most_done = max(most_done, num_done())
                doubled = FIRST_WAIT_SECONDS * 2 ** (number - 1)
                wait_seconds = min(max(doubled, error.wait_seconds or 0.0), MAX_WAIT_SECONDS)
            if number < self._num_tries:
                _log.warning("%s: %s; next try in %.0f s", url, reason, wait_seconds)
                self._sleep(wait_seconds)
        raise DataError(
            f"{url}: failed {self._num_tries} times, the last time with: {reason}. Try again "
            "later; downloaded parts are kept."
        )


class _RetryError(Exception):
    """A request failed, and a retry may succeed."""

    def __init__(self, reason: str, wait_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.wait_seconds = wait_seconds


class _SafeRedirectHandler(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https only, and never from https to http."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        """Return the request to the new URL."""
        scheme = urlsplit(newurl).scheme.lower()
        if scheme not in SCHEMES or (req.type == "https" and scheme == "http"):
            raise DataError(
                f"{req.full_url}: the server redirects to {newurl[:200]}, which is refused"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def validator_path(part: Path) -> Path:
    """Return the file that records which version of the remote file a part belongs to."""
    return part.with_name(part.name + VALIDATOR)


def check_space(folder: Path, num_bytes: int, num_free: int) -> None:
    """Refuse a download that does not fit.

    Raises:
        DataError: with what is needed and what is free.
    """
    if num_bytes > num_free:
        raise DataError(
            f"{folder}: needs {size_text(num_bytes)}, {size_text(num_free)} are free. Free some "
            "space or choose another folder; downloaded parts are kept"
        )


def _first_byte(response: Any, part: Path, num_here: int, validator: str) -> int:
    """Return the byte of the file at which a response begins; at 0, ``part`` is removed.

    Raises:
        _RetryError: if the response is another range, or of another version of the file.
    """
    if response.status != 206:
        # The part may belong to another version of the file than the next validator.
        part.unlink(missing_ok=True)
        validator_path(part).unlink(missing_ok=True)
        return 0
    match = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    is_continued = match is not None and int(match[1]) == num_here
    if not is_continued or _validator(response) not in ("", validator):
        part.unlink(missing_ok=True)
        raise _RetryError("the server sent another range or file than requested")
    return num_here


def _read_validator(part: Path) -> str:
    path = validator_path(part)
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _validator(response: Any) -> str:
    """Return the strong ETag of a response, or else its time of modification, "" for neither."""
    etag: str = response.headers.get("ETag", "")
    if etag.startswith('"'):
        return etag
    modified: str = response.headers.get("Last-Modified", "")
    return modified


def _check_url(url: str) -> None:
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
        _refuse_url(url)


def _refuse_url(url: str) -> NoReturn:
    raise DataError(
        f"{url!r}: want an address that begins with https:// or http:// and names a server"
    )


def _read(response: Any, num_bytes: int) -> bytes:
    """Return the next bytes of a response. A network error is retried, unlike a disk error."""
    try:
        content: bytes = response.read(num_bytes)
    except (OSError, http.client.HTTPException) as error:
        raise _RetryError(f"the connection was cut ({error or type(error).__name__})") from None
    return content


def _length(response: Any) -> int | None:
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None
