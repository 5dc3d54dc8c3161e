"""A server on this machine that answers as Azure Blob Storage does, and the environment that names it.

It follows Azure where it differs from S3: an ETag has quotes in the headers of an object, and none
in a listing. It checks no signature.
"""

import itertools
import re
import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from raybio.core.location import BucketPath

DATE = formatdate(1_700_000_000, usegmt=True)


class Blob(NamedTuple):
    """An object: its content, and its ETag without quotes."""

    content: bytes
    etag: str


class Azure(ThreadingHTTPServer):
    """The server.

    Attributes:
        blobs: all objects, by container and name.
        requests: method and path of all requests.
        changes: held while an object is checked and written.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.blobs: dict[str, Blob] = {}
        self.requests: list[tuple[str, str]] = []
        self.changes = threading.Lock()
        self.numbers = itertools.count(0x8D1)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body are two writes: with Nagle's algorithm, the second waits 40 ms for the first.
    disable_nagle_algorithm = True
    server: Azure

    def log_message(self, *_) -> None:
        pass

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append((self.command, self.path))
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        name = unquote(url.path).strip("/")
        if query.get("comp") == "list":
            self._list(name, query)
        elif query.get("comp") == "batch":
            self._delete_all(body.decode())
        elif self.command == "PUT":
            self._put(name, body)
        else:
            self._get(name)

    do_GET = do_HEAD = do_PUT = do_POST = _answer

    def _put(self, name: str, body: bytes) -> None:
        with self.server.changes:
            old = self.server.blobs.get(name)
            if old is not None and self.headers.get("If-None-Match") == "*":
                self._send(409, error="BlobAlreadyExists")
            elif not self._is_wanted(old):
                self._send(412, error="ConditionNotMet")
            else:
                blob = Blob(body, f"0x{next(self.server.numbers):X}")
                self.server.blobs[name] = blob
                self._send(201, blob)

    def _get(self, name: str) -> None:
        blob = self.server.blobs.get(name)
        bounds = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if blob is None:
            self._send(404, error="BlobNotFound")
        elif not self._is_wanted(blob):
            self._send(412, error="ConditionNotMet")
        elif bounds:
            first, last = int(bounds[1]), int(bounds[2])
            content = blob.content[first : last + 1]
            headers = {"Content-Range": f"bytes {first}-{last}/{len(blob.content)}"}
            self._send(206, blob, content, headers)
        else:
            self._send(200, blob, blob.content)

    def _is_wanted(self, blob: Blob | None) -> bool:
        wanted = self.headers.get("If-Match")
        return wanted is None or (blob is not None and wanted == f'"{blob.etag}"')

    def _list(self, container: str, query: dict[str, str]) -> None:
        prefix = query.get("prefix", "")
        delimiter = query.get("delimiter", "")
        entries = {}
        for key, blob in sorted(self.server.blobs.items()):
            folder, _, name = key.partition("/")
            if folder != container or not name.startswith(prefix):
                continue
            head, cut, _ = name[len(prefix) :].partition(delimiter or "\0")
            if cut:
                below = f"{prefix}{head}{cut}"
                entries[below] = f"<BlobPrefix><Name>{escape(below)}</Name></BlobPrefix>"
                continue
            entries[name] = (
                f"<Blob><Name>{escape(name)}</Name><Properties>"
                f"<Last-Modified>{DATE}</Last-Modified><Etag>{blob.etag}</Etag>"
                f"<Content-Length>{len(blob.content)}</Content-Length>"
                "<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
            )
        text = (
            '<?xml version="1.0" encoding="utf-8"?><EnumerationResults>'
            f"<Blobs>{''.join(entries.values())}</Blobs><NextMarker /></EnumerationResults>"
        )
        self._send(200, content=text.encode(), headers={"Content-Type": "application/xml"})

    def _delete_all(self, body: str) -> None:
        parts = []
        for number, path in enumerate(re.findall(r"DELETE (\S+) HTTP", body)):
            blob = self.server.blobs.pop(unquote(path).strip("/"), None)
            status = "404 Not Found" if blob is None else "202 Accepted"
            parts.append(
                "--answers\r\nContent-Type: application/http\r\n"
                f"Content-ID: {number}\r\n\r\nHTTP/1.1 {status}\r\n\r\n\r\n"
            )
        content = "".join([*parts, "--answers--\r\n"]).encode()
        self._send(
            202, content=content, headers={"Content-Type": "multipart/mixed; boundary=answers"}
        )

    def _send(
        self,
        status: int,
        blob: Blob | None = None,
        content: bytes = b"",
        headers: dict[str, str] | None = None,
        error: str = "",
    ) -> None:
        self.send_response_only(status)
        if error:
            self.send_header("x-ms-error-code", error)
            content = f"<Error><Code>{error}</Code></Error>".encode()
        if blob is not None:
            self.send_header("ETag", f'"{blob.etag}"')
            self.send_header("Last-Modified", DATE)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> Iterator[Azure]:
    """The server, named by the environment."""
    server = Azure()
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", server.url)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "someone")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "bmV2ZXItc2hvd24=")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def container(azure: Azure) -> BucketPath:
    """A new, empty container."""
    return BucketPath("abfs", "container")
