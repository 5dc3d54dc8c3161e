"""P14: model FLOP utilization of the training step on a CPU, against the matrix-product rate of the same run.

MFU = FLOP of the real (unpadded) tokens / seconds / GEMM rate, with 6 × non-embedding parameters + 12 × layers ×
width × length FLOP a token (forward and backward). The step is the whole one: micro-batches, both losses, clipping,
AdamW. Measured twice: by the clock with all threads, and by processor time with one, which other processes do not
disturb.
"""

from collections.abc import Callable
from statistics import median

import torch
from _measure import NUM_PAIRS, SMALL, core_seconds_of, interleaved, report, seconds_of
from training_setup import MINILM_L6, gemm, link_batch, minilm_encoder, sppt_system

from raybio.training.collective import SingleProcess
from raybio.training.precision import Precision
from raybio.training.settings import MemoryConfig, TrainingConfig
from raybio.training.step import TrainStep

NUM_ANCHORS, MAX_LENGTH, GEMM_SIZE = (2, 32, 256) if SMALL else (16, 128, 2048)


def measure(
    precision_name: str, dtype: torch.dtype, seconds_of: Callable[[Callable[[], object]], float]
) -> None:
    encoder = minilm_encoder()
    batch = link_batch(encoder, NUM_ANCHORS, MAX_LENGTH)
    config = TrainingConfig(memory=MemoryConfig(max_tokens_per_micro_batch=4096))
    take_step = TrainStep(
        sppt_system(encoder), config, SingleProcess(), Precision(precision_name, "cpu")
    )
    multiply, flop_multiply = gemm(GEMM_SIZE, dtype)

    num_parameters = sum(p.numel() for p in encoder.model.base_model.encoder.parameters())
    length_R = batch.length_R.double()
    flop_attention = 12 * MINILM_L6.num_layers * MINILM_L6.width * float((length_R**2).sum())
    flop_step = 6 * num_parameters * float(length_R.sum()) + flop_attention

    pairs = interleaved([multiply, lambda: take_step(0, batch)], NUM_PAIRS, seconds_of)
    shares = [(flop_step / step) / (flop_multiply / product) for product, step in pairs]
    rate = median(flop_multiply / product for product, _ in pairs) / 1e9
    note = (
        f"share of the {precision_name} GEMM rate ({rate:.0f} GFLOP/s, {GEMM_SIZE}³); {num_parameters / 1e6:.1f} M "
        f"non-embedding parameters, {int(length_R.sum())} real tokens a step, {torch.get_num_threads()} threads, "
        f"{'processor time' if seconds_of is core_seconds_of else 'wall clock'}"
    )
    report("P14", f"GEMM {precision_name}", median(shares), min(shares), note)


if __name__ == "__main__":
    precisions = [("fp32", torch.float32)]
    if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported():
        precisions.append(("bf16", torch.bfloat16))
    for name, dtype in precisions:
        measure(name, dtype, seconds_of)
    torch.set_num_threads(1)
    for name, dtype in precisions:
        measure(name, dtype, core_seconds_of)
