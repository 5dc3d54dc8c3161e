"""Saved indices: equal to exact search, the recall that they say, and what they refuse."""

import json
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raybio
from raybio.core.digest import json_digest
from raybio.core.errors import ConfigError, DataError, StoreError
from raybio.runtime.search import build, searcher
from raybio.runtime.search.build import build_index
from raybio.runtime.search.embeddings import read_embeddings
from raybio.runtime.search.index import EmbeddingIndex
from raybio.runtime.search.index_store import open_index_store
from raybio.runtime.search.searcher import Searcher
from raybio.store.manifest import MANIFEST

NUM_ROWS = 3000
WIDTH = 16


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Vectors around 60 centers, of different lengths."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(60, WIDTH))
    around = centers[rng.integers(60, size=NUM_ROWS)] + 0.5 * rng.normal(size=(NUM_ROWS, WIDTH))
    return (around * rng.uniform(0.5, 2, (NUM_ROWS, 1))).astype(np.float32)


def write(path: Path, vectors: np.ndarray, model: str = "") -> Path:
    """Write embeddings as ``raybio embed`` does."""
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    table = pa.table({"key": [f"k{row}" for row in range(len(vectors))], "embedding": column})
    pq.write_table(table.replace_schema_metadata({"raybio.model": model}), path)
    return path


def oracle(queries: np.ndarray, vectors: np.ndarray, metric: str, k: int) -> np.ndarray:
    """Return the k nearest rows of each query, by sorting all distances in float64."""
    found = []
    for query in queries.astype(np.float64):
        if metric == "cosine":
            lengths = np.linalg.norm(vectors.astype(np.float64), axis=1) * np.linalg.norm(query)
            distance = -(vectors @ query) / lengths
        else:
            distance = np.square(vectors - query).sum(axis=1)
        found.append(np.argsort(distance, kind="stable")[:k])
    return np.array(found)


def rows_of(keys: list[list[str]]) -> np.ndarray:
    return np.array([[int(key[1:]) for key in row] for row in keys])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_a_small_index_gives_what_exact_search_gives(
    metric: str, dtype: type, vectors: np.ndarray, tmp_path: Path
) -> None:
    vectors = vectors.astype(dtype)
    source = write(tmp_path / "vectors.parquet", vectors)
    lines: list[str] = []
    store = build_index(source, tmp_path / "index", metric=metric, say=lines.append)
    assert "faiss" in lines[0]
    assert "exact; measured recall@10 1.0000" in lines[1]
    assert store.facts["recall"] == {"value": 1.0, "num_queries": 1000, "k": 10}
    index = raybio.open_index(tmp_path / "index")
    queries = np.random.default_rng(1).normal(size=(30, WIDTH)).astype(np.float32)
    found = index.search(queries, np.int64(7))  # type: ignore[arg-type]
    np.testing.assert_array_equal(
        rows_of(found.keys), oracle(queries, vectors.astype(np.float32), metric, 7)
    )
    query, nearest = queries[0].astype(np.float64), vectors[rows_of(found.keys)[0, 0]]
    cosine = query @ nearest / np.linalg.norm(query) / np.linalg.norm(nearest.astype(np.float64))
    score = cosine if metric == "cosine" else np.linalg.norm(query - nearest)
    assert found.scores[0, 0] == pytest.approx(score, abs=1e-5)
    assert len(index.search(queries[:2], NUM_ROWS + 5).keys[1]) == NUM_ROWS


