"""Ray clusters of several nodes on this machine: each node is a `ray start --block` with an address
and processes of its own, and every one wants the cluster's token."""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

RAY = Path(sys.executable).parent / "ray"
RAY_START = (str(RAY), "start", "--block")
HEAD_ADDRESS = "127.0.0.1"
NUM_TRIES = 3
TIMED_OUT = "The current node timed out during startup"
"""Ray gives a node 30 s, which no setting changes, and ends it: a busy machine may need another
try.
"""


class Nodes:
    """A head node and those that are added; all of them end with ``end``.

    Attributes:
        folder: a private one, also the home of all nodes.
        environment: of every node, and of clients.
        dashboard: its address.
    """

    def __init__(self, head_cpus: int, environment: dict[str, str] | None = None) -> None:
        """Start the head and wait until its dashboard answers."""
        self.folder = Path(tempfile.mkdtemp(prefix="rb", dir="/tmp"))
        token = self.folder / ".ray" / "auth_token"
        token.parent.mkdir(mode=0o700)
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        own = {"HOME": str(self.folder), "RAY_TMPDIR": str(self.folder), "RAY_AUTH_MODE": "token"}
        own["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = (
            "0"  # a node that is asked to end does so at once
        )
        own["RAY_raylet_start_wait_time_s"] = "180"  # other tests run beside
        others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        own["PATH"] = f"{RAY.parent}:{os.environ['PATH']}"
        self.environment = others | own | {"OMP_NUM_THREADS": "1", **(environment or {})}
        port, dashboard = free_port(), free_port()
        self.address, self.dashboard = (
            f"{HEAD_ADDRESS}:{port}",
            f"http://{HEAD_ADDRESS}:{dashboard}",
        )
        options = [
            f"--port={port}",
            f"--dashboard-host={HEAD_ADDRESS}",
            f"--dashboard-port={dashboard}",
        ]
        self.nodes = [
            self._start(HEAD_ADDRESS, head_cpus, "--head", "--include-dashboard=true", *options)
        ]
        if not self._becomes(
            lambda: status_without_token(self.dashboard) in (401, 403) and len(self.alive()) == 1,
            self.nodes[0],
        ):
            pytest.fail(f"the head did not come up: {self.log}")

    def add(
        self, cpus: int, command: tuple[str, ...] = RAY_START, **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start another node, with what does as `ray start` does; it has joined when this
        returns.
        """
        for _ in range(NUM_TRIES):
            ip = f"127.0.0.{len(self.nodes) + 1}"
            node = self._start(
                ip, cpus, f"--address={self.address}", command=command, **environment
            )
            self.nodes.append(node)
            if self._becomes(lambda ip=ip: ip in self.alive(), node):
                return node
            if TIMED_OUT not in self.log:
                break
        pytest.fail(f"a node did not come up: {self.log}")

    def add_with_disk(self, disk: Path) -> subprocess.Popen[bytes]:
        """Add a node of one CPU whose home, cache and temporary files are ``disk``."""
        disk.mkdir()
        token = str(self.folder / ".ray" / "auth_token")
        own = {"HOME": str(disk), "RAYBIO_CACHE": str(disk / "cache"), "TMPDIR": str(disk)}
        return self.add(1, RAY_AUTH_TOKEN_PATH=token, **own)

    def kill_all_but_head(self) -> None:
        """Kill what a test has added; the head knows it when this returns."""
        for node in self.nodes[1:]:
            if node.poll() is None:
                self.kill(node)
        if not self._becomes(lambda: len(self.alive()) == 1, self.nodes[0]):
            pytest.fail(f"lost nodes do not go: {self.log}")

    def alive(self) -> list[str]:
        """Addresses of the nodes that the head knows to be alive."""
        token = (self.folder / ".ray" / "auth_token").read_text()
        headers = {"Authorization": f"Bearer {token}"}
        requests = urllib.request.Request(
            f"{self.dashboard}/api/v0/nodes?limit=100&timeout=10", headers=headers
        )
        with urllib.request.urlopen(requests, timeout=600) as answer:
            nodes = json.load(answer)["data"]["result"]["result"]
        return [node["node_ip"] for node in nodes if node["state"] == "ALIVE"]

    def kill(self, node: subprocess.Popen[bytes]) -> None:
        """A node is lost: all of its processes at once, without a word."""
        for process in _family(node):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        node.wait()

    def end(self) -> None:
        """End all nodes; what does not end by itself is killed."""
        alive = [node for node in self.nodes if node.poll() is None]
        family = [process for node in alive for process in _family(node)]
        # Ray makes a driver the parent of processes whose own parent has ended: this process.
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if str(self.folder) in " ".join(child.cmdline()):
                    family += [child, *child.children(recursive=True)]
        for node in reversed(alive):
            node.terminate()
        for left in psutil.wait_procs(family, timeout=30)[1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
        for node in alive:
            node.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def log(self) -> str:
        """The end of what nodes have said."""
        return "\n".join(
            path.read_text()[-2000:] for path in sorted(self.folder.glob("node-*.log"))
        )

    def _start(
        self,
        ip: str,
        cpus: int,
        *options: str,
        command: tuple[str, ...] = RAY_START,
        **environment: str,
    ) -> subprocess.Popen[bytes]:
        # The agent's own default is one fixed port, which the cluster of the other tests has.
        options += (
            f"--dashboard-agent-listen-port={free_port()}",
            "--object-store-memory=150000000",
        )
        with open(self.folder / f"node-{ip}.log", "wb") as log:
            return subprocess.Popen(
                [*command, f"--node-ip-address={ip}", f"--num-cpus={cpus}", *options],
                env=self.environment | environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _becomes(self, is_so: Callable[[], bool], node: subprocess.Popen[bytes]) -> bool:
        """Whether it becomes so while a node runs."""
        deadline = time.monotonic() + 1500
        while time.monotonic() < deadline and node.poll() is None:
            # The dashboard of a busy machine may close a connection without an answer.
            with contextlib.suppress(OSError):
                if is_so():
                    return True
            time.sleep(0.5)
        return False


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HEAD_ADDRESS, 0))
        return int(listener.getsockname()[1])


def status_without_token(address: str) -> int:
    try:
        with urllib.request.urlopen(f"{address}/api/jobs/", timeout=600) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def _family(node: subprocess.Popen[bytes]) -> list[psutil.Process]:
    itself = psutil.Process(node.pid)
    return [itself, *itself.children(recursive=True)]
