import json
import os
from pathlib import Path

import numpy as np
import pytest

from raybio.runtime.run.metrics_log import MetricsLog, MetricsTail, read_reports
from raybio.training.remote_checkpoints import last_step_of_log


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_each_step_stands_once_however_often_a_run_is_killed_and_resumed(tmp_path: Path) -> None:
    path, rng = tmp_path / "metrics.jsonl", np.random.default_rng(0)
    step = 0
    while step < 50:
        log = MetricsLog(path)
        resumed_from = step - step % 10
        log.rewind(resumed_from)
        step = min(50, resumed_from + int(rng.integers(1, 15)))
        for number in range(resumed_from + 1, step + 1):
            log.append(number, {"loss": float(number)})
        if rng.random() < 0.5:  # killed in the middle of a line
            path.write_text(path.read_text() + '{"step": 999, "met')
    MetricsLog(path).rewind(50)
    assert steps(path) == list(range(1, 51))


def test_the_first_report_of_a_new_start_replaces_what_came_after_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in range(3):
        log.append(step, {"loss": 1.0})
    log = MetricsLog(path)
    log.append(0, {"loss": 2.0})
    log.rewind(0)
    log.append(1, {"loss": 2.0})
    assert steps(path) == [0, 1]


def test_a_tail_sees_each_step_once_across_rewinds(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    assert tail.read() == []
    log = MetricsLog(path)
    seen = []
    for step in range(1, 6):
        log.append(step, {"loss": 0.5})
        seen += tail.read()
    log = MetricsLog(path)
    log.rewind(2)
    for step in range(3, 9):
        log.append(step, {"loss": 0.5})
        seen += tail.read()
    assert [report["step"] for report in seen] == list(range(1, 9))


def test_a_tail_sees_each_step_once_also_when_a_new_file_gets_the_inode_of_an_older_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in range(1, 6):
        log.append(step, {"loss": 0.123456789})
    tail = MetricsTail(path)
    seen = tail.read()
    for resumed_from in (
        3,
        2,
    ):  # the file of the second rewind may well lie where the tail's one did
        log = MetricsLog(path)
        log.rewind(resumed_from)
    for step in range(3, 9):
        log.append(step, {"loss": 0.5, "a metric with a longer name": 0.25})
    seen += tail.read()
    assert [report["step"] for report in seen] == list(range(1, 9))


def test_a_tail_begins_again_in_a_file_that_became_shorter(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 1, "time_ms": 0, "metrics": {}}\n{"step": 2, "time_ms": 0, "metrics": {}}\n'
    )
    tail = MetricsTail(path)
    assert len(tail.read()) == 2
    path.write_text('{"step": 3, "time_ms": 0, "metrics": {}}\n')
    assert [report["step"] for report in tail.read()] == [3]


def test_a_rewind_to_the_step_that_the_log_ends_with_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in range(4):
        log.append(step, {"loss": 1.0})
    log.rewind(2)
    number = path.stat().st_ino
    MetricsLog(path).rewind(2)
    assert path.stat().st_ino == number
    path.write_text(path.read_text() + '{"step": 3, "me')  # a torn line must go
    MetricsLog(path).rewind(2)
    assert steps(path) == [0, 1, 2]


def test_a_tail_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "time_ms": 0, "metrics": {}}\n{"step": 2, "me')
    tail = MetricsTail(path)
    assert [report["step"] for report in tail.read()] == [1]
    with path.open("a") as file:
        file.write('trics": {}, "time_ms": 0}\n')
    assert [report["step"] for report in tail.read()] == [2]


def test_numbers_that_are_not_finite_are_kept_apart_so_that_every_line_is_json(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsLog(path).append(1, {"loss": float("nan"), "norm": 2.0})
    (report,) = read_reports(path)
    assert report["metrics"] == {"norm": 2.0}
    assert report["not_finite"] == {"loss": "nan"}


def test_a_report_is_forced_to_the_disk_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(0, {"loss": 1.0})
    sizes.clear()
    log.append(1, {"loss": 1.0}, is_synced=True, is_checkpoint=True)
    assert sizes == [log.path.stat().st_size]


def test_a_rewound_log_is_on_the_disk_before_it_takes_the_place_of_the_old_one(
    tmp_path: Path, disk_order: list[object]
) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in range(3):
        log.append(step, {"loss": 1.0})
    disk_order.clear()
    MetricsLog(log.path).rewind(1)
    # The folder's names come last.
    assert disk_order[:2] == [log.path.stat().st_size, log.path]
    assert len(disk_order) == 3


def test_lines_that_a_power_loss_left_are_skipped_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file may have its new length before its new bytes."""
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in range(3):
        log.append(step, {"loss": 1.0})
    with path.open("ab") as file:
        file.write(bytes(100) + b"\n[1]\n")
    assert [report["step"] for report in read_reports(path)] == [0, 1, 2]
    assert f"{path}: lines that are no reports" in caplog.text
    resumed = MetricsLog(path)
    resumed.rewind(1)
    resumed.append(2, {"loss": 2.0}, is_synced=True)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]


def test_a_step_whose_evaluation_is_pending_is_read_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    log = MetricsLog(path)
    log.append(1, {"loss": 2.0})
    log.append(2, {"loss": 1.0}, is_synced=True, is_evaluation_pending=True)
    # The upload of a checkpoint of step 2 waits for that line.
    assert last_step_of_log(path) == 2
    assert [report["step"] for report in tail.read()] == [1]
    for _ in range(2):  # the next start may be stopped before it evaluates
        log = MetricsLog(path)
        log.rewind(2)
    assert steps(path) == [1]
    log.append(2, {"loss": 1.0, "val/mrr": 0.5})
    assert [report["metrics"] for report in tail.read()] == [{"loss": 1.0, "val/mrr": 0.5}]
    assert steps(path) == [1, 2]
