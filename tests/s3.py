"""An S3 server on this machine behind a proxy that causes faults, and the environment that names it.

The server is moto's: it speaks the protocol, conditional writes and multipart uploads included.
"""

import http.client
import itertools
import logging
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest

from raybio.core.location import BucketPath
from raybio.store import bucket_client

DENIED = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code>'
    b"<Message>Access Denied</Message></Error>"
)
"""The answer of Amazon S3 to a request for which there is no permission."""

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIATESTKEY",
    "AWS_SECRET_ACCESS_KEY": "never-shown-secret",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Request(NamedTuple):
    """A request that has reached the proxy.

    Attributes:
        method: GET, PUT, ...
        path: bucket, object and query.
        range: header of that name.
        fault: what was done instead of answering; "" for nothing.
        authorization: header of that name, with the key's id and a signature.
    """

    method: str
    path: str
    range: str | None
    fault: str
    authorization: str


class S3(ThreadingHTTPServer):
    """The proxy before the server.

    Attributes:
        url: its address.
        requests: all requests since the test began.
        clock_ahead_seconds: of the server's times of objects, against those of this machine.
        region: that answers name as the bucket's; "" for none.
        conditional_writes: held by the conditional write that is at work.
    """

    daemon_threads = True
    # Clients connect many times at once, and a busy machine takes long to accept them.
    request_queue_size = 128

    def __init__(self, host: str, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.server_behind = (host, port)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests: list[Request] = []
        self.clock_ahead_seconds = 0
        self.region = ""
        self.conditional_writes = threading.Lock()
        self._faults: list[dict] = []
        self._held: list[str] = []
        self._is_released = threading.Event()
        self._numbers = itertools.count()

    def fail(self, kind: str, *, method: str = "", containing: str = "", times: int = 1) -> None:
        """Cause a fault in the next requests of a method whose path and range contain a text.

        - ``busy``: status 503.
        - ``denied``: status 403, as Amazon S3 answers without permission.
        - ``reset``: the connection is closed without an answer.
        - ``cut``: half of the answer is sent.
        - ``lost``: the request is carried out, and the connection closed without an answer.
        """
        fault = {"kind": kind, "method": method, "containing": containing, "times": times}
        self._faults.append(fault)

    @property
    def has_faults(self) -> bool:
        """Whether a fault waits for its request."""
        return any(fault["times"] > 0 for fault in self._faults)

    def hold(self, text: str) -> None:
        """Let requests wait for ``release`` whose path or Range header contains a text."""
        self._is_released.clear()
        self._held.append(text)

    def paths_with(self, text: str) -> set[str]:
        """Return the paths of all requests that contain a text."""
        return {request.path for request in list(self.requests) if text in request.path}

    def release(self) -> None:
        """Let held requests go on."""
        self._held.clear()
        self._is_released.set()

    def wait_if_held(self, request: Request) -> None:
        if any(text in f"{request.path} {request.range}" for text in self._held):
            self._is_released.wait()

    def heal(self) -> None:
        """Cause no more faults."""
        self._faults.clear()
        self.clock_ahead_seconds = 0
        self.region = ""
        self.release()

    def new_bucket(self) -> BucketPath:
        """Return a new, empty bucket."""
        name = f"bucket-{next(self._numbers)}"
        host, port = self.server_behind
        request = urllib.request.Request(f"http://{host}:{port}/{name}", method="PUT")
        urllib.request.urlopen(request).close()
        return BucketPath("s3", name)

    def fault_of(self, method: str, path_and_range: str) -> str:
        for fault in self._faults:
            is_meant = fault["method"] in ("", method) and fault["containing"] in path_and_range
            if is_meant and fault["times"] > 0:
                fault["times"] -= 1
                return fault["kind"]
        return ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body are two writes: with Nagle's algorithm, the second waits 40 ms for the first.
    disable_nagle_algorithm = True
    server: S3

    def log_message(self, *_) -> None:
        pass

    def _answer(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        bytes_range = self.headers.get("Range")
        fault = self.server.fault_of(self.command, f"{self.path} {bytes_range or ''}")
        authorization = self.headers.get("Authorization") or ""
        request = Request(self.command, self.path, bytes_range, fault, authorization)
        self.server.requests.append(request)
        self.server.wait_if_held(request)
        if fault == "reset":
            self.close_connection = True
        elif fault == "busy":
            self._send(503, [], b"")
        elif fault == "denied":
            self._send(403, [("Content-Type", "application/xml")], DENIED)
        else:
            self._forward(content, fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer

    def _forward(self, content: bytes, fault: str) -> None:
        is_conditional = "If-None-Match" in self.headers or "If-Match" in self.headers
        # S3 checks and writes at once. Moto lets another request write in between.
        with self.server.conditional_writes if is_conditional else nullcontext():
            connection = http.client.HTTPConnection(*self.server.server_behind)
            connection.request(self.command, self.path, content, dict(self.headers.items()))
            response = connection.getresponse()
            answer = response.read()
            connection.close()
        if fault == "lost":
            self.close_connection = True
            return
        dropped = ("transfer-encoding", "connection")
        headers = [pair for pair in response.getheaders() if pair[0].lower() not in dropped]
        ahead = timedelta(seconds=self.server.clock_ahead_seconds)
        for number, (name, value) in enumerate(headers):
            if ahead and name.lower() == "last-modified":
                shifted = parsedate_to_datetime(value) + ahead
                headers[number] = (name, format_datetime(shifted, usegmt=True))
        if self.server.region:
            headers.append(("x-amz-bucket-region", self.server.region))
        self._send(response.status, headers, answer, is_cut=fault == "cut")

    def _send(self, status: int, headers: list, content: bytes, is_cut: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if "content-length" not in {name.lower() for name, _ in headers}:
            self.send_header("Content-Length", str(len(content)))
        # The client may have been killed.
        with suppress(ConnectionError):
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content[: len(content) // 2] if is_cut else content)
        self.close_connection = self.close_connection or is_cut


@contextmanager
def serve_s3() -> Iterator[S3]:
    """Run a server and its proxy on ports of their own."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    proxy = S3(*server.get_host_and_port())
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
        server.stop()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3]:
    with serve_s3() as server:
        yield server


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """The server, named by the environment; no other credentials are found."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    # The server of a busy machine answers late.
    for name in ("PATIENT", "IMPATIENT"):
        patience = getattr(bucket_client, name)._replace(connect_seconds=300, silence_seconds=300)
        monkeypatch.setattr(bucket_client, name, patience)
    s3_server.requests.clear()
    yield s3_server
    s3_server.heal()


@pytest.fixture
def bucket(s3: S3) -> BucketPath:
    """A new, empty bucket."""
    return s3.new_bucket()
