import numpy as np
import pytest
import torch

from raybio.core.errors import ConfigError, StoreError
from raybio.methods.contrastive_probe import vector_index as module
from raybio.ops.nearest import nearest

pytest.importorskip("faiss")
QUERY, VECTOR = (
    np.random.default_rng(0).normal(size=(num, 8)).astype(np.float32) for num in (20, 3000)
)


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_an_index_opened_from_its_vectors_equals_exact_search(metric, tmp_path):
    module.VectorIndex(VECTOR, metric).save(tmp_path)
    result = module.VectorIndex.open(tmp_path).search(QUERY, 10)
    expected = nearest(
        torch.from_numpy(QUERY), torch.from_numpy(VECTOR), 10, metric=metric
    ).index_QK
    np.testing.assert_array_equal(result, expected.numpy())


def test_vectors_with_other_fingerprints_are_refused_with_their_names(tmp_path):
    module.VectorIndex(VECTOR).save(tmp_path, fingerprints={"model": "a", "names": "b"})
    module.VectorIndex.open(tmp_path, fingerprints={"model": "a", "names": "b"})
    with pytest.raises(StoreError, match="holds vectors of another names. Choose another folder"):
        module.VectorIndex.open(tmp_path, fingerprints={"model": "a", "names": "c"})
    with pytest.raises(StoreError, match="another model and names"):
        module.VectorIndex.open(tmp_path, fingerprints={"model": "x", "names": "c"})


def test_approximate_search_among_many_vectors_has_high_recall(monkeypatch):
    monkeypatch.setattr(module, "EXACT_AT_MOST", 1000)
    rng = np.random.default_rng(0)
    vectors = (
        rng.normal(size=(60, 8))[rng.integers(0, 60, 9000)] + 0.1 * rng.normal(size=(9000, 8))
    ).astype(np.float32)
    result = module.VectorIndex(vectors).search(vectors[:50], 10)
    expected = nearest(
        torch.from_numpy(vectors[:50]), torch.from_numpy(vectors), 10
    ).index_QK.numpy()
    shared = [
        len(set(one) & set(other)) / 10
        for one, other in zip(result.tolist(), expected.tolist(), strict=True)
    ]
    assert np.mean(shared) > 0.9


def test_changed_vectors_incomplete_folders_and_unknown_factories_are_refused(tmp_path):
    module.VectorIndex(VECTOR).save(tmp_path)
    np.save(tmp_path / "vectors.npy", VECTOR + 1)
    with pytest.raises(StoreError, match="vectors.npy has sha256"):
        module.VectorIndex.open(tmp_path)
    (tmp_path / "index.json").unlink()
    with pytest.raises(StoreError, match="holds no complete index"):
        module.VectorIndex.open(tmp_path)
    with pytest.raises(ConfigError, match="faiss knows no index 'Magic'"):
        module.VectorIndex(VECTOR, factory="Magic")
    with pytest.raises(ValueError, match="all finite"):
        module.VectorIndex(np.full((2, 3), np.nan, np.float32))
