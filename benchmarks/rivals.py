"""Rows of a method's final table that need no training, as a run with these settings shows them.

    PYTHONPATH=. python benchmarks/rivals.py table METHOD --store STORE [--config FILE] [--set SETTING=VALUE]

Prints a Markdown table of each split: chance, rivals and the encoder before training. Of ``sppt_mag`` with
``evaluation.test_graphs`` also on samples. Intervals are 95 % bootstrap intervals over units.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raybio.core.config import load, override_all
from raybio.core.markdown import markdown_table
from raybio.evaluation.evaluator import Evaluator
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
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    print(run_table(parse(arguments)))


if __name__ == "__main__":
    main()
