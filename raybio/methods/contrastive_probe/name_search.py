"""Search of names by free queries: which names are nearest to "Metformin might treat [Y]."?"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from raybio.core.digest import weights_digest
from raybio.core.errors import ConfigError
from raybio.encoders.config import Pooling
from raybio.methods.contrastive_probe.benchmark.biolama import read_benchmark
from raybio.methods.contrastive_probe.config import NAME_TOKENS, QUERY_TOKENS
from raybio.methods.contrastive_probe.sentences import read_names
from raybio.methods.contrastive_probe.text_embedder import TextEmbedder, load_embedder, mask_token
from raybio.methods.contrastive_probe.vector_index import VectorIndex


class NearestName(NamedTuple):
    """A name and its Euclidean distance from a query."""

    name: str
    distance: float


def search_names(
    queries: Sequence[str],
    model: str,
    names_path: Path,
    *,
    k: int,
    pooling: Pooling | None = None,
    index_folder: Path | None = None,
    log: Callable[[str], None] = lambda _: None,
) -> list[list[NearestName]]:
    """Return the ``k`` nearest names of each query, in order.

    Above 100,000 names the search is approximate.

    Args:
        queries: each with one [Y] for the answer.
        model: folder or hub id.
        names_path: text file of a name a line, or folder of a benchmark.
        k: number of names.
        pooling: None: the default of the model.
        index_folder: keeps the embeddings of the names for later calls; None: not kept.
        log: called with progress messages.

    Raises:
        ConfigError: if a query contains a mask token, or the model cannot be loaded or has none.
        DataError: if the names cannot be read.
        StoreError: if the index is of another model, pooling, or other names.
    """
    names = (
        list(read_benchmark(names_path).names) if names_path.is_dir() else read_names(names_path)
    )
    embed = load_embedder(model, pooling)
    mask = mask_token(embed.encoder)
    for query in queries:
        if mask in query:
            raise ConfigError(
                f"query {query!r}: has {mask} next to [Y]; want only [Y], where the answer belongs"
            )
    index = _open_index(embed, names, index_folder, log)
    query_QD = embed([query.replace("[Y]", mask) for query in queries], QUERY_TOKENS).cpu().numpy()
    nearest = []
    for query_D, found_K in zip(query_QD, index.search(query_QD, k), strict=True):
        # Exact distances order the names that the search found, ties in order of names.
        name_K = np.sort(found_K[found_K >= 0])
        distance_K = np.linalg.norm(index.vector_CD[name_K] - query_D, axis=1)
        order_K = distance_K.argsort(kind="stable")
        nearest.append(
            [NearestName(names[name_K[column]], float(distance_K[column])) for column in order_K]
        )
    return nearest


def _open_index(
    embed: TextEmbedder, names: list[str], folder: Path | None, log: Callable[[str], None]
) -> VectorIndex:
    """Return the index in the folder, or embed the names and save a new one there."""
    encoder = embed.encoder
    weights = weights_digest(encoder.model.state_dict().items())
    fingerprints = {
        "model": f"{weights}, {embed.tokenizer_fingerprint}",
        "pooling": encoder.pooling,
        "names": hashlib.sha256("\n".join(names).encode()).hexdigest(),
    }
    if folder is not None and (folder / "index.json").exists():
        return VectorIndex.open(folder, fingerprints=fingerprints)
    log(f"embedding {len(names):,} names, {encoder.pooling} pooling")
    index = VectorIndex(embed(names, NAME_TOKENS).cpu().numpy())
    if folder is not None:
        index.save(folder, fingerprints=fingerprints)
        log(f"saved for later calls: {folder}")
    return index
