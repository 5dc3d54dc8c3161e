"""Build a saved index of the embeddings of a Parquet file.

Up to ``EXACT_AT_MOST`` vectors, the index is exact. Above that, k-means divides the vectors into
lists, and a search reads the nearest lists (``searcher.py``). Their number is chosen by the recall
on held-out queries: rows that k-means does not see, which are compared with all other rows. The
true neighbors come from exact search in torch.

Shape letters: N vectors, D width, L lists, Q held-out queries, K neighbors, B bytes of a code.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from raybio.core.distance import Distance
from raybio.core.errors import ConfigError, DataError, StoreError
from raybio.core.version import VERSION
from raybio.ops.nearest import nearest_others
from raybio.runtime.embed_parts import model_digest_of
from raybio.runtime.search.embeddings import (
    ROWS_AT_ONCE,
    num_embeddings,
    read_embeddings,
    scaled,
)
from raybio.runtime.search.faiss_package import describe_faiss, load_faiss, num_gpus
from raybio.runtime.search.index_store import IndexStore
from raybio.runtime.search.searcher import (
    BITS,
    Approximation,
    Effort,
    Searcher,
    center_of,
    num_subvectors,
    on_gpu,
)
from raybio.store.columns import column_tables
from raybio.store.data_sets import table_files
from raybio.store.preparation import preparing
from raybio.store.ragged import mapped_array
from raybio.training.precision import default_device

EXACT_AT_MOST = 100_000
"""Maximum number of vectors of an exact index, for which a search takes milliseconds."""

K = 10
"""Number of neighbors for which recall is measured."""

MAX_QUERIES = 1000
TRAINING_ROWS_PER_LIST = 64
CODEBOOK_ROWS = 32_768
KMEANS_ITERATIONS = 10
SEED = 0

CONFIDENCE_Z = 1.645
"""Quantile of the normal distribution: the target holds with one-sided 95 % confidence."""

RESOLUTION = 1e-5
"""Relative difference below which distances of query and neighbor count as equal."""

FAISS_RESOLUTION = 1e-3
"""As ``RESOLUTION``, for single precision: 1e-6, the error of its squared distances, is 1e-3²."""

EXACT_RECALL = 0.999
"""Minimum recall of an exact search by faiss, up to ``FAISS_RESOLUTION``."""


class HeldOut(NamedTuple):
    """Held-out queries and their true neighbors.

    Attributes:
        query_Q: row numbers of the queries.
        row_QK: their nearest other rows.
    """

    query_Q: np.ndarray
    row_QK: np.ndarray


class _Rows(NamedTuple):
    """The embeddings in the order of the index.

    Attributes:
        keys: ids (N,).
        vector_ND: the vectors, in a file of the draft; of length 1 for "cosine".
        query_Q: row numbers of held-out queries.
    """

    keys: pa.Array
    vector_ND: np.ndarray
    query_Q: np.ndarray


def build_index(
    embeddings: Path,
    out: Path,
    *,
    metric: Distance = "cosine",
    recall: float = 0.95,
    force: bool = False,
    exact_at_most: int = EXACT_AT_MOST,
    computed_from: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> IndexStore:
    """Build an index and write it atomically; meanwhile, the vectors are in files.

    Args:
        embeddings: Parquet file with columns ``key`` and ``embedding``, as ``raybio embed`` writes,
            or a folder of such files.
        out: folder of the index.
        metric: "euclidean" or "cosine".
        recall: target recall at 10 of an index that is not exact, in (0, 1].
        force: replace an existing index.
        exact_at_most: maximum number of vectors of an exact index.
        computed_from: facts that identify the embeddings, by name; stored in ``facts``.
        say: called with a line on the index and one on faiss.

    Raises:
        ConfigError: if faiss is not installed, or ``recall`` is out of range.
        DataError: if the file is missing, damaged or holds no such embeddings.
        StoreError: if ``out`` exists already or cannot be written, or faiss returns wrong results.
    """
    if not 0 < recall <= 1:
        raise ConfigError(f"recall: got {recall}, want a number above 0, up to 1")
    faiss = load_faiss()
    say(describe_faiss(faiss))
    parameters = {"metric": metric, "recall_target": recall}
    sources = {"embeddings": table_files(embeddings)}
    with preparing(out, sources, parameters, force=force) as preparation:
        folder = preparation.draft.folder
        rng = np.random.default_rng(SEED)
        rows = _read(embeddings, folder / "read.raw", metric, rng)
        num_rows, width = rows.vector_ND.shape
        approximation = None
        num_lists = 0
        if num_rows > exact_at_most:
            rows, approximation = _approximate(faiss, rows, rng, folder)
            num_lists = len(approximation.centroid_LD)
        facts = {
            "width": width,
            "metric": metric,
            "lists": num_lists,
            **_measure(faiss, rows, metric, approximation, recall),
            "model": model_digest_of(embeddings),
            "computed_from": dict(computed_from or {}),
            "versions": {"raybio": VERSION, "faiss": faiss.__version__},
        }
        store = preparation.draft.commit(
            IndexStore,
            column_tables(IndexStore, _columns(rows, approximation)),
            {"rows": num_rows, "lists": num_lists},
            preparation.provenance(index=facts),
        )
    # Record the new files as verified, so that a first search need not read them for that.
    store.verify(again=False)
    say(describe_index(store))
    return store


def describe_index(store: IndexStore) -> str:
    """Describe the kind of an index and its measured recall."""
    facts = store.facts
    kind = "exact"
    if facts["lists"]:
        probes = facts["effort"]["num_probes"]
        kind = f"{facts['lists']:,} lists, {probes:,} of them read by a search"
    recall = facts["recall"]
    return (
        f"{store.num_rows:,} vectors of width {facts['width']:,}, {facts['metric']}, {kind}; "
        f"measured recall@{recall['k']} {recall['value']:.4f} of exact search "
        f"({recall['num_queries']:,} held-out queries)"
    )


def _columns(rows: _Rows, approximation: Approximation | None) -> dict[str, Any]:
    """Return the columns of the store."""
    if approximation is None:
        nothing = np.zeros(0, np.float32)
        approximation = Approximation(
            np.array([len(rows.keys)]), nothing, np.zeros(0, np.uint8), nothing
        )
    return {
        "keys": rows.keys,
        "flat_vectors": rows.vector_ND.reshape(-1),
        "list_sizes": approximation.list_size_L,
        "flat_centroids": approximation.centroid_LD.reshape(-1),
        "flat_codes": approximation.code_NB.reshape(-1),
        "codebook": approximation.codebook.reshape(-1),
    }


def _read(path: Path, raw: Path, metric: Distance, rng: np.random.Generator) -> _Rows:
    """Return the rows of a file of embeddings, and a random choice of queries."""
    keys = []
    vector_ND: np.ndarray | None = None
    start = 0
    for key_M, embedding_MD in read_embeddings(path):
        if vector_ND is None:
            shape = (num_embeddings(path), embedding_MD.shape[1])
            vector_ND = mapped_array(raw, math.prod(shape), np.float32).reshape(shape)
        end = start + len(embedding_MD)
        vector_ND[start:end] = scaled(embedding_MD, metric, f"{path}, row {{}}", start)
        keys.append(key_M)
        start = end
    if vector_ND is None or start < 2:
        raise DataError(f"{path}: has {start} embeddings, want at least 2")
    return _Rows(pa.concat_arrays(keys), vector_ND, rng.permutation(start)[:MAX_QUERIES])


def _approximate(
    faiss: Any, rows: _Rows, rng: np.random.Generator, folder: Path
) -> tuple[_Rows, Approximation]:
    """Divide the vectors into lists; return them in list order, and the data for searches.

    Args:
        faiss: the package.
        rows: from the file of embeddings.
        rng: draws the rows of k-means, then the rows of the codebook.
        folder: folder of the draft.
    """
    center_D = center_of(rows.vector_ND)
    centroid_LD, list_N = _cluster(faiss, rows.vector_ND, center_D, rows.query_Q, rng)
    vector_ND, order_N = _by_list(rows.vector_ND, list_N, folder / "sorted.raw")
    keys = rows.keys.take(pa.array(order_N))
    query_Q = np.argsort(order_N)[rows.query_Q]
    list_size_L = np.bincount(list_N, minlength=len(centroid_LD))
    code_NB, codebook = _quantize(faiss, vector_ND, center_D, query_Q, rng)
    approximation = Approximation(list_size_L, centroid_LD, code_NB, codebook)
    return _Rows(keys, vector_ND, query_Q), approximation


def _measure(
    faiss: Any, rows: _Rows, metric: Distance, approximation: Approximation | None, recall: float
) -> dict[str, Any]:
    """Choose the effort of a search that reaches a recall; return both as facts.

    Raises:
        StoreError: if faiss finds too few neighbors, on the CPU or on a GPU.
    """
    vector_ND = rows.vector_ND
    held_out = HeldOut(rows.query_Q, _exact_neighbors(vector_ND, rows.query_Q))
    # Measure on the CPU: machines that open the index may have no GPU.
    searcher = Searcher(faiss, vector_ND, metric, approximation, use_gpu=False)
    recall_Q = partial(_recalls, vector_ND=vector_ND, held_out=held_out)
    if approximation is not None:
        _choose_effort(searcher, approximation, recall_Q, recall)
    measured = float(recall_Q(searcher).mean())
    exact_recall_Q = partial(recall_Q, resolution=FAISS_RESOLUTION)
    if approximation is None:
        _check(faiss, float(exact_recall_Q(searcher).mean()), EXACT_RECALL)
    else:
        _check(faiss, measured, recall)
    if num_gpus(faiss):
        on_gpu_too = Searcher(faiss, vector_ND, metric, None)
        _check(faiss, float(exact_recall_Q(on_gpu_too).mean()), EXACT_RECALL)
    return {
        "effort": searcher.effort._asdict(),
        "recall": {
            "value": measured,
            "num_queries": len(rows.query_Q),
            "k": held_out.row_QK.shape[1],
        },
    }


def _cluster(
    faiss: Any,
    vector_ND: np.ndarray,
    center_D: np.ndarray,
    query_Q: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Return centroids (L, D) of k-means, and the list (N,) of each vector."""
    num_rows, width = vector_ND.shape
    num_lists = int(2 * num_rows**0.5)
    clustering = faiss.Clustering(width, num_lists)
    clustering.niter = KMEANS_ITERATIONS
    clustering.seed = SEED
    clustering.min_points_per_centroid = 1
    clustering.max_points_per_centroid = TRAINING_ROWS_PER_LIST
    quantizer = on_gpu(faiss, faiss.IndexFlatL2(width))
    rows = _training_rows(num_rows, query_Q, TRAINING_ROWS_PER_LIST * num_lists, rng)
    clustering.train(vector_ND[rows] - center_D, quantizer)
    centroid_LD = faiss.vector_to_array(clustering.centroids).reshape(num_lists, width) + center_D
    list_N = np.empty(num_rows, np.int64)
    for start in range(0, num_rows, ROWS_AT_ONCE):
        end = start + ROWS_AT_ONCE
        list_N[start:end] = quantizer.search(vector_ND[start:end] - center_D, 1)[1][:, 0]
    return centroid_LD, list_N


