"""Compiled encoders: one graph, the gradients of padded batches, and exact resume."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from raybio.core.config import override_all
from raybio.core.digest import weights_digest
from raybio.core.errors import ConfigError
from raybio.encoders import packed
from raybio.methods import METHODS
from raybio.training.checkpoint import CheckpointStore
from raybio.training.collective import ProcessGroup, SingleProcess
from raybio.training.loop import fit
from raybio.training.micro_batches import micro_batches, static_shape
from raybio.training.precision import Precision
from raybio.training.settings import TrainingConfig
from raybio.training.step import TrainStep
from tests.training.workers import run_workers

TINY = {
    "precision": "fp32",
    "memory.compile": True,
    "memory.max_tokens_per_micro_batch": 256,
    "schedule.max_steps": 6,
    "schedule.evaluate_every_steps": 0,
    "schedule.keep_best": None,
    "schedule.checkpoint_every_steps": 3,
    "encoder.num_layers": 1,
    "plan.global_batch_rows": 12,
}


@pytest.fixture(params=["aot_eager", pytest.param("inductor", marks=pytest.mark.nightly)])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(packed, "BACKEND", request.param)
    packed._compiled_forward.cache_clear()
    torch.compiler.reset()
    yield request.param
    packed._compiled_forward.cache_clear()
    torch.compiler.reset()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return METHODS["biostransformers"].prepare_demo(tmp_path_factory.mktemp("compile") / "store")


def config_of(**settings: object) -> TrainingConfig:
    return override_all(METHODS["biostransformers"].demo, TINY | settings)


def train(
    store: Path, config: TrainingConfig, folder: Path | None = None, stop_after: int = 99
) -> tuple[str, list[float]]:
    system = METHODS["biostransformers"].build(config, store)
    checkpoints = None if folder is None else CheckpointStore(folder, keep=2)
    losses: list[float] = []
    reports = fit(
        system, config, checkpoints=checkpoints, should_stop=lambda: len(losses) >= stop_after
    )
    for report in reports:
        if "loss" in report.metrics:
            # One by one: should_stop counts them.
            losses.append(report.metrics["loss"])  # noqa: PERF401
    return weights_digest(system.model.state_dict().items()), losses


def gradients(store: Path, config: TrainingConfig, step: int) -> dict[str, torch.Tensor]:
    system = METHODS["biostransformers"].build(config, store)
    system.model.double().train()
    train_step = TrainStep(system, config, SingleProcess(), Precision("fp32", "cpu"))
    train_step(step, system.batch_type.from_arrays(system.collate(step, 0, 1)))
    return {
        name: parameter.grad
        for name, parameter in system.model.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.nightly
def test_a_compiled_encoder_has_the_gradients_of_padded_batches(store: Path, backend: str) -> None:
    settings = {"encoder.dropout": 0.0, "optim.max_grad_norm": None}
    compiled = gradients(store, config_of(**settings), 1)
    padded = gradients(store, config_of(**settings, **{"memory.compile": False}), 1)
    assert compiled.keys() == padded.keys()
    for name, gradient in padded.items():
        torch.testing.assert_close(compiled[name], gradient, rtol=1e-6, atol=1e-9)


@pytest.mark.nightly
def test_a_compiled_run_compiles_each_size_once_and_resumes_exactly(
    store: Path, tmp_path: Path, backend: str
) -> None:
    config = config_of(**{"schedule.log_every_steps": 1})
    torch._dynamo.utils.counters.clear()
    unbroken, losses = train(store, config)
    assert len(losses) == 6
    # The model is another object after a resume, so it is compiled anew.
    num_sizes = len(sizes_of_steps(store, config, config.schedule.max_steps))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == num_sizes
    assert not torch._dynamo.utils.counters["graph_break"]
    torch.compiler.reset()
    train(store, config, tmp_path, stop_after=3)
    resumed, rest = train(store, config, tmp_path)
    assert 0 < len(rest) < 6
    assert rest == losses[-len(rest) :]
    assert resumed == unbroken


def sizes_of_steps(
    store: Path, config: TrainingConfig, num_steps: int, rank: int = 0, world: int = 1
) -> set[int]:
    """Numbers of tokens of a worker's micro-batches."""
    system = METHODS["biostransformers"].build(config, store)
    encoder = system.model.train()
    encoder.static_shape = static_shape(encoder, config.memory, Precision("fp32", "cpu"))
    sizes: set[int] = set()
    for step in range(num_steps):
        batch = system.batch_type.from_arrays(system.collate(step, rank, world))
        parts = micro_batches(batch, encoder, torch.device("cpu"), max_tokens=1)
        sizes |= {len(part.tokens.token_T) for part in parts}
    return sizes


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"memory.gradient_caching": True}, "memory.gradient_caching encodes twice"),
        ({"memory.packing": False}, "memory.packing is false"),
        ({"memory.max_tokens_per_micro_batch": 8}, "is 8, and a sequence may have"),
    ],
)
def test_settings_that_refuse_to_be_compiled_are_named(
    store: Path, settings: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError, match=f"memory.compile is true: .*{reason}"):
        gradients(store, config_of(**settings), 0)


