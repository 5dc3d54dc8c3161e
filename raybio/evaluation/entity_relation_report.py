"""Scores of found entities and relations as a table."""

from collections.abc import Mapping
from typing import Any

from raybio.markdown import markdown_table

TASKS = {
    "ner": "entities (NER)",
    "re": "relations, strict (RE)",
    "re_legacy": "relations, as the authors count",
    "re_minus": "relations of word pairs (RE-)",
    "probe": "the same, by a linear probe",
}
"""What is scored, each by F1, precision and recall; macro over types of entities, or relations."""


def report_markdown(intervals: Mapping[str, Mapping[str, float]], rule: str, title: str) -> str:
    """A row a task, in percent, F1 with its 95 % interval.

    Args:
        intervals: such as "ner_f1" -> {"value", "low", "high"}.
        rule: in words, how neighbours voted.
        title: what was judged.
    """
    rows = []
    for task, name in TASKS.items():
        f1, precision, recall = (intervals[f"{task}_{measure}"] for measure in ("f1", "precision", "recall"))
        bounds = f"[{100 * f1['low']:.2f}, {100 * f1['high']:.2f}]"
        rows.append(
            [name, f"{100 * f1['value']:.2f}", bounds, *(f"{100 * one['value']:.2f}" for one in (precision, recall))]
        )
    table = markdown_table(["", "F1", "95 % interval", "precision", "recall"], rows)
    return f"# {title}\n\n{rule}; in %, intervals over sentences\n\n{table}"


def report_data(intervals: Mapping[str, Any], rule: Mapping[str, int], models: Mapping[str, str]) -> dict[str, Any]:
    """The same as plain JSON, with what was judged."""
    return {"scores": dict(intervals), "rule": dict(rule), **models}
