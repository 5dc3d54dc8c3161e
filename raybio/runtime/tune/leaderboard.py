"""What came of a sweep's trials: the best settings first, with intervals where seeds were repeated."""

import csv
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from scipy import stats

from raybio.core.config import override_all
from raybio.core.records import read_record, write_record
from raybio.core.search_space import Settings
from raybio.runtime.run.folder import LAUNCH, RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.runtime.tune.trial import FAILED, NOTE, Trial, TrialSpec, status_of
from raybio.training.loop import changeable_settings
from raybio.training.settings import TrainingConfig

SEED = "seed"


@dataclass(frozen=True)
class TrialRecord:
    """What came of one trial.

    Attributes:
        name: of its folder.
        settings: what it changed.
        status: ``finished``, ``stopped by the scheduler``, ``went on as another``, ``failed`` or ``interrupted``.
        values: (step, metric) of its own evaluations; those that came with another trial's weights are that one's.
        best_step: the best of them; None without an evaluation.
        best_value: its metric.
        worker_seconds: its training took, added up over its workers.
        error: why it failed.
        branch: what tells it from trials of the same settings that began with other weights.
        goes_on_from: the trial whose weights it took over.
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
    goes_on_from: str = ""


@dataclass(frozen=True)
class RankedSettings:
    """Settings and their trials, one a seed.

    Attributes:
        settings: what the trials share.
        trials: those with an evaluation, the sweep's own seed first.
        best_step: the evaluated step that is best in the mean over the trials.
        mean: the metric there.
        low: of the 95 % interval over seeds (Student's t); None for one seed.
        high: of it.
    """

    settings: Settings
    trials: list[TrialRecord]
    best_step: int
    mean: float
    low: float | None
    high: float | None


def records(spec: TrialSpec) -> list[TrialRecord]:
    """All trials of the sweep, the best first; those without an evaluation last."""
    found = [
        _record(spec, note) for note in sorted((Path(spec.sweep) / "trials").glob(f"*/{NOTE}"))
    ]
    sign = 1 if spec.space.mode == "max" else -1
    return sorted(
        found,
        key=lambda one: -math.inf if one.best_value is None else sign * one.best_value,
        reverse=True,
    )


def _record(spec: TrialSpec, note: Path) -> TrialRecord:
    folder, content = RunFolder(note.parent.parent, note.parent.name), read_record(note, "trial")
    reports = read_reports(folder.metrics)
    values = spec.goal.own_values(reports)
    best = spec.goal.best(values)
    return TrialRecord(
        name=folder.name,
        settings=content["trial"]["settings"],
        branch=content["trial"]["branch"],
        status=status_of(folder),
        values=values,
        best_step=None if best is None else best[0],
        best_value=None if best is None else best[1],
        worker_seconds=content["worker_seconds"],
        error=(read_record(folder.failure, "failure") or {}).get("message", ""),
        goes_on_from=next(
            (report["goes_on_from"] for report in reversed(reports) if "goes_on_from" in report), ""
        ),
    )


def leaderboard(spec: TrialSpec, trials: Sequence[TrialRecord]) -> list[RankedSettings]:
    """Settings, the best first: those that were repeated with other seeds before those that were not.

    One seed's luck does not put settings before others that several seeds speak for. Trials that failed have no place:
    their settings would fail again.
    """
    alike: list[list[TrialRecord]] = []
    for one in trials:
        if _is_ranked(one):
            group = next((found for found in alike if _is_repetition(one, found[0])), None)
            if group is None:
                alike.append([one])
            else:
                group.append(one)
    ranking = [_ranked(spec, group) for group in alike]
    sign = 1 if spec.space.mode == "max" else -1
    return sorted(
        ranking, key=lambda ranked: (len(ranked.trials) > 1, sign * ranked.mean), reverse=True
    )


def repetitions(spec: TrialSpec) -> list[Trial]:
    """The best settings with other seeds, as the budget wants; which those are, their first seed says alone.

    So a larger budget may bring better settings than those that were repeated before.
    """
    budget, own = spec.space.budget, spec.base.seed
    best: list[Settings] = []
    for one in records(spec):
        is_first_seed = SEED in spec.space.space or one.settings.get(SEED, own) == own
        settings = _without_seed(one.settings)
        if _is_ranked(one) and is_first_seed and not one.branch and settings not in best:
            best.append(settings)
    chosen = best[: budget.num_repeated]
    return [
        Trial({**settings, SEED: own + more})
        for settings in chosen
        for more in range(1, budget.num_seeds)
    ]


def _is_ranked(one: TrialRecord) -> bool:
    return one.best_value is not None and one.status != FAILED


def _is_repetition(one: TrialRecord, other: TrialRecord) -> bool:
    return one.branch == other.branch and _without_seed(one.settings) == _without_seed(
        other.settings
    )


def _without_seed(settings: Settings) -> Settings:
    return {path: value for path, value in settings.items() if path != SEED}


def _ranked(spec: TrialSpec, trials: list[TrialRecord]) -> RankedSettings:
    own = spec.base.seed
    trials = sorted(
        trials, key=lambda one: (one.settings.get(SEED, own) != own, one.settings.get(SEED, own))
    )
    by_trial = [dict(one.values) for one in trials]
    # A seed that was stopped early says nothing of later steps.
    steps = sorted(set.intersection(*(set(values) for values in by_trial)))
    means = [(step, sum(values[step] for values in by_trial) / len(by_trial)) for step in steps]
    best = spec.goal.best(means)
    assert best is not None
    step, mean = best
    low = high = None
    if len(trials) > 1:
        at_step = [values[step] for values in by_trial]
        half = float(stats.t.ppf(0.975, len(trials) - 1) * stats.sem(at_step))
        low, high = mean - half, mean + half
    return RankedSettings(_without_seed(trials[0].settings), trials, step, mean, low, high)


def best_config(spec: TrialSpec, ranked: RankedSettings) -> TrainingConfig:
    """The whole configuration of the first of the settings' trials, ending at the best step where that can be.

    Run by the method's own job it trains what the trial trained, so the metric at that step is the same. Where the
    learning rate depends on the end, it goes on to the trial's last step.
    """
    config = spec.config(ranked.trials[0].settings)
    changes: dict[str, Any] = {"precision": spec.precision_of(config)}
    if "schedule.max_steps" in changeable_settings(config):
        changes["schedule.max_steps"] = ranked.best_step
    return override_all(config, changes)


def write_results(
    folder: RunFolder, spec: TrialSpec
) -> tuple[list[RankedSettings], list[TrialRecord]]:
    """Write ``result.json``, ``leaderboard.csv`` and the winner's ``best.yaml``; returns what is in them."""
    trials = records(spec)
    ranking, space = leaderboard(spec, trials), spec.space
    content = {
        "metric": space.metric,
        "mode": space.mode,
        "leaderboard": [
            asdict(ranked) | {"trials": [one.name for one in ranked.trials]} for ranked in ranking
        ],
        "trials": [asdict(one) for one in trials],
    }
    write_record(folder.result, "result", content)
    with (folder.path / "leaderboard.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["place", *space.space, space.metric, "low", "high", "best_step", "seeds", "trial"]
        )
        for number, ranked in enumerate(ranking, start=1):
            chosen = [ranked.settings.get(path, "") for path in space.space]
            scores = [ranked.mean, ranked.low, ranked.high, ranked.best_step]
            writer.writerow([number, *chosen, *scores, len(ranked.trials), ranked.trials[0].name])
    with (folder.path / "trials.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        header = [
            "trial",
            "status",
            space.metric,
            "best_step",
            "last_step",
            "worker_hours",
            SEED,
            *space.space,
            "error",
        ]
        writer.writerow(header)
        for one in trials:
            last = one.values[-1][0] if one.values else 0
            hours = f"{one.worker_seconds / 3600:.5f}"
            chosen = [one.settings.get(path, "") for path in space.space]
            seed = one.settings.get(SEED, spec.base.seed)
            writer.writerow(
                [
                    one.name,
                    one.status,
                    one.best_value,
                    one.best_step,
                    last,
                    hours,
                    seed,
                    *chosen,
                    one.error,
                ]
            )
    if ranking:
        text = yaml.safe_dump(
            best_config(spec, ranking[0]).to_mapping(), sort_keys=False, allow_unicode=True
        )
        (folder.path / "best.yaml").write_text(text, encoding="utf-8")
        trained = (
            read_record(folder.path / "trials" / ranking[0].trials[0].name / LAUNCH, "launch") or {}
        )
        write_record(
            folder.launch, "launch", (read_record(folder.launch, "launch") or {}) | trained
        )  # for whoever trains best.yaml
    return ranking, trials
