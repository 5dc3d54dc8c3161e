"""P13: the whole training step under bf16 autocast beside the same step in fp32, on this CPU.

Measured twice, as P14: by the clock with all threads, and by processor time with one. The note has what
``precision: auto`` chooses here, which depends on the CPU's instructions alone.
"""

from statistics import median

import torch
from _measure import NUM_PAIRS, SMALL, core_seconds_of, interleaved, report, seconds_of
from training_setup import gradients_of, link_batch, minilm_encoder, sppt_system

from raybio.training.collective import SingleProcess
from raybio.training.precision import Precision, resolve_precision
from raybio.training.settings import MemoryConfig, TrainingConfig
from raybio.training.step import TrainStep

NUM_ANCHORS, MAX_LENGTH, MAX_TOKENS = (2, 24, 512) if SMALL else (16, 128, 4096)


def main() -> None:
    encoder = minilm_encoder()
    batch, system = link_batch(encoder, NUM_ANCHORS, MAX_LENGTH), sppt_system(encoder)
    names = ("fp32", "bf16")
    losses = [
        gradients_of(system, batch, max_tokens=MAX_TOKENS, gradient_caching=False, precision=n)
        for n in names
    ]
    torch.testing.assert_close(
        losses[1], losses[0], rtol=0.02, atol=0.0
    )  # what eight bits of mantissa leave
    config = TrainingConfig(memory=MemoryConfig(max_tokens_per_micro_batch=MAX_TOKENS))
    steps = [TrainStep(system, config, SingleProcess(), Precision(name, "cpu")) for name in names]
    for threads, clock in ((torch.get_num_threads(), seconds_of), (1, core_seconds_of)):
        torch.set_num_threads(threads)
        pairs = interleaved(
            [lambda: steps[0](0, batch), lambda: steps[1](0, batch)], NUM_PAIRS, clock
        )
        ratios = [fp32 / bf16 for fp32, bf16 in pairs]
        kind = "wall clock" if clock is seconds_of else "processor time"
        note = (
            f"the whole step, {threads} threads, {kind}; losses {losses[0]:.4f} and {losses[1]:.4f}; "
            f"auto chooses {resolve_precision('auto', 'cpu').name} here"
        )
        report("P13", "our fp32", median(ratios), min(ratios), note)


if __name__ == "__main__":
    main()
