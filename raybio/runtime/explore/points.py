"""A sample of embeddings, and the nearest neighbors of each of its rows.

Shape letters: N rows, S rows of the sample, M rows of a block, D width, K neighbors.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import torch

from raybio.core.errors import DataError
from raybio.ops.nearest import nearest_others
from raybio.runtime.embed_inputs import EmbeddingInputs
from raybio.runtime.search.embeddings import read_embeddings, scaled
from raybio.store.quarantine import Quarantine
from raybio.training.embedding_model import EmbeddingModel
from raybio.training.precision import default_device

T = TypeVar("T")

NUM_NEIGHBORS = 10

LEAST_POINTS = 4
"""Minimum number of rows for t-SNE."""


class Points(NamedTuple):
    """A sample of rows with their nearest neighbors.

    Attributes:
        keys: ids of the sample (S).
        texts: proteins or texts of the sample; None if they are not known.
        unit_SD: embeddings of length 1, float32.
        num_rows: N, the number of rows from which the sample was drawn.
        neighbor_row_SK: nearest rows of each row, the nearest first; values below S are rows of the
            sample, others are ``other_keys[row - S]``.
        cosine_SK: their cosines, float32.
        other_keys: ids of neighbors that are not in the sample.
        num_candidates: rows among which neighbors were searched.
    """

    keys: list[str]
    texts: list[str] | None
    unit_SD: np.ndarray
    num_rows: int
    neighbor_row_SK: np.ndarray
    cosine_SK: np.ndarray
    other_keys: list[str]
    num_candidates: int


def points_of_model(
    model: EmbeddingModel, inputs: EmbeddingInputs, quarantine: Quarantine, max_points: int
) -> Points:
    """Embed a sample of inputs; neighbors are searched within the sample.

    Raises:
        ConfigError: if the model cannot be loaded.
        DataError: if there are fewer than 4 inputs, too many are invalid, or an embedding has no
            direction.
    """
    num_rows = sum(len(block) for block in inputs.blocks(model, quarantine))
    quarantine.check(model.record_kinds[0])
    row_S = _sample(num_rows, max_points, model.reads)
    keys: list[str] = []
    contents: list[bytes] = []
    # The first pass has already counted the skipped records.
    blocks = inputs.blocks(model, Quarantine(1.0))
    for indices, block in _chosen(row_S, ((len(block), block) for block in blocks)):
        chosen = block.take(pa.array(indices))
        keys += chosen.column("key").to_pylist()
        contents += chosen.column("content").to_pylist()
    encoder = model.load().to(default_device())
    unit_SD = scaled(model.embed(encoder, contents), "cosine", "embedding of input {}")
    _check_width(unit_SD)
    all_S = np.arange(len(keys))
    neighbor_row_SK, cosine_SK = nearest_units(unit_SD, all_S, [unit_SD], NUM_NEIGHBORS)
    texts = [content.decode(errors="replace") for content in contents]
    return Points(keys, texts, unit_SD, num_rows, neighbor_row_SK, cosine_SK, [], len(keys))


def keys_of_file(path: Path) -> list[str]:
    """Return the ids of all embeddings (N).

    Raises:
        DataError: if a file is missing or damaged.
    """
    return [key for block, _ in read_embeddings(path) for key in block.to_pylist()]


def points_of_file(path: Path, keys: Sequence[str], max_points: int) -> Points:
    """Read a sample of embeddings; neighbors are searched among all embeddings.

    Args:
        path: a Parquet file, or a folder of them.
        keys: the ids of all of them.
        max_points: size of the sample.

    Raises:
        DataError: if a file is missing or damaged, has fewer than 4 rows, or an embedding without
            a direction.
    """
    row_S = _sample(len(keys), max_points, f"embeddings in {path}")

    def unit_blocks() -> Iterator[np.ndarray]:
        start = 0
        for _, vector_MD in read_embeddings(path):
            yield scaled(vector_MD, "cosine", f"{path}, row {{}}", start)
            start += len(vector_MD)

    blocks = ((len(unit_MD), unit_MD) for unit_MD in unit_blocks())
    unit_SD = np.concatenate([unit_MD[indices] for indices, unit_MD in _chosen(row_S, blocks)])
    _check_width(unit_SD)
    row_SK, cosine_SK = nearest_units(unit_SD, row_S, unit_blocks(), NUM_NEIGHBORS)
    other_O = np.setdiff1d(row_SK, row_S)
    number_N = np.empty(len(keys), np.int64)
    number_N[row_S] = np.arange(len(row_S))
    number_N[other_O] = len(row_S) + np.arange(len(other_O))
    return Points(
        [keys[row] for row in row_S],
        None,
        unit_SD,
        len(keys),
        number_N[row_SK],
        cosine_SK,
        [keys[row] for row in other_O],
        len(keys),
    )


def nearest_units(
    unit_SD: np.ndarray, row_S: np.ndarray, blocks: Iterable[np.ndarray], k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k other rows with the largest cosines to each query, and the cosines.

    Args:
        unit_SD: queries of length 1.
        row_S: row of each query.
        blocks: all rows in order, of length 1.
        k: number of neighbors; all other rows if there are fewer.

    Returns:
        Rows and cosines (S, K), the nearest first; equal ones in order of their rows.
    """
    query_SD = torch.from_numpy(unit_SD).to(default_device())
    on_device = (torch.from_numpy(unit_MD).to(query_SD.device) for unit_MD in blocks)
    # For unit vectors, squared distances distinguish cosines near 1 and give the same order.
    neighbors = nearest_others(query_SD, torch.from_numpy(row_S), on_device, k)
    # |a - b|^2 = 2 - 2 cos
    return neighbors.index_QK.cpu().numpy(), (1 + neighbors.score_QK.cpu() / 2).numpy()


def _sample(num_rows: int, max_points: int, noun: str) -> np.ndarray:
    """Return a uniform sample of rows, ascending, determined by the arguments."""
    if num_rows < LEAST_POINTS:
        raise DataError(f"there are {num_rows} {noun}; want at least {LEAST_POINTS} for a map")
    if num_rows <= max_points:
        return np.arange(num_rows)
    return np.sort(np.random.default_rng(0).choice(num_rows, max_points, replace=False))


def _chosen(row_S: np.ndarray, blocks: Iterable[tuple[int, T]]) -> Iterator[tuple[np.ndarray, T]]:
    """Yield the indices of the chosen rows in each block, and the block."""
    start = 0
    for length, block in blocks:
        first, end = np.searchsorted(row_S, [start, start + length])
        yield row_S[first:end] - start, block
        start += length


def _check_width(unit_SD: np.ndarray) -> None:
    if unit_SD.shape[1] < 2:
        raise DataError("embeddings have 1 number, want at least 2 for a map")
