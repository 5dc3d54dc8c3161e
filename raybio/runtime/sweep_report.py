"""The report of a sweep: one HTML page with its pictures inside, for a browser, a phone and MLflow's artifacts."""

import base64
import html
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raybio.runtime.leaderboard import Place, TrialRecord
from raybio.runtime.run_folder import RunFolder
from raybio.runtime.sweep_plots import (
    plot_cost,
    plot_importance,
    plot_learning,
    plot_parallel,
    plot_parameters,
    short,
)
from raybio.runtime.trial import TrialOrder
from raybio.search_space import SearchSpace

MIN_TRIALS_FOR_IMPORTANCE = 6
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 62rem; color: #1a1a1a; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
img { max-width: 100%; height: auto; display: block; }
.wide { overflow-x: auto; }
.wide img { min-width: 34rem; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
tr.best { font-weight: 600; } td.text { text-align: left; white-space: normal; min-width: 12rem; }
code { background: #f2f2f2; padding: .1rem .3rem; overflow-wrap: anywhere; }
""".strip()


def write_report(folder: RunFolder, order: TrialOrder, places: Sequence[Place], trials: Sequence[TrialRecord]) -> Path:
    """Write ``report.html`` and its pictures (``plots/``); returns the page.

    Args:
        folder: the sweep's.
        order: what its trials share.
        places: settings, the best first.
        trials: all trials, the best first.
    """
    space, plots = order.space, folder.plots
    sections = [_summary(order, places, trials)]
    if places:
        by_seed = any(len(place.trials) > 1 for place in places)
        note = "Interval: 95 %, Student's t over seeds. " if by_seed else "One seed each: no intervals. "
        sections.append(_section("Leaderboard", note + _EXPLAINED_STEP, _leaderboard(space, places)))
        about = "Each trial at its best step; the marker says how it ended."
        picture = plot_parameters(space, trials, plots / "parameters.png")
        sections.append(_section("Metric against each parameter", about, _picture(picture, about)))
        about = "A line a trial; the thick ones are the best."
        sections.append(
            _section(
                "Parallel coordinates", about, _picture(plot_parallel(space, trials, plots / "parallel.png"), about)
            )
        )
        sections.append(_importance(space, trials, plots))
        about = f"{space.metric} at each evaluation; a cross is where the scheduler stopped a trial."
        sections.append(
            _section("Learning curves", about, _picture(plot_learning(space, trials, plots / "learning.png"), about))
        )
    about = "Time in the training loop times workers, hatched by how the trial ended."
    sections.append(_section("Cost", about, _picture(plot_cost(trials, order.workers, plots / "cost.png"), about)))
    sections.append(_section("All trials", "", _trials(order, trials)))
    title = html.escape(f"Sweep {folder.name}")
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{_STYLE}</style></head>\n'
        f"<body><h1>{title}</h1>\n{''.join(sections)}</body></html>\n"
    )
    path = folder.path / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


_EXPLAINED_STEP = (
    "A trial counts by the best of its evaluated steps; its <code>export/</code> is the model of that step."
)


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

    study = optuna.create_study(direction="maximize" if space.mode == "max" else "minimize")
    distributions = {name: _optuna_distribution(space, name) for name in varied}
    for one in judged:
        params = {name: one.settings[name] for name in varied}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=one.best_value))
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


def _summary(order: TrialOrder, places: Sequence[Place], trials: Sequence[TrialRecord]) -> str:
    space = order.space
    ways = Counter(one.status for one in trials)
    hours = order.workers * sum(one.seconds for one in trials) / 3600
    rows = {
        "System": space.system,
        "Metric": f"{space.metric}, {'more' if space.mode == 'max' else 'less'} is better",
        "Trials": ", ".join(f"{number} {status}" for status, number in ways.items()) or "none",
        "Search": f"{space.search.kind}, judged by {space.scheduler.kind}, {space.budget.max_steps:,} steps at most",
        "Cost": f"{hours:.2f} worker-hours, {order.workers} worker(s) a trial",
    }
    if places:
        best = places[0]
        chosen = ", ".join(f"{path} = {short(value)}" for path, value in best.settings.items())
        rows["Best"] = f"{_score(best)} at step {best.best_step:,}: {chosen}"
        if best.trials[0].goes_on_from:
            rows["Note"] = (
                "the best trial went on from another one's weights: best.yaml has its last settings alone, and its "
                f"weights are in trials/{best.trials[0].name}/export"
            )
    lines = "".join(f"<tr><td>{name}</td><td class=text>{html.escape(text)}</td></tr>" for name, text in rows.items())
    return f"<div class=wide><table>{lines}</table></div>\n"


def _importance(space: SearchSpace, trials: Sequence[TrialRecord], plots: Path) -> str:
    shares = importance(space, trials)
    if shares is None:
        wanted = f"at least {MIN_TRIALS_FOR_IMPORTANCE} trials and two parameters that vary"
        return _section("Importance of the parameters", f"Too little to tell: it wants {wanted}.", "")
    about = (
        "fANOVA over the trials' best values. Trials that were stopped early count with what they had reached, so read "
        "it with the learning curves."
    )
    picture = plot_importance(shares, plots / "importance.png")
    return _section("Importance of the parameters", about, _picture(picture, about))


def _leaderboard(space: SearchSpace, places: Sequence[Place]) -> str:
    header = ["", *(path.rsplit(".", 1)[-1] for path in space.space), space.metric, "at step", "seeds", "trial"]
    rows = []
    for number, place in enumerate(places, start=1):
        chosen = [short(place.settings[path]) if path in place.settings else "–" for path in space.space]
        rows.append(
            [str(number), *chosen, _score(place), f"{place.best_step:,}", str(len(place.trials)), place.trials[0].name]
        )
    return _table(header, rows)


def _score(place: Place) -> str:
    return f"{place.mean:.4f}" + ("" if place.low is None else f" [{place.low:.4f}, {place.high:.4f}]")


def _trials(order: TrialOrder, trials: Sequence[TrialRecord]) -> str:
    header = ["trial", order.space.metric, "best step", "last step", "worker-minutes", "ended", "why"]
    rows = []
    for one in trials:
        value = "–" if one.best_value is None else f"{one.best_value:.4f}"
        steps = [f"{one.best_step:,}" if one.best_step else "–", f"{one.values[-1][0]:,}" if one.values else "–"]
        why = one.error or (f"began with the weights of {one.goes_on_from}" if one.goes_on_from else "")
        rows.append([one.name, value, *steps, f"{order.workers * one.seconds / 60:.1f}", one.status, why])
    return _table(header, rows, has_best=False)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, has_best: bool = True) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    lines = []
    for number, row in enumerate(rows):
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
        lines.append(f"<tr class=best>{cells}</tr>" if number == 0 and has_best else f"<tr>{cells}</tr>")
    return f"<div class=wide><table><tr>{head}</tr>{''.join(lines)}</table></div>"


def _section(heading: str, about: str, body: str) -> str:
    return f"<h2>{heading}</h2>\n<p>{about}</p>\n{body}\n"


def _picture(path: Path, described: str) -> str:
    encoded = base64.b64encode(path.read_bytes()).decode()
    return f'<div class=wide><img src="data:image/png;base64,{encoded}" alt="{html.escape(described)}"></div>'
