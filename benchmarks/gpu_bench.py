"""What the parts of ``gpu_acceptance.py`` share: the device, sizes, timing, batches and FLOP of a training step."""

import functools
import gc
import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from training_setup import link_batch, sppt_system
from transformers import PreTrainedModel

from raybio.core.batch import TokenBatch
from raybio.core.interfaces import Encoder, System
from raybio.methods.mtb_mccl.documents.demo import DocumentsConfig
from raybio.methods.sppt.batches import LinkBatch
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import ProteinEncoder
from raybio.training.collective import SingleProcess
from raybio.training.precision import Precision
from raybio.training.settings import MemoryConfig, TrainingConfig
from raybio.training.step import LaunchedStep, TrainStep

BERT_BASE_SETTINGS = {
    "encoder.num_layers": 12,
    "encoder.width": 768,
    "encoder.num_heads": 12,
    "encoder.ffn_width": 3072,
}
"""A system's encoder of BERT-base's size, its weights drawn."""

LONG_DOCUMENTS = DocumentsConfig(facts_per_document=10, co_mentions=24, num_train=400)
"""Simulated documents of 450 to 501 tokens."""

STEPS_PER_GROUP = 5
NUM_GROUPS = 3


@dataclass(frozen=True, kw_only=True)
class MethodCase:
    """Steps of a method on its built-in corpus.

    Attributes:
        method: key in ``METHODS``.
        settings: settings that differ from the method's demo.
        documents: of the built-in documents; None: the demo's corpus.
    """

    method: str
    settings: Mapping[str, object] = field(default_factory=dict)
    documents: DocumentsConfig | None = None


@dataclass(frozen=True)
class Size:
    """How large everything is.

    Attributes:
        encoder: of protein steps, gradient caching and checks.
        lengths: crops of protein steps.
        large: name -> more protein encoders, at the largest crop.
        methods: name -> steps of a method.
        tokens_per_step: of protein steps; an eighth of them for encoders of more than 24 layers.
        checked_tokens: of the steps whose gradients are compared, in fp32 and kept whole.
        tokens_per_micro_batch: of all steps.
        gemm: rows of a square matrix product.
        copied_bytes: of copies.
        num_steps: repetitions of what is timed, except steps.
        retrieval_rows: candidates of link retrieval.
        retrieval_anchors: anchors of link retrieval.
        contrasted_pairs: of the contrastive loss.
        searched_rows: vectors that are searched.
        evaluated_nodes: proteins whose links are evaluated, in groups of ``nodes_per_group``.
        nodes_per_group: as in a species.
        evaluation: settings of the evaluation of links.
    """

    encoder: EncoderConfig
    lengths: tuple[int, ...]
    large: Mapping[str, EncoderConfig]
    methods: Mapping[str, MethodCase]
    tokens_per_step: int
    checked_tokens: int
    tokens_per_micro_batch: int
    gemm: int
    copied_bytes: int
    num_steps: int
    retrieval_rows: int
    retrieval_anchors: int
    contrasted_pairs: int
    searched_rows: int
    evaluated_nodes: int
    nodes_per_group: int
    evaluation: Mapping[str, object]


FULL = Size(
    encoder=EncoderConfig(max_positions=1032),
    lengths=(128, 512, 1024),
    large={
        "ESM-2 35M": EncoderConfig(
            vocabulary="esm",
            num_layers=12,
            width=480,
            num_heads=20,
            ffn_width=1920,
            max_positions=1032,
        ),
        "ESM-2 650M": EncoderConfig(
            vocabulary="esm",
            num_layers=33,
            width=1280,
            num_heads=20,
            ffn_width=5120,
            max_positions=1032,
        ),
    },
    methods={
        "biostransformers": MethodCase(
            method="biostransformers",
            settings=BERT_BASE_SETTINGS | {"plan.global_batch_rows": 384},
        ),
        "mtb_pretrain, 512 tokens": MethodCase(
            method="mtb_pretrain",
            settings=BERT_BASE_SETTINGS | {"encoder.max_length": 512, "plan.global_batch_rows": 32},
            documents=LONG_DOCUMENTS,
        ),
    },
    tokens_per_step=131_072,
    checked_tokens=8192,
    tokens_per_micro_batch=32_768,
    gemm=8192,
    copied_bytes=1 << 28,
    num_steps=10,
    retrieval_rows=1_000_000,
    retrieval_anchors=10_000,
    contrasted_pairs=65_536,
    searched_rows=20_000,
    evaluated_nodes=65_536,
    nodes_per_group=2048,
    evaluation={},
)

_TINY = {"num_layers": 2, "width": 32, "num_heads": 2, "ffn_width": 64, "max_positions": 72}

SMALL = Size(
    encoder=EncoderConfig(**_TINY),
    lengths=(32, 64),
    large={"ESM-2 tiny": EncoderConfig(vocabulary="esm", **_TINY)},
    methods={"biostransformers": MethodCase(method="biostransformers")},
    tokens_per_step=1024,
    checked_tokens=1024,
    tokens_per_micro_batch=512,
    gemm=128,
    copied_bytes=1 << 20,
    num_steps=2,
    retrieval_rows=500,
    retrieval_anchors=50,
    contrasted_pairs=256,
    searched_rows=500,
    evaluated_nodes=60,
    nodes_per_group=20,
    evaluation={"evaluation.num_nodes_per_group": 4},
)
"""Tries all code out on any machine; its figures mean nothing."""


