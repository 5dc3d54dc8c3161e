"""Evaluation metrics over steps, averaged over the runs of a label."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from raybio.core.csv_table import write_csv
from raybio.core.errors import ConfigError
from raybio.core.records import read_record
from raybio.evaluation.curves import Curve, CurvePoint, means_over_steps
from raybio.methods import method_named
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.training.method import Method, MetricsByStep
from raybio.training.settings import COMPLETE


def write_curves(
    folder: Path,
    names_by_label: Mapping[str, Sequence[str]],
    metric: str,
    out: Path,
    method: Method,
) -> list[Path]:
    """Write and print a metric over steps; return the files.

    These are ``curves.csv``, ``curves.png``, and the files of ``method.write_step_selection``.

    Args:
        folder: folder of runs.
        names_by_label: names of runs; the runs of a label are averaged.
        metric: an evaluation metric.
        out: folder to write in, created if missing.
        method: the method of the runs.

    Raises:
        ConfigError: if a run does not exist or does not log the metric.
    """
    from raybio.evaluation.plots import plot_curves

    curves_by_label = {
        label: [read_curve(folder, name, metric) for name in names]
        for label, names in names_by_label.items()
    }
    points = means_over_steps(curves_by_label)
    table_path = out / "curves.csv"
    write_csv(table_path, [("label", "step", "runs", "mean", "deviation"), *points])
    scale, digits = method.table.scale(metric)
    _print_points(points, metric, scale, digits)
    plot_path = plot_curves(
        points,
        out / "curves.png",
        title=metric,
        y_label=metric.rpartition("/")[2],
        in_percent=scale == 100,
    )
    runs_by_label = {
        label: {name: _metrics_by_step(folder, name) for name in names}
        for label, names in names_by_label.items()
    }
    written = [table_path, plot_path, *method.write_step_selection(runs_by_label, metric, out)]
    print(f"written: {', '.join(map(str, written))}")
    return written


def method_of_runs(folder: Path, names: Sequence[str]) -> Method:
    """Return the method that the runs share.

    Args:
        folder: folder of runs.
        names: names of runs.

    Raises:
        ConfigError: if a run does not exist, or the runs are of different methods.
        RecordError: if the record of a run is damaged.
    """
    name_by_method: dict[str, str] = {}
    for name in names:
        identity = RunFolder(folder, name, "--run").read_identity()
        if identity is None:
            raise ConfigError(f"--run {name}: no run of that name in {folder}")
        name_by_method.setdefault(identity["method"], name)
    if len(name_by_method) > 1:
        listed = ", ".join(f"{name}: {method}" for method, name in name_by_method.items())
        raise ConfigError(f"--run: runs of different methods ({listed}); want those of one method")
    return method_named(next(iter(name_by_method)))


def _print_points(points: Sequence[CurvePoint], metric: str, scale: int, digits: int) -> None:
    title = f"{metric} in percent" if scale == 100 else metric
    if any(point.num_runs > 1 for point in points):
        title += "; mean ± standard deviation over runs"
    print(title)
    for point in points:
        spread = ""
        if point.num_runs > 1:
            spread = f" ± {scale * point.deviation:.{digits}f} ({point.num_runs} runs)"
        print(f"{point.label}  step {point.step:,}: {scale * point.mean:.{digits}f}{spread}")
    for label in dict.fromkeys(point.label for point in points):
        own_points = [point for point in points if point.label == label]
        # Skip steps that some runs have not reached: their mean would be over other runs.
        num_runs = max(point.num_runs for point in own_points)
        complete = [point for point in own_points if point.num_runs == num_runs]
        highest = max(complete, key=lambda point: point.mean)
        print(f"{label}  highest at step {highest.step:,}")


def unfinished_status(run: RunFolder) -> str:
    """Return the status of a run with steps left to train; empty for a finished run."""
    result = read_record(run.result, "result") or {}
    status = result.get("status", "not ended yet")
    if status not in COMPLETE:
        step = read_reports(run.metrics)[-1]["step"]
        return f"{status}, at step {step:,}"
    max_steps = run.max_steps
    if status == "finished" and max_steps is not None and result["step"] < max_steps:
        # ``schedule.max_steps`` may have been raised after the run had finished.
        step = read_reports(run.metrics)[-1]["step"]
        return f"at step {step:,} of {max_steps:,}"
    return ""


def read_curve(folder: Path, name: str, metric: str) -> Curve:
    """Return the metric at each evaluated step of a run, in ascending order.

    Raises:
        ConfigError: if there is no such run, or it does not log the metric.
    """
    if not RunFolder(folder, name).metrics.exists():
        raise ConfigError(f"--run {name}: no run of that name in {folder}")
    metrics_by_step = _metrics_by_step(folder, name)
    value_by_step = {
        step: metrics[metric] for step, metrics in metrics_by_step.items() if metric in metrics
    }
    if not value_by_step:
        logged = sorted(
            {key for metrics in metrics_by_step.values() for key in metrics if key.count("/") == 1}
        )
        raise ConfigError(
            f"--metric {metric}: run {name} does not log it; "
            f"want one of {', '.join(logged) or 'no evaluation yet'}"
        )
    return sorted(value_by_step.items())


def _metrics_by_step(folder: Path, name: str) -> MetricsByStep:
    reports = read_reports(RunFolder(folder, name).metrics)
    return {report["step"]: report["metrics"] for report in reports}
