"""Which step of a rewiring would be taken without gold, and what gold says of it, from the metrics of runs."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from raybio.core.markdown import markdown_table
from raybio.methods.contrastive_probe.label_free_selection import (
    Floats,
    Integers,
    accuracy_of,
    choice_table,
    choices,
    relation_table,
)
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import read_reports

AGREEMENT, HELD_OUT = "val/agreement_at_10", "val/held_out_mrr"


PAPERS_STEP = 150
"""Whose checkpoint the paper probes."""


COLUMNS = ("label", "run", "chosen_by", "relation", "step", "value")


class RunChoice(NamedTuple):
    """The steps of a run that rules take, by relation."""

    run: str
    steps: list[int]
    relations: list[str]
    value_SR: Floats
    rules: dict[str, Integers]


def run_choice(folder: Path, name: str, metric: str) -> RunChoice | None:
    """What rules choose among a run's evaluated steps but its start; None if the run lacks what they need.

    Step 0 is left out: what is chosen is a step of the rewiring.

    Args:
        folder: of runs.
        name: the run's.
        metric: what gold says, logged by relation as well (``metric/relation``).
    """
    by_step = {
        report["step"]: report["metrics"]
        for report in read_reports(RunFolder(folder, name).metrics)
        if report["step"] > 0 and metric in report["metrics"]
    }
    steps = sorted(by_step)
    relations = (
        [
            key.removeprefix(f"{metric}/")
            for key in by_step[steps[0]]
            if key.startswith(f"{metric}/")
        ]
        if steps
        else []
    )
    has_agreement, has_held_out = (
        all(signal in metrics for metrics in by_step.values()) for signal in (AGREEMENT, HELD_OUT)
    )
    if not relations or not (has_agreement or has_held_out):
        return None

    def by_relation(prefix: str) -> Floats:
        return np.array(
            [[by_step[step].get(f"{prefix}/{one}", np.nan) for one in relations] for step in steps]
        )

    value_SR, agreement_SR = by_relation(metric), by_relation(AGREEMENT) if has_agreement else None
    held_out_S = np.array([by_step[step][HELD_OUT] for step in steps]) if has_held_out else None
    fixed = (
        {f"step {PAPERS_STEP} (the paper)": steps.index(PAPERS_STEP)}
        if PAPERS_STEP in steps
        else None
    )
    return RunChoice(
        name, steps, relations, value_SR, choices(value_SR, agreement_SR, held_out_S, fixed)
    )


def write_choices(
    by_label: Mapping[str, Sequence[RunChoice]], metric: str, out: Path
) -> list[Path]:
    """``choice.csv`` (a row a run, rule and relation) and ``choice.md``, which is printed too; returns the files."""
    rows, sections = (
        [],
        [
            f"# Steps chosen without gold: {metric}, mean over relations, in percent; step 0, the start, is no choice"
        ],
    )
    for label, found in by_label.items():
        for one in found:
            steps = [f"{step:,}" for step in one.steps]
            sections += [f"## {label}" + (f", run {one.run}" if len(found) > 1 else "")]
            tables = (
                choice_table(one.rules, one.value_SR, steps),
                relation_table(one.rules, one.value_SR, steps, one.relations),
            )
            sections += [markdown_table(header, body) for header, *body in tables]
            rows += [
                (label, one.run, rule, relation, one.steps[place], one.value_SR[place, number])
                for rule, place_R in one.rules.items()
                for number, (relation, place) in enumerate(
                    zip(one.relations, place_R.tolist(), strict=True)
                )
            ]
        if len(found) > 1:
            header, *body = _means(found)
            sections += [f"## {label}, {len(found)} runs", markdown_table(header, body)]
    with (out / "choice.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    text = "\n\n".join(sections) + "\n"
    (out / "choice.md").write_text(text, encoding="utf-8")
    print(text)
    return [out / "choice.csv", out / "choice.md"]


def _means(found: Sequence[RunChoice]) -> list[list[str]]:
    """Mean ± deviation of a sample over runs, of the rules that all of them have."""
    table = [["chosen by", "accuracy"]]
    for rule in found[0].rules:
        if all(rule in one.rules for one in found):
            value = 100 * np.array([accuracy_of(one.rules[rule], one.value_SR) for one in found])
            table.append([rule, f"{value.mean():.2f} ± {value.std(ddof=1):.2f}"])
    return table
