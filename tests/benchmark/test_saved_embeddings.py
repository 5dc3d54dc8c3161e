"""Embeddings on disk: what is timed, and what is computed once."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from raybio.benchmark.saved_embeddings import (
    Embedded,
    device_seconds,
    embedding_costs,
    saved_embeddings,
)


def compute_for(seconds: float) -> None:
    """Use this much processor time."""
    started = time.process_time()
    while time.process_time() - started < seconds:
        pass


def test_loading_an_encoder_takes_no_part_in_the_time_of_embedding(tmp_path: Path) -> None:
    calls = []

    def load() -> None:
        calls.append("load")
        compute_for(0.4)

    def make() -> Embedded:
        calls.append("make")
        compute_for(0.1)
        return Embedded(np.ones((2, 3), np.float32), 2)

    def embedded(inputs: list[str]) -> np.ndarray:
        return saved_embeddings(tmp_path, "texts", "own", inputs, load, make, lambda _: None)

    embedded(["a", "b"])
    (cost,) = embedding_costs(tmp_path)
    assert 0.1 <= cost.seconds < 0.3
    assert cost.rows == 2
    # What is read back is not counted again.
    embedded(["a", "b"])
    assert embedding_costs(tmp_path) == [cost]
    assert calls == ["load", "make"]
    embedded(["b", "c"])
    assert sum(cost.rows for cost in embedding_costs(tmp_path)) == 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_waiting_takes_no_processor_time() -> None:
    started = device_seconds()
    time.sleep(0.2)
    assert device_seconds() - started < 0.1
    compute_for(0.2)
    assert device_seconds() - started >= 0.2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_clock_waits_for_the_gpu() -> None:
    matrix = torch.randn(8192, 8192, device="cuda")
    matrix @ matrix
    started = device_seconds()
    for _ in range(20):
        matrix @ matrix
    launched = time.perf_counter() - started
    elapsed = device_seconds() - started
    # 22 TFLOP are computed at less than 1,000 TFLOP a second, and launched much sooner.
    assert elapsed > 0.02
    assert elapsed > 2 * launched