@pytest.mark.first_tier("cosine")
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_a_large_index_reaches_the_recall_and_opens_without_training(
    metric: str, vectors: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "vectors.parquet", vectors)
    probes = []
    for recall in (0.5, 0.95, 1.0):
        out = tmp_path / f"index {recall}"
        store = build_index(source, out, metric=metric, recall=recall, exact_at_most=1000)
        assert recall <= store.facts["recall"]["value"] <= 1
        probes.append(store.facts["effort"]["num_probes"])
    assert store.facts["lists"] == 109
    assert 1 <= probes[0] < probes[1] < probes[2] <= 109
    # The recall of new queries, by an oracle, is that of the manifest.
    for name in ("Clustering", "ProductQuantizer"):
        monkeypatch.setattr(faiss, name, None)
    index = raybio.open_index(tmp_path / "index 0.95")
    rng = np.random.default_rng(2)
    queries = vectors[:300] + 0.1 * rng.normal(size=(300, WIDTH)).astype(np.float32)
    found = index.search(queries, 10)
    true = oracle(queries, vectors, metric, 10)
    hits = [
        len({*a} & {*b}) for a, b in zip(rows_of(found.keys).tolist(), true.tolist(), strict=True)
    ]
    assert sum(hits) / true.size > 0.93
    again = raybio.open_index(tmp_path / "index 0.95").search(queries, 10)
    assert again.keys == found.keys
    np.testing.assert_array_equal(again.scores, found.scores)
    # More neighbors than the lists that are read hold: then all lists are read.
    np.testing.assert_array_equal(
        np.sort(rows_of(index.search(queries[:3], NUM_ROWS).keys)),
        np.tile(np.arange(NUM_ROWS), (3, 1)),
    )


@pytest.mark.parametrize("exact_at_most", [5000, 500])
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_vectors_close_together_and_far_from_0_have_their_neighbors_in_calls_of_any_size(
    metric: str, exact_at_most: int, tmp_path: Path
) -> None:
    """Such as the mutants of one protein: faiss alone returned others, with "recall 1.0000"."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=320)
    common *= 15 / np.linalg.norm(common)
    mutants = (common + rng.normal(size=(1331, 320)) * 0.03 / 320**0.5).astype(np.float32)
    source = write(tmp_path / "mutants.parquet", mutants)
    store = build_index(source, tmp_path / "index", metric=metric, exact_at_most=exact_at_most)
    index = raybio.open_index(tmp_path / "index")
    found = index.search(mutants, 10)
    rows_QK = rows_of(found.keys)
    np.testing.assert_array_equal(rows_QK[:, 0], np.arange(len(mutants)))
    queries = mutants[:100]
    true = oracle(queries, mutants.astype(np.float64), metric, 10)
    hits = [len({*a} & {*b}) for a, b in zip(rows_QK[:100].tolist(), true.tolist(), strict=True)]
    assert sum(hits) / true.size > (0.999 if exact_at_most == 5000 else 0.93)
    assert store.facts["recall"]["value"] == pytest.approx(sum(hits) / true.size, abs=0.03)
    alone = [index.search(query[None], 10) for query in queries[:20]]
    assert [neighbors.keys[0] for neighbors in alone] == found.keys[:20]


def test_neighbors_in_tight_groups_far_apart_are_exact() -> None:
    rng = np.random.default_rng(0)
    groups = rng.normal(size=(10, 1, 320)) + 0.01 * rng.normal(size=(10, 300, 320))
    vector_ND = groups.reshape(-1, 320).astype(np.float32)
    finder = Searcher(faiss, vector_ND, "euclidean", None)
    # So many that faiss multiplies matrices.
    queries = vector_ND[::5]
    row_QK = finder.search(queries, 10)[1]
    true = oracle(queries, vector_ND.astype(np.float64), "euclidean", 10)
    hits = [len({*a} & {*b}) for a, b in zip(row_QK.tolist(), true.tolist(), strict=True)]
    assert sum(hits) / true.size > 0.999


def test_a_recall_counts_neighbors_that_are_farther_than_the_true_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    vector_ND = (1 + 1e-3 * rng.normal(size=(500, WIDTH))).astype(np.float32)
    query_Q = np.arange(50)
    held_out = build.HeldOut(query_Q, build._exact_neighbors(vector_ND, query_Q))
    finder = Searcher(faiss, vector_ND, "euclidean", None)
    assert build._recalls(finder, vector_ND=vector_ND, held_out=held_out).mean() == 1
    nearest = finder.search

    def without_the_first(query_QD: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        distance_QK, row_QK = nearest(query_QD, k + 1)
        kept = [0, *range(2, k + 1)]
        return distance_QK[:, kept], row_QK[:, kept]

    monkeypatch.setattr(finder, "search", without_the_first)
    recall_Q = build._recalls(finder, vector_ND=vector_ND, held_out=held_out)
    np.testing.assert_allclose(recall_Q, 0.9)


def test_an_index_with_the_former_word_for_its_distance_is_read(
    vectors: np.ndarray, tmp_path: Path
) -> None:
    out = tmp_path / "index"
    build_index(write(tmp_path / "vectors.parquet", vectors), out, metric="euclidean")
    found = raybio.open_index(out).search(vectors[:3], 5)
    manifest = json.loads((out / MANIFEST).read_text())
    del manifest["checksum"]
    manifest["index"]["metric"] = "l2"
    manifest["checksum"] = json_digest(manifest)
    (out / MANIFEST).write_text(json.dumps(manifest))
    index = raybio.open_index(out)
    assert index.metric == "euclidean"
    again = index.search(vectors[:3], 5)
    assert again.keys == found.keys
    np.testing.assert_array_equal(again.scores, found.scores)


def test_a_build_of_faiss_that_misses_neighbors_is_found_by_exact_search(
    vectors: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(faiss.IndexFlatL2):
        def search(self, *arguments: object) -> object:
            scores, rows = super().search(*arguments)
            return scores, rows[:, ::-1] // 2

    monkeypatch.setattr(faiss, "IndexFlatL2", Wrong)
    source = write(tmp_path / "vectors.parquet", vectors)
    with pytest.raises(StoreError, match=r"finds 0\.\d+ of the nearest vectors, want at least"):
        build_index(source, tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_a_build_of_faiss_that_misses_neighbors_in_lists_ends_the_choice_of_the_effort(
    vectors: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of candidates was doubled for ever."""

    class Wrong(faiss.IndexIVFPQFastScan):
        def search(self, *arguments: object) -> object:
            scores, rows = super().search(*arguments)
            return scores, rows // 2

    monkeypatch.setattr(faiss, "IndexIVFPQFastScan", Wrong)
    source = write(tmp_path / "vectors.parquet", vectors)
    with pytest.raises(
        StoreError, match=r"finds 0\.\d+ of the nearest vectors, want at least 0.95"
    ):
        build_index(source, tmp_path / "index", recall=0.95, exact_at_most=1000)


