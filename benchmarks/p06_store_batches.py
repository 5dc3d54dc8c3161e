"""P6: padded batches of 256 rows from the store, beside torch's DataLoader and Ray Data's reading of Parquet.

The peers read rows that were tokenised, padded and shuffled before; ours make them from the store's letters. Beside
``read_parquet`` ours run through Ray Data too, beside the DataLoader in this process; both with their start.
"""

import tempfile
from pathlib import Path

from _measure import compare
from store_setup import (
    BATCH_ROWS,
    NUM_PAIRS,
    SMALL,
    ReadyRows,
    check_equal,
    corpus,
    epoch_rows,
    exhaust,
    our_local_batches,
    our_ray_batches,
    peer_array,
    read_parquet,
    write_parquet,
)
from torch.utils.data import DataLoader

from raybio.runtime.cluster import connected

NUM_STEPS = 40 if SMALL else 1500


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rb") as folder:
        collate = epoch_rows(corpus(folder))
        array = peer_array(collate, NUM_STEPS, shuffled=True)
        note = f"{NUM_STEPS * BATCH_ROWS:,} rows of {array.shape[1] - 1} tokens"

        # Before Ray: its threads would not survive the fork of the loader's workers.
        for num_workers in (0, 2):
            loader = DataLoader(ReadyRows(array), batch_size=BATCH_ROWS, num_workers=num_workers)
            check_equal(our_local_batches(collate, NUM_STEPS), iter(loader))
            compare(
                "P6",
                f"torch DataLoader, {num_workers} workers",
                lambda: exhaust(our_local_batches(collate, NUM_STEPS)),
                lambda loader=loader: exhaust(iter(loader)),
                pairs=NUM_PAIRS,
                note=f"{note}; ours in this process, shuffled and tokenised on the way",
            )

        with connected():
            path = write_parquet(array, Path(folder) / "parquet")
            check_equal(our_ray_batches(collate, NUM_STEPS), read_parquet(path))
            for name, ours in {"through Ray Data": our_ray_batches, "in this process": our_local_batches}.items():
                compare(
                    "P6",
                    "ray.data.read_parquet().iter_torch_batches(256)",
                    lambda ours=ours: exhaust(ours(collate, NUM_STEPS)),
                    lambda: exhaust(read_parquet(path)),
                    pairs=NUM_PAIRS,
                    note=f"{note}; ours {name}",
                )


if __name__ == "__main__":
    main()
