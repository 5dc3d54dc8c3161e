"""What random kills over commands keep from one call to the next."""

import contextlib
import json
import random
import re
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest

from benchmarks import soak
from benchmarks.soak import Command, keep_evidence, known_endings, run_to_end, training_outcome
from tests.paths import ROOT

GOLDEN_RUN = ROOT / "tests" / "golden" / "0.2.0" / "finished" / "sppt_protein"


def test_endings_outlive_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "endings.jsonl"
    assert known_endings(path) == []
    first, second = ({"command": name, "killed": ["driver"], "is_equal": True} for name in "ab")
    path.write_text(f"\n{json.dumps(first)}\n" + '{"command": "to')
    with path.open("a") as file:
        file.write("\n" + json.dumps(second))
    assert known_endings(path) == [first, second]


def test_what_differs_outlives_the_call(tmp_path: Path) -> None:
    out = tmp_path / "work" / "sweep-3"
    (out / "runs").mkdir(parents=True)
    out.with_suffix(".log").write_text("Traceback")
    kept = tmp_path / "soak"
    kept.mkdir()
    keep_evidence(out, kept)
    names = sorted(path.name.partition("-")[2] for path in kept.iterdir())
    assert names == ["sweep-3", "sweep-3.log"]
    assert not out.exists()


def test_a_command_that_hangs_is_no_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It would end if it were started again.
    program = "import os, time; os.path.exists('begun') or (open('begun', 'w'), time.sleep(600))"
    monkeypatch.setattr(soak, "RAYBIO", Path(sys.executable))
    monkeypatch.setattr(soak, "LIMIT_SECONDS", 5.0)
    command = Command("sleeping", lambda out: ["-c", program], lambda out: "ended")
    with pytest.raises(RuntimeError, match="sleeping: hangs after 5 s"):
        run_to_end(command, tmp_path / "out", [], random.Random(0))


def test_a_process_that_a_command_leaves_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The command waits long enough for its child to be seen.
    program = "import subprocess, time; subprocess.Popen(['sleep', '3601']); time.sleep(5)"
    monkeypatch.setattr(soak, "RAYBIO", Path(sys.executable))
    monkeypatch.setattr(soak, "LEFTOVER_SECONDS", 1.0)
    command = Command("leaving", lambda out: ["-c", program], lambda out: "ended")
    with pytest.raises(RuntimeError, match=r"left processes .*: sleep 3601 \(sleeping, child of"):
        run_to_end(command, tmp_path / "out", [], random.Random(0))


def test_endings_of_trainings_differ_in_losses_in_what_mlflow_has_and_not_in_times(
    tmp_path: Path,
) -> None:
    shutil.copytree(GOLDEN_RUN, tmp_path / "runs" / "run")
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, database:
        database.execute("CREATE TABLE metrics (key TEXT, value REAL, step INTEGER, timestamp)")
        database.execute("INSERT INTO metrics VALUES ('loss', 2.0, 1, 100)")
    first = training_outcome(tmp_path)
    log = tmp_path / "runs" / "run" / "metrics.jsonl"
    lines = log.read_text()
    (rate, *_) = re.findall(r'"tokens_per_second": [0-9.]+', lines)
    log.write_text(lines.replace(rate, '"tokens_per_second": 7.0'))
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, database:
        database.execute("INSERT INTO metrics VALUES ('loss', 2.0, 1, 200)")
        database.execute("INSERT INTO metrics VALUES ('stall_seconds', 3.0, 1, 200)")
    assert training_outcome(tmp_path) == first
    (loss, *_) = re.findall(r'"spml_loss": [0-9.]+', lines)
    log.write_text(lines.replace(loss, '"spml_loss": 7.0'))
    changed = training_outcome(tmp_path)
    assert changed != first
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, database:
        database.execute("INSERT INTO metrics VALUES ('loss', 3.0, 1, 200)")
    assert training_outcome(tmp_path) not in (first, changed)
