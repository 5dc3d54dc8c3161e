"""Scores of classifiers on frozen pairs, as plain JSON and as a table with the paper's Table 1."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raybio.core.markdown import markdown_table
from raybio.core.published import published
from raybio.methods.mtb_mccl.mccl.frozen_probe import FrozenProbeResult
from raybio.methods.mtb_mccl.mccl.report import bounds_text
from raybio.methods.mtb_mccl.mccl.scores import BOOTSTRAP_SEED


def probe_data(results: Sequence[FrozenProbeResult], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the report as plain JSON.

    Args:
        results: scores of each classifier.
        settings: what the scores depend on.
    """
    classifiers = []
    for result in results:
        # The same resamples for all classifiers, so that their differences are paired.
        intervals = result.test.intervals(np.random.default_rng(BOOTSTRAP_SEED))
        classifiers.append(
            {
                "name": result.name,
                "setting": result.setting,
                "dev": result.dev.values,
                "test": {name: interval._asdict() for name, interval in intervals.items()},
            }
        )
    return {
        "settings": dict(settings),
        "classifiers": classifiers,
        "published": published("raybio.methods.mtb_mccl")["table_1"],
    }


def probe_markdown(data: Mapping[str, Any]) -> str:
    """Return a table of F1 with its 95 % interval over documents, and of the published F1."""
    rows = []
    for classifier in data["classifiers"]:
        test = classifier["test"]
        f1 = test["f1"]
        in_paper = data["published"].get(classifier["name"])
        rows.append(
            [
                classifier["name"],
                classifier["setting"],
                f"{classifier['dev']['f1']:.2%}",
                f"{f1['value']:.2%} {bounds_text(f1)}".rstrip(),
                f"{test['precision']['value']:.2%}",
                f"{test['recall']['value']:.2%}",
                f"{in_paper['BioRED']:.1%}" if in_paper else "",
                f"{in_paper['Re-DocRED']:.1%}" if in_paper else "",
            ]
        )
    header = [
        "classifier",
        "chosen on dev",
        "dev F1",
        "test F1 [95 %]",
        "precision",
        "recall",
        "published BioRED",
        "published Re-DocRED",
    ]
    settings = ", ".join(f"{name}: {value}" for name, value in data["settings"].items())
    note = (
        "Micro-averaged without NA; intervals over test documents. Published: Table 1 of the "
        "paper, with its own encoder."
    )
    table = markdown_table(header, rows, num_left=2)
    return "\n\n".join(["# Classifiers on frozen pairs", settings, table, note])
