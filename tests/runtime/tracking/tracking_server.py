"""A real ``mlflow server`` for tests, and a way to it that can be made to fail."""

import contextlib
import http.client
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


@contextlib.contextmanager
def mlflow_server(folder: Path, database: str) -> Iterator[str]:
    """Serves as the README says, with one worker; gives its address."""
    address = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-W", "ignore", "-m", "mlflow", "server", "--workers", "1"]
    command += [
        "--host",
        "127.0.0.1",
        "--port",
        address.rsplit(":", 1)[1],
        "--allowed-hosts",
        "127.0.0.1:*",
    ]
    command += [
        "--backend-store-uri",
        database,
        "--artifacts-destination",
        str(folder / "artifacts"),
    ]
    # Its job runners are for other things, and would be four more processes.
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with open(folder / "server.log", "wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=folder, env=environment, start_new_session=True
        )
    try:
        for _ in range(15_000):
            if process.poll() is not None:
                raise RuntimeError((folder / "server.log").read_text())
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{address}/health", timeout=600),
            ):
                break
            time.sleep(0.1)
        yield address
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Way:
    """Forwards requests to a server at an address of its own, unless it is set to fail.

    Attributes:
        state: ``pass``; ``broken``: every answer is a 500; ``hanging``: no answer; ``refused``:
            nobody listens.
        losing: the answer to the next request whose path ends so is lost on its way, the request
            itself is not.
        delaying: the next request whose path ends so is forwarded once it was given up and a second
            one has come; ``is_late`` is set when the server has answered it.
        failing: the next request whose path ends so is answered with 500, and not forwarded.
        slow: every request whose path holds this is forwarded when ``on_slow`` has returned.
        requests: paths, in order.
        logins: that came with them.
    """

    def __init__(self, server: str, state: str = "pass") -> None:
        self.host, self.port = (
            server.removeprefix("http://").split(":")[0],
            int(server.rsplit(":", 1)[1]),
        )
        self.own_port, self.state = free_port(), "refused"
        self.losing = self.failing = self.delaying = self.slow = ""
        self.is_late = threading.Event()
        self.on_slow: Callable[[], None] = lambda: None
        self.requests, self.logins = list[str](), set[str | None]()
        self._listener: http.server.ThreadingHTTPServer | None = None
        self.become(state)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.own_port}"

    def become(self, state: str) -> None:
        self.state = state
        if state == "refused" and self._listener is not None:
            self._listener.shutdown()
            self._listener.server_close()
            self._listener = None
        elif state != "refused" and self._listener is None:
            handler = type("Handler", (_Handler,), {"way": self})
            self._listener = http.server.ThreadingHTTPServer(("127.0.0.1", self.own_port), handler)
            threading.Thread(target=self._listener.serve_forever, args=(0.05,), daemon=True).start()


class _Handler(http.server.BaseHTTPRequestHandler):
    way: Way

    def do_GET(self) -> None:
        way, path = self.way, self.path.split("?")[0]
        way.requests.append(path)
        way.logins.add(self.headers.get("Authorization"))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if way.state == "broken" or self._is("failing", path):
            self.send_error(500)
            return
        self.close_connection = True
        if way.state == "hanging":
            while way.state == "hanging":
                time.sleep(0.05)
            return
        is_delayed = self._is("delaying", path)
        while is_delayed and way.requests.count(path) < 2:
            time.sleep(0.05)
        if way.slow and way.slow in path:
            way.on_slow()
        connection = http.client.HTTPConnection(way.host, way.port, timeout=1500)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if is_delayed:
            way.is_late.set()
        if self._is("losing", path):
            return
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(OSError):  # whoever asked may have given up
            self.wfile.write(content)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _is(self, what: str, path: str) -> bool:
        ending = getattr(self.way, what)
        if not ending or not path.endswith(ending):
            return False
        setattr(self.way, what, "")
        return True

    def log_message(self, *_: object) -> None:
        pass
