import csv
from pathlib import Path

import pytest

from raybio.errors import ConfigError
from raybio.runtime.curves import curve, curves
from raybio.runtime.metrics_log import MetricsLog
from raybio.runtime.run_folder import RunFolder


def write_run(folder: Path, name: str, values: dict[int, float]) -> None:
    run = RunFolder(folder, name)
    run.make()
    log = MetricsLog(run.metrics)
    for step, value in values.items():
        log.append(step, {"val/acc_at_10": value, "val/acc_at_10/may_treat": value / 2, "loss": 1.0})
    log.append(max(values) + 1, {"loss": 0.5})


def test_runs_of_a_label_are_averaged_at_each_step_with_the_deviation_of_a_sample(tmp_path: Path) -> None:
    write_run(tmp_path, "a", {0: 0.1, 50: 0.2})
    write_run(tmp_path, "b", {0: 0.3, 50: 0.6, 100: 0.9})
    write_run(tmp_path, "c", {0: 0.5})
    curves(run=["sets=a", "sets=b", "c"], out=tmp_path / "out", runs=tmp_path)
    with (tmp_path / "out" / "curves.csv").open() as file:
        rows = [
            (row["label"], int(row["step"]), int(row["runs"]), float(row["mean"]), float(row["deviation"]))
            for row in csv.DictReader(file)
        ]
    expected = [
        ("sets", 0, 2, 0.2, 0.02**0.5),
        ("sets", 50, 2, 0.4, 0.08**0.5),
        ("sets", 100, 1, 0.9, 0.0),
        ("c", 0, 1, 0.5, 0.0),
    ]
    assert [row[:3] for row in rows] == [row[:3] for row in expected]
    assert [row[3:] for row in rows] == [pytest.approx(row[3:]) for row in expected]
    assert (tmp_path / "out" / "curves.png").stat().st_size > 1000
    assert [path.name for path in (tmp_path / "out").glob("relations-*")] == ["relations-c.png"]


def test_a_run_or_a_metric_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, "a", {0: 0.1})
    with pytest.raises(ConfigError, match="--run b: no run of that name"):
        curve(tmp_path, "b", "val/acc_at_10")
    with pytest.raises(ConfigError, match="--metric val/f1: run a has none; want one of val/acc_at_10$"):
        curve(tmp_path, "a", "val/f1")
