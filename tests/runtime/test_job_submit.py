"""``ray job submit`` against a local head node with token authentication."""

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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from raybio.data.store import Store
from raybio.training.settings import TrainingConfig

ROOT = Path(__file__).parents[2]
RAY = Path(sys.executable).parent / "ray"
pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
SECRET = "not-to-be-told-" + "7" * 20
"""In the environment of all that the cluster runs."""


@dataclass(frozen=True)
class Head:
    """A head node of our own: its folder (also its home), dashboard address and environment of a client."""

    folder: Path
    dashboard: str
    environment: dict[str, str]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def head() -> Iterator[Head]:
    folder = Path(tempfile.mkdtemp(prefix="rb", dir="/tmp"))
    (folder / ".ray").mkdir(mode=0o700)
    token = folder / ".ray" / "auth_token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(folder), "RAY_TMPDIR": str(folder), "RAY_AUTH_MODE": "token", "OMP_NUM_THREADS": "1"}
    environment |= {"AWS_SECRET_ACCESS_KEY": SECRET, "MLFLOW_TRACKING_PASSWORD": SECRET}
    port, dashboard = free_port(), free_port()
    command = [str(RAY), "start", "--head", "--block", f"--port={port}", "--num-cpus=2", "--node-ip-address=127.0.0.1"]
    command += ["--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}", "--include-dashboard=true"]
    # The agent's own default is one fixed port, which the cluster of the other tests has.
    command += [f"--dashboard-agent-listen-port={free_port()}"]
    with open(folder / "head.log", "wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{dashboard}"
        wait_until_it_answers(address, process, folder)
        yield Head(folder, address, environment)
    finally:
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)
        for left in [*psutil.wait_procs(family, timeout=30)[1]]:
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_it_answers(address: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        if status_without_token(address) in (401, 403):
            return
        time.sleep(0.5)
    pytest.fail(f"the head node did not come up: {(folder / 'head.log').read_text()[-2000:]}")


def status_without_token(address: str) -> int:
    try:
        with urllib.request.urlopen(f"{address}/api/jobs/", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def submit(command: list[str], head: Head, folder: Path) -> subprocess.CompletedProcess[str]:
    """The dashboard answers some seconds before the agent that starts jobs is there."""
    deadline = time.monotonic() + 120
    while True:
        done = subprocess.run(command, env=head.environment, capture_output=True, text=True, cwd=folder)
        if "No available agent" not in done.stderr or time.monotonic() > deadline:
            return done
        time.sleep(2)


def test_a_submitted_job_trains_and_leaves_its_result_in_the_home_folder(
    head: Head, tiny_store: Store, tiny_training: TrainingConfig, tmp_path: Path
) -> None:
    working_dir = tmp_path / "code"
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("raybio", "jobs"):
        shutil.copytree(ROOT / name, working_dir / name, ignore=ignored)
    (working_dir / "my.yaml").write_text(yaml.safe_dump(tiny_training.to_mapping()))
    assert status_without_token(head.dashboard) in (401, 403)
    command = [str(RAY), "job", "submit", "--address", head.dashboard, "--working-dir", str(working_dir), "--"]
    command += [sys.executable, "jobs/sppt_protein.py", "--config", "my.yaml", "--store", str(tiny_store.path)]
    command += ["--name", "submitted", "--no-baseline"]
    submitted = submit(command, head, tmp_path)
    assert submitted.returncode == 0, submitted.stdout[-3000:] + submitted.stderr[-3000:]
    result = json.loads((head.folder / "raybio" / "runs" / "submitted" / "result.json").read_text())
    assert result["status"] == "finished"
    token = (head.folder / ".ray" / "auth_token").read_text()
    for secret in (token, SECRET):
        assert secret not in submitted.stdout + submitted.stderr
        for path in (head.folder / "raybio").rglob("*"):
            assert not path.is_file() or secret.encode() not in path.read_bytes(), path
    for path in head.folder.rglob("*.log"):  # Ray's own
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
