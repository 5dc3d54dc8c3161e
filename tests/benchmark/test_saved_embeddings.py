"""Embeddings on disk: what is timed, and what is computed once."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from raybio.benchmark.saved_embeddings import (
    KIND,
    Embedded,
    device_seconds,
    embedding_costs,
    saved_embeddings,
)
from raybio.core.records import FORMATS


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


@pytest.mark.parametrize("damage", ["bit", "cut", "gone"])
def test_vectors_that_are_not_what_was_written_are_computed_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    vector_ND = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    said: list[str] = []

    def embedded() -> np.ndarray:
        return saved_embeddings(
            tmp_path,
            "texts",
            "own",
            ["a", "b"],
            lambda: None,
            lambda: Embedded(vector_ND, 2),
            said.append,
        )

    embedded()
    (path,) = tmp_path.glob("*.npy")
    whole = path.read_bytes()
    assert np.array_equal(embedded(), vector_ND)
    assert said[-1].startswith("read back") and not caplog.messages
    content = bytearray(whole)
    content[-5] ^= 1
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content if damage == "bit" else whole[:-5])
    assert np.array_equal(embedded(), vector_ND)
    assert said[-1].startswith("embedded")
    assert path.read_bytes() == whole
    damaged = [f"{path}: damaged, not what was written; it is computed again"]
    assert caplog.messages == ([] if damage == "gone" else damaged)
    embedded()
    assert said[-1].startswith("read back")


def test_the_record_of_another_version_is_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def embedded() -> np.ndarray:
        made = Embedded(np.ones((1, 3), np.float32), 1)
        return saved_embeddings(
            tmp_path, "texts", "own", ["a"], lambda: None, lambda: made, said.append
        )

    embedded()
    (path,) = tmp_path.glob("*.json")
    now = FORMATS[KIND]
    monkeypatch.setitem(FORMATS, KIND, now._replace(version=now.version + 1))
    assert embedding_costs(tmp_path) == []
    embedded()
    assert said[-1].startswith("embedded")
    assert f"{path}: got version {now.version} of '{KIND}'" in caplog.text
    assert "its embeddings are computed again" in caplog.text
    assert len(embedding_costs(tmp_path)) == 1
    embedded()
    assert said[-1].startswith("read back")


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
