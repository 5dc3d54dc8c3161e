"""``raybio serve`` as a whole: Ray Serve on loopback, many requests at once."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raybio
from raybio.core.errors import ClusterError, StoreError
from raybio.runtime.search.build import build_index
from raybio.runtime.serve import server
from raybio.runtime.serve.app import Limits
from tests.paths import ROOT
from tests.runtime.search.test_index import write
from tests.runtime.search.test_queries import SEQUENCES, export
from tests.script_process import run_script


def test_a_proxy_that_is_never_up_in_time_is_one_message() -> None:
    class Slow:
        """Ray Serve on a machine that is too busy."""

        def start(self, **_: Any) -> None:
            raise TimeoutError

        def shutdown(self) -> None:
            pass

    with pytest.raises(ClusterError, match="Ray Serve does not start: TimeoutError. Is the mach"):
        server._start(Slow(), "127.0.0.1", 1)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def ask(address: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        address,
        data,
        {"content-type": "application/json"},
        method="GET" if body is None else "POST",
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_with_one_line(number: signal.Signals, tmp_path: Path) -> None:
    pytest.importorskip("grpc_reflection", reason="raybio[serve] is not installed")
    export(tmp_path / "model", 0)
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    arguments = ["serve", "model", "--port", str(port), "--cpus-per-replica", "0.5"]
    process = subprocess.Popen(
        [sys.executable, "-m", "raybio.cli.main", *arguments],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"model is served at {address}; Ctrl-C ends it\n"
        assert len(ask(f"{address}/encode", {"inputs": SEQUENCES})["embeddings"]) == 5
        # Ctrl-C of a terminal reaches all processes of the group.
        send = os.killpg if number == signal.SIGINT else os.kill
        send(process.pid, number)
        out, error = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (out, error) == (f"{number.name}: model is no longer served\n", "")
    assert process.returncode == 128 + number


@pytest.mark.nightly
def test_two_models_do_not_share_the_serve_of_a_cluster(tmp_path: Path) -> None:
    pytest.importorskip("grpc_reflection", reason="raybio[serve] is not installed")
    done = run_script("tests.runtime.serve.two_models", tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
def test_a_hundred_concurrent_requests_equal_encode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("grpc_reflection", reason="raybio[serve] is not installed")
    from raybio.runtime.serve.server import serving

    model = raybio.load(export(tmp_path / "model", 0))
    source = write(tmp_path / "a.parquet", model.encode(SEQUENCES), model.digest())
    build_index(source, tmp_path / "index")
    with (
        pytest.raises(StoreError, match="come from model"),
        serving(export(tmp_path / "other", 1), tmp_path / "index"),
    ):
        pass
    port = free_port()
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(ClusterError, match=rf"cannot listen on 127.0.0.1:{port} .*--port"),
        serving(tmp_path / "model", port=port),
    ):
        pass
    requests = [SEQUENCES[number % 5 :] for number in range(100)]
    monkeypatch.setenv("HOME", str(tmp_path))
    with (
        serving(
            tmp_path / "model",
            "~/index",
            port=port,
            cpus_per_replica=0.5,
            limits=Limits(8),
        ) as address,
        ThreadPoolExecutor(100) as threads,
    ):
        assert address == f"http://127.0.0.1:{port}"
        assert ask(f"{address}/health")["indexed"] == 5
        found = threads.map(lambda inputs: ask(f"{address}/encode", {"inputs": inputs}), requests)
        for inputs, answer in zip(requests, found, strict=True):
            np.testing.assert_allclose(
                answer["embeddings"], model.encode(inputs), rtol=1e-5, atol=1e-6
            )
        found = ask(f"{address}/neighbors", {"inputs": SEQUENCES, "k": 1})["neighbors"]
        assert [row[0]["key"] for row in found] == [f"k{row}" for row in range(5)]
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(f"{address}/encode", {"inputs": ["A"] * 9})
        assert refused.value.code == 422
        # Nothing listens on another address of this machine.
        hosts = {
            info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)
        }
        for host in hosts - {"127.0.0.1"}:
            with pytest.raises(OSError), socket.create_connection((host, port), timeout=5):
                pass
