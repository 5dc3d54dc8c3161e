"""The report of a sweep, for a browser, a phone and MLflow's artifacts."""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raybio.core.search_space import SearchSpace, format_value
from raybio.evaluation.report import Section, write_report
from raybio.evaluation.unit_scores import MIN_SEEDS
from raybio.methods import METHODS
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.tune.leaderboard import RankedSettings, TrialRecord, best_against_second
from raybio.runtime.tune.plots import (
    plot_cost,
    plot_importance,
    plot_learning,
    plot_parallel,
    plot_parameters,
)
from raybio.runtime.tune.trial import SweepSpec

MIN_TRIALS_FOR_IMPORTANCE = 6


def write_sweep_report(
    folder: RunFolder,
    spec: SweepSpec,
    ranking: Sequence[RankedSettings],
    trials: Sequence[TrialRecord],
) -> list[Path]:
    """Write ``report.html``, ``report.md`` and their pictures (``plots/``); return both pages.

    Args:
        folder: the sweep's folder.
        spec: specification that its trials share.
        ranking: settings, the best first.
        trials: all trials, the best first.
    """
    space = spec.space
    plots = folder.plots
    sections = [Section("Summary", _notes(space, ranking), _summary(spec, ranking, trials))]
    if ranking:
        by_seed = any(len(ranked.trials) > 1 for ranked in ranking)
        text = [
            "Trials are compared by the best of their evaluated steps; export/ holds the model of "
            "that step. 'before training': the best trial at step 0.",
            "Intervals: 95 %, Student's t over seeds, on the evaluated units."
            if by_seed
            else "One seed each, so there are no intervals.",
            *(f"{remark}." for remark in ranking_remarks(space, ranking)),
            *_against_second(ranking, by_seed=by_seed),
        ]
        sections.append(Section("Leaderboard", text, _leaderboard(space, ranking)))
        for heading, about, picture in (
            (
                "Metric against each parameter",
                "Each trial at its best step; the marker shows its status.",
                plot_parameters(space, trials, plots / "parameters.png"),
            ),
            (
                "Parallel coordinates",
                "One line for each trial; the best are thick.",
                plot_parallel(space, trials, plots / "parallel.png"),
            ),
            (
                "Learning curves",
                f"{space.metric} at each evaluation; a cross marks where the scheduler stopped a "
                "trial.",
                plot_learning(space, trials, plots / "learning.png"),
            ),
        ):
            sections.append(Section(heading, [about], (), [(picture, about)]))
        sections.append(_importance(space, trials, plots))
    about = "Minutes in the training loop times workers; the hatching shows the trial's status."
    sections.append(Section("Cost", [about], (), [(plot_cost(trials, plots / "cost.png"), about)]))
    sections.append(Section("All trials", (), _trials(spec, trials)))
    return write_report(f"Sweep {folder.name}", sections, folder.path)


def ranking_remarks(space: SearchSpace, ranking: Sequence[RankedSettings]) -> list[str]:
    """Return lines on the order of the settings, and on the best ones, without a full stop.

    Args:
        space: search space, whose mode says whether more or less is better.
        ranking: the settings, the best first.
    """
    if not ranking:
        return []
    remarks = []
    if len({len(ranked.trials) > 1 for ranked in ranking}) == 2:
        remarks.append("Settings with several seeds rank before those with one")
    best = ranking[0]
    initial = best.trials[0].initial
    if initial is not None:
        gain = best.mean - initial if space.mode == "max" else initial - best.mean
        word = "better" if gain > 0 else "no better"
        seed = " (of one seed)" if len(best.trials) > 1 else ""
        remarks.append(
            f"The best settings, {best.mean:.4f}, are {word} than before training, "
            f"{initial:.4f}{seed}"
        )
    return remarks


def _against_second(ranking: Sequence[RankedSettings], *, by_seed: bool) -> list[str]:
    """Return remarks on the best settings against the runner-up, or why they are not tested."""
    against = best_against_second(ranking)
    if against is None:
        return [f"Fewer than {MIN_SEEDS} seeds each: the first two are not tested."] * by_seed
    value, low, high = against.difference
    return [
        f"The first minus the second: {value:+.4f} [{low:+.4f}, {high:+.4f}], p = {against.p:.2g} "
        "(Welch's t-test over seeds). Both were chosen by their first seed, so the difference is "
        "too large, if anything."
    ]


def importance(space: SearchSpace, trials: Sequence[TrialRecord]) -> dict[str, float] | None:
    """Return the share of the variance between trials that each parameter explains.

    The measure is fANOVA (Hutter et al. 2014). Parameters that only some trials have are excluded,
    as in Optuna. Return None if there are too few trials, only one parameter varies, or all values
    are equal.
    """
    evaluated = [trial for trial in trials if trial.best_value is not None]
    varied = []
    for name in space.space:
        if all(name in trial.settings for trial in evaluated):
            values = {repr(trial.settings[name]) for trial in evaluated}
            if len(values) > 1:
                varied.append(name)
    has_spread = len({trial.best_value for trial in evaluated}) > 1
    if len(evaluated) < MIN_TRIALS_FOR_IMPORTANCE or len(varied) < 2 or not has_spread:
        return None
    import optuna
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    optuna.logging.set_verbosity(logging.WARNING)
    study = optuna.create_study(direction="maximize" if space.mode == "max" else "minimize")
    distributions = {name: _optuna_distribution(space, name) for name in varied}
    for trial in evaluated:
        frozen = optuna.trial.create_trial(
            params={name: trial.settings[name] for name in varied},
            distributions=distributions,
            value=trial.best_value,
        )
        study.add_trial(frozen)
    return dict(get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0)))


