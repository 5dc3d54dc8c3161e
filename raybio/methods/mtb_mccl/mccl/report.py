"""Report."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raybio.core.markdown import markdown_table
from raybio.methods.mtb_mccl.mccl.scores import BOOTSTRAP_SEED, RelationScores


def report_data(
    names: Sequence[str],
    scores: RelationScores,
    rule: str,
    confusion_CC: np.ndarray | None,
    *,
    chance: RelationScores,
    cuts: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything that the report shows, as plain JSON.

    Args:
        names: of the classes.
        scores: of the predictions.
        rule: in words, how pairs were classified.
        confusion_CC: gold by predicted classes, or None.
        chance: of giving every pair the most frequent relation.
        cuts: says which documents are not read whole.
    """
    intervals = scores.intervals(np.random.default_rng(BOOTSTRAP_SEED))
    told = scores.by_relation()
    asked = [
        number for number in range(1, len(names)) if told["gold"][number] + told["found"][number]
    ]
    return {
        "scores": {name: interval._asdict() for name, interval in intervals.items()},
        "chance": {name: chance.values[name] for name in intervals},
        "rule": rule,
        "cuts": list(cuts),
        "relations": {
            names[number]: {
                measure: round(float(values[number]), 6) for measure, values in told.items()
            }
            for number in asked
        },
        "classes": list(names),
        "confusion": None if confusion_CC is None else confusion_CC.tolist(),
    }


def report_markdown(data: Mapping[str, Any], title: str) -> str:
    """The scores with their 95 % intervals, each relation, and the confusion matrix."""
    rows = [
        [
            name.replace("_", " "),
            f"{one['value']:.2%}",
            f"[{one['low']:.2%}, {one['high']:.2%}]",
            f"{data['chance'][name]:.2%}",
        ]
        for name, one in data["scores"].items()
    ]
    parts = [
        f"# {title}",
        "; ".join([data["rule"], "intervals over documents", *data["cuts"]]),
        markdown_table(["score", "value", "95 % interval", "chance"], rows),
        "Chance: every pair has the relation that is most frequent in these documents.",
    ]
    measures = ("precision", "recall", "f1")
    by_relation = [
        [
            name,
            *(f"{one[measure]:.2%}" for measure in measures),
            f"{one['gold']:.0f}",
            f"{one['found']:.0f}",
        ]
        for name, one in sorted(data["relations"].items(), key=lambda item: -item[1]["gold"])
    ]
    parts.append(markdown_table(["relation", *measures, "gold", "found"], by_relation))
    if data["confusion"] is not None:
        heading = ["gold \\ found", *data["classes"]]
        cells = [
            [name, *map(str, row)]
            for name, row in zip(data["classes"], data["confusion"], strict=True)
        ]
        parts.append(markdown_table(heading, cells))
    return "\n\n".join(parts)