def test_auto_compiles_nothing_on_a_cpu(store: Path) -> None:
    config = config_of(**{"memory.compile": "auto"})
    system = METHODS["biostransformers"].build(config, store)
    TrainStep(system, config, SingleProcess(), Precision("fp32", "cpu"))
    assert system.model.static_shape is None


@pytest.mark.parametrize(
    ("settings", "precision", "reason"),
    [
        ({}, "fp32", "attention pads packed sequences in fp32"),
        ({}, "tf32", "attention pads packed sequences in tf32"),
        ({"encoder.width": 40, "encoder.num_heads": 4}, "bf16", "heads that FlashAttention cannot"),
    ],
)
def test_a_gpu_compiles_nothing_whose_attention_would_pad(
    store: Path, settings: dict[str, object], precision: str, reason: str
) -> None:
    on_gpu = Precision(precision, "cuda")
    config = config_of(**settings)
    encoder = METHODS["biostransformers"].build(config, store).model
    with pytest.raises(ConfigError, match=f"memory.compile is true: .*{reason}"):
        static_shape(encoder, config.memory, on_gpu)
    auto = config.memory.model_copy(update={"compile": "auto"})
    assert static_shape(encoder, auto, on_gpu) is None
    if not settings:
        assert static_shape(encoder, auto, Precision("bf16", "cuda")) is not None


def compiled_steps(rank: int, collective: ProcessGroup, folder: Path, store: Path) -> None:
    packed.BACKEND = "aot_eager"
    config = config_of()
    system = METHODS["biostransformers"].build(config, store)
    system.model.train()
    train_step = TrainStep(system, config, collective, Precision("fp32", "cpu"))
    torch._dynamo.utils.counters.clear()
    for step in range(3):
        train_step(step, system.batch_type.from_arrays(system.collate(step, rank, 2)))
    num_sizes = len(sizes_of_steps(store, config, 3, rank, 2))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == num_sizes
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.nightly
def test_hooks_and_buffers_of_gradients_do_not_compile_anew(store: Path, tmp_path: Path) -> None:
    run_workers(partial(compiled_steps, store=store), 2, tmp_path)


def test_a_process_compiles_any_number_of_models(backend: str, store: Path) -> None:
    """Each width is a graph of its own; torch's limit is 8 of them."""
    with torch._dynamo.config.patch(recompile_limit=1, accumulated_recompile_limit=1):
        for width in (32, 40, 48):
            changes = {"encoder.width": width, "encoder.num_heads": 1, "schedule.max_steps": 1}
            config = config_of(**changes, **{"schedule.checkpoint_every_steps": 1})
            _, losses = train(store, config)
            assert len(losses) == 1
