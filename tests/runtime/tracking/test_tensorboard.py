"""Metrics of a run in TensorBoard, as its own reader sees them."""

import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from raybio.cli.metrics_files import tensorboard_app, wandb_app
from raybio.core.errors import ConfigError
from raybio.runtime.model_paths import check_distinct_names
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import MetricsLog, read_reports
from raybio.runtime.tracking.tensorboard import write_events


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "runs", "first")
    folder.make()
    log = MetricsLog(folder.metrics)
    log.append(1, {"loss": 2.0, "val/link_mrr": 0.25})
    log.append(2, {"loss": float("nan")})
    log.append(3, {"loss": 1.5})
    return folder


# Of tensorboard and its protobuf files.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_tensorboard_reads_every_value_once_with_its_step_and_time(
    folder: RunFolder, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):  # the second replaces the first
        assert write_events(folder, tmp_path / "events") == 3
    events = EventAccumulator(str(tmp_path / "events" / "first"))
    events.Reload()
    found = {
        name: [(event.step, event.wall_time, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }
    times = {report["step"]: report["time_ms"] / 1000 for report in read_reports(folder.metrics)}
    assert found == {
        "loss": [(1, times[1], 2.0), (3, times[3], 1.5)],
        "val/link_mrr": [(1, times[1], 0.25)],
    }


def test_what_is_no_run_and_a_missing_extra_are_refused(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="other has no metrics.jsonl; want the folder of a run"):
        write_events(RunFolder(tmp_path, "other"), tmp_path / "events")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"not installed.*raybio\[tensorboard\]"):
        write_events(folder, tmp_path / "events")


@pytest.mark.parametrize("command", [tensorboard_app, wandb_app])
def test_two_runs_of_one_name_are_refused_before_one_replaces_the_other(
    folder: RunFolder, tmp_path: Path, command: typer.Typer
) -> None:
    runs = [str(folder.path), str(tmp_path / "elsewhere" / "first")]
    with pytest.raises(ConfigError, match="both are called first"):
        CliRunner().invoke(command, [*runs, "--out", str(tmp_path / "out")], catch_exceptions=False)
    assert not (tmp_path / "out").exists()


def test_runs_behind_links_have_the_names_of_the_links(folder: RunFolder, tmp_path: Path) -> None:
    other = RunFolder(tmp_path / "others", "first")
    other.make()
    for name, target in (("x", folder), ("y", other)):
        (tmp_path / name).mkdir()
        for link in ("latest", name):
            (tmp_path / name / link).symlink_to(target.path)
    with pytest.raises(ConfigError, match="both are called latest"):
        check_distinct_names([tmp_path / "x" / "latest", tmp_path / "y" / "latest"])
    check_distinct_names([tmp_path / "x" / "x", tmp_path / "y" / "y"])


@pytest.mark.parametrize("command", [tensorboard_app, wandb_app])
def test_a_run_is_not_replaced_by_its_metrics(
    folder: RunFolder, tmp_path: Path, command: typer.Typer
) -> None:
    before = folder.metrics.read_bytes()
    with pytest.raises(
        ConfigError, match=r"--out .*runs/first: holds 'metrics.jsonl'.*empty folder"
    ):
        CliRunner().invoke(
            command, [str(folder.path), "--out", str(folder.path.parent)], catch_exceptions=False
        )
    assert folder.metrics.read_bytes() == before
