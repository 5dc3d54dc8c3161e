"""P41: tokens of the worker that has most, over the mean of 64, in each method on its built-in corpus; the mean of some steps."""

import tempfile
from pathlib import Path
from statistics import mean

from _measure import SMALL, report
from demo_steps import DemoStep

from raybio.methods import METHODS

NUM_WORKERS = 64
ROWS_PER_WORKER = 2 if SMALL else 8
NUM_STEPS = 1 if SMALL else 2

GOAL = 1.02


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in METHODS:
            demo = DemoStep(
                name, Path(folder), **{"plan.global_batch_rows": ROWS_PER_WORKER * NUM_WORKERS}
            )
            ratios = [largest_over_mean(demo, step) for step in range(NUM_STEPS)]
            rows = f"{ROWS_PER_WORKER} rows a worker"
            note = f"{mean(ratios):.3f} of the mean, {rows}; {max(ratios):.3f} in the worst of {NUM_STEPS} steps"
            report("P41", name, GOAL / mean(ratios), GOAL / max(ratios), note)


def largest_over_mean(demo: DemoStep, step: int) -> float:
    tokens = [
        len(demo.system.collate(step, rank, NUM_WORKERS)["token_T"]) for rank in range(NUM_WORKERS)
    ]
    return max(tokens) / mean(tokens)


if __name__ == "__main__":
    main()
