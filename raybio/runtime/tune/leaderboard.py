"""Leaderboard of a sweep: the best settings first, with intervals where seeds were repeated."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from raybio.core.config import override_all
from raybio.core.csv_table import write_csv
from raybio.core.files import replace_text
from raybio.core.records import read_record, write_record
from raybio.core.search_space import SEED, Settings
from raybio.evaluation.unit_scores import MIN_SEEDS
from raybio.ops.significance import DifferenceTest, t_mean, welch_test
from raybio.runtime.run.folder import LAUNCH, RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.runtime.tune.trial import (
    FAILED,
    FINISHED,
    STOPPED,
    TRIAL_RECORD,
    SweepSpec,
    Trial,
    recorded_trial,
    status_of,
)
from raybio.training.loop import changeable_settings
from raybio.training.settings import TrainingConfig


@dataclass(frozen=True)
class TrialRecord:
    """The result of one trial.

    Attributes:
        name: name of its folder.
        settings: dotted path -> changed value.
        branch: see ``Trial``.
        status: one of the constants in ``trial``.
        values: (step, metric) of its own evaluations, without those of a trial that it exploited.
        best_step: step of the best value; None without an evaluation.
        best_value: the metric at that step.
        worker_seconds: seconds of training, summed over its workers.
        error: why it failed.
        exploited_from: name of the trial whose weights it took over.
        initial: the metric before training; None: it was not evaluated then.
    """

    name: str
    settings: Settings
    branch: str
    status: str
    values: list[tuple[int, float]] = field(default_factory=list)
    best_step: int | None = None
    best_value: float | None = None
    worker_seconds: float = 0.0
    error: str = ""
    exploited_from: str = ""
    initial: float | None = None


@dataclass(frozen=True)
class RankedSettings:
    """Settings and their trials, one for each seed.

    Attributes:
        settings: settings that the trials share.
        trials: the seeds that are compared (``_compared``), the sweep's own first.
        best_step: the evaluated step with the best mean over the trials.
        mean: mean of the metric at that step.
        low: lower end of its 95 % interval over seeds (Student's t); None for one seed. It does not
            cover the variation of units, since trials store no unit scores.
        high: upper end.
    """

    settings: Settings
    trials: list[TrialRecord]
    best_step: int
    mean: float
    low: float | None
    high: float | None

    @property
    def values(self) -> list[float]:
        """The metric of each trial at the best step."""
        return [dict(trial.values)[self.best_step] for trial in self.trials]


def records(spec: SweepSpec) -> list[TrialRecord]:
    """Return all trials of the sweep, the best first and those without an evaluation last."""
    paths = sorted((spec.path / "trials").glob(f"*/{TRIAL_RECORD}"))
    trials = [_record(spec, path) for path in paths]
    sign = 1 if spec.space.mode == "max" else -1

    def goodness(trial: TrialRecord) -> float:
        return -math.inf if trial.best_value is None else sign * trial.best_value

    return sorted(trials, key=goodness, reverse=True)


def _record(spec: SweepSpec, path: Path) -> TrialRecord:
    folder = RunFolder(path.parent.parent, path.parent.name)
    content = read_record(path, "trial") or {}
    trial = recorded_trial(spec, content.get("trial"), path)
    failure = read_record(folder.failure, "failure") or {}
    reports = read_reports(folder.metrics)
    values = spec.goal.own_values(reports)
    best = spec.goal.best(values)
    donors = [report["exploited_from"] for report in reports if "exploited_from" in report]
    return TrialRecord(
        name=folder.name,
        settings=trial.settings,
        branch=trial.branch,
        status=status_of(folder),
        values=values,
        best_step=None if best is None else best[0],
        best_value=None if best is None else best[1],
        worker_seconds=content["worker_seconds"],
        error=failure.get("message", ""),
        exploited_from=donors[-1] if donors else "",
        initial=spec.goal.initial(reports),
    )


def leaderboard(spec: SweepSpec, trials: Sequence[TrialRecord]) -> list[RankedSettings]:
    """Return the settings, the best first.

    Settings that were repeated with other seeds precede all others, so that one lucky seed does not
    win against several. Failed trials are excluded, since their settings would fail again.
    """
    groups: list[list[TrialRecord]] = []
    for trial in trials:
        if not _is_ranked(trial):
            continue
        group = next((group for group in groups if _is_repetition(trial, group[0])), None)
        if group is None:
            groups.append([trial])
        else:
            group.append(trial)
    ranking = [_ranked(spec, group) for group in groups]
    sign = 1 if spec.space.mode == "max" else -1
    return sorted(
        ranking, key=lambda ranked: (len(ranked.trials) > 1, sign * ranked.mean), reverse=True
    )


def repetitions(spec: SweepSpec) -> list[Trial]:
    """Return the best settings with other seeds, as many as the budget requires.

    Only the first seed decides which settings are repeated. With a larger budget, better settings
    may therefore be found than those that were repeated before. Settings whose first seed was
    stopped early come last: it lacks the steps at which the other seeds are compared.
    """
    budget = spec.space.budget
    own_seed = spec.run.config.seed
    best: list[Settings] = []
    for trial in sorted(records(spec), key=lambda trial: trial.status != FINISHED):
        is_first_seed = trial.settings.get(SEED, own_seed) == own_seed
        settings = _without_seed(trial.settings)
        if _is_ranked(trial) and is_first_seed and not trial.branch and settings not in best:
            best.append(settings)
    return [
        Trial({**settings, SEED: own_seed + offset})
        for settings in best[: budget.num_repeated]
        for offset in range(1, budget.num_seeds)
    ]


def _is_ranked(trial: TrialRecord) -> bool:
    return trial.best_value is not None and trial.status != FAILED


def _is_repetition(trial: TrialRecord, other: TrialRecord) -> bool:
    is_same_branch = trial.branch == other.branch
    return is_same_branch and _without_seed(trial.settings) == _without_seed(other.settings)


def _without_seed(settings: Settings) -> Settings:
    return {path: value for path, value in settings.items() if path != SEED}


def _compared(trials: list[TrialRecord]) -> list[TrialRecord]:
    """Return the finished seeds of settings; if there are none, the stopped ones, or else all.

    Only steps that all compared seeds have count. A seed that ended early would exclude the steps
    at which the others are best.
    """
    for status in (FINISHED, STOPPED):
        ended = [trial for trial in trials if trial.status == status]
        if ended:
            return ended
    return trials


def _ranked(spec: SweepSpec, trials: list[TrialRecord]) -> RankedSettings:
    own_seed = spec.run.config.seed

    def own_seed_first(trial: TrialRecord) -> tuple[bool, int]:
        seed = trial.settings.get(SEED, own_seed)
        return seed != own_seed, seed

    # Seeds that were stopped early lack later steps, so only common steps are compared. A seed
    # that was stopped before the first common step is excluded.
    compared: list[TrialRecord] = []
    steps: set[int] = set()
    for trial in sorted(_compared(trials), key=own_seed_first):
        defined = {step for step, _ in trial.values}
        shared = steps & defined if compared else defined
        if shared:
            compared.append(trial)
            steps = shared
    values_by_trial = [dict(trial.values) for trial in compared]
    means = []
    for step in sorted(steps):
        total = sum(values[step] for values in values_by_trial)
        means.append((step, total / len(values_by_trial)))
    best = spec.goal.best(means)
    assert best is not None
    step, mean = best
    low = high = None
    if len(compared) > 1:
        _, low, high = t_mean([values[step] for values in values_by_trial]).difference
    return RankedSettings(_without_seed(compared[0].settings), compared, step, mean, low, high)


def best_against_second(ranking: Sequence[RankedSettings]) -> DifferenceTest | None:
    """Return the difference of the best settings and the runner-up over seeds: Welch's t-test.

    Return None without three seeds of each. The settings were chosen by their first seed, and
    ranked by the same values, so the difference is biased upwards, if at all.
    """
    if len(ranking) < 2 or any(len(ranked.trials) < MIN_SEEDS for ranked in ranking[:2]):
        return None
    return welch_test(*(ranked.values for ranked in ranking[:2]))


def best_config(spec: SweepSpec, ranked: RankedSettings) -> TrainingConfig:
    """Return the configuration of the settings' first trial, ending at the best step if possible.

    Training with it repeats the trial, with the same metric at that step. If the learning rate
    depends on the last step, it trains to the trial's last step.
    """
    config = spec.config(ranked.trials[0].settings)
    changes: dict[str, Any] = {"precision": spec.precision_of(config)}
    if "schedule.max_steps" in changeable_settings(config):
        changes["schedule.max_steps"] = ranked.best_step
    return override_all(config, changes)


def write_results(
    folder: RunFolder, spec: SweepSpec
) -> tuple[list[RankedSettings], list[TrialRecord]]:
    """Write ``result.json``, two tables and the winner's ``best.yaml``; return their content."""
    trials = records(spec)
    ranking = leaderboard(spec, trials)
    content: dict[str, Any] = {
        "metric": spec.space.metric,
        "mode": spec.space.mode,
        "leaderboard": [
            asdict(ranked) | {"trials": [trial.name for trial in ranked.trials]}
            for ranked in ranking
        ],
        "trials": [asdict(trial) for trial in trials],
    }
    against_second = best_against_second(ranking)
    if against_second is not None:
        interval = against_second.difference._asdict()
        content["best_against_second"] = interval | {"p": against_second.p}
    write_record(folder.result, "result", content)
    _write_leaderboard(folder.path / "leaderboard.csv", spec, ranking)
    _write_trials(folder.path / "trials.csv", spec, trials)
    if ranking:
        text = yaml.safe_dump(
            best_config(spec, ranking[0]).to_mapping(), sort_keys=False, allow_unicode=True
        )
        replace_text(folder.path / "best.yaml", text)
        # Copy the setup of the trial, with which a run of best.yaml begins.
        winner = folder.path / "trials" / ranking[0].trials[0].name
        recorded = read_record(winner / LAUNCH, "launch") or {}
        setup = {name: recorded[name] for name in spec.launch if name in recorded}
        launch = read_record(folder.launch, "launch") or {}
        write_record(folder.launch, "launch", launch | setup)
    return ranking, trials


def _write_leaderboard(path: Path, spec: SweepSpec, ranking: Sequence[RankedSettings]) -> None:
    space = spec.space
    header = ["rank", *space.space, space.metric, "low", "high", "best_step", "seeds", "trial"]
    rows: list[Sequence[object]] = [header]
    for number, ranked in enumerate(ranking, start=1):
        settings = [ranked.settings.get(path, "") for path in space.space]
        scores = [ranked.mean, ranked.low, ranked.high, ranked.best_step]
        rows.append([number, *settings, *scores, len(ranked.trials), ranked.trials[0].name])
    write_csv(path, rows)


def _write_trials(path: Path, spec: SweepSpec, trials: Sequence[TrialRecord]) -> None:
    space = spec.space
    header = ["trial", "status", space.metric, "best_step", "last_step", "worker_hours", SEED]
    rows: list[Sequence[object]] = [[*header, *space.space, "error"]]
    for trial in trials:
        row = [
            trial.name,
            trial.status,
            trial.best_value,
            trial.best_step,
            trial.values[-1][0] if trial.values else 0,
            f"{trial.worker_seconds / 3600:.5f}",
            trial.settings.get(SEED, spec.run.config.seed),
        ]
        settings = [trial.settings.get(path, "") for path in space.space]
        rows.append([*row, *settings, trial.error])
    write_csv(path, rows)
