"""P7: a shuffle over the whole range by a keyed permutation, beside Ray Data's local shuffle buffer of 20,000 rows.

Both hand out each row once, through Ray Data. How thorough a shuffle is: the mean distance between a row's place in
the store and its place in the epoch, as a share of the epoch; a perfect shuffle has 1/3.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from _measure import NUM_PAIRS, SMALL, compare
from store_setup import (
    BATCH_ROWS,
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
from torch import Tensor

from raybio.methods.sppt.proteins.demo import SimulationConfig
from raybio.runtime.cluster.connection import connected

NUM_ROWS = 2_048 if SMALL else 61_440
BUFFER_ROWS = 500 if SMALL else 20_000
NUM_STEPS = NUM_ROWS // BATCH_ROWS
ONE_EPOCH = SimulationConfig(
    num_proteins=NUM_ROWS, num_links=4 * NUM_ROWS, num_species=14 if SMALL else 80
)


def mean_move(place_N: np.ndarray) -> float:
    """Share of the epoch that the row at place n of the store moves to ``place_N[n]``."""
    return float(np.abs(place_N - np.arange(len(place_N))).mean() / len(place_N))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rb") as folder, connected():
        collate = epoch_rows(corpus(folder, ONE_EPOCH))
        rows = np.concatenate([collate.rows(step) for step in range(NUM_STEPS)])
        assert np.array_equal(np.sort(rows), np.arange(NUM_ROWS))
        path = write_parquet(
            peer_array(collate, NUM_STEPS, shuffled=False), Path(folder) / "parquet"
        )

        def buffered() -> Iterator[Tensor]:
            return read_parquet(path, local_shuffle_buffer_size=BUFFER_ROWS)

        check_equal(our_ray_batches(collate, NUM_STEPS), buffered())
        stream_place = torch.cat(list(buffered()))[
            :, 0
        ].numpy()  # place in our stream = the peer's column 0
        peer_move = mean_move(np.argsort(rows[stream_place]))
        note = (
            f"{NUM_ROWS:,} rows, each once; mean move of a row {mean_move(np.argsort(rows)):.2f} of the epoch, the "
            f"buffer's {peer_move:.2f} (perfect: 0.33)"
        )
        for name, ours in {
            "through Ray Data": our_ray_batches,
            "in this process": our_local_batches,
        }.items():
            compare(
                "P7",
                f"iter_torch_batches(256, local_shuffle_buffer_size={BUFFER_ROWS})",
                lambda ours=ours: exhaust(ours(collate, NUM_STEPS)),
                lambda: exhaust(buffered()),
                pairs=NUM_PAIRS,
                note=f"{note}; ours {name}",
            )


if __name__ == "__main__":
    main()
