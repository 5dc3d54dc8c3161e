"""P10: gradient caching beside our own step without it: equal gradients first, then time and memory.

Time: one process, A B B A. Memory: a fresh process each, peak resident bytes of a step above those before it, for a
batch and for one four times as large; the growth from one to the other is what is compared.
"""

import subprocess
import sys
from collections.abc import Callable
from statistics import median

import torch
from _measure import NUM_PAIRS, SMALL, interleaved, peak_growth_bytes, report
from training_setup import gradients_of, link_batch, minilm_encoder, sppt_system

MAX_TOKENS, MAX_LENGTH = 512, 48
FEW_ANCHORS, MANY_ANCHORS = (2, 8) if SMALL else (6, 24)


def step(num_anchors: int, gradient_caching: bool) -> tuple[Callable[[], object], torch.nn.Module]:
    encoder = minilm_encoder()
    batch, system = link_batch(encoder, num_anchors, MAX_LENGTH), sppt_system(encoder)
    return lambda: gradients_of(
        system, batch, max_tokens=MAX_TOKENS, gradient_caching=gradient_caching
    ), encoder


def peak_bytes(num_anchors: int, gradient_caching: bool) -> int:
    command = [
        sys.executable,
        "-W",
        "ignore",
        __file__,
        str(num_anchors),
        str(int(gradient_caching)),
    ]
    return int(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]
    )


def print_peak_bytes(num_anchors: int, gradient_caching: bool) -> None:
    run, encoder = step(num_anchors, gradient_caching)
    # Gradients and one small step's buffers exist before the measurement, as they do in a run.
    warm, _ = step(2, gradient_caching)
    warm()
    for parameter in encoder.parameters():
        parameter.grad = torch.zeros_like(parameter)
    print(peak_growth_bytes(run))


def check_equal(plain: torch.nn.Module, cached: torch.nn.Module) -> float:
    worst = 0.0
    for ours, theirs in zip(cached.parameters(), plain.parameters(), strict=True):
        if ours.grad is None or theirs.grad is None:
            assert ours.grad is None
            assert theirs.grad is None
            continue
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
        worst = max(worst, float((ours.grad - theirs.grad).abs().max()))
    return worst


def main() -> None:
    run_plain, plain = step(MANY_ANCHORS, gradient_caching=False)
    run_cached, cached = step(MANY_ANCHORS, gradient_caching=True)
    run_plain(), run_cached()
    worst = check_equal(plain, cached)
    pairs = interleaved([run_plain, run_cached], NUM_PAIRS)
    ratios = [plain_seconds / cached_seconds for plain_seconds, cached_seconds in pairs]
    growth = {
        caching: peak_bytes(MANY_ANCHORS, caching) - peak_bytes(FEW_ANCHORS, caching)
        for caching in (False, True)
    }
    note = (
        f"time {1 / median(ratios):.2f}×; memory growth from {3 * FEW_ANCHORS} to {3 * MANY_ANCHORS} sequences "
        f"{growth[True] / 2**20:.0f} MiB against {growth[False] / 2**20:.0f} MiB "
        f"({max(growth[True], 0) / max(growth[False], 1):.2f}×); gradients differ by {worst:.0e} at most"
    )
    report("P10", "our step without caching", median(ratios), min(ratios), note)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print_peak_bytes(int(sys.argv[1]), bool(int(sys.argv[2])))
    else:
        main()
