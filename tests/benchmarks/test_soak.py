"""What random kills over commands keep from one call to the next."""

import json
from pathlib import Path

from benchmarks.soak import keep_evidence, known_endings


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
