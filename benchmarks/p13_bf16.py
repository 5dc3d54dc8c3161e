"""P13: the whole training step under bf16 autocast beside the same step in fp32, on this CPU.

Measured twice, as P14: by the clock with all threads, and by processor time with one. What ``precision: auto`` would
choose here is said beside it; where bf16 does not pay, auto has to leave it off.
"""

from statistics import median

import torch
from _measure import report, seconds_of
from training_setup import core_seconds_of, link_batch, minilm_encoder, paired_seconds, sppt_system

from raybio.training.gather import SingleProcess
from raybio.training.precision import Precision, resolve_precision
from raybio.training.settings import MemoryConfig, TrainingConfig
from raybio.training.step import TrainStep

NUM_ANCHORS, MAX_LENGTH, NUM_PAIRS = 16, 128, 5


def main() -> None:
    encoder = minilm_encoder()
    batch = link_batch(encoder, NUM_ANCHORS, MAX_LENGTH)
    config = TrainingConfig(memory=MemoryConfig(max_tokens_per_micro_batch=4096))
    steps = [
        TrainStep(sppt_system(encoder), config, SingleProcess(), Precision(name, "cpu")) for name in ("fp32", "bf16")
    ]
    for threads, seconds in ((torch.get_num_threads(), seconds_of), (1, core_seconds_of)):
        torch.set_num_threads(threads)
        pairs = paired_seconds(lambda: steps[0](0, batch), lambda: steps[1](0, batch), NUM_PAIRS, seconds)
        ratios = [fp32 / bf16 for fp32, bf16 in pairs]
        clock = "processor time" if seconds is core_seconds_of else "wall clock"
        note = f"the whole step, {threads} threads, {clock}; auto chooses {resolve_precision('auto', 'cpu').name} here"
        report("P13", "our fp32", median(ratios), min(ratios), note)


if __name__ == "__main__":
    main()
