"""Evaluation metrics over steps, averaged over the runs of a label."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from raybio.core.errors import ConfigError
from raybio.runtime.run.folder import COMPLETE, RunFolder, read_json
from raybio.runtime.run.metrics_log import read_reports

Curve = list[tuple[int, float]]
"""(step, value), a point an evaluation."""


def write_curves(
    folder: Path, names_by_label: Mapping[str, Sequence[str]], metric: str, out: Path
) -> list[Path]:
    """``curves.csv`` and ``curves.png``, and where there is what to choose by ``choice.csv`` and ``choice.md``.

    Args:
        folder: of runs.
        names_by_label: the runs; those of a label are averaged.
        metric: an evaluation metric.
        out: the folder to write in; what is written is printed too.

    Raises:
        ConfigError: for a run that is not there, or has not that metric.
    """
    from raybio.evaluation.plots import plot_curves
    from raybio.runtime.compare.choices import run_choice, write_choices

    by_label = {
        label: [curve(folder, name, metric) for name in names]
        for label, names in names_by_label.items()
    }
    rows = table(by_label)
    out.mkdir(parents=True, exist_ok=True)
    with (out / "curves.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("label", "step", "runs", "mean", "deviation"), *rows])
    print(f"{metric} in percent; of several runs mean ± standard deviation")
    for label, step, num, mean, deviation in rows:
        spread = f" ± {100 * deviation:.2f} ({num} runs)" if num > 1 else ""
        print(f"{label}  step {step:,}: {100 * mean:.2f}{spread}")
    for label in by_label:
        # A step that some runs have not reached yet would be judged by the others alone.
        of_label = [(step, num, mean) for one, step, num, mean, _ in rows if one == label]
        most = max(num for _, num, _ in of_label)
        mean_by_step = {step: mean for step, num, mean in of_label if num == most}
        print(
            f"{label}  highest at step {max(mean_by_step, key=lambda step: mean_by_step[step]):,}"
        )
    written = [
        out / "curves.csv",
        plot_curves(by_label, out / "curves.png", title=metric, y_label=metric.rpartition("/")[2]),
    ]
    chosen = {
        label: [run_choice(folder, name, metric) for name in names]
        for label, names in names_by_label.items()
    }
    whole = {label: [one for one in found if one] for label, found in chosen.items() if all(found)}
    for earlier in (out / "choice.csv", out / "choice.md"):
        earlier.unlink(missing_ok=True)  # of other runs, perhaps
    written += write_choices(whole, metric, out) if whole else []
    print(f"written: {', '.join(map(str, written))}")
    return written


def _unfinished(run: RunFolder) -> str:
    """How a run stands that has not come to its end, or that was made longer since; empty for all others."""
    result, step = read_json(run.result) or {}, read_reports(run.metrics)[-1]["step"]
    status, max_steps = result.get("status", "not ended yet"), run.max_steps
    if status not in COMPLETE:
        return f"{status}, at step {step:,}"
    is_short = status == "finished" and max_steps is not None and result["step"] < max_steps
    return f"at step {step:,} of {max_steps:,}" if is_short else ""


def curve(folder: Path, name: str, metric: str) -> Curve:
    """The metric at each evaluated step of a run.

    Raises:
        ConfigError: if there is no such run, or it has not that metric.
    """
    log = RunFolder(folder, name).metrics
    if not log.exists():
        raise ConfigError(f"--run {name}: no run of that name in {folder}")
    reports = read_reports(log)
    found = {
        report["step"]: report["metrics"][metric]
        for report in reports
        if metric in report["metrics"]
    }
    if not found:
        has = sorted(
            {key for report in reports for key in report["metrics"] if key.count("/") == 1}
        )
        raise ConfigError(
            f"--metric {metric}: run {name} has none; want one of {', '.join(has) or 'no evaluation yet'}"
        )
    return sorted(found.items())


def table(by_label: Mapping[str, Sequence[Curve]]) -> list[tuple[str, int, int, float, float]]:
    """(label, step, runs, mean, standard deviation of a sample; 0 for one run), by label and step."""
    rows = []
    for label, of_label in by_label.items():
        values: dict[int, list[float]] = {}
        for step, value in (point for one in of_label for point in one):
            values.setdefault(step, []).append(value)
        for step in sorted(values):
            deviation = float(np.std(values[step], ddof=1)) if len(values[step]) > 1 else 0.0
            rows.append((label, step, len(values[step]), float(np.mean(values[step])), deviation))
    return rows
