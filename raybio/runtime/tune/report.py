"""The report of a sweep, for a browser, a phone and MLflow's artifacts."""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raybio.core.search_space import SearchSpace, format_value
from raybio.evaluation.report import Section, write_report
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.tune.leaderboard import RankedSettings, TrialRecord
from raybio.runtime.tune.plots import (
    plot_cost,
    plot_importance,
    plot_learning,
    plot_parallel,
    plot_parameters,
)
from raybio.runtime.tune.trial import TrialSpec

MIN_TRIALS_FOR_IMPORTANCE = 6


def write_sweep_report(
    folder: RunFolder,
    spec: TrialSpec,
    ranking: Sequence[RankedSettings],
    trials: Sequence[TrialRecord],
) -> list[Path]:
    """Write ``report.html``, ``report.md`` and their pictures (``plots/``); returns both pages.

    Args:
        folder: the sweep's.
        spec: what its trials share.
        ranking: settings, the best first.
        trials: all trials, the best first.
    """
    space, plots = spec.space, folder.plots
    sections = [Section("Summary", _notes(ranking), _summary(spec, ranking, trials))]
    if ranking:
        by_seed = any(len(ranked.trials) > 1 for ranked in ranking)
        text = [
            "A trial counts by the best of its evaluated steps; its export/ is the model of that step.",
            "Intervals: 95 %, Student's t over seeds."
            if by_seed
            else "One seed each, so there are no intervals.",
        ]
        sections.append(Section("Leaderboard", text, _leaderboard(space, ranking)))
        for heading, about, picture in (
            (
                "Metric against each parameter",
                "Each trial at its best step; the marker says how it ended.",
                plot_parameters(space, trials, plots / "parameters.png"),
            ),
            (
                "Parallel coordinates",
                "A line a trial; the thick ones are the best.",
                plot_parallel(space, trials, plots / "parallel.png"),
            ),
            (
                "Learning curves",
                f"{space.metric} at each evaluation; a cross is where the scheduler stopped a trial.",
                plot_learning(space, trials, plots / "learning.png"),
            ),
        ):
            sections.append(Section(heading, [about], (), [(picture, about)]))
        sections.append(_importance(space, trials, plots))
    about = "Minutes in the training loop times workers, hatched by how the trial ended."
    sections.append(Section("Cost", [about], (), [(plot_cost(trials, plots / "cost.png"), about)]))
    sections.append(Section("All trials", (), _trials(spec, trials)))
    return write_report(f"Sweep {folder.name}", sections, folder.path)


def importance(space: SearchSpace, trials: Sequence[TrialRecord]) -> dict[str, float] | None:
    """Share of the variance between trials that each parameter explains (fANOVA, Hutter et al. 2014).

    None where too few trials or one parameter alone say nothing. Parameters that only some trials have are left out,
    as Optuna does.
    """
    judged = [one for one in trials if one.best_value is not None]
    shared = [name for name in space.space if all(name in one.settings for one in judged)]
    varied = [name for name in shared if len({repr(one.settings[name]) for one in judged}) > 1]
    if len(judged) < MIN_TRIALS_FOR_IMPORTANCE or len(varied) < 2:
        return None
    import optuna
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    optuna.logging.set_verbosity(logging.WARNING)
    study = optuna.create_study(direction="maximize" if space.mode == "max" else "minimize")
    distributions = {name: _optuna_distribution(space, name) for name in varied}
    for one in judged:
        params = {name: one.settings[name] for name in varied}
        study.add_trial(
            optuna.trial.create_trial(
                params=params, distributions=distributions, value=one.best_value
            )
        )
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


def _notes(ranking: Sequence[RankedSettings]) -> list[str]:
    if not ranking:
        return ["No trial came to an evaluation."]
    first = ranking[0].trials[0]
    if not first.goes_on_from:
        return ["best.yaml is the best settings' whole configuration, for the method's own job."]
    return [
        "The best trial went on from another one's weights: best.yaml has its last settings alone, and its weights are "
        f"in trials/{first.name}/export."
    ]


def _summary(
    spec: TrialSpec, ranking: Sequence[RankedSettings], trials: Sequence[TrialRecord]
) -> list[list[str]]:
    space = spec.space
    ways = Counter(one.status for one in trials)
    hours = sum(one.worker_seconds for one in trials) / 3600
    rows = [
        ["method", space.method],
        ["metric", f"{space.metric}, {'more' if space.mode == 'max' else 'less'} is better"],
        ["trials", ", ".join(f"{number} {status}" for status, number in ways.items()) or "none"],
        [
            "search",
            f"{space.search.kind}, judged by {space.scheduler.kind}, {space.budget.max_steps:,} steps at most",
        ],
        ["cost", f"{hours:.2f} worker-hours"],
    ]
    if ranking:
        rows.append(
            [f"best {space.metric}", f"{_score(ranking[0])} at step {ranking[0].best_step:,}"]
        )
        rows += [
            [f"best {path}", format_value(value)] for path, value in ranking[0].settings.items()
        ]
    return [["", ""], *rows]


def _importance(space: SearchSpace, trials: Sequence[TrialRecord], plots: Path) -> Section:
    heading, shares = "Importance of the parameters", importance(space, trials)
    if shares is None:
        wanted = f"at least {MIN_TRIALS_FOR_IMPORTANCE} trials and two parameters that vary"
        return Section(heading, [f"Too little to tell: it wants {wanted}."])
    about = (
        "fANOVA over the trials' best values. Trials that were stopped early count with what they had reached, so read "
        "it with the learning curves."
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
    return [header, *rows]


def _score(ranked: RankedSettings) -> str:
    return f"{ranked.mean:.4f}" + (
        "" if ranked.low is None else f" [{ranked.low:.4f}, {ranked.high:.4f}]"
    )


def _trials(spec: TrialSpec, trials: Sequence[TrialRecord]) -> list[list[str]]:
    header = [
        "trial",
        spec.space.metric,
        "best step",
        "last step",
        "worker-minutes",
        "ended",
        "why",
    ]
    rows = []
    for one in trials:
        value = "–" if one.best_value is None else f"{one.best_value:.4f}"
        steps = [
            f"{one.best_step:,}" if one.best_step else "–",
            f"{one.values[-1][0]:,}" if one.values else "–",
        ]
        why = one.error or (
            f"began with the weights of {one.goes_on_from}" if one.goes_on_from else ""
        )
        rows.append([one.name, value, *steps, f"{one.worker_seconds / 60:.1f}", one.status, why])
    return [header, *rows]
