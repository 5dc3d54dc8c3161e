"""Scores computed a tile at a time equal those of whole matrices in double precision."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from raybio.ops import scores as module
from raybio.ops.rank_counts import count_ranks
from raybio.ops.scores import check_finite, row_blocks, scorer
from raybio.ops.similarity import normalize
from tests.paths import ROOT

METRICS = ("euclidean", "cosine", "dot")


def whole_scores(anchor_ND: Tensor, candidate_MD: Tensor, metric: str) -> Tensor:
    """Return scores (N, M) from whole fp64 matrices, rounded to 32 bits of the summands' size."""
    both = torch.cat([anchor_ND, candidate_MD]).double()
    num = len(anchor_ND)
    if metric == "dot":
        score_NM = both[:num] @ both[num:].T
        length = torch.linalg.vector_norm(both, dim=1)
        size = length[:num, None] * length[num:]
    else:
        if metric == "cosine":
            is_zero = (both == 0).all(1, keepdim=True)
            both = torch.cat([normalize(both), is_zero.double()], dim=1)
        both = both - both.median(0).values
        square = both.square().sum(1)
        size = square[:num, None] + square[num:]
        score_NM = 2 * both[:num] @ both[num:].T - size
        size = square.max() if metric == "cosine" else size
    return score_NM + size * 2.0**20 - size * 2.0**20


def embeddings(kind: str, num: int, seed: int) -> Tensor:
    vector = torch.randn(num, 24, generator=torch.Generator().manual_seed(seed))
    match kind:
        case "copies":
            vector = vector[torch.arange(num) % 5]
        case "grid":
            vector = vector.round()
            vector[::7] = 0
        case "giant":
            vector[3] *= 1e12
        case "tiny":
            vector *= 1e-30
    return vector


@pytest.mark.parametrize("num_entries", [1, 100, 1 << 20])
@pytest.mark.parametrize("kind", ["normal", "copies", "grid", "giant", "tiny"])
@pytest.mark.parametrize("metric", METRICS)
def test_scores_and_ranks_equal_those_of_whole_matrices(
    monkeypatch, metric, kind, num_entries
) -> None:
    monkeypatch.setattr(module, "_CPU_TILE_ENTRIES", num_entries)
    monkeypatch.setattr(module, "_CPU_MEDIAN_ENTRIES", num_entries)
    query, candidate = embeddings(kind, 11, 0), embeddings(kind, 61, 1)
    candidate[:5] = query[:5]
    tiled = scorer(query, metric, torch.float64, candidate)
    expected_scores = whole_scores(query, candidate, metric)
    result = torch.cat([tiled.between(slice(0, 4)), tiled.between(torch.arange(4, 11))])
    # Matrix products of other shapes sum in another order; rounding removes nearly all of it.
    assert (
        (result - expected_scores).abs() <= 1e-9 * expected_scores.abs().amax(1, keepdim=True)
    ).all()
    row, column = torch.arange(11).repeat_interleave(61), torch.arange(61).repeat(11)
    for counted, expected in zip(
        count_ranks(result, row, column), count_ranks(expected_scores, row, column), strict=True
    ):
        assert torch.equal(counted, expected)


@pytest.mark.parametrize("metric", METRICS)
def test_scores_are_bit_identical_for_any_tile_size(monkeypatch, metric) -> None:
    embedding = embeddings("grid", 90, 2)
    result = []
    for num_entries in (1, 200, 1 << 20):
        monkeypatch.setattr(module, "_CPU_TILE_ENTRIES", num_entries)
        monkeypatch.setattr(module, "_CPU_MEDIAN_ENTRIES", num_entries)
        result.append(scorer(embedding, metric, torch.float64).block(10, 40))
    assert torch.equal(result[0], result[1])
    assert torch.equal(result[1], result[2])
    assert (result[0].diagonal(offset=10) == -torch.inf).all()


def test_a_row_that_is_not_finite_is_named_in_any_tile(monkeypatch) -> None:
    monkeypatch.setattr(module, "_CPU_TILE_ENTRIES", 50)
    embedding = embeddings("normal", 30, 0)
    embedding[17, 3], embedding[29, 0] = torch.nan, torch.inf
    with pytest.raises(ValueError, match="2 of 30 vectors hold NaN or Inf .the first: row 17."):
        check_finite(embedding, "vectors")


MEASURE = """
import resource, torch
from raybio.ops.retrieval import cosine_scores
torch.set_num_threads(1)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
query, candidate = torch.randn(64, 512), torch.randn(100_000, 512)
cosine_scores(query[:8], candidate[:8]).block(0, 8)  # libraries take their memory now
before = peak()
block = cosine_scores(query, candidate).block(0, 64)
print(peak() - before, block.nbytes / 2**20, candidate.nbytes / 2**20)
"""


@pytest.mark.nightly
def test_memory_beyond_embeddings_and_a_block_is_a_tile() -> None:
    # glibc returns freed memory to the system, so the peak does not depend on fragmentation.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}
    command = [sys.executable, "-c", MEASURE]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    extra_mib, block_mib, candidate_mib = map(float, done.stdout.split())
    assert candidate_mib > 190
    assert extra_mib < block_mib + 64


@pytest.mark.parametrize(("gib", "rows"), [(80, 536), (16, 134), (8, 67)])
def test_blocks_on_a_gpu_are_as_large_as_its_memory_allows(monkeypatch, gib, rows):
    # On a GPU the conversion of all candidates, once for each block, would take most of the time.
    properties = SimpleNamespace(total_memory=gib * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    def largest(device):
        blocks = row_blocks(1_000, 1_000_000, 1_024, None, torch.device(device))
        return max(end - first for first, end in blocks)

    assert largest("cpu") == 16
    assert largest("cuda") == rows
