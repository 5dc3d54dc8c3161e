"""Label-free selection of a training step, from the evaluation metrics that runs log."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raybio.core.arrays import Floats, Integers
from raybio.core.csv_table import write_csv
from raybio.core.files import replace_text
from raybio.core.markdown import markdown_table
from raybio.methods.contrastive_probe.label_free_selection import (
    Table,
    relation_table,
    select_candidates,
    selected_accuracy,
    selection_table,
)
from raybio.training.method import MetricsByStep

AGREEMENT = "val/agreement_at_10"
HELD_OUT = "val/held_out_mrr"

_GOLD = re.compile(r"val/(hard_)?acc_at_\d+")
"""Metrics that read gold answers, which are also logged by relation."""

PAPER_STEP = 150
"""The step whose checkpoint the paper probes."""

COLUMNS = ("label", "run", "chosen_by", "relation", "step", "value")


@dataclass(frozen=True)
class StepSelection:
    """The steps of one run that each rule selects (S evaluated steps, R relations).

    Attributes:
        steps: evaluated steps in ascending order, without step 0.
        relations: names of the relations.
        accuracy_SR: the gold metric at each step.
        index_by_rule: rule -> index into ``steps`` for each relation (R,).
    """

    steps: list[int]
    relations: list[str]
    accuracy_SR: Floats
    index_by_rule: dict[str, Integers]

    @property
    def shown_steps(self) -> list[str]:
        """The steps with thousands separators."""
        return [f"{step:,}" for step in self.steps]


def select_steps(metrics_by_step: MetricsByStep, metric: str) -> StepSelection | None:
    """Return the steps that each rule selects.

    It is None if the metric reads no gold, or if the run does not log what the rules need.

    Step 0, the encoder before rewiring, is never selected.

    Args:
        metrics_by_step: evaluation metrics of a run.
        metric: the gold metric, which is also logged by relation (``metric/relation``).
    """
    if not _GOLD.fullmatch(metric):
        return None
    evaluated = {
        step: metrics for step, metrics in metrics_by_step.items() if step > 0 and metric in metrics
    }
    steps = sorted(evaluated)
    if not steps:
        return None
    relations = [
        name.removeprefix(f"{metric}/")
        for name in evaluated[steps[0]]
        if name.startswith(f"{metric}/")
    ]
    has_agreement = all(AGREEMENT in metrics for metrics in evaluated.values())
    has_held_out = all(HELD_OUT in metrics for metrics in evaluated.values())
    if not relations or not (has_agreement or has_held_out):
        return None

    def by_relation(prefix: str) -> Floats:
        values = np.full((len(steps), len(relations)), np.nan)
        for row, step in enumerate(steps):
            for column, relation in enumerate(relations):
                values[row, column] = evaluated[step].get(f"{prefix}/{relation}", np.nan)
        return values

    accuracy_SR = by_relation(metric)
    held_out_S = np.array([evaluated[step][HELD_OUT] for step in steps]) if has_held_out else None
    fixed = {}
    if PAPER_STEP in steps:
        fixed[f"step {PAPER_STEP} (the paper)"] = steps.index(PAPER_STEP)
    index_by_rule = select_candidates(
        accuracy_SR,
        agreement_SR=by_relation(AGREEMENT) if has_agreement else None,
        held_out_S=held_out_S,
        fixed=fixed,
    )
    return StepSelection(steps, relations, accuracy_SR, index_by_rule)


def write_step_selection(
    runs_by_label: Mapping[str, Mapping[str, MetricsByStep]], metric: str, out: Path
) -> list[Path]:
    """Write ``choice.csv`` and ``choice.md``, and print the latter; return the files.

    Labels with a run that lacks the needed metrics are skipped, which is printed. Without labels
    nothing is written.

    Args:
        runs_by_label: label -> name of a run -> its evaluation metrics by step.
        metric: the gold metric.
        out: an existing folder. Earlier files of these names are removed.
    """
    table_path = out / "choice.csv"
    text_path = out / "choice.md"
    table_path.unlink(missing_ok=True)
    text_path.unlink(missing_ok=True)
    selections_by_label: dict[str, dict[str, StepSelection]] = {}
    lacking_by_label: dict[str, list[str]] = {}
    for label, runs in runs_by_label.items():
        selections: dict[str, StepSelection] = {}
        for name, metrics_by_step in runs.items():
            selection = select_steps(metrics_by_step, metric)
            if selection is not None:
                selections[name] = selection
        lacking = [name for name in runs if name not in selections]
        if lacking:
            lacking_by_label[label] = lacking
        else:
            selections_by_label[label] = selections
    if not selections_by_label:
        return []
    rows: list[Sequence[object]] = [COLUMNS]
    for label, selections in selections_by_label.items():
        for name, selection in selections.items():
            rows += [[label, name, *row] for row in _rows(selection)]
    write_csv(table_path, rows)
    text = _markdown(selections_by_label, metric)
    replace_text(text_path, text)
    print(text)
    for label, lacking in lacking_by_label.items():
        print(
            f"{label}: no label-free step selection; {', '.join(lacking)}: without {metric} by "
            f"relation, or without both {HELD_OUT} and {AGREEMENT}"
        )
    return [table_path, text_path]


def _rows(selection: StepSelection) -> Iterator[tuple[str, str, int, float]]:
    """Yield (rule, relation, step, accuracy there)."""
    for rule, index_R in selection.index_by_rule.items():
        for column, index in enumerate(index_R.tolist()):
            accuracy = selection.accuracy_SR[index, column]
            yield rule, selection.relations[column], selection.steps[index], accuracy


def _markdown(selections_by_label: Mapping[str, Mapping[str, StepSelection]], metric: str) -> str:
    sections = [
        f"# Label-free step selection: {metric}, mean over relations, in percent "
        "(step 0 is not a candidate)"
    ]
    for label, selections in selections_by_label.items():
        for name, selection in selections.items():
            run = f", run {name}" if len(selections) > 1 else ""
            sections.append(f"## {label}{run}")
            index_by_rule = selection.index_by_rule
            tables = [
                selection_table(index_by_rule, selection.accuracy_SR, selection.shown_steps),
                relation_table(
                    index_by_rule,
                    selection.accuracy_SR,
                    selection.shown_steps,
                    selection.relations,
                ),
            ]
            sections += [markdown_table(header, body) for header, *body in tables]
        if len(selections) > 1:
            header, *body = _mean_table(list(selections.values()))
            sections.append(f"## {label}, {len(selections)} runs")
            sections.append(markdown_table(header, body))
    return "\n\n".join(sections) + "\n"


def _mean_table(selections: Sequence[StepSelection]) -> Table:
    """Return the mean ± sample standard deviation over runs, for the rules that all runs have."""
    table = [["chosen by", "accuracy"]]
    for rule in selections[0].index_by_rule:
        if all(rule in selection.index_by_rule for selection in selections):
            accuracies = 100 * np.array(
                [
                    selected_accuracy(selection.index_by_rule[rule], selection.accuracy_SR)
                    for selection in selections
                ]
            )
            table.append([rule, f"{accuracies.mean():.2f} ± {accuracies.std(ddof=1):.2f}"])
    return table
