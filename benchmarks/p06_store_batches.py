"""P6: padded batches of 256 rows from the store, beside torch's DataLoader and Ray Data's reading of Parquet.

Ours are made from the store's letters. A DataLoader reads the same letters a row at a time, or tokens that were made,
padded and shuffled before; ``read_parquet`` always gets such ready-made tokens. Each is timed with its start.
"""

import tempfile
from pathlib import Path

import numpy as np
from _measure import NUM_PAIRS, SMALL, compare
from store_setup import (
    BATCH_ROWS,
    EpochRows,
    ReadyRows,
    StoreRows,
    check_equal,
    corpus,
    epoch_rows,
    exhaust,
    our_local_batches,
    our_ray_batches,
    pad_rows,
    peer_array,
    read_parquet,
    write_parquet,
)
from torch.utils.data import DataLoader

from raybio.runtime.cluster.connection import connected

NUM_STEPS = 40 if SMALL else 1000


def beside_data_loader(collate: EpochRows, array: np.ndarray, note: str) -> None:
    for num_workers in (0, 2):
        from_store = DataLoader(
            StoreRows(collate, NUM_STEPS),
            batch_size=BATCH_ROWS,
            num_workers=num_workers,
            collate_fn=pad_rows,
        )
        ready = DataLoader(ReadyRows(array), batch_size=BATCH_ROWS, num_workers=num_workers)
        for name, loader in {"the store's rows": from_store, "ready-made tokens": ready}.items():
            check_equal(our_local_batches(collate, NUM_STEPS), iter(loader))
            compare(
                "P6",
                f"torch DataLoader, {num_workers} workers, {name}",
                lambda: exhaust(our_local_batches(collate, NUM_STEPS)),
                lambda loader=loader: exhaust(iter(loader)),
                pairs=NUM_PAIRS,
                note=f"{note}; ours in this process, from the store's letters",
            )


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rb") as folder:
        collate = epoch_rows(corpus(folder))
        array = peer_array(collate, NUM_STEPS, shuffled=True)
        note = f"{NUM_STEPS * BATCH_ROWS:,} rows of {array.shape[1] - 1} tokens"

        beside_data_loader(
            collate, array, note
        )  # before Ray: its threads do not survive the fork of workers
        with connected():
            path = write_parquet(array, Path(folder) / "parquet")
            check_equal(our_ray_batches(collate, NUM_STEPS), read_parquet(path))
            for name, ours in {
                "through Ray Data": our_ray_batches,
                "in this process": our_local_batches,
            }.items():
                compare(
                    "P6",
                    "ray.data.read_parquet().iter_torch_batches(256), ready-made tokens",
                    lambda ours=ours: exhaust(ours(collate, NUM_STEPS)),
                    lambda: exhaust(read_parquet(path)),
                    pairs=NUM_PAIRS,
                    note=f"{note}; ours {name}",
                )


if __name__ == "__main__":
    main()
