"""Search of names by free queries: which names are nearest to "Metformin might treat [Y]."?

Shape letters: Q queries, C names, K nearest, D width.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from raybio.core.digest import weights_digest
from raybio.core.errors import ConfigError
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.input_lengths import lengths_of_texts
from raybio.encoders.text import text_reader
from raybio.methods.contrastive_probe.benchmark.biolama import read_benchmark
from raybio.methods.contrastive_probe.config import NAME_TOKENS, QUERY_TOKENS
from raybio.methods.contrastive_probe.sentences import read_names
from raybio.methods.contrastive_probe.text_embedder import (
    TextEmbedder,
    mask_token_of,
)
from raybio.ops.nearest import nearest

NAMES_AT_ONCE = 100_000
"""Names that are compared with the queries at once, which bounds the memory."""


class NearestName(NamedTuple):
    """A name and its Euclidean distance from a query."""

    name: str
    distance: float


def read_searched_names(path: Path) -> list[str]:
    """Return the names of a text file (a name a line) or of a benchmark's folder.

    Raises:
        DataError: if they cannot be read.
    """
    return list(read_benchmark(path).names) if path.is_dir() else read_names(path)


def embed_names(embed: TextEmbedder, names: Sequence[str]) -> np.ndarray:
    """Return the embeddings (C, D) of names."""
    return embed(names, NAME_TOKENS).cpu().numpy()


def embed_queries(embed: TextEmbedder, queries: Sequence[str]) -> np.ndarray:
    """Return the embeddings (Q, D) of queries with one [Y] each, for the answer.

    Raises:
        ConfigError: if a query contains a mask token, or the model has none.
    """
    mask = mask_token_of(embed.encoder.tokenizer)
    for query in queries:
        if mask in query:
            raise ConfigError(
                f"query {query!r}: has {mask} next to [Y]; want only [Y], where the answer belongs"
            )
    return embed([query.replace("[Y]", mask) for query in queries], QUERY_TOKENS).cpu().numpy()


def truncation_remarks(model: str, names: Sequence[str], queries: Sequence[str]) -> list[str]:
    """Return a remark on the names, and one on the queries, that are cut.

    Raises:
        ConfigError: if the model cannot be loaded, or has no mask token.
    """
    encoder = TextEncoderConfig(source=model, max_length=QUERY_TOKENS)
    reader = text_reader(encoder, count_by_word={})
    mask = mask_token_of(reader.tokenizer)
    masked = [query.replace("[Y]", mask) for query in queries]
    remarks = []
    for kind, texts, limit in (("names", names, NAME_TOKENS), ("queries", masked, QUERY_TOKENS)):
        lengths = lengths_of_texts(kind, texts, reader, max_length=limit, limit=limit)
        if lengths.remark:
            remarks.append(lengths.remark)
    return remarks


def fingerprints(embed: TextEmbedder, names: Sequence[str]) -> dict[str, str]:
    """Return kind -> digest, for everything that identifies the embeddings of names."""
    weights = weights_digest(embed.encoder.model.state_dict().items())
    return {
        "model": f"{weights}, {embed.tokenizer_fingerprint}",
        "pooling": embed.encoder.pooling,
        "names": hashlib.sha256("\n".join(names).encode()).hexdigest(),
    }


def nearest_names(
    names: Sequence[str], query_QD: np.ndarray, name_CD: np.ndarray, k: int
) -> list[list[NearestName]]:
    """Return the min(k, C) nearest names of each query by exact search; ties in order of names."""
    query = torch.from_numpy(query_QD)
    indices = []
    scores = []
    for start in range(0, len(name_CD), NAMES_AT_ONCE):
        block_CD = torch.from_numpy(name_CD[start : start + NAMES_AT_ONCE])
        neighbors = nearest(query, block_CD, k)
        indices.append(neighbors.index_QK + start)
        scores.append(neighbors.score_QK)
    index_QX = torch.cat(indices, 1).numpy()
    distance_QX = np.sqrt(np.maximum(-torch.cat(scores, 1).numpy(), 0))
    return [
        ordered_names(names, index_X, distance_X)[:k]
        for index_X, distance_X in zip(index_QX, distance_QX, strict=True)
    ]


def ordered_names(
    names: Sequence[str], index_K: np.ndarray, distance_K: np.ndarray
) -> list[NearestName]:
    """Return found names by distance, ties in order of names."""
    return [
        NearestName(names[index_K[column]], float(distance_K[column]))
        for column in np.lexsort((index_K, distance_K))
    ]
