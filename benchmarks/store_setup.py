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
from raybio.runtime.run.stream import stream_batches
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


def our_local_batches(collate: EpochRows, num_steps: int) -> Iterator[Tensor]:
    """Padded tokens (R, L) of each step, made in this process."""
    for step in range(num_steps):
        yield padded(TokenBatch.from_arrays(collate(step, 0, 1)))


def our_ray_batches(collate: EpochRows, num_steps: int) -> Iterator[Tensor]:
    """The same through Ray Data, as a training worker reads them."""
    stream = stream_batches(
        collate, first_step=0, num_steps=num_steps, rank=0, world=1, batch_type=TokenBatch
    )
    for _, batch in stream:
        yield padded(batch)


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


class StoreRows(Dataset):
    """The textbook map-style dataset over the store itself: a row is read, cropped and looked up when it is asked for.

    Items have the layout of ``peer_array``, place in the stream first; ``pad_rows`` makes batches of them.
    """

    def __init__(self, collate: EpochRows, num_steps: int) -> None:
        self.store, self.table = collate.store, collate.table
        self.rows = np.concatenate([collate.rows(step) for step in range(num_steps)])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        start, end = self.store.indptr_N1[self.rows[index] : self.rows[index] + 2]
        letters = self.store.residue_T[
            start : min(end, start + MAX_LENGTH - self.table.num_special)
        ]
        ends = [] if self.table.eos_id is None else [self.table.eos_id]
        tokens = self.table.token_id_by_byte[letters]
        return torch.from_numpy(
            np.concatenate([[index, self.table.cls_id], tokens, ends]).astype(np.int64)
        )


def pad_rows(rows: list[Tensor]) -> Tensor:
    """(R, 1 + L), L the whole ``MAX_LENGTH``, so that batches can be compared."""
    padded_rows = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return torch.nn.functional.pad(padded_rows, (0, 1 + MAX_LENGTH - padded_rows.shape[1]))


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


def check_equal(ours: Iterator[Tensor], peer: Iterator[Tensor]) -> None:
    """Every row of our stream is in the peer's batches, with the same tokens; the peer's column 0 says where."""
    peer_rows = torch.cat(list(peer))
    peer_rows = peer_rows[peer_rows[:, 0].argsort()]
    start = 0
    for tokens in ours:
        expected = peer_rows[start : start + len(tokens), 1:]
        num_columns = tokens.shape[1]
        assert torch.equal(tokens, expected[:, :num_columns].long()), (
            f"tokens differ in rows from {start}"
        )
        assert not expected[:, num_columns:].any()
        start += len(tokens)
    assert start == len(peer_rows), f"ours made {start} rows, the peer {len(peer_rows)}"


def exhaust(batches: Iterator[Tensor]) -> int:
    """Walk to the end; the rows seen."""
    return sum(len(batch) for batch in batches)
