"""A run of months on CPUs is refused after its first steps, unless somebody accepts it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from raybio.core.records import read_record
from raybio.store.store import Store
from tests.jobs.test_sppt_job import ROOT, SETTINGS, run

pytestmark = pytest.mark.slow
JOB = ROOT / "jobs" / "sppt_protein.py"


def stopped_when_timed(home: Path, *arguments: object) -> tuple[int, str]:
    """Start the job, and send SIGTERM once it has said how long it takes; its exit code and what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {
        "HOME": str(home),
        "RAY_TMPDIR": os.environ.get("RAY_TMPDIR", "/tmp"),
        "COLUMNS": "160",
    }
    command = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=home, env=environment
    ) as process:
        assert process.stderr is not None
        printed = []
        for line in process.stderr:
            printed.append(line)
            if " a step: about " in line:
                process.send_signal(signal.SIGTERM)
                break
        printed.append(process.stderr.read())
        return process.wait(), "".join(printed)


@pytest.mark.nightly
def test_a_run_of_months_is_stopped_at_a_checkpoint_until_it_is_accepted(
    tiny_store: Store, tmp_path: Path
) -> None:
    settings = SETTINGS | {"schedule": {"max_steps": 10**8, "evaluate_every_steps": 0}}
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(settings))
    arguments = (
        JOB,
        "--store",
        tiny_store.path,
        "--config",
        "my.yaml",
        "--name",
        "long",
        "--no-baseline",
    )
    arguments += ("--device", "cpu")
    refused = run(tmp_path, *arguments)
    assert refused.returncode == 2, refused.stderr[-3000:]
    assert "long: 100,000,000 steps of 16 rows = " in refused.stderr
    assert "epochs of " in refused.stderr
    assert "long: step 1/100,000,000" in refused.stderr
    assert "LongRunError: long: 99,999,9" in refused.stderr
    assert "the same command with --yes resumes it" in refused.stderr
    assert "Traceback" not in refused.stderr
    folder = tmp_path / "runs" / "long"
    first = read_record(folder / "result.json", "result")
    assert (first["status"], first["step"] > 0) == ("stopped", True)
    assert read_record(folder / "launch.json", "launch")["is_length_accepted"] is False

    code, printed = stopped_when_timed(tmp_path, *arguments, "--yes")
    assert code == 143, printed[-3000:]
    assert f"long: resuming from step {first['step']}" in printed
    assert "the same command resumes the run" in printed
    assert read_record(folder / "launch.json", "launch")["is_length_accepted"] is True
    second = read_record(folder / "result.json", "result")
    assert (second["status"], second["mlflow_run_id"]) == ("stopped", first["mlflow_run_id"])
    assert not [
        one
        for one in psutil.Process().children(recursive=True)
        if "sppt_protein" in " ".join(one.cmdline())
    ]
