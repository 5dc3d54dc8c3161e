"""What the data benchmarks share: a corpus, our batches of its rows, and the same rows as a peer would hold them.

Where it says "ready-made", a peer gets its rows tokenized, padded and shuffled beforehand. Ours begin with the store's
letters each time: permute, gather, crop, look up tokens, pad.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from _measure import SMALL
from torch import Tensor
from torch.utils.data import Dataset

from raybio.core.batch import IGNORED_LABEL, TokenBatch
from raybio.core.config import override_all
from raybio.core.randomness import derive_seed, keyed_permutation
from raybio.methods.sppt.collate import LinkCollate
from raybio.methods.sppt.proteins.collate import TokenTable, tokens_of_rows
from raybio.methods.sppt.proteins.config import Config, EncoderConfig
from raybio.methods.sppt.proteins.demo import SIMULATED_PROTEINS, SimulationConfig
from raybio.methods.sppt.proteins.store import ProteinStore
from raybio.methods.sppt.proteins.system import build
from raybio.store.store import open_store

BATCH_ROWS = 256
MAX_LENGTH = 64
CORPUS = SimulationConfig(
    num_proteins=1960 if SMALL else 20_000,
    num_links=7840 if SMALL else 80_000,
    num_species=14 if SMALL else 40,
)
TINY_ENCODER = EncoderConfig(
    num_layers=1, width=8, num_heads=1, ffn_width=8, max_positions=MAX_LENGTH
)


def corpus(folder: str | Path, config: SimulationConfig = CORPUS) -> ProteinStore:
    return SIMULATED_PROTEINS.prepare(folder, config)


def link_collate(store: ProteinStore, *, global_batch_rows: int = BATCH_ROWS) -> LinkCollate:
    """The collation of a real run over ``store``; the encoder matters only for its vocabulary."""
    config = override_all(
        Config(encoder=TINY_ENCODER, input={"max_length": MAX_LENGTH}),
        {"plan.global_batch_rows": global_batch_rows},
    )
    return build(config, store.path).collate  # type: ignore[return-value]


@dataclass(frozen=True)
class EpochRows:
    """(step, rank, world) -> 256 rows of a shuffled endless stream as ``TokenBatch`` arrays; each row once an epoch."""

    store: ProteinStore
    table: TokenTable
    seed: int = 0

    def rows(self, step: int) -> np.ndarray:
        position_B = np.arange(step * BATCH_ROWS, (step + 1) * BATCH_ROWS)
        epoch_B, offset_B = np.divmod(position_B, self.store.num_rows)
        parts = [
            keyed_permutation(
                offset_B[epoch_B == epoch],
                num_rows=self.store.num_rows,
                key=derive_seed(self.seed, "rows", epoch),
            )
            for epoch in range(int(epoch_B[0]), int(epoch_B[-1]) + 1)
        ]
        return np.concatenate(parts)

    def __call__(self, step: int, rank: int, world: int) -> Mapping[str, np.ndarray]:
        token_T, indptr_R1, _ = tokens_of_rows(self.store, self.rows(step), self.table, MAX_LENGTH)
        label_T = np.full(len(token_T), IGNORED_LABEL, dtype=np.int16)
        return {"token_T": token_T, "indptr_R1": indptr_R1, "label_T": label_T}


def epoch_rows(store: ProteinStore) -> EpochRows:
    return EpochRows(open_store(store.path, ProteinStore), link_collate(store).read.table)  # type: ignore[attr-defined]


def padded(batch: TokenBatch) -> Tensor:
    return batch.pad(torch.arange(batch.num_rows), pad_id=0).token_RL


def peer_array(collate: EpochRows, num_steps: int, *, shuffled: bool) -> np.ndarray:
    """The same rows ready-made, int32 (N, 1 + L): column 0 is the row's place in our stream, the others its tokens.

    In our stream's order if ``shuffled``, else sorted by the store's rows.
    """
    array = np.zeros((num_steps * BATCH_ROWS, 1 + MAX_LENGTH), dtype=np.int32)
    array[:, 0] = np.arange(len(array))
    for step in range(num_steps):
        tokens = padded(TokenBatch.from_arrays(collate(step, 0, 1)))
        array[step * BATCH_ROWS : (step + 1) * BATCH_ROWS, 1 : 1 + tokens.shape[1]] = tokens.numpy()
    if shuffled:
        return array
    rows = np.concatenate([collate.rows(step) for step in range(num_steps)])
    return array[np.argsort(rows, kind="stable")]


class ReadyRows(Dataset):
    """The textbook map-style dataset over a ready-made array."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(self.array[index])


def write_parquet(array: np.ndarray, folder: Path, num_files: int = 8) -> str:
    """The array as Ray Data itself writes tensors: a few files."""
    import ray.data

    ray.data.from_numpy(np.array_split(array, num_files)).write_parquet(str(folder))
    return str(folder)


def read_parquet(path: str, **settings: object) -> Iterator[Tensor]:
    """``ray.data.read_parquet(path).iter_torch_batches(batch_size=256)``, without its progress bars."""
    import ray.data

    for batch in ray.data.read_parquet(path).iter_torch_batches(batch_size=BATCH_ROWS, **settings):
        yield batch["data"]
