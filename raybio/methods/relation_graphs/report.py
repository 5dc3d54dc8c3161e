"""Scores of predicted entities and relations, as a table and as plain JSON."""

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


def report_markdown(
    intervals: Mapping[str, Mapping[str, float]], chance: Mapping[str, float], rule: str, title: str
) -> str:
    """Return a table with one row per task: percent, F1 with its 95 % interval.

    Args:
        intervals: such as "ner_f1" -> {"value", "low", "high"}.
        chance: F1, precision and recall of the most frequent labels.
        rule: describes how neighbors voted.
        title: names models and data.
    """
    rows = []
    for task, name in TASKS.items():
        f1, precision, recall = (
            intervals[f"{task}_{measure}"] for measure in ("f1", "precision", "recall")
        )
        bounds = f"[{100 * f1['low']:.2f}, {100 * f1['high']:.2f}]"
        shown = [
            100 * number for number in (precision["value"], recall["value"], chance[f"{task}_f1"])
        ]
        rows.append(
            [name, f"{100 * f1['value']:.2f}", bounds, *(f"{number:.2f}" for number in shown)]
        )
    table = markdown_table(["", "F1", "95 % interval", "precision", "recall", "chance F1"], rows)
    note = (
        "Chance: the most frequent label of training for every word, and for every two words of a "
        "sentence."
    )
    return f"# {title}\n\n{rule}; in %, intervals over sentences\n\n{table}\n\n{note}"


def report_data(
    intervals: Mapping[str, Any],
    chance: Mapping[str, float],
    rule: Mapping[str, int],
    models: Mapping[str, str],
) -> dict[str, Any]:
    """Return the same as plain JSON, with the evaluated models."""
    return {"scores": dict(intervals), "chance": dict(chance), "rule": dict(rule), **models}
