"""Detection of unfinished trainings, whose rows are marked in tables."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import kendalltau, theilslopes

from raybio.core.recipes import Recipe
from raybio.core.records import read_record
from raybio.methods import METHODS
from raybio.runtime.compare.runs import GivenRun, Group
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.runtime.tune.leaderboard import TrialRecord
from raybio.runtime.tune.trial import SweepSpec

MIN_REPORTS = 8
"""Minimum number of reports in the last quarter to test for a trend."""

LARGEST_P = 0.01
"""Largest p of Kendall's test for a trend."""

SMALLEST_FALL = 0.02
"""Smallest fall of the last quarter, as a share of the fall of the whole training."""

PAPER = "paper"
"""First letters of the names of recipes with published settings."""

EARLY_STOPPING = "early_stopping"
"""Status of a training that validation ended."""


class PublishedLength(NamedTuple):
    """The minimum length of a published training.

    Attributes:
        epochs: minimum over recipes in epochs; None if there are none.
        rows: steps times rows per step, minimum over recipes in steps; None if there are none.
        is_least: whether it is a minimum over recipes of several lengths.
        is_stopped: whether validation ended the published trainings before these lengths.
    """

    epochs: float | None
    rows: int | None
    is_least: bool
    is_stopped: bool


def unfinished_reasons(groups: Sequence[Group]) -> dict[str, str]:
    """Return label -> why its training is not finished, for the groups with an unfinished run."""
    reasons: dict[str, str] = {}
    for group in groups:
        for run in group.runs:
            reason = unfinished_reason(run)
            if reason is not None:
                reasons.setdefault(group.label, reason)
    return reasons


def unfinished_reason(run: GivenRun) -> str | None:
    """Return why the training of a run is not finished; None if it is, or nothing is known.

    A run that ended by early stopping is finished if the published runs also stopped early, or had
    no more epochs. A run with weights from before its last step is finished even if its loss still
    fell.
    """
    launch = run.folder.read_launch()
    recipes = METHODS[run.identity["method"]].recipes
    began_with = launch.get("recipe")
    if not str(began_with).startswith(PAPER):
        began_with = launch.get("published")
    best_step = run.result.get("best_step")
    return _reason(
        recipes,
        began_with,
        run.reports,
        batch_rows=run.settings.get("plan.global_batch_rows"),
        is_before_end=best_step is not None and best_step < run.result["step"],
        is_stopped=run.status == EARLY_STOPPING,
    )


def unfinished_trial(
    spec: SweepSpec, trial: TrialRecord, published: str | None = None
) -> str | None:
    """Return why the training of a sweep's trial is not finished, as ``unfinished_reason``.

    A trial keeps the weights of its best step.

    Args:
        spec: the sweep.
        trial: the trial.
        published: name of the recipe with the trial's published settings; None: any of the method.
    """
    folder = RunFolder(spec.path / "trials", trial.name)
    outcome = read_record(folder.outcome, "outcome") or {}
    reports = read_reports(folder.metrics)
    return _reason(
        METHODS[spec.space.method].recipes,
        published,
        reports,
        batch_rows=spec.config(trial.settings).to_mapping()["plan"].get("global_batch_rows"),
        is_before_end=bool(reports)
        and trial.best_step is not None
        and trial.best_step < reports[-1]["step"],
        is_stopped=outcome.get("status") == EARLY_STOPPING,
    )


