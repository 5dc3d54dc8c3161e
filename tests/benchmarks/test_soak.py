"""What random kills over commands keep from one call to the next."""

import json
import random
import sys
from pathlib import Path

import pytest

from benchmarks import soak
from benchmarks.soak import Command, keep_evidence, known_endings, run_to_end


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