@pytest.mark.parametrize("exact_at_most", [1000, 1 << 20])
def test_candidates_of_many_queries_are_scored_in_blocks_of_bounded_size(
    vectors: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exact_at_most: int
) -> None:
    source = write(tmp_path / "vectors.parquet", vectors)
    build_index(source, tmp_path / "index", exact_at_most=exact_at_most)
    index = raybio.open_index(tmp_path / "index")
    found = index.search(vectors[:70], 100)
    monkeypatch.setattr(searcher, "CANDIDATE_BYTES", 1 << 18)
    num_bytes = []
    nearest = Searcher._nearest

    def counted(
        self: Searcher, query_QD: np.ndarray, row_QR: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        num_bytes.append(row_QR.size * WIDTH * 4)
        return nearest(self, query_QD, row_QR, k)

    monkeypatch.setattr(Searcher, "_nearest", counted)
    again = index.search(vectors[:70], 100)
    assert len(num_bytes) > 1
    assert max(num_bytes) <= 1 << 18
    assert again.keys == found.keys
    np.testing.assert_allclose(again.scores, found.scores, rtol=1e-5)


def test_files_that_are_no_embeddings_are_refused_and_leave_no_index(
    vectors: np.ndarray, tmp_path: Path
) -> None:
    out = tmp_path / "index"
    bad = vectors[:50].copy()
    bad[20] = 0
    source = write(tmp_path / "zero.parquet", bad)
    with pytest.raises(DataError, match="row 20: is zero, which has no cosine"):
        build_index(source, out)
    build_index(source, out, metric="euclidean")
    bad[30, 2] = np.nan
    with pytest.raises(DataError, match="row 30: has a value that is not finite"):
        build_index(write(tmp_path / "nan.parquet", bad), tmp_path / "other", metric="euclidean")
    uneven = pa.table({"key": ["a", "b"], "embedding": [[1.0], [1.0, 2.0]]})
    pq.write_table(uneven, tmp_path / "uneven.parquet")
    with pytest.raises(DataError, match="different widths"):
        build_index(tmp_path / "uneven.parquet", tmp_path / "other")
    pq.write_table(pa.table({"key": ["a", None], "embedding": [[1.0]] * 2}), tmp_path / "no_key.pq")
    with pytest.raises(DataError, match="no_key.pq: has rows without a key"):
        build_index(tmp_path / "no_key.pq", tmp_path / "other")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "ids.parquet")
    with pytest.raises(DataError, match="has the columns id; want 'key' and 'embedding'"):
        build_index(tmp_path / "ids.parquet", tmp_path / "other")
    with pytest.raises(DataError, match="has 1 embeddings, want at least 2"):
        build_index(write(tmp_path / "one.parquet", vectors[:1]), tmp_path / "other")
    (tmp_path / "text.parquet").write_text("no")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        build_index(tmp_path / "text.parquet", tmp_path / "other")
    with pytest.raises(ConfigError, match="recall: got 0"):
        build_index(source, tmp_path / "other", recall=0)
    assert not (tmp_path / "other").exists()


