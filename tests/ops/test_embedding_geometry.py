import math

import pytest
import torch

from raybio.ops import embedding_geometry
from raybio.ops.embedding_geometry import (
    EFFECTIVE_RANK,
    MEAN_COSINE,
    alignment,
    embedding_spread,
    spread_metrics,
    uniformity,
)
from tests import oracles


def rows(num_rows: int = 9, width: int = 5) -> torch.Tensor:
    return (
        torch.randn(
            num_rows, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )
        + 0.5
    )


def test_the_mean_cosine_is_that_of_a_loop_over_pairs() -> None:
    row_ND = rows()
    row_ND[3] = 0  # has no direction: cosine 0 with all others, also with itself
    pairs = [(i, j) for i in range(9) for j in range(9) if i != j]
    expected = sum(oracles.cosine(row_ND[i].numpy(), row_ND[j].numpy()) for i, j in pairs) / len(
        pairs
    )
    assert embedding_spread(row_ND).mean_cosine == pytest.approx(expected, abs=1e-12)


def test_the_effective_rank_is_the_exponential_of_the_entropy_of_singular_values() -> None:
    row_ND = rows()
    values = torch.linalg.svd(row_ND - row_ND.mean(0)).S.tolist()
    shares = [value / sum(values) for value in values]
    expected = math.exp(-sum(share * math.log(share) for share in shares))
    assert embedding_spread(row_ND).effective_rank == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_k_equal_directions_have_rank_k_at_any_offset(rank: int) -> None:
    corner_KD = torch.eye(6, dtype=torch.float64)[:rank]
    result = embedding_spread(torch.cat([corner_KD, -corner_KD]) + 100)
    assert result.effective_rank == pytest.approx(rank)
    assert result.mean_cosine > 0.999


def test_equal_rows_have_one_direction_and_no_rank() -> None:
    result = embedding_spread(rows(1, 33).float().expand(50, 33) * 3.7)
    assert result.mean_cosine == pytest.approx(1)
    assert result.effective_rank == 0


def test_neither_order_nor_scale_of_the_embeddings_matters() -> None:
    row_ND = rows()
    expected = embedding_spread(row_ND)
    assert embedding_spread(1e-20 * row_ND.flip(0)) == pytest.approx(expected)


def test_many_rows_are_sampled_evenly() -> None:
    row_ND = rows(10)
    assert embedding_spread(row_ND, max_rows=5) == embedding_spread(row_ND[::2])
    assert embedding_spread(row_ND, max_rows=10) == embedding_spread(row_ND)


def test_rows_without_a_defined_spread_give_no_metrics() -> None:
    assert spread_metrics(rows()).keys() == {MEAN_COSINE, EFFECTIVE_RANK}
    assert spread_metrics(rows(1)) == {}
    assert spread_metrics(torch.tensor([[1.0, torch.nan], [0.0, 1.0]])) == {}
    with pytest.raises(ValueError, match="two rows at least, got 1"):
        embedding_spread(rows(1))


def test_the_rounding_noise_of_a_collapsed_encoder_has_rank_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = 1e-7 * torch.randn(64, 16, generator=generator)
    point = torch.linspace(-1, 1, 16)
    result = embedding_spread(point + noise)
    assert (result.mean_cosine, result.effective_rank) == (pytest.approx(1.0), 0.0)
    apart = embedding_spread(point + 1e4 * noise)
    assert apart.effective_rank > 10  # small, and no noise


def test_alignment_and_uniformity_are_those_of_loops_over_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row_ND = rows()
    unit_ND = [row / row.norm() for row in row_ND]
    pairs = [(0, 3), (8, 1), (4, 5)]
    expected = sum(float(((unit_ND[i] - unit_ND[j]) ** 2).sum()) for i, j in pairs) / 3
    monkeypatch.setattr(embedding_geometry, "PAIRS_AT_ONCE", 2)
    found = alignment(1e3 * row_ND, row_ND, torch.tensor(pairs))
    assert found == pytest.approx(expected, abs=1e-12)
    kernel = [
        math.exp(-2 * float(((unit_ND[i] - unit_ND[j]) ** 2).sum()))
        for i in range(9)
        for j in range(i)
    ]
    expected = math.log(sum(kernel) / len(kernel))
    assert uniformity(1e3 * row_ND.flip(0)) == pytest.approx(expected, abs=1e-12)
    assert uniformity(row_ND, max_rows=3) == uniformity(row_ND[::3])


def test_a_collapse_is_aligned_and_not_uniform() -> None:
    collapsed_ND = rows(1).expand(9, 5)
    assert alignment(collapsed_ND, collapsed_ND, torch.tensor([[0, 1]])) == 0
    assert uniformity(collapsed_ND) == pytest.approx(0, abs=1e-12)
    opposite_ND = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert alignment(opposite_ND, opposite_ND, torch.tensor([[0, 1]])) == pytest.approx(4)
    assert uniformity(opposite_ND) == pytest.approx(-8)
