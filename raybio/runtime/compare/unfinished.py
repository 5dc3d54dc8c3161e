"""Whether a training had come to its end when it stopped: rows of unfinished ones are marked."""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.stats import kendalltau, theilslopes

from raybio.core.recipes import Recipe
from raybio.methods import METHODS
from raybio.runtime.compare.runs import GivenRun, Group

MIN_REPORTS = 8
"""Reports of the last quarter that a trend is looked for in; with fewer nothing is said."""

LARGEST_P = 0.01
"""Largest p of Kendall's test for a trend."""

SMALLEST_FALL = 0.02
"""Smallest fall of the last quarter, as a share of the fall of the whole training."""

PAPER = "paper"
"""First letters of the names of recipes with published settings."""


def unfinished_reasons(groups: Sequence[Group]) -> dict[str, str]:
    """Return label -> why its training is not finished, for the groups with such a run."""
    reasons: dict[str, str] = {}
    for group in groups:
        for run in group.runs:
            reason = unfinished_reason(run)
            if reason is not None:
                reasons.setdefault(group.label, reason)
    return reasons


def unfinished_reason(run: GivenRun) -> str | None:
    """Return why the training of a run is not finished; None if it is, or nothing is known.

    It is not if the training loss still falls (``falling_share``), or if the training had fewer
    epochs than published (``published_epochs``). A run that was stopped early is finished. One
    whose weights are from before its last evaluation may have a loss that still falls.
    """
    if run.status == "early_stopping":
        return None
    epochs = [report["metrics"]["epoch"] for report in run.reports if "epoch" in report["metrics"]]
    recipes = METHODS[run.identity["method"]].recipes
    published = published_epochs(recipes, run.folder.read_launch().get("recipe"))
    # An epoch is rarely a whole number of steps.
    if epochs and published is not None and epochs[-1] < 0.99 * published:
        return f"{epochs[-1]:.2g} of {published:g} published epochs"
    if _is_before_end(run):
        return None
    share = falling_share(run.curve("loss"))
    if share is None:
        return None
    return f"the training loss still fell, by {100 * share:.0f} % of its fall in the last quarter"


def falling_share(loss_by_step: Sequence[tuple[int, float]]) -> float | None:
    """Return how much of its whole fall a loss fell by in the last quarter of the steps.

    None if it did not still fall: if Kendall's one-sided test for a trend in the last quarter has
    p > 0.01, or if the fall there by the line of Theil and Sen is below 2 % of the fall from the
    median of the first tenth of the reports to that of the last tenth. Single outliers change none
    of these.

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


def published_epochs(recipes: Mapping[str, Recipe], began_with: str | None) -> float | None:
    """Return the published epochs of a run; None if they are unknown.

    They are those of the published recipe that the run began with. Without one they are known only
    if all published recipes of the method agree.

    Args:
        recipes: recipes of the method, by name.
        began_with: name of the run's recipe; None: it had none.
    """
    published = {name: recipe for name, recipe in recipes.items() if name.startswith(PAPER)}
    if began_with in published:
        published = {began_with: published[began_with]}
    schedules = [recipe.settings.get("schedule", {}) for recipe in published.values()]
    epochs = {schedule.get("max_epochs") for schedule in schedules}
    if len(epochs) != 1:
        return None
    (number,) = epochs
    return None if number is None else float(number)


def _is_before_end(run: GivenRun) -> bool:
    """Return whether the evaluated weights are those of an evaluation before the last one."""
    best_step = run.result.get("best_step")
    return best_step is not None and best_step < run.result["step"]
