"""JSON files of a run cut short, zeroed or missing: the run resumes as it was, or is refused."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from raybio.core.config import override_all
from raybio.core.errors import CheckpointError, ConfigError, RecordError
from raybio.core.records import read_record, write_record
from raybio.methods import METHODS
from raybio.runtime.run.checks import check_spec
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.options import RunOptions, resolve
from raybio.runtime.run.result import finished_result, summarize
from raybio.runtime.run.spec import Compute, RunSpec
from raybio.runtime.tracking.tracker import Tracker, tracking_uri
from raybio.store.store import Store
from tests.runtime_fixtures import TINY
from tests.whole_runs import cut, open_run, train_here

SYSTEM = "sppt_protein"
RECORDS = ["run.json", "launch.json", "tracking.json", "outcome.json", "result.json"]
SHORT = {
    "schedule.max_steps": 10,
    "schedule.evaluate_every_steps": 0,
    "schedule.keep_best": None,
}


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


DAMAGES: dict[str, Callable[[Path], None]] = {
    **{f"cut at {share} tenths": cut(share) for share in range(10)},
    "zeroed": zero,
    "missing": Path.unlink,
}
WORST = ["cut at 5 tenths", "zeroed", "missing"]


@dataclass
class Kept:
    """A run as its last start left it, and how to get it back."""

    folder: RunFolder
    backup: Path
    request: RunSpec
    mlflow_run_id: str
    weights_sha256: str

    def restore(self) -> None:
        shutil.rmtree(self.folder.path)
        shutil.copytree(self.backup, self.folder.path)


def start(request: RunSpec, *, stop_at: int | None = None) -> tuple[dict[str, Any], str | None]:
    """Train as ``train`` does, in this process; return the outcome and the MLflow run."""
    folder = RunFolder(request.runs, request.name)
    digest = open_run(request)
    finished = finished_result(folder, request.config)
    uri = tracking_uri(request.tracking, Path(request.runs))
    tracker = Tracker(folder, uri, SYSTEM, request.config.to_mapping(), digest)
    if finished is not None:
        tracker.catch_up()
        return read_record(folder.result, "result"), tracker.run_id
    tracker.start()
    outcome = train_here(request, stop_at=stop_at)
    status = outcome["status"]
    write_record(folder.result, "result", summarize(folder, request.config, status, tracker.run_id))
    tracker.finish("FINISHED" if status == "finished" else "KILLED")
    return outcome, tracker.run_id


@pytest.fixture(scope="module")
def kept_runs(tmp_path_factory: pytest.TempPathFactory, tiny_store: Store) -> dict[str, Kept]:
    place = tmp_path_factory.mktemp("damaged")
    config = override_all(METHODS[SYSTEM].config(), TINY | SHORT)
    kept = {}
    weights = None
    for name, stop_at in (("finished", None), ("half", 7)):
        request = RunSpec(
            method=SYSTEM,
            config=config,
            store=tiny_store.path,
            name=name,
            runs=place / "runs",
            tracking=f"sqlite:///{place}/tracked.db",
            compute=Compute(workers=2, threads_per_worker=3, device="cpu"),
        )
        outcome, run_id = start(request, stop_at=stop_at)
        weights = weights or outcome["weights_sha256"]
        folder = RunFolder(request.runs, name)
        backup = place / "backup" / name
        shutil.copytree(folder.path, backup)
        assert run_id is not None
        kept[name] = Kept(folder, backup, request, run_id, weights)
    return kept


@pytest.fixture(params=["finished", "half"])
def kept(request: pytest.FixtureRequest, kept_runs: dict[str, Kept]) -> Iterator[Kept]:
    run = kept_runs[request.param]
    run.restore()
    yield run


def named_again(kept: Kept) -> RunSpec:
    """The request of the command that gives the run's name alone."""
    arguments = RunOptions(name=kept.request.name, runs=Path(kept.request.runs))
    return resolve(SYSTEM, arguments)


def mlflow_runs(uri: str) -> list[str]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(SYSTEM)
    return [run.info.run_id for run in client.search_runs([experiment.experiment_id])]


