"""P32: processor time to collate a token for the 8 workers of one of 8 nodes, beside that for one worker alone with as many rows."""

import itertools
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from _measure import NUM_PAIRS, SMALL, interleaved, report
from demo_steps import LONG, DemoStep

METHODS = (
    "sppt_protein",
    "sppt_mag",
    "biostransformers",
    "contrastive_probe",
    "mtb_pretrain",
    "relation_graphs",
)
ROWS_PER_WORKER = 8
NUM_WORKERS = 64
WORKERS_PER_NODE = 8
NUM_STEPS = 2 if SMALL else 32
"""Steps of a call: a window of BioSTransformers, which is planned at once."""

GOAL = 1.2


def shards(name: str, folder: Path, world: int) -> DemoStep:
    """A method whose global batch has as many rows for each of ``world`` workers, in a long run."""
    return DemoStep(name, folder, **LONG, **{"plan.global_batch_rows": ROWS_PER_WORKER * world})


def collation(demo: DemoStep, world: int) -> Callable[[], float]:
    """What collates the next steps on a node, and returns the processor time of a token.

    Each worker is a process of its own, as the tasks of Ray Data are; what they share lies in the node's cache.
    """
    collate = demo.system.collate
    blocks = itertools.count()
    ranks = range(min(world, WORKERS_PER_NODE))
    # Once in a process, and not once a step: processes inherit it.
    collate(0, 0, world)

    def collate_block() -> float:
        steps = range((block := next(blocks)) * NUM_STEPS, (block + 1) * NUM_STEPS)
        works = [partial(collate_steps, collate, steps, rank, world) for rank in ranks]
        seconds, tokens = zip(*map(in_a_process, works), strict=True)
        return sum(seconds) / sum(tokens)

    return collate_block


def collate_steps(collate: Any, steps: range, rank: int, world: int) -> tuple[float, int]:
    started = time.process_time()
    num_tokens = sum(len(collate(step, rank, world)["token_T"]) for step in steps)
    return time.process_time() - started, num_tokens


def in_a_process(work: Callable[[], Any]) -> Any:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(work()))
    process.start()
    result = receiver.recv()
    process.join()
    return result


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RAYBIO_CACHE"] = f"{folder}/cache"
        for name in METHODS:
            demos = [shards(name, Path(folder), world) for world in (1, NUM_WORKERS)]
            measure(name, demos)
            if demos[0].prepare_node():
                measure(f"{name}, tokens cached", demos)


def measure(what: str, demos: list[DemoStep]) -> None:
    sides = [collation(demo, world) for demo, world in zip(demos, (1, NUM_WORKERS), strict=True)]
    rounds = interleaved(sides, NUM_PAIRS, lambda side: side())
    ratios = [GOAL * alone / shared for alone, shared in rounds]
    alone, shared = (1e6 * median(seconds) for seconds in zip(*rounds, strict=True))
    note = f"{alone:.2f} µs a token alone, {shared:.2f} µs with {NUM_WORKERS} workers, {WORKERS_PER_NODE} a node"
    report("P32", what, median(ratios), min(ratios), note)


if __name__ == "__main__":
    main()
