"""Rows of a method's final table that need no training, and the difference of runs from a row of other runs.

    PYTHONPATH=. python benchmarks/rivals.py table METHOD --store STORE [--config FILE] [--set SETTING=VALUE]
    PYTHONPATH=. python benchmarks/rivals.py difference RUN,RUN,RUN RUN,RUN,RUN --row ROW [--split val] [--measure lrap]

``table`` prints a Markdown table of each split, as a run with these settings shows it: chance, rivals and the encoder
before training. Of ``sppt_mag`` with ``evaluation.test_graphs`` also on samples. Intervals are 95 % bootstrap intervals
over units. ``difference`` takes folders of runs: the first are trained, and those with other settings have the row. It
prints the paired difference, with a 95 % interval over seeds and units, and its p value. Give one run for a row that
is the same for all seeds: each of the first is then compared with it.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raybio.core.config import load, override_all
from raybio.core.final_report import UnitScores
from raybio.core.markdown import markdown_table
from raybio.evaluation.evaluator import Evaluator
from raybio.evaluation.unit_scores import (
    TRAINED,
    paired_difference,
    read_unit_scores,
    untrained_difference,
)
from raybio.methods import METHODS
from raybio.training.collective import SingleProcess
from raybio.training.settings import TrainingConfig


def run_table(arguments: argparse.Namespace) -> str:
    """Score what a method's final table has without training."""
    method = METHODS[arguments.method]
    system = method.build(config_of(arguments), arguments.store)
    assert system.final_evaluate is not None
    evaluator: Evaluator = system.final_evaluate.__self__  # type: ignore[attr-defined]
    scores_by_stage: dict[str, Any] = {}
    for untrained in evaluator.untrained(system.model, SingleProcess()):
        for stage, of_model in untrained.rows():
            scores_by_stage.setdefault("chance", {}).update(of_model.chance)
            scores_by_stage[stage] = of_model.scores
    layout = method.table
    parts = []
    for split, title in layout.splits.items():
        rows = []
        for stage, by_split in scores_by_stage.items():
            if split in by_split:
                cells = [
                    score_cell(by_split[split].get(measure), *layout.scale(measure))
                    for measure in layout.measures
                ]
                rows.append([stage, *cells])
        if rows:
            table = markdown_table([title, *layout.measures.values()], rows)
            parts.append(table)
    return "\n\n".join([*parts, *(f"{remark}." for remark in evaluator.remarks())])


def run_difference(arguments: argparse.Namespace) -> str:
    """Compare trained runs with a row of other runs, on the same units."""
    trained = [unit_scores(run, TRAINED, arguments.split) for run in arguments.runs.split(",")]
    others = [unit_scores(run, arguments.row, arguments.split) for run in arguments.of.split(",")]
    measures = list(trained[0].value_by_measure)
    if arguments.measure not in measures:
        sys.exit(f"--measure {arguments.measure}: there are {', '.join(measures)}")
    try:
        if len(others) == 1:
            found = untrained_difference(trained, others * len(trained), arguments.measure)
        else:
            found = paired_difference(trained, others, arguments.measure)
    except ValueError as error:
        sys.exit(str(error))
    value, low, high = found.difference
    p = "" if found.p is None else f", p = {found.p:.2g}"
    return f"{value:+.4f} [{low:+.4f}, {high:+.4f}]{p}; {found.num_units:,} units"


def unit_scores(run: str, row: str, split: str) -> UnitScores:
    """Return the scores of a row of a run's final table."""
    path = Path(run) / "unit_scores.npz"
    by_row = read_unit_scores(path)
    if row not in by_row or split not in by_row[row]:
        rows = ", ".join(f"{name} ({', '.join(splits)})" for name, splits in by_row.items())
        sys.exit(f"{path}: no row {row!r} of split {split!r}; there are {rows or 'none'}")
    return by_row[row][split]


def config_of(arguments: argparse.Namespace) -> TrainingConfig:
    """Return the method's defaults, with the settings of ``--config``, then of ``--set``."""
    method = METHODS[arguments.method]
    config = method.config()
    if arguments.config:
        config = load(method.config, arguments.config, config)
    return override_all(config, dict(one.split("=", 1) for one in arguments.set))


def score_cell(score: Mapping[str, float] | None, scale: float, digits: int) -> str:
    """Return a score with its interval, if it has one."""
    if score is None:
        return ""
    low, high = score.get("low"), score.get("high")
    value = f"{scale * score['value']:.{digits}f}"
    if low is None or high is None:
        return value
    return f"{value} [{scale * low:.{digits}f}, {scale * high:.{digits}f}]"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    table = commands.add_parser("table")
    table.add_argument("method", choices=list(METHODS))
    table.add_argument("--store", type=Path, required=True, help="prepared with raybio prepare")
    table.add_argument("--config", type=Path, help="YAML file of settings")
    table.add_argument("--set", action="append", default=[], help="SETTING=VALUE; repeatable")
    table.set_defaults(run=run_table)
    difference = commands.add_parser("difference")
    difference.add_argument("runs", metavar="RUN,RUN,…", help="folders of trained runs")
    difference.add_argument("of", metavar="RUN,RUN,…", help="folders of runs that have the row")
    difference.add_argument("--row", required=True, help="its name, such as composition")
    difference.add_argument("--split", default="val")
    difference.add_argument("--measure", default="lrap")
    difference.set_defaults(run=run_difference)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    given = parse(arguments)
    print(given.run(given))


if __name__ == "__main__":
    main()