@pytest.mark.first_tier(*WORST)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", RECORDS)
def test_a_damaged_record_changes_neither_settings_nor_store_nor_workers(
    kept: Kept, name: str, damage: str
) -> None:
    DAMAGES[damage](kept.folder.path / name)
    again = named_again(kept)
    for field in (
        "method",
        "config",
        "name",
        "tracking",
        "compute",
    ):
        assert getattr(again, field) == getattr(kept.request, field), field
    assert Path(again.store) == Path(kept.request.store)
    other = override_all(again.config, {"optim.peak_lr": 0.5})
    with pytest.raises(CheckpointError, match=r"optim\.peak_lr: .* -> 0\.5"):
        kept.folder.open(SYSTEM, other, Path(again.store), check_spec(again), ())
    with pytest.raises(CheckpointError, match="data_digest"):
        kept.folder.open(SYSTEM, again.config, Path(again.store), "other", ())


@pytest.mark.parametrize("damage", WORST)
@pytest.mark.parametrize("name", RECORDS)
def test_a_run_with_a_damaged_record_ends_with_the_same_weights_in_the_same_mlflow_run(
    kept: Kept, kept_runs: dict[str, Kept], name: str, damage: str
) -> None:
    DAMAGES[damage](kept.folder.path / name)
    outcome, run_id = start(named_again(kept))
    assert outcome["status"] == "finished"
    assert outcome["weights_sha256"] == kept.weights_sha256
    if run_id is not None:
        assert run_id == kept.mlflow_run_id
    assert sorted(mlflow_runs(str(kept.request.tracking))) == sorted(
        one.mlflow_run_id for one in kept_runs.values()
    )
    assert not (Path(kept.request.runs).parent / "mlflow.db").exists()


def test_a_damaged_failure_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "failure.json").write_text('{"kind": "Da')
    with pytest.raises(
        RecordError, match=r"failure\.json: damaged, not JSON .* give the same command again"
    ):
        read_record(tmp_path / "failure.json", "failure")


def test_a_lost_run_json_of_a_run_whose_checkpoints_have_no_copy_is_refused(kept: Kept) -> None:
    for folder in kept.folder.checkpoints.glob("step-*"):
        forget_copies(folder / "manifest.json")
    kept.folder.identity.unlink()
    with pytest.raises(RecordError, match=r"run\.json: missing, although the run has checkpoints"):
        named_again(kept)
    with pytest.raises(RecordError, match=r"run\.json: missing"):
        start(replace(kept.request))


def forget_copies(path: Path) -> None:
    """A manifest as versions wrote it that knew no copies."""
    from raybio.core.digest import json_digest

    manifest = {
        key: value
        for key, value in json.loads(path.read_text()).items()
        if key not in ("checksum", "run")
    }
    path.write_text(json.dumps(manifest | {"checksum": json_digest(manifest)}))


def test_a_damaged_launch_json_of_such_a_run_is_refused_and_a_missing_one_warned_about(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    for folder in kept.folder.checkpoints.glob("step-*"):
        forget_copies(folder / "manifest.json")
    zero(kept.folder.launch)
    with pytest.raises(RecordError, match=r"launch\.json: damaged.* --workers"):
        named_again(kept)
    kept.folder.launch.unlink()
    assert named_again(kept).tracking == kept.request.tracking
    assert "this start's own options count" in caplog.text


def test_no_file_of_a_run_names_a_module_which_the_next_version_may_move(kept: Kept) -> None:
    naming = [
        path
        for path in kept.folder.path.rglob("*")
        if path.is_file() and re.search(rb"raybio\.[a-z_]+", path.read_bytes())
    ]
    assert naming == []


@pytest.mark.parametrize("change", [{"a_new_value": 1}, {"weights_sha256": None}])
def test_a_result_with_more_or_fewer_values_is_read_or_written_again(
    kept_runs: dict[str, Kept], change: dict[str, Any]
) -> None:
    kept = kept_runs["finished"]
    kept.restore()
    content = read_record(kept.folder.result, "result")
    is_fewer = "weights_sha256" in change
    more = content | change
    if is_fewer:
        del more["weights_sha256"]
    write_record(kept.folder.result, "result", more)
    result = finished_result(kept.folder, kept.request.config)
    assert (result is None) == is_fewer
    assert result is None or result.weights_sha256 == kept.weights_sha256
    start(kept.request)
    if is_fewer:
        assert read_record(kept.folder.result, "result").keys() == content.keys()


def test_settings_that_this_version_does_not_have_name_the_file_that_holds_them(
    kept: Kept,
) -> None:
    content = read_record(kept.folder.identity, "run")
    content["config"]["plan"]["an_old_setting"] = 3
    write_record(kept.folder.identity, "run", content)
    message = f"{kept.folder.identity}: was written by another version of raybio, .*an_old_setting"
    with pytest.raises(ConfigError, match=message):
        named_again(kept)
