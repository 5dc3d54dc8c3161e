import numpy as np
import pytest

from raybio.evaluation.projection import embedding_map


def three_clusters(rows_per_cluster: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    label_N = np.repeat(np.arange(3), rows_per_cluster)
    return (
        np.eye(3)[label_N] @ rng.normal(size=(3, 16)) * 20 + rng.normal(size=(len(label_N), 16))
    ), label_N


def test_rows_of_one_cluster_lie_together():
    embedding_ND, label_N = three_clusters(40)
    row_S, position_S2 = embedding_map(embedding_ND, np.random.default_rng(1))
    assert row_S.tolist() == list(range(120))
    distance_SS = np.linalg.norm(position_S2[:, None] - position_S2[None], axis=-1)
    np.fill_diagonal(distance_SS, np.inf)
    assert (label_N[distance_SS.argmin(1)] == label_N).all()


def test_sample_and_map_depend_on_the_generator_only():
    embedding_ND, _ = three_clusters(40)
    np.random.seed(0)
    one = embedding_map(embedding_ND, np.random.default_rng(1), max_rows=50)
    np.random.seed(1)
    same = embedding_map(embedding_ND, np.random.default_rng(1), max_rows=50)
    other = embedding_map(embedding_ND, np.random.default_rng(2), max_rows=50)
    assert np.array_equal(one.row_S, same.row_S)
    assert np.array_equal(one.position_S2, same.position_S2)
    assert not np.array_equal(one.row_S, other.row_S)
    assert len(set(one.row_S.tolist())) == 50
    assert one.position_S2.shape == (50, 2)


def test_few_rows_and_a_constant_encoder_still_give_a_map():
    assert np.isfinite(embedding_map(np.eye(4), np.random.default_rng(0)).position_S2).all()
    for row_D in (np.ones(8), np.arange(1.0, 9.0) / 10):
        embedding_ND = np.tile(row_D, (20, 1))
        found = embedding_map(embedding_ND, np.random.default_rng(0))
        assert np.isfinite(found.position_S2).all()


@pytest.mark.parametrize(
    ("embedding_ND", "message"),
    [
        (np.zeros((3, 8)), "at least 4 rows"),
        (np.zeros((8, 1)), "at least 4 rows of 2"),
        (np.full((8, 2), np.nan), "NaN or infinity"),
    ],
)
def test_embeddings_that_no_map_can_show_are_refused(embedding_ND, message):
    with pytest.raises(ValueError, match=message):
        embedding_map(embedding_ND, np.random.default_rng(0))
