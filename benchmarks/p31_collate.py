"""P31: real tokens that a core collates a second, for each method on its built-in corpus."""

import os
import tempfile
from pathlib import Path
from statistics import median

from _measure import SMALL, core_seconds_of, report
from demo_steps import LONG, DemoStep

GOALS = {
    "sppt_protein": 14e6,
    "sppt_mag": 10e6,
    "contrastive_probe": 10e6,
    "mtb_pretrain": 2e6,
    "relation_graphs": 0.5e6,
}
"""Tokens a second."""

NUM_STEPS = 3 if SMALL else 30


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RAYBIO_CACHE"] = f"{folder}/cache"
        for name, goal in GOALS.items():
            demo = DemoStep(name, Path(folder), **LONG)
            tokens = "tokens from the node's cache" if demo.prepare_node() else "no cache of tokens"
            demo.batch(0)
            rates = []
            for step in range(1, 1 + NUM_STEPS):
                num_tokens = len(demo.system.collate(step, 0, 1)["token_T"])
                seconds = core_seconds_of(lambda: demo.system.collate(step, 0, 1))  # noqa: B023
                rates.append(num_tokens / seconds)
            rate = median(rates)
            peer = f"goal: {goal / 1e6:g} M tokens/s a core, {name}"
            report(
                "P31",
                peer,
                rate / goal,
                min(rates) / goal,
                f"{rate / 1e6:.2f} M tokens/s, {tokens}",
            )


if __name__ == "__main__":
    main()
