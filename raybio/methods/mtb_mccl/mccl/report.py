"""Scores of extracted relations, as plain JSON and as tables.

Shape letters: C classes, "NA" first.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raybio.core.markdown import markdown_table
from raybio.methods.mtb_mccl.mccl.scores import BOOTSTRAP_SEED, RelationScores


def report_data(
    names: Sequence[str],
    scores: RelationScores,
    classification: str,
    confusion_CC: np.ndarray | None,
    *,
    chance: RelationScores,
    chance_of: str,
    truncation: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the content of the report as plain JSON.

    Args:
        names: names of the classes.
        scores: scores of the predictions.
        classification: describes how pairs were classified.
        confusion_CC: number of pairs by gold and predicted class, or None.
        chance: scores of predicting the most frequent relation of ``chance_of`` for every pair.
        chance_of: the pairs whose relations are counted.
        truncation: remarks on truncated documents.
    """
    intervals = scores.intervals(np.random.default_rng(BOOTSTRAP_SEED))
    by_relation = scores.by_relation()
    relations = {}
    for number in range(1, len(names)):
        if by_relation["gold"][number] + by_relation["predicted"][number] > 0:
            relations[names[number]] = {
                measure: round(float(value_R[number]), 6)
                for measure, value_R in by_relation.items()
            }
    return {
        "scores": {name: interval._asdict() for name, interval in intervals.items()},
        "chance": {name: chance.values[name] for name in intervals},
        "chance_of": chance_of,
        "classification": classification,
        "truncation": list(truncation),
        "relations": relations,
        "classes": list(names),
        "confusion": None if confusion_CC is None else confusion_CC.tolist(),
    }


def report_markdown(data: Mapping[str, Any], title: str) -> str:
    """Return tables of the scores with 95 % intervals, of each relation, and of confusions."""
    parts = [
        f"# {title}",
        "; ".join([data["classification"], "intervals over documents", *data["truncation"]]),
        _scores_table(data),
        f"Chance: the most frequent relation of {data['chance_of']} for every pair.",
        _relations_table(data),
    ]
    if data["confusion"] is not None:
        parts.append(_confusion_table(data))
    return "\n\n".join(parts)


def bounds_text(score: Mapping[str, float]) -> str:
    """Return the interval of a score, as "[59.01%, 63.97%]"; "" where it is unknown."""
    if math.isnan(score["low"]):
        return ""
    return f"[{score['low']:.2%}, {score['high']:.2%}]"


def _scores_table(data: Mapping[str, Any]) -> str:
    rows = [
        [
            name.replace("_", " "),
            f"{score['value']:.2%}",
            bounds_text(score) or "–",
            f"{data['chance'][name]:.2%}",
        ]
        for name, score in data["scores"].items()
    ]
    return markdown_table(["score", "value", "95 % interval", "chance"], rows)


def _relations_table(data: Mapping[str, Any]) -> str:
    by_frequency = sorted(data["relations"].items(), key=lambda item: -item[1]["gold"])
    rows = [
        [
            name,
            f"{scores['precision']:.2%}",
            f"{scores['recall']:.2%}",
            f"{scores['f1']:.2%}",
            f"{scores['gold']:.0f}",
            f"{scores['predicted']:.0f}",
        ]
        for name, scores in by_frequency
    ]
    return markdown_table(["relation", "precision", "recall", "f1", "gold", "predicted"], rows)


def _confusion_table(data: Mapping[str, Any]) -> str:
    rows = [
        [name, *map(str, counts)]
        for name, counts in zip(data["classes"], data["confusion"], strict=True)
    ]
    return markdown_table(["gold \\ predicted", *data["classes"]], rows)
