"""P11: InfoNCE in blocks beside ``F.cross_entropy(scale * q @ k.T, arange)``, B = 8,192, d = 256: time and memory.

Time: one process, A B B A. Memory: a fresh process each, peak resident bytes of one step above those before it.
"""

import subprocess
import sys

import torch
import torch.nn.functional as F
from _measure import compare, peak_growth_bytes, report

from raybio.ops.contrastive import info_nce

BATCH, WIDTH, SCALE = 8192, 256, 20.0


def inputs(batch: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k = (
        F.normalize(torch.randn(batch, WIDTH, generator=generator), dim=1).requires_grad_()
        for _ in range(2)
    )
    return q, k, torch.arange(batch)


def step(name: str, q: torch.Tensor, k: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    q.grad = k.grad = None
    if name == "ours":
        loss = info_nce(q, k, index, temperature=1 / SCALE)
    else:
        loss = F.cross_entropy(SCALE * F.normalize(q, dim=1) @ F.normalize(k, dim=1).T, index)
    loss.backward()
    return loss.detach()


def peak_bytes(name: str) -> int:
    command = [sys.executable, "-W", "ignore", __file__, name]
    return int(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]
    )


def main() -> None:
    data = inputs(BATCH)
    results = []
    for name in ("ours", "peer"):
        loss = step(name, *data)
        results.append((loss, data[0].grad, data[1].grad))
    for mine, theirs in zip(*results, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    note = f"B = {BATCH}, d = {WIDTH}, loss and gradients equal to 1e-5; cosines on both sides"
    compare(
        "P11",
        "F.cross_entropy, time",
        lambda: step("ours", *data),
        lambda: step("peer", *data),
        note=note,
    )
    ours, theirs = peak_bytes("ours"), peak_bytes("peer")
    ratio = theirs / ours
    report(
        "P11",
        "F.cross_entropy, memory",
        ratio,
        ratio,
        f"peak of a step {theirs >> 20} MiB against {ours >> 20} MiB",
    )


def print_peak_bytes(name: str) -> None:
    step(name, *inputs(64))
    data = inputs(BATCH)
    print(peak_growth_bytes(lambda: step(name, *data)))


if __name__ == "__main__":
    print_peak_bytes(sys.argv[1]) if len(sys.argv) > 1 else main()
