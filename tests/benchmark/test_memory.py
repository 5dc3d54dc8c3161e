"""Peak memory of some work."""

from pathlib import Path

import pytest
import torch

from raybio.benchmark import memory
from raybio.benchmark.memory import with_peak_bytes


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine measures its GPU")
def test_memory_that_is_freed_counts_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("only Linux tells the peak memory of a process")
    last = []

    def work() -> int:
        # Small blocks, which the C library keeps for the next use, below one that stays.
        blocks = [bytearray(b"x" * 100_000) for _ in range(500)]
        last.append(bytearray(b"x" * 2_000))
        return len(blocks)

    for _ in range(2):
        result, peak_bytes = with_peak_bytes(work)
        assert result == 500
        assert peak_bytes is not None and 45e6 < peak_bytes < 100e6
    monkeypatch.setattr(memory, "_PROCESS", Path("/no such folder"))
    assert with_peak_bytes(work) == (500, None)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_memory_of_a_gpu_counts_what_is_there_before() -> None:
    held = torch.empty(20_000_000, dtype=torch.uint8, device="cuda")
    size, peak_bytes = with_peak_bytes(lambda: torch.empty(2**26, device="cuda").numel())
    assert size == 2**26
    assert peak_bytes is not None and peak_bytes >= 4 * 2**26 + len(held)