def _reason(
    recipes: Mapping[str, Recipe],
    began_with: str | None,
    reports: Sequence[Mapping[str, Any]],
    *,
    batch_rows: int | None,
    is_before_end: bool,
    is_stopped: bool,
) -> str | None:
    """Return why a training is not finished.

    A training is unfinished if it had fewer epochs or rows than published (``published_length``),
    or if its loss still falls (``falling_share``) up to the step of its weights.
    """
    if not reports:
        return None
    published = published_length(recipes, began_with)
    if is_stopped and published.is_stopped:
        return None
    by_validation = "stopped by validation at " if is_stopped else ""
    least = "at least " if published.is_least else ""
    epochs = last_epoch(reports)
    # The tolerance is needed because an epoch is rarely a whole number of steps.
    if epochs is not None and published.epochs is not None and epochs < 0.99 * published.epochs:
        return f"{by_validation}{epochs:.2g} of {least}{published.epochs:g} published epochs"
    num_rows = reports[-1]["step"] * (batch_rows or 0)
    if num_rows and published.rows is not None and num_rows < 0.99 * published.rows:
        return f"{by_validation}{num_rows:,} of {least}{published.rows:,} published rows"
    if is_before_end or is_stopped:
        return None
    losses = [
        (report["step"], report["metrics"]["loss"])
        for report in reports
        if "loss" in report["metrics"]
    ]
    share = falling_share(losses)
    if share is None:
        return None
    return f"the training loss still fell, by {100 * share:.0f} % of its fall in the last quarter"


def last_epoch(reports: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the epochs in the last report of a training that has them; None if no report has."""
    epochs = [report["metrics"]["epoch"] for report in reports if "epoch" in report["metrics"]]
    return epochs[-1] if epochs else None


def falling_share(loss_by_step: Sequence[tuple[int, float]]) -> float | None:
    """Return the share of the total decrease of a loss that falls in the last quarter of steps.

    Return None if it no longer falls: if Kendall's one-sided test for a trend in the last quarter
    has p > 0.01, or if the Theil-Sen line falls there by less than 2 % of the total decrease, from
    the median of the first tenth of the reports to that of the last tenth. Single outliers affect
    none of these.

    Args:
        loss_by_step: (step, loss) of each report, by ascending step.
    """
    steps = np.array([step for step, _ in loss_by_step], np.float64)
    losses = np.array([loss for _, loss in loss_by_step], np.float64)
    if len(steps) == 0:
        return None
    is_last = steps > 0.75 * steps[-1]
    last_steps = steps[is_last]
    last_losses = losses[is_last]
    if len(last_steps) < MIN_REPORTS:
        return None
    trend = kendalltau(last_steps, last_losses, alternative="less")
    tenth = max(1, len(losses) // 10)
    whole_fall = float(np.median(losses[:tenth]) - np.median(losses[-tenth:]))
    if not trend.pvalue <= LARGEST_P or whole_fall <= 0:
        return None
    slope = float(theilslopes(last_losses, last_steps)[0])
    share = -slope * float(last_steps[-1] - last_steps[0]) / whole_fall
    return share if share >= SMALLEST_FALL else None


def published_length(recipes: Mapping[str, Recipe], began_with: str | None) -> PublishedLength:
    """Return the published length of a run's training.

    It is the length of the published recipe that the run began with, or else of the recipe of its
    task, graph or documents. Without either it is the minimum over all published recipes of the
    method, since a training that is shorter than each of them is not finished.

    Args:
        recipes: recipes of the method, by name.
        began_with: name of that recipe; None: it has none.
    """
    published = {name: recipe for name, recipe in recipes.items() if name.startswith(PAPER)}
    if began_with in published:
        published = {began_with: published[began_with]}
    epochs = set()
    rows = set()
    stopped = set()
    for recipe in published.values():
        schedule = recipe.settings.get("schedule", {})
        stopped.add(schedule.get("early_stopping_metric") is not None)
        batch_rows = recipe.settings.get("plan", {}).get("global_batch_rows")
        if schedule.get("max_epochs") is not None:
            epochs.add(float(schedule["max_epochs"]))
        elif schedule.get("max_steps") is not None and batch_rows is not None:
            rows.add(schedule["max_steps"] * batch_rows)
    is_least = len(epochs) > 1 or len(rows) > 1
    is_stopped = stopped == {True}
    return PublishedLength(min(epochs, default=None), min(rows, default=None), is_least, is_stopped)