@functools.cache
def commit() -> str:
    """Return the commit of this code; "unknown" where git or its folder is missing."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=8", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


class CheckError(Exception):
    """The device does not do what training relies on."""


class RepeatedStep:
    """A training step on one batch, taken again and again."""

    def __init__(self, take_step: TrainStep, batch: TokenBatch) -> None:
        self.take_step = take_step
        self.batch = batch

    def __call__(self, num_steps: int = 1) -> None:
        """Take steps as training does: the metrics of one are read after the next is launched."""
        launched: LaunchedStep | None = None
        for _ in range(num_steps):
            following = self.take_step.launch(0, self.batch)
            if launched is not None:
                launched.read()
            launched = following
        if launched is not None:
            launched.read()


class Bench:
    """One device and one size."""

    def __init__(self, size: Size, device: torch.device) -> None:
        self.size = size
        self.device = device

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    def report(self, name: str, **values: Any) -> None:
        """Print a result as one JSON line."""
        machine = torch.cuda.get_device_name(self.device) if self.is_gpu else "CPU"
        rounded = {
            key: float(f"{value:.4g}") if isinstance(value, float) else value
            for key, value in values.items()
        }
        line = {"name": name, "commit": commit(), "device": machine, "torch": torch.__version__}
        line |= rounded
        print(json.dumps(line), flush=True)

    def synchronize(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def seconds(self, function: Callable[[], object]) -> float:
        self.synchronize()
        start = time.perf_counter()
        function()
        self.synchronize()
        return time.perf_counter() - start

    def median_seconds(self, function: Callable[[], object], repeats: int | None = None) -> float:
        """Of several calls, after two that are not counted."""
        function()
        function()
        return median(self.seconds(function) for _ in range(repeats or self.size.num_steps))

    def seconds_of_step(self, step: RepeatedStep) -> float:
        """Seconds of a step among others; the median over groups of steps, after two steps."""
        step(2)
        take_group = partial(step, STEPS_PER_GROUP)
        return median(self.seconds(take_group) for _ in range(NUM_GROUPS)) / STEPS_PER_GROUP

    def peak_gib(self, function: Callable[[], object]) -> float | None:
        """Most memory that tensors held during a call; None on a CPU."""
        if not self.is_gpu:
            return None
        gc.collect()
        torch.cuda.reset_peak_memory_stats(self.device)
        function()
        self.synchronize()
        return torch.cuda.max_memory_allocated(self.device) / 2**30

    def gemm_flop_per_second(self, dtype: torch.dtype) -> float:
        size = self.size.gemm
        left, right = (torch.randn(size, size, device=self.device).to(dtype) for _ in range(2))
        out = torch.empty_like(left)
        return 2 * size**3 / self.median_seconds(lambda: torch.mm(left, right, out=out), repeats=20)

    def protein_batch(
        self, encoder: ProteinEncoder, length: int, num_tokens: int | None = None
    ) -> LinkBatch:
        """Links whose sequences are about 0.85 of the crop long, on the host; as a step has them by default."""
        num_tokens = num_tokens or self.size.tokens_per_step
        num_anchors = max(2, round(num_tokens / (3 * 0.85 * length)))
        return link_batch(encoder, num_anchors, length)

    def train_step(
        self,
        system: System,
        *,
        precision: str = "bf16",
        packing: bool = True,
        compiled: bool = False,
        caching: bool = False,
    ) -> TrainStep:
        """Steps on a system, whose model is on the device already."""
        memory = MemoryConfig(
            max_tokens_per_micro_batch=self.size.tokens_per_micro_batch,
            packing=packing,
            compile=compiled,
            gradient_caching=caching,
        )
        config = TrainingConfig(memory=memory)
        return TrainStep(system, config, SingleProcess(), Precision(precision, self.device.type))

    def step(self, system: System, batch: TokenBatch, **settings: Any) -> RepeatedStep:
        return RepeatedStep(self.train_step(system, **settings), batch)

    def protein_step(
        self, encoder: ProteinEncoder, batch: LinkBatch, **settings: Any
    ) -> RepeatedStep:
        """Return a step of SPPT."""
        return self.step(sppt_system(encoder), batch, **settings)


def flop_of_step(encoder: Encoder, batch: TokenBatch) -> float:
    """(6 x non-embedding parameters + 12 x layers x width x length) a real token, forward and backward."""
    model = next(part for part in encoder.modules() if isinstance(part, PreTrainedModel))
    config = model.config
    num_parameters = sum(weight.numel() for weight in model.base_model.encoder.parameters())
    length_R = batch.length_R.double()
    attention = 12 * config.num_hidden_layers * config.hidden_size * float(length_R.square().sum())
    return 6 * num_parameters * float(length_R.sum()) + attention
