"""The GPU script, tried at tiny size where there is no GPU."""

import importlib
import json

import pytest
import torch

from tests.paths import ROOT


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("gpu")


def test_every_part_runs_at_tiny_size_and_prints_finite_figures(gpu, capsys):
    bench = gpu.Bench(gpu.SMALL, torch.device("cpu"))
    gpu.bench_step(bench, compiled=False)
    gpu.bench_caching(bench)
    gpu.bench_retrieval(bench)
    results = [
        json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")
    ]
    assert [result["name"] for result in results] == ["training step"] * 4 + [
        "gradient caching"
    ] + ["link retrieval"] * 2
    assert all(result["device"] == "CPU" for result in results)
    assert all(0 < result["mfu"] < 10 for result in results[:4])


def test_flop_of_a_step_are_those_of_its_real_tokens(gpu):
    encoder = gpu.build_protein_encoder(gpu.SMALL.encoder, seed=0)
    batch = gpu.link_batch(encoder, 2, 64)
    layer = 4 * (32 * 32 + 32) + (32 * 64 + 64) + (64 * 32 + 32) + 4 * 32
    expected = sum(
        6 * 2 * layer * length + 12 * 2 * 32 * length**2 for length in batch.length_R.tolist()
    )
    assert gpu.flop_of_step(encoder, batch) == pytest.approx(expected)


def test_the_links_belong_to_the_first_rows(gpu):
    indptr, indices = gpu.random_links(100, 7)
    assert indptr[7] == indptr[-1] == len(indices) == 84
    assert len(indptr) == 101


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_every_part_runs_on_a_gpu(gpu, capsys):
    bench = gpu.Bench(gpu.SMALL, torch.device("cuda"))
    gpu.bench_step(bench, compiled=False)
    gpu.bench_caching(bench)
    gpu.bench_retrieval(bench)
    assert len(capsys.readouterr().out.splitlines()) == 7
