"""Absolute figures on one GPU: the training step of a BERT-base protein encoder, gradient caching, link retrieval.

    PYTHONPATH=. python benchmarks/gpu.py [--small] [--only step,caching,retrieval] [--no-compile]

Needs torch and transformers, neither Ray nor a network. Prints one JSON line a result, each with the device's name.
``--small`` runs the same code at tiny size on any machine: a test of the script, whose figures mean nothing.

FLOP of a training step: (6 x non-embedding parameters + 12 x layers x width x length) a real token, forward and
backward. MFU is that rate over the measured rate of a large matrix product in the same precision on the same machine;
padding and the second encoding of gradient caching count as waste.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from training_setup import link_batch, sppt_system

from raybio.methods.sppt.batches import LinkBatch
from raybio.methods.sppt.link_retrieval import link_retrieval
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import ProteinEncoder, build_protein_encoder
from raybio.training.collective import SingleProcess
from raybio.training.precision import Precision
from raybio.training.settings import MemoryConfig, TrainingConfig
from raybio.training.step import TrainStep


@dataclass(frozen=True)
class Size:
    """How large everything is."""

    encoder: EncoderConfig
    lengths: tuple[int, ...]
    tokens_per_step: int
    tokens_per_micro_batch: int
    gemm: int
    num_steps: int
    retrieval_rows: int
    retrieval_anchors: int


FULL = Size(
    EncoderConfig(max_positions=1032),
    (128, 512, 1024),
    131_072,
    32_768,
    8192,
    10,
    1_000_000,
    10_000,
)
SMALL = Size(
    EncoderConfig(num_layers=2, width=32, num_heads=2, ffn_width=64, max_positions=72),
    (32, 64), 1024, 512, 128, 2, 500, 50,
)  # fmt: skip


class Bench:
    """One device and one size."""

    def __init__(self, size: Size, device: torch.device) -> None:
        self.size, self.device = size, device

    def report(self, name: str, **values: Any) -> None:
        machine = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        rounded = {
            key: float(f"{value:.4g}") if isinstance(value, float) else value
            for key, value in values.items()
        }
        print(
            json.dumps({"name": name, "device": machine, "torch": torch.__version__, **rounded}),
            flush=True,
        )

    def seconds(self, function: Callable[[], object]) -> float:
        self._synchronize()
        start = time.perf_counter()
        function()
        self._synchronize()
        return time.perf_counter() - start

    def median_seconds(self, function: Callable[[], object], repeats: int | None = None) -> float:
        """Of several calls, after two that are not counted."""
        function(), function()
        return median(self.seconds(function) for _ in range(repeats or self.size.num_steps))

    def peak_gib(self, function: Callable[[], object]) -> float | None:
        """Most memory that tensors held during a call."""
        if self.device.type != "cuda":
            return None
        torch.cuda.reset_peak_memory_stats(self.device)
        function()
        self._synchronize()
        return torch.cuda.max_memory_allocated(self.device) / 2**30

    def gemm_flop_per_second(self, dtype: torch.dtype) -> float:
        size = self.size.gemm
        left, right = (torch.randn(size, size, device=self.device).to(dtype) for _ in range(2))
        out = torch.empty_like(left)
        return 2 * size**3 / self.median_seconds(lambda: torch.mm(left, right, out=out), repeats=20)

    def batch(self, encoder: ProteinEncoder, length: int) -> LinkBatch:
        # Lengths average about 0.85 of the crop.
        num_anchors = max(2, round(self.size.tokens_per_step / (3 * 0.85 * length)))
        return link_batch(encoder, num_anchors, length).to(self.device)

    def step(
        self, encoder: ProteinEncoder, batch: LinkBatch, precision: str, *, caching: bool
    ) -> Callable[[], object]:
        memory = MemoryConfig(
            max_tokens_per_micro_batch=self.size.tokens_per_micro_batch, gradient_caching=caching
        )
        config = TrainingConfig(memory=memory)
        take_step = TrainStep(
            sppt_system(encoder), config, SingleProcess(), Precision(precision, self.device.type)
        )
        return lambda: take_step(0, batch)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def flop_of_step(encoder: ProteinEncoder, batch: LinkBatch) -> float:
    config, body = encoder.model.config, encoder.model.base_model.encoder
    num_parameters = sum(weight.numel() for weight in body.parameters())
    length_R = batch.length_R.double()
    attention = 12 * config.num_hidden_layers * config.hidden_size * float(length_R.square().sum())
    return 6 * num_parameters * float(length_R.sum()) + attention


def bench_step(bench: Bench, *, compiled: bool) -> None:
    """Real tokens a second and MFU of the whole step: micro-batches, both losses, clipping, AdamW."""
    for precision, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        gemm = bench.gemm_flop_per_second(dtype)
        for encoder, is_compiled in encoders(bench, compiled=compiled):
            for length in bench.size.lengths:
                batch = bench.batch(encoder, length)
                step = bench.step(encoder, batch, precision, caching=False)
                seconds = bench.median_seconds(step)
                num_tokens = int(batch.indptr_R1[-1])
                bench.report(
                    "training step",
                    precision=precision,
                    compiled=is_compiled,
                    max_length=length,
                    real_tokens=num_tokens,
                    real_tokens_per_second=num_tokens / seconds,
                    mfu=flop_of_step(encoder, batch) / seconds / gemm,
                    gemm_tflops=gemm / 1e12,
                    peak_gib=bench.peak_gib(step),
                )


def encoders(bench: Bench, *, compiled: bool) -> Iterator[tuple[ProteinEncoder, bool]]:
    yield build_protein_encoder(bench.size.encoder, seed=0).to(bench.device), False
    if compiled:
        encoder = build_protein_encoder(bench.size.encoder, seed=0).to(bench.device)
        # In place, so that the step calls the compiled transformer; shapes of micro-batches vary.
        encoder.model.base_model.compile(dynamic=True)
        yield encoder, True


def bench_caching(bench: Bench) -> None:
    """Gradient caching against our own step without it, same batch: equal gradients, then time and memory."""
    length = bench.size.lengths[0]
    gradients, seconds, memory = [], [], []
    for caching in (False, True):
        encoder = build_protein_encoder(bench.size.encoder, seed=0).to(bench.device)
        batch = bench.batch(encoder, length)
        bench.step(encoder, batch, "fp32", caching=caching)()
        gradients.append(
            [weight.grad for weight in encoder.parameters() if weight.grad is not None]
        )
    worst = max(float((one - two).abs().max()) for one, two in zip(*gradients, strict=True))
    largest = max(float(gradient.abs().max()) for gradient in gradients[0])
    assert worst <= 1e-3 * largest, f"gradients differ by {worst}, the largest is {largest}"
    del gradients
    for caching in (False, True):
        encoder = build_protein_encoder(bench.size.encoder, seed=0).to(bench.device)
        step = bench.step(encoder, bench.batch(encoder, length), "bf16", caching=caching)
        seconds.append(bench.median_seconds(step))
        memory.append(bench.peak_gib(step))
    bench.report(
        "gradient caching",
        precision="bf16",
        max_length=length,
        time_ratio=seconds[1] / seconds[0],
        peak_gib_plain=memory[0],
        peak_gib_cached=memory[1],
        worst_gradient_difference=worst,
        largest_gradient=largest,
    )


class OneOf:
    """A worker that is alone in doing its share: the first of ``world``."""

    rank = 0

    def __init__(self, world: int) -> None:
        self.world = world

    def all_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def bench_retrieval(bench: Bench) -> None:
    """Exact link retrieval of some anchors against all rows, beside a plain top-100 search of the same pairs."""
    num_rows, num_anchors = bench.size.retrieval_rows, bench.size.retrieval_anchors
    width = bench.size.encoder.width
    small_ND = torch.randn(2000, width, device=bench.device)
    links = random_links(2000, 2000)
    here, there = link_retrieval(small_ND, *links), link_retrieval(small_ND.cpu(), *links)
    assert abs(here.lrap - there.lrap) < 1e-6, "this device and the CPU disagree on link retrieval"

    embedding_ND = torch.randn(num_rows, width, device=bench.device)
    indptr, indices = random_links(num_rows, num_anchors)
    share = OneOf(num_rows // num_anchors)
    for dtype in (torch.float64, torch.float32):

        def retrieve(dtype: torch.dtype = dtype) -> object:
            return link_retrieval(
                embedding_ND, indptr, indices, collective=share, score_dtype=dtype
            )  # type: ignore[arg-type]

        def search(dtype: torch.dtype = dtype) -> None:
            row_ND = embedding_ND.to(dtype)
            for block_BD in row_ND[:num_anchors].split(1024):
                (block_BD @ row_ND.T).topk(min(100, num_rows), dim=1)

        seconds, peer_seconds = (
            bench.median_seconds(retrieve, repeats=3),
            bench.median_seconds(search, repeats=3),
        )
        bench.report(
            "link retrieval",
            anchors=num_anchors,
            rows=num_rows,
            width=width,
            scores=str(dtype).removeprefix("torch."),
            seconds=seconds,
            pairs_per_second=num_anchors * num_rows / seconds,
            top_100_search_seconds=peer_seconds,
            peak_gib=bench.peak_gib(retrieve),
        )


def random_links(
    num_rows: int, num_anchors: int, links_per_anchor: int = 12
) -> tuple[np.ndarray, np.ndarray]:
    """Links of the first ``num_anchors`` rows; 12 is the mean degree of the Tree-of-life graph."""
    indptr = np.minimum(np.arange(num_rows + 1), num_anchors) * links_per_anchor
    return indptr, np.random.default_rng(0).integers(num_rows, size=indptr[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="tiny sizes, on any machine")
    parser.add_argument(
        "--only", default="step,caching,retrieval", help="parts to run, separated by commas"
    )
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    arguments = parser.parse_args()
    if not arguments.small and not torch.cuda.is_available():
        sys.exit("no CUDA device; --small tries the script on a CPU")
    bench = Bench(
        SMALL if arguments.small else FULL,
        torch.device("cuda" if torch.cuda.is_available() else "cpu"),
    )
    parts = arguments.only.split(",")
    if "step" in parts:
        has_compiler = bench.device.type == "cuda" or shutil.which("g++") is not None
        bench_step(bench, compiled=has_compiler and not arguments.no_compile)
    if "caching" in parts:
        bench_caching(bench)
    if "retrieval" in parts:
        bench_retrieval(bench)


if __name__ == "__main__":
    main()
