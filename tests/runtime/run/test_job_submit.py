"""``ray job submit`` against a head node with token authentication."""

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from mlflow import MlflowClient

from raybio.core.config import override_all
from raybio.core.location import BucketPath
from raybio.core.records import read_record
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.store.remote_store import upload_store
from raybio.store.store import Store
from raybio.training.settings import TrainingConfig
from tests.paths import ROOT
from tests.runtime.ray_nodes import RAY, Nodes, status_without_token
from tests.runtime.spool.bucket_job import BucketJob
from tests.s3 import S3

pytestmark = pytest.mark.slow
SECRET = "not-to-be-known-" + "7" * 20
"""In the environment of all that the cluster runs."""


@contextlib.contextmanager
def new_head(**environment: str) -> Iterator[Nodes]:
    """Start a cluster of one node with an empty home."""
    # As in cluster.yaml: otherwise Ray kills a stopped job after 3 s, during its last checkpoint.
    nodes = Nodes(head_cpus=2, environment={"RAY_JOB_STOP_WAIT_TIME_S": "120", **environment})
    try:
        yield nodes
    finally:
        nodes.end()


@pytest.fixture
def head() -> Iterator[Nodes]:
    with new_head(AWS_SECRET_ACCESS_KEY=SECRET, MLFLOW_TRACKING_PASSWORD=SECRET) as nodes:
        yield nodes


def copy_code(working_dir: Path) -> None:
    for name in ("raybio", "jobs"):
        shutil.copytree(
            ROOT / name, working_dir / name, ignore=shutil.ignore_patterns("__pycache__")
        )


def ray_job(head: Nodes, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(RAY), "job", arguments[0], "--address", head.dashboard, *arguments[1:]]
    return subprocess.run(
        command, env=head.environment, capture_output=True, text=True, cwd=head.folder
    )


def submit(head: Nodes, working_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The dashboard answers some seconds before the agent that starts jobs is there."""
    deadline = time.monotonic() + 1500
    while True:
        done = ray_job(head, "submit", "--working-dir", str(working_dir), *arguments)
        if "No available agent" not in done.stderr or time.monotonic() > deadline:
            return done
        time.sleep(2)


@pytest.mark.nightly
def test_a_job_stopped_and_submitted_again_resumes_in_the_home_folder_and_hides_the_token(
    head: Nodes,
    tiny_store: Store,
    tiny_training: TrainingConfig,
    empty_database: Path,
    tmp_path: Path,
) -> None:
    working_dir, home = tmp_path / "code", head.folder / "raybio"
    copy_code(working_dir)
    home.mkdir()
    shutil.copy(empty_database, home)
    assert status_without_token(head.dashboard) in (401, 403)
    folder = RunFolder(home / "runs", "submitted")

    def job(max_steps: int) -> list[str]:
        settings = {"schedule.max_steps": max_steps, "optim.schedule": "constant"}
        (working_dir / "my.yaml").write_text(
            yaml.safe_dump(override_all(tiny_training, settings).to_mapping())
        )
        command = [
            sys.executable,
            "jobs/sppt_protein.py",
            "--config",
            "my.yaml",
            "--store",
            str(tiny_store.path),
        ]
        return ["--", *command, "--name", "submitted", "--no-baseline"]

    first = submit(head, working_dir, "--no-wait", "--submission-id", "first", *job(100_000))
    assert first.returncode == 0, first.stdout[-3000:] + first.stderr[-3000:]
    deadline = time.monotonic() + 1500
    while len(read_reports(folder.metrics)) < 4:
        assert time.monotonic() < deadline, ray_job(head, "logs", "first").stdout[-3000:]
        time.sleep(0.2)
    stop = ray_job(head, "stop", "first")
    assert "was stopped" in stop.stdout + stop.stderr, stop.stdout + stop.stderr
    stopped, tracking = (
        read_record(folder.result, "result"),
        read_record(folder.tracking, "tracking"),
    )
    assert stopped["status"] == "stopped"
    assert Path(stopped["checkpoint"]).name == f"step-{stopped['step']:08d}"
    assert MlflowClient(tracking["uri"]).get_run(tracking["run_id"]).info.status == "KILLED"

    again = submit(head, working_dir, *job(stopped["step"] + 6))
    assert again.returncode == 0, again.stdout[-3000:] + again.stderr[-3000:]
    result = json.loads(folder.result.read_text())
    assert (result["status"], result["step"]) == ("finished", stopped["step"] + 6)
    assert result["mlflow_run_id"] == stopped["mlflow_run_id"]
    steps = [report["step"] for report in read_reports(folder.metrics)]
    assert steps == list(range(stopped["step"] + 7))
    token = (head.folder / ".ray" / "auth_token").read_text()
    said = (
        "".join(done.stdout + done.stderr for done in (first, stop, again))
        + ray_job(head, "logs", "first").stdout
    )
    for secret in (token, SECRET):
        assert secret not in said
        for path in home.rglob("*"):
            assert not path.is_file() or secret.encode() not in path.read_bytes(), path
    for path in head.folder.rglob("*.log"):  # Ray's own
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


@pytest.mark.nightly
def test_a_job_with_store_and_runs_in_a_bucket_resumes_on_another_cluster(
    s3: S3,
    bucket: BucketPath,
    tiny_store: Store,
    tiny_training: TrainingConfig,
    empty_database: Path,
    tmp_path: Path,
) -> None:
    """The command of docs/cluster.md, "The first run"; the second cluster has another home, and no file of the first."""
    working_dir = tmp_path / "code"
    copy_code(working_dir)
    store = bucket / "stores" / "tiny"
    upload_store(tiny_store.path, store, force=False)
    database = shutil.copy(empty_database, tmp_path)
    in_bucket = BucketJob(tmp_path, bucket, tiny_store, tiny_training)

    def job(name: str, max_steps: int) -> list[str]:
        settings = {"schedule.max_steps": max_steps, "optim.schedule": "constant"}
        (working_dir / "my.yaml").write_text(
            yaml.safe_dump(override_all(tiny_training, settings).to_mapping())
        )
        command = [sys.executable, "jobs/sppt_protein.py", "--config", "my.yaml", "--name", name]
        command += ["--store", str(store), "--runs", str(bucket / "runs")]
        command += ["--tracking-uri", f"sqlite:///{database}", "--no-baseline"]
        return ["--", *command]

    with new_head() as head:
        done = submit(
            head, working_dir, "--no-wait", "--submission-id", "1", *job("first", 100_000)
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        deadline = time.monotonic() + 1500
        while not in_bucket.checkpoints("first"):
            assert time.monotonic() < deadline, ray_job(head, "logs", "1").stdout[-3000:]
            time.sleep(0.2)
        ray_job(head, "stop", "1")
        stopped = in_bucket.result("first")
        lost_home = head.folder
    assert stopped["status"] == "stopped"
    assert not lost_home.exists()
    last = stopped["step"] + 6
    with new_head() as head:
        for name in ("first", "unbroken"):
            done = submit(head, working_dir, *job(name, last))
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    first, unbroken = in_bucket.result("first"), in_bucket.result("unbroken")
    assert (first["status"], first["step"]) == ("finished", last)
    assert first["weights_sha256"] == unbroken["weights_sha256"]
    assert first["mlflow_run_id"] == stopped["mlflow_run_id"]
    assert in_bucket.steps("first") == list(range(last + 1))
