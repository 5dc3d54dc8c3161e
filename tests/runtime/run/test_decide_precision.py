"""The driver decides the precision once: for all runs of a command, and for all of their starts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from raybio.core.config import override
from raybio.core.errors import CheckpointError, ClusterError, ConfigError
from raybio.core.records import read_record, write_record
from raybio.methods import METHODS
from raybio.runtime.cluster.resources import Resources
from raybio.runtime.compare.table import (
    ResultTable,
    lines_for_terminal,
    write_joint_table,
    write_table,
)
from raybio.runtime.compare.variations import Variation, compare, variants_of
from raybio.runtime.run.driver import train
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.precision import with_precision, worker_processors
from raybio.runtime.run.result import Result
from raybio.runtime.run.spec import Compute, RunSpec
from raybio.store.store import Store
from raybio.training.precision import resolve_precision
from raybio.training.settings import TrainingConfig

NAME = "sppt_protein"


@pytest.fixture
def auto(tiny_training: TrainingConfig) -> TrainingConfig:
    return override(tiny_training, "precision", "auto")


@pytest.fixture
def request_one(tmp_path: Path, tiny_store: Store, auto: TrainingConfig) -> RunSpec:
    return RunSpec(
        method=NAME,
        config=auto,
        store=tiny_store.path,
        name="first",
        runs=tmp_path / "runs",
        compute=Compute(device="cpu"),
    )


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Makes this process find a CPU with bf16 instructions, or one without."""

    def become(has_bf16: bool) -> None:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has_bf16})

    return become


def begin(request: RunSpec, precision: str | None) -> RunFolder:
    """What the driver leaves before the workers start."""
    folder = RunFolder(request.runs, request.name)
    folder.open(request.method, request.config, Path(request.store), "digest", ())
    if precision is not None:
        folder.record_precision(precision)
    return folder


def precisions(requests: list[RunSpec]) -> list[str | None]:
    return [one.precision for one in with_precision(requests)]


