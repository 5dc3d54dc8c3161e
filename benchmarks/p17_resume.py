"""P17: the first batch after a restart at 80 % of an epoch: by arithmetic, beside loaders that are walked again.

Ours is built anew each time, as in a new process: plan, collation and the batch of links with its masks. The
DataLoader's best is to skip indices before they are read, which needs its sampler's state to be known.
"""

import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median

import torch
from _measure import NUM_PAIRS, compare, report, seconds_of
from store_setup import (
    BATCH_ROWS,
    ReadyRows,
    corpus,
    epoch_rows,
    link_collate,
    peer_array,
    read_parquet,
    write_parquet,
)
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from raybio.methods.sppt.batches import LinkBatch
from raybio.methods.sppt.collate import LinkCollate
from raybio.runtime.cluster.connection import connected

GOAL_SECONDS = 0.5


def fresh(collate: LinkCollate) -> LinkCollate:
    """Without anything that an earlier call has left in memory, the mapped store apart."""
    return LinkCollate(**collate.__getstate__())  # type: ignore[arg-type]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rb") as folder:
        store = corpus(folder)
        collate, num_steps = link_collate(store), store.num_rows // BATCH_ROWS
        first_step = num_steps * 8 // 10
        dataset = ReadyRows(peer_array(epoch_rows(store), num_steps, shuffled=False))

        def resumed() -> LinkBatch:
            return LinkBatch.from_arrays(fresh(collate)(first_step, 0, 1))

        def sampler() -> RandomSampler:
            return RandomSampler(dataset, generator=torch.Generator().manual_seed(0))

        def replayed() -> Tensor:
            loader = DataLoader(
                dataset, batch_sampler=BatchSampler(sampler(), BATCH_ROWS, drop_last=True)
            )
            return next(islice(iter(loader), first_step, None))

        def skipped() -> Tensor:
            indices = list(BatchSampler(sampler(), BATCH_ROWS, drop_last=True))[first_step:]
            return next(iter(DataLoader(dataset, batch_sampler=indices)))

        check(collate, resumed(), first_step)
        assert torch.equal(replayed(), skipped())
        note = (
            f"step {first_step} of {num_steps} in an epoch of {store.num_rows:,} rows; ours does not depend on it, and "
            "makes links and masks too"
        )
        resumed_seconds = [seconds_of(resumed) for _ in range(NUM_PAIRS)]
        report(
            "P17",
            "goal: 0.5 s to the first batch",
            GOAL_SECONDS / median(resumed_seconds),
            GOAL_SECONDS / max(resumed_seconds),
            f"{median(resumed_seconds):.3f} s; {note}",
        )
        compare(
            "P17", "torch DataLoader, iterated again", resumed, replayed, pairs=NUM_PAIRS, note=note
        )
        compare(
            "P17",
            "torch DataLoader, indices skipped (its best)",
            resumed,
            skipped,
            pairs=NUM_PAIRS,
            note=note,
        )
        with connected():
            path = write_parquet(dataset.array, Path(folder) / "parquet")

            def walked() -> Tensor:
                return next(islice(rows_of(path), first_step, None))

            assert walked().shape == replayed().shape
            compare(
                "P17",
                "ray.data.read_parquet(), iterated again",
                resumed,
                walked,
                pairs=NUM_PAIRS,
                note=note,
            )


def rows_of(path: str) -> Iterator[Tensor]:
    return read_parquet(path)


def check(collate: LinkCollate, batch: LinkBatch, step: int) -> None:
    """The batch is the one that a run without a break reaches."""
    walking = fresh(collate)
    for earlier in range(step):
        walking(earlier, 0, 1)
    unbroken = LinkBatch.from_arrays(walking(step, 0, 1))
    for name in ("token_T", "indptr_R1", "label_T", "row_R", "link_sequence_E", "link_row_E"):
        assert torch.equal(getattr(batch, name), getattr(unbroken, name)), name


if __name__ == "__main__":
    main()
