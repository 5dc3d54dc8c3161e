"""Runs through Ray Train with faults in their workers; each test's name says what must happen."""

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raybio.core.config import override_all
from raybio.core.errors import (
    CheckpointError,
    ClusterError,
    DivergedError,
    InterruptedRunError,
    StoreError,
)
from raybio.core.final_report import FinalReport
from raybio.core.records import read_record
from raybio.methods import METHODS
from raybio.methods.biostransformers.store import ArticleStore
from raybio.runtime.compare.variations import compare
from raybio.runtime.run.driver import train
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.runtime.run.result import Result
from raybio.runtime.run.spec import Compute, RunSpec
from raybio.store.store import Store
from raybio.training.loop import fit
from raybio.training.settings import TrainingConfig

pytestmark = pytest.mark.usefixtures("ray_cluster")

Fault = Callable[[int, Path], None]


@pytest.fixture(autouse=True)
def by_value() -> None:
    """Workers cannot import this file, so what is defined here travels with its code."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])


def crash(rank: int, how_by_step: dict[int, str]) -> Fault:
    """Make the worker of ``rank`` raise or be killed once at each of the steps, before it."""

    def setup(own_rank: int, folder: Path) -> None:
        from raybio.training.step import TrainStep

        original = TrainStep.launch

        def broken(self, number, batch):
            marker = folder / f"crashed-{number}"
            if own_rank == rank and number in how_by_step and not marker.exists():
                marker.touch()
                if how_by_step[number] == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("planted")
            return original(self, number, batch)

        TrainStep.launch = broken

    return setup


def poison(step: int) -> Fault:
    """One weight becomes NaN before ``step``, on every start."""

    def setup(own_rank: int, folder: Path) -> None:
        import torch

        from raybio.training.step import TrainStep

        original = TrainStep.launch

        def broken(self, number, batch):
            if number == step:
                with torch.no_grad():
                    next(self.system.model.parameters()).fill_(float("nan"))
            return original(self, number, batch)

        TrainStep.launch = broken

    return setup


def damage(store: Path) -> Fault:
    """Change a byte of the store after the driver has verified it, as of a copy on another node."""

    def setup(own_rank: int, folder: Path) -> None:
        path = store / "indices.arrow"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    return setup


def kill_in_the_export(own_rank: int, folder: Path) -> None:
    """Be killed while the model is exported for the first time."""
    from raybio.core import files

    original = files._sync_all

    def broken(written: Path) -> None:
        marker = folder / "killed"
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        original(written)

    files._sync_all = broken


def logged_steps(result: Result) -> list[int]:
    return [report["step"] for report in read_reports(result.folder.metrics)]


@pytest.mark.nightly
def test_a_run_ends_with_its_result_its_log_and_a_model(unbroken: Result) -> None:
    assert unbroken.status == "finished"
    content = json.loads(unbroken.folder.result.read_text())
    assert {
        "metrics",
        "config",
        "step",
        "checkpoint",
        "weights_sha256",
        "mlflow_run_id",
        "status",
    } <= content.keys()
    assert content["step"] == 24
    assert Path(content["checkpoint"]).name == "step-00000024"
    assert len(content["weights_sha256"]) == 64
    assert logged_steps(unbroken) == list(range(25))
    assert (unbroken.folder.export / "model.safetensors").exists()
    assert (unbroken.folder.plots / "losses.png").exists()


@pytest.mark.nightly
def test_the_same_command_finds_a_finished_run_and_starts_no_workers(
    unbroken: Result, request_two: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "raybio.runtime.run.driver.connected", lambda *_, **__: pytest.fail("Ray was started")
    )
    again = train(request_two)
    assert again.was_finished
    assert again.weights_sha256 == unbroken.weights_sha256


@pytest.mark.nightly
def test_two_workers_stay_near_the_losses_of_one_process_without_ray(
    unbroken: Result, tiny_training: TrainingConfig, tiny_store: Store
) -> None:
    system = METHODS["sppt_protein"].build(tiny_training, tiny_store.path)
    plain = {
        report.step: report.metrics["loss"]
        for report in fit(system, tiny_training)
        if "loss" in report.metrics
    }
    logged = {report["step"]: report["metrics"] for report in read_reports(unbroken.folder.metrics)}
    for step in range(1, 25):
        assert logged[step]["loss"] == pytest.approx(plain[step], rel=1e-3, abs=1e-4)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_and_the_weights_are_those_of_the_unbroken_run(
    unbroken: Result, request_two: RunSpec
) -> None:
    result = train(replace(request_two, name="crashed", setup=crash(1, {13: "kill"})))
    assert (result.folder.path / "crashed-13").exists()
    assert result.weights_sha256 == unbroken.weights_sha256
    assert result.best_step == unbroken.best_step
    assert logged_steps(result) == list(range(25))


@pytest.mark.nightly
def test_a_worker_killed_while_it_exports_leaves_no_half_a_model(request_two: RunSpec) -> None:
    result = train(replace(request_two, name="export", setup=kill_in_the_export))
    assert (result.folder.path / "killed").exists()
    assert result.folder.export.is_dir()
    assert not [*result.folder.path.glob(".export.*")]


@pytest.mark.nightly
def test_a_node_whose_copy_of_the_store_is_damaged_does_not_train(
    request_two: RunSpec, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(request_two.store, store)
    compute = replace(request_two.compute, workers=1)
    spec = replace(request_two, name="damaged", store=store, compute=compute, setup=damage(store))
    with pytest.raises(StoreError, match=r"indices\.arrow: sha256 is .*, the manifest says"):
        train(spec)
    assert not read_reports(RunFolder(request_two.runs, "damaged").metrics)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_a_worker_killed_at_any_step_changes_nothing(
    seed: int, unbroken: Result, request_two: RunSpec
) -> None:
    rng = np.random.default_rng(seed)
    fault = crash(int(rng.integers(2)), {int(rng.integers(24)): str(rng.choice(["raise", "kill"]))})
    result = train(replace(request_two, name=f"seed-{seed}", setup=fault))
    assert result.weights_sha256 == unbroken.weights_sha256
    assert logged_steps(result) == list(range(25))


@pytest.mark.nightly
def test_a_run_stopped_by_a_signal_continues_with_other_workers_in_the_same_order(
    unbroken: Result,
    request_two: RunSpec,
    tiny_training: TrainingConfig,
    capsys: pytest.CaptureFixture[str],
) -> None:
    longer = override_all(
        tiny_training, {"schedule.max_steps": 100_000, "optim.schedule": "constant"}
    )
    request = replace(request_two, name="stopped", config=longer)
    folder = RunFolder(request.runs, "stopped")

    def stop() -> None:
        while len(read_reports(folder.metrics)) < 3:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(InterruptedRunError, match="SIGTERM: stopped at step") as error:
        train(request)
    assert error.value.exit_code == 143
    stopped = read_record(folder.result, "result")
    assert stopped["status"] == "stopped"
    assert Path(stopped["checkpoint"]).name == f"step-{stopped['step']:08d}"
    assert mlflow_status(folder) == "KILLED"

    steps = stopped["step"] + 6
    shorter = override_all(longer, {"schedule.max_steps": steps})
    capsys.readouterr()
    result = train(replace(request, config=shorter, compute=replace(request.compute, workers=1)))
    assert result.status == "finished"
    messages = capsys.readouterr().err
    assert f"stopped: resuming from step {stopped['step']:,}" in messages
    # What was told before, is not told again, nor taken for steps of this start.
    shown = [int(step) for step in re.findall(r"stopped: step (\d+)/", messages)]
    assert shown and min(shown) > stopped["step"]
    assert result.mlflow_run_id == stopped["mlflow_run_id"]
    assert mlflow_status(folder) == "FINISHED"
    assert logged_steps(result) == list(range(steps + 1))
    system = METHODS["sppt_protein"].build(shorter, request.store)
    plain = {
        report.step: report.metrics for report in fit(system, shorter) if "loss" in report.metrics
    }
    # The same batches to the token; dropout is drawn by rank, and so the losses are alike only.
    seen = {report["step"]: report["metrics"] for report in read_reports(result.folder.metrics)}
    assert {step: metrics["tokens"] for step, metrics in seen.items() if "tokens" in metrics} == {
        step: metrics["tokens"] for step, metrics in plain.items()
    }
    assert result.metrics["loss"] == pytest.approx(plain[steps]["loss"], rel=1e-2)


def endless_evaluation(rank: int, folder: Path) -> None:
    from raybio.methods.sppt.proteins import system as structure_preserving

    def evaluate(self: Any, model: Any, *others: Any) -> FinalReport:
        (folder / "evaluating").touch()
        while (folder / "evaluating").exists():
            time.sleep(0.1)
        return FinalReport(scores={})

    structure_preserving.LinkEvaluator.final_report = evaluate  # type: ignore[attr-defined]


@pytest.mark.nightly
def test_a_signal_does_not_wait_for_the_final_evaluation_which_the_same_command_does_again(
    unbroken: Result, request_two: RunSpec
) -> None:
    request = replace(
        request_two, name="evaluated", compute=replace(request_two.compute, workers=1)
    )
    folder = RunFolder(request.runs, "evaluated")

    def stop() -> None:
        while not (folder.path / "evaluating").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(InterruptedRunError, match="SIGINT: stopped after the last step, 24"):
        train(replace(request, setup=endless_evaluation))
    (folder.path / "evaluating").unlink()  # whoever is left of the run ends
    assert read_record(folder.result, "result")["status"] == "stopped"
    result = train(request)
    assert result.status == "finished"
    assert result.final.scores["trained"]


def mlflow_status(folder: RunFolder) -> str:
    from mlflow import MlflowClient

    saved = read_record(folder.tracking, "tracking")
    return str(MlflowClient(tracking_uri=saved["uri"]).get_run(saved["run_id"]).info.status)


@pytest.mark.nightly
def test_changed_settings_are_refused_before_anything_starts(
    unbroken: Result, request_two: RunSpec
) -> None:
    changed = override_all(request_two.config, {"optim.peak_lr": 0.5})
    with pytest.raises(CheckpointError, match=r"settings: optim\.peak_lr: .* -> 0\.5"):
        train(replace(request_two, config=changed))
    assert train(request_two).weights_sha256 == unbroken.weights_sha256


@pytest.mark.nightly
def test_another_store_is_refused_before_anything_starts(
    unbroken: Result, request_two: RunSpec, tmp_path: Path
) -> None:
    from raybio.methods.sppt.config import PrepareConfig
    from raybio.methods.sppt.prepare import prepare_proteins
    from raybio.methods.sppt.proteins.formats.tables import Tables

    (tmp_path / "proteins.tsv").write_text(
        "protein_id\tspecies_taxid\tsequence\na\t1\tMKV\nb\t1\tMKT\nc\t1\tMKA\nd\t1\tMKL\n"
    )
    (tmp_path / "edges.tsv").write_text("protein_a\tprotein_b\na\tb\nb\tc\nc\td\n")
    tables = Tables([tmp_path / "edges.tsv"], [tmp_path / "proteins.tsv"])
    other = prepare_proteins(tmp_path / "store", tables, PrepareConfig(heldout_share=0.0))
    with pytest.raises(CheckpointError, match="data_digest"):
        train(replace(request_two, store=other.path))


@pytest.mark.nightly
def test_a_loss_that_is_no_number_ends_the_run_and_leaves_the_last_good_checkpoint(
    request_two: RunSpec,
) -> None:
    request = replace(
        request_two,
        name="poisoned",
        setup=poison(8),
        compute=replace(request_two.compute, workers=1),
    )
    with pytest.raises(DivergedError, match="step 8"):
        train(request)
    folder = RunFolder(request.runs, "poisoned")
    result = read_record(folder.result, "result")
    assert result["status"] == "failed"
    assert result["checkpoint"] == str(folder.checkpoints / "step-00000005")
    assert [path.name for path in folder.checkpoints.glob("step-*")] == ["step-00000005"]
    assert mlflow_status(folder) == "FAILED"


@pytest.mark.nightly
def test_a_run_that_failed_before_its_first_checkpoint_begins_anew_under_other_settings(
    request_two: RunSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    request = replace(
        request_two,
        name="replaced",
        setup=poison(3),
        compute=replace(request_two.compute, workers=1),
    )
    folder = RunFolder(request.runs, "replaced")
    with pytest.raises(DivergedError, match="step 3"):
        train(request)
    failed = read_record(folder.tracking, "tracking")
    # Ended before the step that is poisoned: a worker's process may be used again.
    other = override_all(request.config, {"optim.peak_lr": 1e-4, "schedule.max_steps": 3})
    result = train(replace(request, config=other, setup=None))
    assert (
        "replaced: replaces a start that ended at step 3 without a checkpoint"
        in capsys.readouterr().out
    )
    assert result.status == "finished"
    assert logged_steps(result) == list(range(4))
    assert mlflow_status(folder) == "FINISHED"
    assert result.mlflow_run_id != failed["run_id"]
    from mlflow import MlflowClient

    assert (
        MlflowClient(tracking_uri=failed["uri"]).get_run(failed["run_id"]).info.status == "FAILED"
    )


@pytest.mark.nightly
def test_workers_of_a_start_that_was_given_up_leave_the_run_alone(
    request_two: RunSpec,
) -> None:
    def start_again(own_rank: int, folder: Path) -> None:
        RunFolder(folder.parent, folder.name).begin_start()

    request = replace(
        request_two,
        name="given_up",
        setup=start_again,
        compute=replace(request_two.compute, workers=1),
    )
    with pytest.raises(ClusterError):
        train(request)
    folder = RunFolder(request.runs, request.name)
    assert not folder.metrics.exists()
    assert folder.newest_checkpoint is None
    assert not folder.failure.exists()


@pytest.mark.nightly
def test_evaluation_of_odd_rows_on_three_workers_equals_that_of_one_process(
    request_two: RunSpec, tiny_training: TrainingConfig, tmp_path: Path
) -> None:
    from raybio.methods.sppt.config import PrepareConfig
    from raybio.methods.sppt.prepare import prepare_proteins
    from tests.conftest import write_tables

    tables = write_tables(tmp_path / "raw", num_groups=7, rows_per_group=143)
    store = prepare_proteins(tmp_path / "store", tables, PrepareConfig(heldout_share=0.1))
    assert store.num_rows == 1001
    short = override_all(
        tiny_training, {"schedule.max_steps": 2, "evaluation.num_nodes_per_group": 0}
    )
    result = train(
        replace(
            request_two,
            name="odd",
            store=store.path,
            config=short,
            compute=replace(request_two.compute, workers=3),
        )
    )
    at_start = read_reports(result.folder.metrics)[0]["metrics"]
    system = METHODS["sppt_protein"].build(short, store.path)
    plain = next(iter(fit(system, short))).metrics
    assert at_start.keys() == plain.keys()
    for name, value in plain.items():
        assert at_start[name] == pytest.approx(value, rel=1e-4), name


@pytest.mark.nightly
def test_a_system_of_another_kind_trains_on_two_workers_and_is_shown_in_its_own_table(
    runs: Path, tiny_articles: ArticleStore
) -> None:
    from tests.methods.conformance_cases import tiny_config

    request = RunSpec(
        method="biostransformers",
        config=tiny_config("biostransformers"),
        store=tiny_articles.path,
        name="pairs",
        runs=runs,
        compute=Compute(workers=2),
    )
    result, table = compare(request)
    assert result.status == "finished"
    assert table.splits == ["text_to_term", "term_to_text"]
    rows = [row[0] for row in table.cells("text_to_term")[1]]
    assert rows[0] == "chance"
    assert {"BM25", "initial"} <= set(rows)
    assert rows[-1] == "pairs †"  # its training is not finished
    assert (result.folder.export / "modules.json").exists()
    system = METHODS["biostransformers"].build(request.config, request.store)
    plain = [
        report.metrics["loss"] for report in fit(system, request.config) if "loss" in report.metrics
    ]
    assert result.metrics["loss"] == pytest.approx(plain[-1], rel=1e-3)