def _training_rows(
    num_rows: int, query_Q: np.ndarray, at_most: int, rng: np.random.Generator
) -> np.ndarray:
    """Return all rows except the queries, or a sample of them, ascending."""
    rows = np.setdiff1d(np.arange(num_rows), query_Q)
    return np.sort(rng.choice(rows, min(len(rows), at_most), replace=False))


def _by_list(vector_ND: np.ndarray, list_N: np.ndarray, raw: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors in the order of their lists, in a file of the draft, and that order."""
    order_N = np.argsort(list_N, kind="stable")
    sorted_ND = mapped_array(raw, vector_ND.size, np.float32).reshape(vector_ND.shape)
    for start in range(0, len(order_N), ROWS_AT_ONCE):
        end = start + ROWS_AT_ONCE
        sorted_ND[start:end] = vector_ND[order_N[start:end]]
    return sorted_ND, order_N


def _quantize(
    faiss: Any,
    vector_ND: np.ndarray,
    center_D: np.ndarray,
    query_Q: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Return codes (N, B) of a product quantizer, and its centroids."""
    num_rows, width = vector_ND.shape
    num_parts = num_subvectors(width)
    quantizer = faiss.ProductQuantizer(width, num_parts, BITS)
    quantizer.cp.min_points_per_centroid = 1
    rows = _training_rows(num_rows, query_Q, CODEBOOK_ROWS, rng)
    quantizer.train(vector_ND[rows] - center_D)
    code_NB = np.empty((num_rows, quantizer.code_size), np.uint8)
    for start in range(0, num_rows, ROWS_AT_ONCE):
        end = start + ROWS_AT_ONCE
        code_NB[start:end] = quantizer.compute_codes(vector_ND[start:end] - center_D)
    codebook = faiss.vector_to_array(quantizer.centroids).reshape(num_parts, 2**BITS, -1)
    return code_NB, codebook + center_D.reshape(num_parts, 1, -1)


def _exact_neighbors(vector_ND: np.ndarray, query_Q: np.ndarray) -> np.ndarray:
    """Return the min(K, N - 1) nearest other rows (Q, K) of some rows, by exact search in torch."""
    device = default_device()
    query_QD = torch.from_numpy(vector_ND[query_Q]).to(device)
    blocks = (
        torch.from_numpy(np.array(vector_ND[start : start + ROWS_AT_ONCE])).to(device)
        for start in range(0, len(vector_ND), ROWS_AT_ONCE)
    )
    neighbors = nearest_others(query_QD, torch.from_numpy(query_Q), blocks, K)
    return neighbors.index_QK.cpu().numpy()


def _without_self(row_QK: np.ndarray, query_Q: np.ndarray) -> np.ndarray:
    """Return the first K of K + 1 neighbors that are not the query itself."""
    order_QK = np.argsort(row_QK == query_Q[:, None], axis=1, kind="stable")
    return np.take_along_axis(row_QK, order_QK, axis=1)[:, :-1]


def _choose_effort(
    searcher: Searcher,
    approximation: Approximation,
    recall_Q: Callable[[Searcher], np.ndarray],
    recall: float,
) -> None:
    """Set the smallest effort of a search that reaches a recall, with confidence.

    The number of lists is doubled until it suffices, then bisected. If all lists are not enough,
    the codes are too coarse for the number of candidates, which is then doubled, up to all vectors.
    """
    num_lists = len(approximation.centroid_LD)
    num_vectors = len(approximation.code_NB)

    def reaches(num_probes: int) -> bool:
        searcher.effort = searcher.effort._replace(num_probes=num_probes)
        found_Q = recall_Q(searcher)
        error = found_Q.std() / len(found_Q) ** 0.5
        return bool(found_Q.mean() - CONFIDENCE_Z * error >= recall)

    first = searcher.effort.candidates_per_neighbor
    enough = 1
    while not reaches(enough):
        if enough < num_lists:
            enough = min(2 * enough, num_lists)
            continue
        if searcher.num_candidates(K) == num_vectors:
            # All vectors were scored, so missing neighbors are a fault of faiss.
            return
        doubled = 2 * searcher.effort.candidates_per_neighbor
        searcher.effort = Effort(num_lists, doubled)
    # With more candidates, fewer lists than before may suffice.
    too_few = enough // 2 if searcher.effort.candidates_per_neighbor == first else 0
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if reaches(middle):
            enough = middle
        else:
            too_few = middle
    searcher.effort = searcher.effort._replace(num_probes=enough)


def _recalls(
    searcher: Searcher,
    *,
    vector_ND: np.ndarray,
    held_out: HeldOut,
    resolution: float = RESOLUTION,
) -> np.ndarray:
    """Return the recall (Q,) of each query; vectors as near as the K-th nearest count as found."""
    query_Q, true_QK = held_out
    query_QD = np.ascontiguousarray(vector_ND[query_Q])
    k = true_QK.shape[1]
    found_QK = _without_self(searcher.search(query_QD, k + 1)[1], query_Q)
    farthest_Q1 = _distances(vector_ND, query_QD, true_QK).max(axis=1, keepdims=True)
    distance_QK = _distances(vector_ND, query_QD, found_QK)
    # The error of single precision grows with the size of the vectors that faiss gets.
    size_Q1 = np.linalg.norm(query_QD - searcher.center_D, axis=1, keepdims=True)
    return (distance_QK <= farthest_Q1 + resolution * (farthest_Q1 + size_Q1)).mean(axis=1)


def _distances(vector_ND: np.ndarray, query_QD: np.ndarray, row_QK: np.ndarray) -> np.ndarray:
    """Return Euclidean distances (Q, K) in float64."""
    distance_QK = np.empty(row_QK.shape)
    for number, rows in enumerate(row_QK):
        query_D = query_QD[number].astype(np.float64)
        neighbor_KD = vector_ND[rows].astype(np.float64)
        distance_QK[number] = np.linalg.norm(neighbor_KD - query_D, axis=1)
    return distance_QK


def _check(faiss: Any, measured: float, wanted: float) -> None:
    """Refuse a build of faiss that does not find the neighbors of exact search in torch."""
    if measured < wanted:
        raise StoreError(
            f"{describe_faiss(faiss)} finds {measured:.4f} of the nearest vectors, want at least "
            f"{wanted}, as exact search in torch does: this build of faiss is faulty; install "
            "another version"
        )
