"""The loop of one process with the files of its run, without Ray."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from raybio.core import files
from raybio.core.errors import ClusterError
from raybio.core.final_report import FinalReport
from raybio.core.records import read_record
from raybio.evaluation.evaluator import ModelScores
from raybio.methods import METHODS
from raybio.methods.sppt.rivals import Rival
from raybio.methods.sppt.system import LinkEvaluator
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.goal import Goal
from raybio.runtime.run.metrics_log import MetricsLog, read_reports
from raybio.runtime.run.run_loop import (
    STOP_POLL_SECONDS,
    Training,
    checkpoints_of,
    run_loop,
    train_single_process,
)
from raybio.store.store import Store, open_store
from raybio.training import checkpoint
from raybio.training.collective import SingleProcess
from raybio.training.loop import Report, local_batches
from raybio.training.precision import current_embedding_precision
from raybio.training.settings import TrainingConfig
from tests.methods.conformance_cases import tiny_config
from tests.training.workers import forkserver

NAME = "sppt_protein"


def reports_of(
    folder: RunFolder, config: TrainingConfig, store: Store, goal: Goal | None = None
) -> Iterator[Report]:
    """Open a run, and return the reports of its training, which begins when they are read."""
    system = METHODS[NAME].build(config, store.path)
    folder.open(NAME, config, Path(store.path), store.digest, ("schedule.max_steps",))
    training = Training(
        system=system, config=config, folder=folder, device="cpu", precision="fp32", goal=goal
    )
    return train_single_process(training)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_final_evaluation_embeds_in_the_precision_of_the_run(
    tiny_store: Store, tmp_path: Path, precision: str
) -> None:
    config = tiny_config(NAME, **{"schedule.max_steps": 1, "schedule.evaluate_every_steps": 0})
    config = config.model_copy(update={"precision": precision})
    system = METHODS[NAME].build(config, tiny_store.path)
    seen = []

    def final_evaluate(model, collective, shared, should_stop):
        seen.append(current_embedding_precision())
        return FinalReport(scores={"trained": {"val": {"lrap": {"value": 0.5}}}})

    folder = RunFolder(tmp_path, "run")
    folder.open(NAME, config, Path(tiny_store.path), tiny_store.digest, ())
    training = Training(
        system=replace(system, final_evaluate=final_evaluate),
        config=config,
        folder=folder,
        device="cpu",
        precision=precision,
    )
    assert [report.precision for report in train_single_process(training)][-1] == precision
    assert [found.name for found in seen] == [precision]
    assert read_record(folder.outcome, "outcome")["precision"] == precision
    assert current_embedding_precision().name == "fp32"


def test_workers_wait_without_a_limit_in_evaluations_and_only_there(
    tiny_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(NAME, **{"schedule.max_steps": 2, "schedule.evaluate_every_steps": 2})
    system = METHODS[NAME].build(config, tiny_store.path)
    open_blocks: list[str] = []
    seen: set[tuple[str, int]] = set()

    @contextmanager
    def patient(collective: SingleProcess) -> Iterator[None]:
        open_blocks.append("block")
        yield
        open_blocks.pop()

    def all_sum(collective: SingleProcess, tensor: torch.Tensor) -> torch.Tensor:
        seen.add(("step", len(open_blocks)))
        return tensor.detach().clone()

    def evaluate(model, collective):
        seen.add(("evaluate", len(open_blocks)))
        return {"val/link_mrr": 0.5}

    def final_evaluate(model, collective, shared, should_stop):
        seen.add(("final_evaluate", len(open_blocks)))
        return FinalReport(scores={"trained": {"val": {"lrap": {"value": 0.5}}}})

    monkeypatch.setattr(SingleProcess, "patient", patient)
    monkeypatch.setattr(SingleProcess, "all_sum", all_sum)
    folder = RunFolder(tmp_path, "run")
    folder.open(NAME, config, Path(tiny_store.path), tiny_store.digest, ())
    training = Training(
        system=replace(system, evaluate=evaluate, final_evaluate=final_evaluate),
        config=config,
        folder=folder,
        device="cpu",
        precision="fp32",
    )
    for _ in train_single_process(training):
        assert not open_blocks
    assert seen == {("step", 0), ("evaluate", 1), ("final_evaluate", 1)}


@pytest.mark.parametrize("is_writer", [True, False])
def test_workers_wait_without_a_limit_while_the_first_one_exports_a_trial(
    tiny_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_writer: bool
) -> None:
    config = tiny_config(NAME, **{"schedule.max_steps": 2, "schedule.evaluate_every_steps": 1})
    system = METHODS[NAME].build(config, tiny_store.path)
    seen: list[str] = []

    @contextmanager
    def patient(collective: SingleProcess, name: str = "an evaluation") -> Iterator[None]:
        seen.append(f"begin {name}")
        yield
        seen.append(f"end {name}")

    def export(path: Path, card: Any) -> Path:
        seen.append("export")
        return path

    monkeypatch.setattr(SingleProcess, "patient", patient)
    folder = RunFolder(tmp_path, "trial")
    folder.open(NAME, config, Path(tiny_store.path), tiny_store.digest, ())
    values = iter([0.1, 0.2, 0.1])
    training = Training(
        system=replace(system, evaluate=lambda *_: {"val/link_mrr": next(values)}, export=export),
        config=config,
        folder=folder,
        device="cpu",
        precision="fp32",
        goal=Goal("val/link_mrr", "max"),
    )
    reports = run_loop(
        training,
        batches=local_batches(training.system, config.schedule.max_steps),
        collective=SingleProcess(),
        checkpoints=checkpoints_of(folder, config),
        log=MetricsLog(folder.metrics) if is_writer else None,
    )
    assert [report.step for report in reports if report.is_evaluation] == [0, 1, 2]
    # Step 0 is no candidate, and step 2 is no better than step 1, which only the writer knows.
    evaluation = ["begin an evaluation", "end an evaluation"]
    waiting = ["begin an export", "end an export"]
    exporting = ["begin an export", "export", "end an export"] if is_writer else waiting
    assert seen == [
        *(*evaluation, *waiting),
        *(*evaluation, *exporting),
        *(*evaluation, *waiting),
    ]


def test_a_report_that_a_kill_took_after_its_checkpoint_is_in_the_log_of_the_resumed_run(
    tiny_store: Store, tmp_path: Path
) -> None:
    schedule = {"max_steps": 4, "evaluate_every_steps": 2, "checkpoint_every_steps": 2}
    config = tiny_config(NAME, **{f"schedule.{name}": value for name, value in schedule.items()})

    def train(folder: RunFolder, last_step: int) -> None:
        reports = reports_of(folder, config, tiny_store, None)
        for report in reports:
            if report.step == last_step:
                break
        reports.close()
        for thread in threading.enumerate():
            if thread.name == "checkpoint-writer":
                thread.join()

    unbroken = RunFolder(tmp_path, "unbroken")
    train(unbroken, last_step=-1)
    killed = RunFolder(tmp_path, "killed")
    train(killed, last_step=2)
    assert [path.name for path in killed.checkpoints.iterdir()] == ["step-00000002"]
    lines = killed.metrics.read_text().splitlines(keepends=True)
    killed.metrics.write_text("".join(lines[:-1]))  # as if it was killed just before
    train(killed, last_step=-1)

    expected, got = (read_reports(folder.metrics) for folder in (unbroken, killed))
    assert [report["step"] for report in got] == [0, 1, 2, 3, 4]
    for report, other in zip(expected, got, strict=True):
        assert report["is_evaluation"] == other["is_evaluation"]
        for name, value in report["metrics"].items():
            if name.startswith(("val/", "train/")) or name == "loss":
                assert other["metrics"][name] == value


def be_killed_in_the_export(store: Path, runs: Path) -> None:
    files._sync_all = lambda folder: os.kill(os.getpid(), signal.SIGKILL)
    config = tiny_config(NAME, **{"schedule.max_steps": 1})
    for _ in reports_of(RunFolder(runs, "run"), config, open_store(store)):
        pass


def test_a_model_half_exported_by_a_killed_process_is_deleted_by_the_next_start(
    tiny_store: Store, tmp_path: Path
) -> None:
    for _ in range(2):
        process = forkserver().Process(
            target=be_killed_in_the_export, args=(tiny_store.path, tmp_path)
        )
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert len([*(tmp_path / "run").glob(".export.*")]) == 1
    config = tiny_config(NAME, **{"schedule.max_steps": 1})
    folder = RunFolder(tmp_path, "run")
    assert [report.reason for report in reports_of(folder, config, tiny_store)] == ["finished"]
    assert folder.export.is_dir()
    assert not [*folder.path.glob(".export.*")]


def test_a_trial_that_is_stopped_at_an_evaluation_step_ends_as_an_unbroken_one(
    tiny_store: Store, tmp_path: Path
) -> None:
    schedule = {"max_steps": 4, "evaluate_every_steps": 2, "log_every_steps": 1}
    config = tiny_config(NAME, **{f"schedule.{name}": value for name, value in schedule.items()})

    def train(folder: RunFolder, goal: Goal, stop_at_step: int | None = None) -> None:
        reports = reports_of(folder, config, tiny_store, goal)
        for report in reports:
            if stop_at_step is not None and report.step == stop_at_step - 1:
                folder.stop.touch()
                time.sleep(STOP_POLL_SECONDS)
        if stop_at_step is not None:
            assert (report.step, report.reason) == (stop_at_step, "stopped")
        folder.stop.unlink(missing_ok=True)

    metric = "val/link_mrr"
    tried = RunFolder(tmp_path, "tried")
    train(tried, Goal(metric, "max"))
    values = dict(Goal(metric, "max").values(read_reports(tried.metrics)))
    assert values[2] != values[4]
    goal = Goal(metric, "max" if values[2] > values[4] else "min")

    unbroken = RunFolder(tmp_path, "unbroken")
    train(unbroken, goal)
    stopped = RunFolder(tmp_path, "stopped")
    train(stopped, goal, stop_at_step=2)
    assert [report["step"] for report in read_reports(stopped.metrics)] == [0, 1]
    train(stopped, goal)

    assert known_numbers(stopped) == known_numbers(unbroken)
    assert goal.best(goal.values(read_reports(stopped.metrics))) == (2, values[2])
    for weights in unbroken.export.rglob("*.safetensors"):
        same = stopped.export / weights.relative_to(unbroken.export)
        assert same.read_bytes() == weights.read_bytes()


def test_the_log_has_the_evaluation_of_a_run_that_is_ended_where_it_stands(
    tiny_store: Store, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path, "ended")

    def train(max_steps: int, stop_at_step: int | None = None) -> list[tuple[int, bool]]:
        schedule = {"max_steps": max_steps, "evaluate_every_steps": 2, "log_every_steps": 1}
        own = {f"schedule.{name}": value for name, value in schedule.items()}
        own["optim.schedule"] = "constant"
        for report in reports_of(folder, tiny_config(NAME, **own), tiny_store, None):
            if stop_at_step is not None and report.step == stop_at_step - 1:
                folder.stop.touch()
                time.sleep(STOP_POLL_SECONDS)
        folder.stop.unlink(missing_ok=True)
        return [(line["step"], line["is_evaluation"]) for line in read_reports(folder.metrics)]

    begun = [(0, True), (1, False), (2, True)]
    assert train(6, stop_at_step=3) == [*begun, (3, False)]
    for _ in range(2):
        assert train(3) == [*begun, (3, True)]
    assert read_reports(folder.metrics)[-1]["metrics"].keys() > {"loss", "val/link_mrr"}


def test_a_run_that_fails_lets_go_of_its_folder_when_its_checkpoint_is_written(
    tiny_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = {"max_steps": 6, "checkpoint_every_steps": 2, "keep_checkpoints": 1}
    config = tiny_config(NAME, **{f"schedule.{name}": value for name, value in schedule.items()})
    folder = RunFolder(tmp_path, "run")
    may_write = threading.Event()

    def write_late(*arguments: Any) -> None:
        may_write.wait()
        write_checkpoint(*arguments)

    write_checkpoint = checkpoint.write_checkpoint
    monkeypatch.setattr(checkpoint, "write_checkpoint", write_late)
    reports = reports_of(folder, config, tiny_store)
    for report in reports:
        if report.step == 2:
            break
    # The thread has begun to write when the training fails.
    threading.Timer(0.5, may_write.set).start()
    with pytest.raises(ClusterError, match="a worker is lost"):
        reports.throw(ClusterError("a worker is lost"))  # type: ignore[attr-defined]
    assert may_write.is_set()
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-00000002"]
    list(reports_of(folder, config, tiny_store))
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-00000006"]


def test_the_report_of_step_0_is_that_of_the_weights_that_are_trained(
    tiny_store: Store, tmp_path: Path
) -> None:
    """Before its first checkpoint, a run may be started again with another encoder."""
    schedule = {"max_steps": 1, "evaluate_every_steps": 1}
    config = tiny_config(NAME, **{f"schedule.{name}": value for name, value in schedule.items()})
    folder = RunFolder(tmp_path, "run")
    reports = reports_of(folder, config, tiny_store)
    MetricsLog(folder.metrics).append(0, {"val/link_mrr": 9.0}, is_evaluation=True)
    first, *_ = reports
    assert read_reports(folder.metrics)[0]["metrics"] == first.metrics
    assert first.metrics["val/link_mrr"] < 9.0


def known_numbers(folder: RunFolder) -> list[dict[str, object]]:
    """Return the lines of a log without times and rates."""
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    for line in lines:
        del line["time_ms"]
        for name in ("tokens_per_second", "steps_per_second", "stall_seconds"):
            line["metrics"].pop(name, None)
    return lines


def test_a_run_that_is_stopped_in_its_final_evaluation_continues_with_the_next_row(
    tiny_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(NAME, **{"schedule.max_steps": 2})
    (tmp_path / "alone").mkdir()
    unbroken = RunFolder(tmp_path / "alone", "run")
    assert [*reports_of(unbroken, config, tiny_store, None)][-1].reason == "finished"

    folder = RunFolder(tmp_path, "run")
    ranked: list[str] = []
    score_ranking = LinkEvaluator._score_ranking

    def score(self: LinkEvaluator, rival: Rival, *rest: Any) -> ModelScores:
        ranked.append(rival.name)
        if len(ranked) == 2:
            folder.stop.touch()
            time.sleep(STOP_POLL_SECONDS)
        return score_ranking(self, rival, *rest)

    monkeypatch.setattr(LinkEvaluator, "_score_ranking", score)
    last = [*reports_of(folder, config, tiny_store, None)][-1]
    assert (last.step, last.reason) == (2, "stopped")
    assert read_record(folder.outcome, "outcome")["status"] == "stopped"
    assert ranked == ["degree", "common neighbors"]
    assert not folder.export.exists()

    folder.stop.unlink()
    last = [*reports_of(folder, config, tiny_store, None)][-1]
    assert (last.step, last.reason) == (2, "finished")
    assert ranked == ["degree", "common neighbors", "3-mers", "look-up", "composition"]
    outcomes = [read_record(run.outcome, "outcome") for run in (folder, unbroken)]
    for name in ("status", "final", "weights_sha256"):
        assert outcomes[0][name] == outcomes[1][name], name