def test_lists_of_other_programs_are_read(vectors: np.ndarray, tmp_path: Path) -> None:
    source = write(tmp_path / "fixed.parquet", vectors[:50])
    table = pq.read_table(source)
    expected = [embedding_MD for _, embedding_MD in read_embeddings(source)]
    for kind in (pa.list_, pa.large_list):
        lists = table.column("embedding").cast(kind(pa.float32()))
        path = tmp_path / f"{kind.__name__}.parquet"
        pq.write_table(table.set_column(1, "embedding", lists), path)
        for (_, found_MD), expected_MD in zip(read_embeddings(path), expected, strict=True):
            np.testing.assert_array_equal(found_MD, expected_MD)


def test_an_index_is_replaced_only_by_force_and_a_damaged_one_is_refused(
    vectors: np.ndarray, tmp_path: Path
) -> None:
    out = tmp_path / "index"
    source = write(tmp_path / "vectors.parquet", vectors[:200])
    build_index(source, out)
    with pytest.raises(StoreError, match="exists already. Replace it with --force"):
        build_index(source, out)
    build_index(source, out, force=True)
    queries = vectors[:5]
    for shape in (queries[:, :3], queries[0]):
        with pytest.raises(DataError, match=r"queries have the shape .* want \(Q, 16\)"):
            raybio.open_index(out).search(shape)
    with pytest.raises(ConfigError, match="got inputs, and no model that embeds them"):
        raybio.open_index(out).search(["ACD"])
    with pytest.raises(ConfigError, match="k: got 0"):
        raybio.open_index(out).search(queries, 0)
    path = out / "vectors.arrow"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"sha256 .* Build it again with raybio search index"):
        raybio.open_index(out)
    path.write_bytes(content[:-8])
    with pytest.raises(StoreError, match="truncated or changed. Build it again with raybio search"):
        raybio.open_index(out)
    with pytest.raises(StoreError, match="holds no index .* Build one with raybio search index"):
        raybio.open_index(tmp_path)


def test_a_killed_build_leaves_no_index(
    vectors: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "vectors.parquet", vectors)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(build, "_recalls", killed)
        build_index(source, tmp_path / "index")
    assert not (tmp_path / "index").exists()
    build_index(source, tmp_path / "index")
    assert len(EmbeddingIndex(open_index_store(tmp_path / "index"))) == NUM_ROWS


def test_more_neighbors_than_faiss_finds_on_a_gpu_are_found_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No GPU is at hand: an index that refuses as that of faiss does stands in its place."""
    vector_ND = np.random.default_rng(0).normal(size=(3000, 4)).astype(np.float32)

    class OnGpu:
        def __init__(self, index):
            self.index = index

        def add(self, added_ND):
            self.index.add(added_ND)

        def search(self, query_QD, k):
            assert k <= 2048, "GPU index only supports k <= 2048"
            return self.index.search(query_QD, k)

    monkeypatch.setattr(searcher, "_fits_gpu", lambda *_: True)
    monkeypatch.setattr(searcher, "on_gpu", lambda _, index: OnGpu(index))
    on_gpu = searcher.Searcher(faiss, vector_ND, "euclidean", None)
    monkeypatch.setattr(searcher, "_fits_gpu", lambda *_: False)
    on_cpu = searcher.Searcher(faiss, vector_ND, "euclidean", None)
    for k in (5, 2030, 2500):
        for found, wanted in zip(
            on_gpu.search(vector_ND[:3], k), on_cpu.search(vector_ND[:3], k), strict=True
        ):
            np.testing.assert_array_equal(found, wanted)