@pytest.mark.parametrize(
    ("has_bf16", "name", "has"), [(True, "bf16", "has"), (False, "fp32", "has no")]
)
def test_all_runs_of_a_command_get_one_precision_in_one_line(
    has_bf16: bool,
    name: str,
    has: str,
    request_one: RunSpec,
    machine: Callable[[bool], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine(has_bf16)
    runs = [one.spec for one in variants_of(request_one, [Variation("seed", (1, 2))])]
    decided = with_precision(runs)
    assert [one.precision for one in decided] == [name] * 3
    assert [one.config for one in decided] == [
        one.config for one in runs
    ]  # names and fingerprints stay
    note = "; exact resume is promised with precision=fp32 only" if has_bf16 else ""
    line = f"precision: {name} (this CPU {has} bf16 instructions){note}\n"
    assert capsys.readouterr().out == line
    machine(not has_bf16)
    assert precisions(decided) == [name] * 3
    assert capsys.readouterr().out == ""


def test_new_runs_of_a_comparison_take_over_what_one_of_them_has_recorded(
    request_one: RunSpec, machine: Callable[[bool], None], capsys: pytest.CaptureFixture[str]
) -> None:
    machine(True)
    first, second, third = (
        one.spec for one in variants_of(request_one, [Variation("seed", (1, 2))])
    )
    begin(second, "fp32")
    assert precisions([first, second, third]) == ["fp32"] * 3
    assert capsys.readouterr().out == "precision: fp32 (as run first.seed-1 began)\n"
    begin(first, "bf16")
    assert precisions([first, second, third]) == ["bf16", "fp32", "bf16"]


def test_a_set_precision_is_the_decision_of_its_run_alone(
    request_one: RunSpec, machine: Callable[[bool], None], caplog: pytest.LogCaptureFixture
) -> None:
    machine(False)
    runs = [
        one.spec for one in variants_of(request_one, [Variation("precision", ("bf16", "fp32"))])
    ]
    assert precisions(runs) == ["fp32", "bf16", "fp32"]
    (record,) = caplog.records
    assert (
        "got bf16, and this CPU has no bf16 instructions: slower than fp32" in record.getMessage()
    )


def test_a_run_of_a_comparison_that_cannot_start_is_refused_before_the_precision_is_decided(
    request_one: RunSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = replace(
        request_one,
        config=override(request_one.config, "encoder.source", str(tmp_path / "nothing" / "export")),
    )
    for variations in ([], [Variation("seed", (1,))]):
        with pytest.raises(ConfigError, match="encoder.source"):
            compare(request, variations)
    assert capsys.readouterr().out == ""
    assert not Path(request.runs).exists()


def test_bf16_on_a_gpu_without_it_is_refused_before_anything_starts(
    request_one: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Tesla V100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 0))
    request = replace(request_one, compute=replace(request_one.compute, device="auto"))
    assert precisions([request]) == ["fp32"]
    with pytest.raises(
        ConfigError, match="precision: got bf16, and Tesla V100 has no bf16 instructions"
    ):
        compare(
            replace(request, config=override(request.config, "precision", "bf16")),
            [Variation("seed", (1,))],
        )
    assert not Path(request.runs).exists()


def test_the_record_stays_when_the_run_goes_on_and_no_other_is_taken(
    request_one: RunSpec,
) -> None:
    folder = begin(request_one, None)
    assert folder.precision is None
    begin(request_one, "bf16")
    begin(request_one, None)
    content = read_record(folder.identity, "run")
    assert content["precision"] == folder.precision == "bf16"
    assert content["config"]["precision"] == "auto"
    with pytest.raises(
        CheckpointError,
        match=r"run.json: the run computes in bf16, got fp32. Choose another --name",
    ):
        folder.record_precision("fp32")
    assert read_record(folder.identity, "run") == content


def test_finished_runs_need_no_decision(
    request_one: RunSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = begin(request_one, "bf16")
    result = dict.fromkeys(("checkpoint", "weights_sha256", "mlflow_run_id"))
    result |= {"metrics": {}, "final": {}, "config": {}, "precision": "bf16", "status": "finished"}
    write_record(folder.result, "result", result | {"step": request_one.config.schedule.max_steps})
    # No machine has room for its workers.
    assert precisions([replace(request_one, compute=replace(request_one.compute, workers=99))]) == [
        "bf16"
    ]
    assert capsys.readouterr().out == ""
    with pytest.raises(ClusterError, match="fewer workers than 99"):
        precisions(
            [replace(request_one, name="second", compute=replace(request_one.compute, workers=99))]
        )


def test_runs_of_a_comparison_that_began_in_different_precision_are_named_under_the_table(
    tmp_path: Path,
) -> None:
    layout = replace(METHODS[NAME].table, splits={"test": "rows"})
    scores = {"test": {name: {"value": 0.5, "low": 0.4, "high": 0.6} for name in layout.measures}}
    rows = {"first": scores, "second": scores}
    folder = RunFolder(tmp_path, "first")
    folder.make()
    remark = "different precision, so scores differ by that too: first: fp32, second: bf16."
    for precision, is_said in (("bf16", True), ("fp32", False)):
        table = ResultTable(rows, layout, {"first": "fp32", "second": precision})
        write_table(table, folder.path)
        assert (remark in (folder.path / "table.md").read_text()) == is_said
        assert (remark.rstrip(".") in str(lines_for_terminal(table)[-1])) == is_said
        alone = {
            name: ResultTable(rows, layout, {name: table.precision_by_run[name]}) for name in rows
        }
        path = write_joint_table({name: (one, folder) for name, one in alone.items()})
        assert (remark in path.read_text()) == is_said


def test_the_nodes_of_a_cluster_that_have_room_for_a_worker_are_requested(
    ray_cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setenv("RAY_ADDRESS", "auto")
    (found,) = worker_processors(lambda nodes: Resources(1, 0.5, 0, None))
    assert found.name == f"the CPU of {ray.nodes()[0]['NodeManagerAddress']}"
    assert ("bf16" if found.has_bf16 else "fp32") == resolve_precision("auto", "cpu").name
    assert worker_processors(lambda nodes: Resources(1, 99, 0, None)) == []


@pytest.mark.nightly
def test_workers_compute_in_what_the_driver_decided_and_a_run_that_goes_on_keeps_it(
    ray_cluster: None,
    request_one: RunSpec,
    machine: Callable[[bool], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = resolve_precision("auto", "cpu").name
    other = {"fp32": "bf16", "bf16": "fp32"}[own]
    machine(other == "bf16")  # for the driver alone: workers are other processes

    def trained(max_steps: int) -> Result:
        config = override(request_one.config, "schedule.max_steps", str(max_steps))
        return train(replace(request_one, config=config))

    first = trained(3)
    monkeypatch.undo()
    assert (first.status, first.precision) == ("finished", other)
    longer = trained(6)
    assert (longer.status, longer.step, longer.precision) == ("finished", 6, other)
    assert read_record(longer.folder.identity, "run")["precision"] == other
    assert read_record(longer.folder.identity, "run")["config"]["precision"] == "auto"
