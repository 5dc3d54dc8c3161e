"""Probe report."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raybio.core.markdown import markdown_table
from raybio.methods.mtb_mccl.mccl.frozen_probe import ProbeResult
from raybio.methods.mtb_mccl.mccl.scores import BOOTSTRAP_SEED

PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "softmax": {"BioRED": 0.286, "Re-DocRED": 0.393},
    "nearest centroid": {"BioRED": 0.125, "Re-DocRED": 0.041},
    "classwise kNN": {"BioRED": 0.367, "Re-DocRED": 0.541},
}
"""Zhou et al., 2023, Table 1: F1 on the test documents, of their pre-trained encoder, by all training labels."""


def probe_data(probed: Sequence[ProbeResult], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the table shows, as plain JSON; ``settings`` are those that the numbers depend on."""
    return {
        "settings": dict(settings),
        "classifiers": [
            {
                "name": one.name,
                "setting": one.setting,
                "dev": one.dev.values,
                # The same resamples for all, so that differences between rows are no luck of the draw.
                "test": {
                    name: interval._asdict()
                    for name, interval in one.test.intervals(
                        np.random.default_rng(BOOTSTRAP_SEED)
                    ).items()
                },
            }
            for one in probed
        ],
        "published": {name: dict(row) for name, row in PUBLISHED.items()},
    }


def probe_markdown(data: Mapping[str, Any]) -> str:
    """One row a classifier: F1 with its 95 % interval over documents, and the published F1."""
    rows = []
    for one in data["classifiers"]:
        test = one["test"]
        published = data["published"].get(one["name"], {})
        f1 = test["f1"]
        rows.append(
            [
                one["name"],
                one["setting"],
                f"{one['dev']['f1']:.2%}",
                f"{f1['value']:.2%} [{f1['low']:.2%}, {f1['high']:.2%}]",
                *(f"{test[name]['value']:.2%}" for name in ("precision", "recall")),
                *(
                    f"{published[corpus]:.1%}" if published else ""
                    for corpus in ("BioRED", "Re-DocRED")
                ),
            ]
        )
    header = ["classifier", "chosen on dev", "dev F1", "test F1 [95 %]", "precision", "recall"]
    settings = ", ".join(f"{name}: {value}" for name, value in data["settings"].items())
    note = "Micro-averaged without NA; intervals over test documents. Published: the paper's Table 1, its own encoder."
    table = markdown_table([*header, "published BioRED", "published Re-DocRED"], rows, num_left=2)
    return "\n\n".join(["# Classifiers on frozen pairs", settings, table, note])