def _optuna_distribution(space: SearchSpace, name: str) -> Any:
    import optuna

    distribution = space.space[name]
    if distribution.kind == "choice":
        return optuna.distributions.CategoricalDistribution(list(distribution.values))
    low, high = distribution.values
    if distribution.kind == "int_uniform":
        return optuna.distributions.IntDistribution(low, high)
    return optuna.distributions.FloatDistribution(low, high, log=distribution.kind == "log_uniform")


def _notes(space: SearchSpace, ranking: Sequence[RankedSettings]) -> list[str]:
    if not ranking:
        return ["No trial came to an evaluation."]
    chosen = METHODS[space.method].table.chosen_on_scored(space.metric)
    return [*_about_best(ranking), *([f"Settings and steps were {chosen}."] if chosen else [])]


def _about_best(ranking: Sequence[RankedSettings]) -> list[str]:
    first = ranking[0].trials[0]
    if not first.exploited_from:
        return [
            "best.yaml is the best settings' whole configuration, for raybio train METHOD --config "
            "best.yaml."
        ]
    return [
        "The best trial began with another one's weights: best.yaml has its last settings alone, "
        f"and its weights are in trials/{first.name}/export."
    ]


def _summary(
    spec: SweepSpec, ranking: Sequence[RankedSettings], trials: Sequence[TrialRecord]
) -> list[list[str]]:
    space = spec.space
    num_by_status = Counter(trial.status for trial in trials)
    counts = [f"{number} {status}" for status, number in num_by_status.items()]
    hours = sum(trial.worker_seconds for trial in trials) / 3600
    rows = [
        ["method", space.method],
        ["metric", f"{space.metric}, {'more' if space.mode == 'max' else 'less'} is better"],
        ["trials", ", ".join(counts) or "none"],
        [
            "search",
            f"{space.search.kind}, scheduled by {space.scheduler.kind}, {space.budget.max_steps:,} "
            "steps at most",
        ],
        ["cost", f"{hours:.2f} worker-hours"],
    ]
    if ranking:
        best = ranking[0]
        rows.append([f"best {space.metric}", f"{_score(best)} at step {best.best_step:,}"])
        rows += [[f"best {path}", format_value(value)] for path, value in best.settings.items()]
    return [["", ""], *rows]


def _importance(space: SearchSpace, trials: Sequence[TrialRecord], plots: Path) -> Section:
    heading = "Importance of the parameters"
    shares = importance(space, trials)
    if shares is None:
        wanted = f"at least {MIN_TRIALS_FOR_IMPORTANCE} trials of different values"
        return Section(heading, [f"fANOVA wants {wanted}, and two parameters that vary."])
    about = (
        "fANOVA over the trials' best values. Trials that were stopped early count with what they "
        "had reached, so read it with the learning curves."
    )
    return Section(
        heading, [about], (), [(plot_importance(shares, plots / "importance.png"), about)]
    )


def _leaderboard(space: SearchSpace, ranking: Sequence[RankedSettings]) -> list[list[str]]:
    header = [
        "",
        *(path.rsplit(".", 1)[-1] for path in space.space),
        space.metric,
        "at step",
        "seeds",
        "trial",
    ]
    rows = []
    for number, ranked in enumerate(ranking, start=1):
        chosen = [
            format_value(ranked.settings[path]) if path in ranked.settings else "–"
            for path in space.space
        ]
        where = [f"{ranked.best_step:,}", str(len(ranked.trials)), ranked.trials[0].name]
        rows.append([str(number), *chosen, _score(ranked), *where])
    best = ranking[0].trials[0]
    if best.initial is not None:
        chosen = ["–"] * len(space.space)
        rows.append(["before training", *chosen, f"{best.initial:.4f}", "0", "1", best.name])
    return [header, *rows]


def _score(ranked: RankedSettings) -> str:
    if ranked.low is None:
        return f"{ranked.mean:.4f}"
    return f"{ranked.mean:.4f} [{ranked.low:.4f}, {ranked.high:.4f}]"


def _trials(spec: SweepSpec, trials: Sequence[TrialRecord]) -> list[list[str]]:
    header = [
        "trial",
        spec.space.metric,
        "best step",
        "last step",
        "worker-minutes",
        "status",
        "reason",
    ]
    rows = []
    for trial in trials:
        reason = trial.error
        if not reason and trial.exploited_from:
            reason = f"began with the weights of {trial.exploited_from}"
        rows.append(
            [
                trial.name,
                "–" if trial.best_value is None else f"{trial.best_value:.4f}",
                f"{trial.best_step:,}" if trial.best_step else "–",
                f"{trial.values[-1][0]:,}" if trial.values else "–",
                f"{trial.worker_seconds / 60:.1f}",
                trial.status,
                reason,
            ]
        )
    return [header, *rows]
