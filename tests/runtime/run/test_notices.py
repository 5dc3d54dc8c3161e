"""Warnings of worker processes reach the file that the driver follows, and the user."""

import io
import json
import logging
from multiprocessing import get_context
from pathlib import Path

import pytest
from rich.console import Console

from raybio.runtime.cluster.resources import Resources
from raybio.runtime.run.follower import Follower
from raybio.runtime.run.metrics_log import MetricsLog
from raybio.runtime.run.notices import NoticeTail, report_start, warnings_to
from raybio.runtime.run.progress import ProgressView
from raybio.runtime.run.spec import RunSpec
from raybio.training.settings import TrainingConfig


def warn_many(path: Path, rank: int) -> None:
    log = logging.getLogger("raybio.training.somewhere")
    with warnings_to(path, rank):
        for number in range(200):
            log.warning("rank %d warns, %s, of %d", rank, "x" * 500, number)
            log.warning("the same")
            log.debug("nothing for the user")


def test_warnings_of_several_processes_arrive_whole(tmp_path: Path) -> None:
    path = tmp_path / "notices.jsonl"
    tail = NoticeTail(path)
    fork = get_context("fork")
    processes = [fork.Process(target=warn_many, args=(path, rank)) for rank in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    messages = [notice["warning"] for notice in tail.read()]
    expected = [
        f"rank {rank} warns, {'x' * 500}, of {number}" for rank in range(3) for number in range(200)
    ]
    assert sorted(messages) == sorted([*expected, *["the same"] * 3])
    assert tail.read() == []


def test_progress_of_the_first_worker_is_read_next_to_warnings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Whatever the level of a worker's own output.
    caplog.set_level(logging.INFO, logger="raybio")
    path = tmp_path / "notices.jsonl"
    tail = NoticeTail(path)
    log = logging.getLogger("raybio.evaluation.evaluator")
    for rank in (0, 1):
        with warnings_to(path, rank):
            log.info("final evaluation: %s evaluated", "TF-IDF")
            log.warning("rank %d warns", rank)
    log.info("afterwards")
    found = [(notice.get("progress"), notice.get("warning")) for notice in tail.read()]
    assert sorted(found, key=str) == [
        ("final evaluation: TF-IDF evaluated", None),
        (None, "rank 0 warns"),
        (None, "rank 1 warns"),
    ]


def test_a_start_sees_its_own_notices_only(tmp_path: Path) -> None:
    path = tmp_path / "notices.jsonl"
    report_start(path, 0, 7.5)
    tail = NoticeTail(path)
    report_start(path, 10, 7.5)
    assert [notice["first_step"] for notice in tail.read()] == [10]


@pytest.mark.parametrize("is_evaluated_late", [True, False])
def test_an_evaluation_that_a_resumed_run_makes_up_for_is_shown(
    tmp_path: Path, tiny_training: TrainingConfig, is_evaluated_late: bool
) -> None:
    spec = RunSpec(
        method="sppt_protein",
        config=tiny_training,
        store=Path("store"),
        name="one",
        runs=tmp_path,
    )
    folder = spec.folder
    folder.make()
    log = MetricsLog(folder.metrics)
    log.append(1, {"loss": 2.0}, is_evaluation=False)
    log.append(2, {"loss": 1.5}, is_evaluation=not is_evaluated_late)
    if is_evaluated_late:
        log.rewind(1)
    follower = Follower(spec, Resources(1, 1, 0, 1))
    text = io.StringIO()
    with ProgressView("one", 10, Console(file=text, force_terminal=False, width=200)) as view:
        report_start(folder.notices, 2, 7.5, is_first_step_reported=is_evaluated_late)
        if is_evaluated_late:
            log.append(2, {"loss": 1.5, "val/link_mrr": 0.25}, is_evaluation=True)
        log.append(3, {"loss": 1.0}, is_evaluation=False)
        follower.update(view)
    follower.close()
    assert ("link_mrr" in text.getvalue()) == is_evaluated_late, text.getvalue()


def test_half_a_line_is_read_when_it_is_whole_and_skipped_when_it_never_is(tmp_path: Path) -> None:
    path = tmp_path / "notices.jsonl"
    tail = NoticeTail(path)
    path.write_text('{"warning": "a')
    assert tail.read() == []
    with path.open("a") as file:
        file.write('b"}\n{"warn\n' + json.dumps({"warning": "c"}) + "\n")
    assert [notice["warning"] for notice in tail.read()] == ["ab", "c"]


def test_a_warning_ends_with_its_context_and_a_full_disk_does_not_end_the_run(
    tmp_path: Path, capsys
) -> None:
    log = logging.getLogger("raybio.somewhere")
    with warnings_to(tmp_path / "no folder" / "notices.jsonl"):
        log.warning("cannot be written")
    assert "cannot be written" in capsys.readouterr().err
    with warnings_to(tmp_path / "notices.jsonl"):
        pass
    log.warning("afterwards")
    assert not (tmp_path / "notices.jsonl").exists()


def test_the_view_shows_a_warning_once_as_a_line_of_its_own() -> None:
    for is_terminal in (True, False):
        text = io.StringIO()
        with ProgressView(
            "first", 10, Console(file=text, force_terminal=is_terminal, width=200)
        ) as view:
            view.warn("bf16 is slow here")
            view.warn("bf16 is slow here")
            view.update([{"step": 3, "time_ms": 0, "metrics": {"loss": 1.0}}])
        assert text.getvalue().count("first: warning: bf16 is slow here") == 1


def test_half_a_line_of_a_killed_process_does_not_take_the_next_one_with_it(tmp_path: Path) -> None:
    path = tmp_path / "notices.jsonl"
    tail = NoticeTail(path)
    path.write_text('{"warning": "a')
    report_start(path, 3, 7.5)
    with path.open("a") as file:
        file.write("12\n[]\n{}\n")
    assert [notice["first_step"] for notice in tail.read()] == [3]
