"""Scores of predicted entities and relations, as a table and as plain JSON."""

import math
from collections.abc import Mapping
from typing import Any

from raybio.core.markdown import markdown_table

TASKS = {
    "ner": "entities (NER)",
    "re": "relations, strict (RE)",
    "re_legacy": "relations, as the authors count",
    "re_minus": "relations of word pairs (RE-)",
    "probe": "the same, by a linear probe",
}
"""Title of each task. Scores are F1, precision and recall, macro over entity types or relations."""


SPERT_TASKS = {
    "spert_ner": "entities",
    "spert_boundaries": "relations without NEC",
    "spert_re": "relations with NEC",
}
"""Title of each task of SpERT's evaluation."""


Scores = Mapping[str, Mapping[str, float]]
"""Such as "ner_f1" -> {"value", "low", "high"}."""


def report_markdown(
    intervals: Scores,
    chance: Mapping[str, float],
    rivals: Mapping[str, Scores],
    vote: str,
    title: str,
) -> str:
    """Return a table with one row per task: percent, F1 with its 95 % interval.

    Args:
        intervals: scores of the models.
        chance: F1, precision and recall of the most frequent labels.
        rivals: scores of other rows of the runs' tables, by name.
        vote: describes how neighbors voted.
        title: names models and data.
    """
    rows = []
    for task, name in TASKS.items():
        f1, precision, recall = (
            intervals[f"{task}_{measure}"] for measure in ("f1", "precision", "recall")
        )
        bounds = "–"
        if not math.isnan(f1["low"]):
            bounds = f"[{100 * f1['low']:.2f}, {100 * f1['high']:.2f}]"
        numbers = [precision["value"], recall["value"], chance[f"{task}_f1"]]
        numbers += [scores[f"{task}_f1"]["value"] for scores in rivals.values()]
        shown = [100 * number for number in numbers]
        rows.append(
            [name, f"{100 * f1['value']:.2f}", bounds, *(f"{number:.2f}" for number in shown)]
        )
    header = ["", "F1", "95 % interval", "precision", "recall", "chance F1"]
    table = markdown_table([*header, *(f"{name} F1" for name in rivals)], rows)
    note = (
        "Chance: the most frequent label of training for every word, and for every two words of a "
        "sentence."
    )
    spert = (
        "By SpERT's conventions: all annotated entities; relations between predicted entities "
        "(NEC: with their types)."
    )
    parts = [f"{vote}; in %, intervals over sentences", table, note, spert, _spert_table(intervals)]
    return "\n\n".join([f"# {title}", *parts])


def _spert_table(intervals: Scores) -> str:
    rows = []
    measures = ("precision", "recall", "f1")
    for task, name in SPERT_TASKS.items():
        names = [f"{task}{average}_{what}" for average in ("_micro", "") for what in measures]
        rows.append([name, *(f"{100 * intervals[score]['value']:.2f}" for score in names)])
    header = [f"{average} {what}" for average in ("micro", "macro") for what in ("P", "R", "F1")]
    return markdown_table(["", *header], rows)


def report_data(
    intervals: Scores,
    chance: Mapping[str, float],
    rivals: Mapping[str, Scores],
    num_neighbors: Mapping[str, int],
    models: Mapping[str, str],
) -> dict[str, Any]:
    """Return the content of ``report_markdown`` as plain JSON, with the evaluated models."""
    return {
        "scores": dict(intervals),
        "chance": dict(chance),
        "rivals": dict(rivals),
        "rule": dict(num_neighbors),
        **models,
    }
