"""P34: processor time to collate MTB's documents with 1 M recurring pairs, beside 10 k.

The pairs are simulated except those of the built-in corpus: their documents are, their entities are in none.
"""

import itertools
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from _measure import NUM_PAIRS, SMALL, core_seconds_of, interleaved, report
from demo_steps import DemoStep

from raybio.core.interfaces import Collate
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mtb.recurring_pairs import RecurringPairs

FEW, MANY = (500, 2000) if SMALL else (10_000, 1_000_000)
NUM_STEPS = 2 if SMALL else 40
GOAL = 1.3


def with_more_pairs(pairs: RecurringPairs, store: DocumentStore, total: int) -> RecurringPairs:
    """Add simulated pairs of two documents each to the best of the corpus, up to ``total``."""
    rng = np.random.default_rng(0)
    num_own = min(len(pairs), FEW // 2)
    num_more = total - num_own
    num_keys = len(store.entity_keys)
    key_K2 = np.sort(rng.integers(num_keys, num_keys + (1 << 20), (num_more, 2)), axis=1)
    # Two different documents, the earlier first.
    num_documents = len(store.split_rows("train"))
    first_K = rng.integers(0, num_documents - 1, num_more)
    second_K = first_K + 1 + (rng.random(num_more) * (num_documents - 1 - first_K)).astype(np.int64)
    row_O = np.stack([first_K, second_K], axis=1).ravel()
    indptr_K1 = pairs.indptr_K1[: num_own + 1]
    end_K = indptr_K1[-1] + 2 * np.arange(1, num_more + 1)
    return RecurringPairs(
        np.concatenate([pairs.key_K2[:num_own], key_K2]),
        np.concatenate([pairs.count_K[:num_own], np.full(num_more, 2)]),
        np.concatenate([indptr_K1, end_K]),
        np.concatenate([pairs.row_O[: indptr_K1[-1]], row_O]),
    )


def collation(collate: Collate, total: int) -> Callable[[], float]:
    """Return what collates the next steps, and returns the processor time of a document."""
    plan = replace(
        collate.plan, pairs_config=collate.plan.pairs_config.model_copy(update={"num_pairs": total})
    )
    # The property is cached, so the simulated pairs take the place of counted ones.
    vars(plan)["recurring"] = with_more_pairs(collate.plan.recurring, plan.store, total)
    own = replace(collate, plan=plan)
    blocks = itertools.count()

    def collate_block() -> float:
        first = next(blocks) * NUM_STEPS
        num_documents = sum(len(plan.rows(step)) for step in range(first, first + NUM_STEPS))
        seconds = core_seconds_of(
            lambda: [own(step, 0, 1) for step in range(first, first + NUM_STEPS)]
        )
        return seconds / num_documents

    return collate_block


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        collate = DemoStep("mtb_pretrain", Path(folder)).system.collate
        sides = [collation(collate, total) for total in (FEW, MANY)]
        rounds = interleaved(sides, NUM_PAIRS, lambda side: side())
    ratios = [GOAL * few / many for few, many in rounds]
    few, many = (1e3 * median(seconds) for seconds in zip(*rounds, strict=True))
    note = f"{few:.2f} ms a document with {FEW:,} pairs, {many:.2f} ms with {MANY:,}"
    report("P34", f"{FEW:,} recurring pairs", median(ratios), min(ratios), note)


if __name__ == "__main__":
    main()
