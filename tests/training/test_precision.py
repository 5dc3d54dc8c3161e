"""The kind of machine decides the precision, and a run keeps it."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils._python_dispatch import TorchDispatchMode

from raybio.core.errors import CheckpointError, ConfigError
from raybio.core.interfaces import LossReport
from raybio.methods import METHODS
from raybio.methods.sppt.proteins.encoder import ProteinEncoder
from raybio.store.store import Store
from raybio.training.checkpoint import CheckpointStore
from raybio.training.collective import ProcessGroup, SingleProcess
from raybio.training.grad_cache import compute_gradients
from raybio.training.loop import fit, local_batches
from raybio.training.precision import (
    Precision,
    Processor,
    current_embedding_precision,
    decide_precision,
    embedding_precision,
    local_processors,
    resolve_precision,
)
from tests.methods.conformance_cases import tiny_config
from tests.training.workers import run_workers

NAME = "sppt_protein"
# Torch's annotations lack its setting "fp32_precision".
BACKENDS: Any = torch.backends


def product_dtype(name: str) -> torch.dtype:
    with resolve_precision(name, "cpu").autocast():
        return torch.nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2)).dtype


def test_bf16_multiplies_in_bf16_and_fp32_in_fp32() -> None:
    assert product_dtype("bf16") == torch.bfloat16
    assert product_dtype("fp32") == torch.float32


def clock(durations: Sequence[float]) -> Callable[[], float]:
    """A clock by which calls take these seconds in turn; two readings time a call."""
    now = [0.0]
    steps = cycle(step for duration in durations for step in (0.0, duration))

    def read() -> float:
        now[0] += next(steps)
        return now[0]

    return read


def test_no_clock_decides_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for durations in ((1.0, 9.0, 9.0, 1.0), (9.0, 1.0, 1.0, 9.0)):
        monkeypatch.setattr(time, "perf_counter", clock(durations))
        names.append(resolve_precision("auto", "cpu").name)
    monkeypatch.undo()
    assert names[0] == names[1]


WITH, WITHOUT = Processor("this CPU", has_bf16=True), Processor("this CPU", has_bf16=False)
NEW_GPU, OLD_GPU = (
    Processor("H200", has_bf16=True, is_gpu=True),
    Processor("V100", has_bf16=False, is_gpu=True),
)


@pytest.mark.parametrize(
    ("setting", "processors", "name", "reason"),
    [
        ("auto", [WITH], "bf16", "this CPU has bf16 instructions"),
        ("auto", [WITHOUT], "fp32", "this CPU has no bf16 instructions"),
        ("auto", [NEW_GPU, NEW_GPU], "bf16", "H200 has bf16 instructions"),
        ("auto", [NEW_GPU, OLD_GPU, NEW_GPU], "fp32", "V100 has no bf16 instructions"),
        ("auto", [], "fp32", "the processors of the workers are unknown"),
        ("fp32", [NEW_GPU], "fp32", "as set"),
        ("bf16", [NEW_GPU], "bf16", "as set"),
        ("tf32", [NEW_GPU, NEW_GPU], "tf32", "as set"),
        ("bf16", [WITHOUT], "bf16", "as set"),
    ],
)
def test_the_kind_of_machine_decides(
    setting: str, processors: list[Processor], name: str, reason: str
) -> None:
    decision = decide_precision(setting, processors)
    assert (decision.name, decision.reason) == (name, reason)
    assert bool(decision.warning) == (setting == "bf16" and processors == [WITHOUT])


def test_bf16_on_a_gpu_without_it_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="got bf16, and V100 and P100 and 1 more have no bf16 instructions"
    ):
        others = [Processor(name, has_bf16=False, is_gpu=True) for name in ("P100", "K80")]
        decide_precision("bf16", [NEW_GPU, OLD_GPU, *others])


@pytest.mark.parametrize(("processor", "name"), [(WITH, "this CPU"), (OLD_GPU, "V100")])
def test_tf32_on_anything_but_gpus_that_have_it_is_refused(processor: Processor, name: str) -> None:
    with pytest.raises(ConfigError, match=f"got tf32, and {name} has no TF32 products"):
        decide_precision("tf32", [NEW_GPU, processor])


def products() -> tuple[str, str, str, str]:
    """Return torch's settings of float32 products, older and newer."""
    return (
        torch.get_float32_matmul_precision(),
        BACKENDS.cuda.matmul.fp32_precision,
        BACKENDS.cudnn.conv.fp32_precision,
        BACKENDS.mkldnn.matmul.fp32_precision,
    )


def newer_settings() -> list[str]:
    """Return torch's newer settings: of all libraries, of each, and of each of its operations."""
    names = [("generic", "all")]
    for library in ("cuda", "mkldnn"):
        names += [(library, operation) for operation in ("all", "matmul", "conv", "rnn")]
    return [torch._C._get_fp32_precision_getter(*name) for name in names]


FP32 = ("highest", "ieee", "ieee", "ieee")
TF32 = ("high", "tf32", "tf32", "tf32")


def set_older(name: str) -> None:
    torch.set_float32_matmul_precision(name)


def set_all(name: str) -> None:
    BACKENDS.fp32_precision = name


def set_matmul(name: str) -> None:
    BACKENDS.cuda.matmul.fp32_precision = name


def set_mixed(name: str) -> None:
    torch.set_float32_matmul_precision("high")
    BACKENDS.cuda.matmul.fp32_precision = name


@pytest.fixture(autouse=True)
def torch_begins_anew() -> Iterator[None]:
    """Restore torch's settings as a process begins with them, for the tests that come after.

    Torch keeps cuDNN's older setting next to the newer ones, and whatever reads it while they
    contradict each other ends in an error: the export to ONNX does.
    """
    yield
    torch.set_float32_matmul_precision("highest")
    BACKENDS.fp32_precision = "none"
    BACKENDS.cuda.matmul.fp32_precision = "none"
    BACKENDS.mkldnn.matmul.fp32_precision = "none"
    BACKENDS.cudnn.allow_tf32 = True
    assert BACKENDS.cudnn.allow_tf32


@pytest.fixture(
    params=[
        partial(set_older, "high"),
        partial(set_older, "medium"),
        partial(set_older, "highest"),
        partial(set_all, "tf32"),
        partial(set_all, "bf16"),
        partial(set_matmul, "tf32"),
        partial(set_mixed, "ieee"),
    ],
    ids=lambda setter: f"{setter.func.__name__}-{setter.args[0]}",
)
def torch_settings(request: pytest.FixtureRequest) -> None:
    """Set torch by its older or newer settings."""
    request.param()


@pytest.mark.usefixtures("torch_settings")
def test_the_precision_and_not_the_process_decides_about_tf32_and_the_process_keeps_its_own() -> (
    None
):
    before = newer_settings()
    with Precision("fp32", "cuda").autocast():
        assert products() == FP32
    assert newer_settings() == before
    with (
        pytest.raises(ConfigError, match="too long"),
        Precision("tf32", "cuda").autocast(),
    ):
        assert products() == TF32
        raise ConfigError("too long")
    assert newer_settings() == before


@pytest.mark.parametrize("older", ["highest", "high", "medium"])
def test_torchs_older_setting_is_restored(older: str) -> None:
    torch.set_float32_matmul_precision(older)
    with Precision("tf32", "cuda").autocast():
        assert products() == TF32
    assert torch.get_float32_matmul_precision() == older


def test_settings_that_were_inherited_are_inherited_again() -> None:
    BACKENDS.fp32_precision = "tf32"
    with Precision("fp32", "cuda").autocast():
        assert products() == FP32
    BACKENDS.fp32_precision = "ieee"
    assert set(newer_settings()) == {"ieee"}


@pytest.mark.usefixtures("torch_settings")
def test_scores_of_an_evaluation_multiply_in_float32_and_its_encoder_in_the_runs_precision() -> (
    None
):
    before = newer_settings()
    with embedding_precision(Precision("tf32", "cuda")):
        assert products() == FP32
        with current_embedding_precision().autocast():
            assert products() == TF32
        assert products() == FP32
    assert newer_settings() == before


@pytest.mark.usefixtures("torch_settings")
def test_the_process_keeps_its_settings_if_the_blocks_of_two_threads_overlap() -> None:
    before = newer_settings()
    first = Precision("fp32", "cuda").matmul_settings()
    second = Precision("tf32", "cuda").matmul_settings()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert products() == TF32
    second.__exit__(None, None, None)
    assert newer_settings() == before


class TensorProducts(Function):
    """The identity, which notes how products are computed in both passes."""

    seen: ClassVar[list[tuple[str, tuple[str, ...]]]] = []

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        TensorProducts.seen.append(("forward", products()))
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        TensorProducts.seen.append(("backward", products()))
        return gradient


@pytest.mark.usefixtures("torch_settings")
@pytest.mark.parametrize(
    "torch_settings", [partial(set_older, "high"), partial(set_all, "tf32")], indirect=True
)
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize(("name", "expected"), [("fp32", FP32), ("tf32", TF32)])
def test_encoders_multiply_in_tf32_in_both_passes_and_losses_do_not(
    name: str,
    expected: tuple[str, ...],
    caching: bool,
    tiny_store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tiny_config(NAME, **{"memory.max_tokens_per_micro_batch": 64})
    system = METHODS[NAME].build(config, tiny_store.path)
    pool = ProteinEncoder._pool
    monkeypatch.setattr(ProteinEncoder, "_pool", lambda *args: TensorProducts.apply(pool(*args)))
    loss_products = []
    embedding_loss = type(system.objective).embedding_loss

    def noted(*args: Any) -> LossReport:
        loss_products.append(products())
        return embedding_loss(*args)

    monkeypatch.setattr(type(system.objective), "embedding_loss", noted)
    monkeypatch.setattr(TensorProducts, "seen", [])
    collective = SingleProcess()
    _, batch = next(iter(local_batches(system, 1, collective)(0)))
    compute_gradients(
        system,
        batch,
        collective,
        max_tokens=64,
        gradient_caching=caching,
        precision=Precision(name, "cpu"),
        seed_of=lambda number: number,
    )
    assert set(TensorProducts.seen) == {("forward", expected), ("backward", expected)}
    assert loss_products == [FP32]


class WeightCasts(TorchDispatchMode):
    """Counts the copies of weights in another dtype."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        is_copy = func is torch.ops.aten._to_copy.default
        self.count += is_copy and isinstance(args[0], torch.nn.Parameter)
        return func(*args, **(kwargs or {}))


def casts_and_gradients(store: Store, max_tokens: int, **settings: Any) -> tuple[int, list[Tensor]]:
    """Return how often a step in bf16 casts a weight, and its gradients."""
    system = METHODS[NAME].build(tiny_config(NAME, **settings), store.path)
    _, batch = next(iter(local_batches(system, 1)(0)))
    with WeightCasts() as casts:
        compute_gradients(
            system,
            batch,
            SingleProcess(),
            max_tokens=max_tokens,
            gradient_caching=True,
            precision=Precision("bf16", "cpu"),
            seed_of=lambda number: number,
        )
    gradients = [weight.grad for weight in system.model.parameters() if weight.grad is not None]
    return casts.count, gradients


@pytest.mark.parametrize(("weight_of_links", "num_passes"), [(0.0, 1), (0.5, 2)])
def test_each_pass_casts_each_weight_once_and_its_gradients_are_those_of_casts_a_micro_batch(
    weight_of_links: float,
    num_passes: int,
    tiny_store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"objective.lambda_spml": weight_of_links}
    in_one, _ = casts_and_gradients(tiny_store, 100_000, **settings)
    in_many, gradients = casts_and_gradients(tiny_store, 64, **settings)
    monkeypatch.setattr(Precision, "shared_casts", lambda _: nullcontext())
    of_their_own, expected = casts_and_gradients(tiny_store, 64, **settings)
    # The head of the language model is used in the last pass only.
    assert in_one <= in_many <= num_passes * in_one < of_their_own
    assert all(map(torch.equal, gradients, expected))


@pytest.mark.parametrize(
    ("capabilities", "has_bf16"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, True),
        ({"avx512_bf16": False, "amx_bf16": True}, True),
        ({"avx512_bf16": False, "amx_bf16": False, "avx512_f": True}, False),
        ({"architecture": "riscv64"}, False),
    ],
)
def test_a_cpu_has_bf16_by_its_instructions(
    capabilities: dict[str, object], has_bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert local_processors(use_gpu=False) == [Processor("this CPU", has_bf16)]
    assert resolve_precision("auto", "cpu").name == ("bf16" if has_bf16 else "fp32")


def test_bf16_on_a_cpu_without_it_is_done_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    for setting in ("fp32", "auto", "bf16"):
        resolve_precision(setting, "cpu")
    (record,) = caplog.records
    assert "got bf16, and this CPU has no bf16 instructions" in record.getMessage()


def one_old_machine(rank: int, collective: ProcessGroup, folder: Path, store: str) -> None:
    torch.cpu.get_capabilities = lambda: {"avx512_bf16": rank == 0}
    config = tiny_config(NAME, **{"precision": "auto", "schedule.max_steps": 1})
    names = []
    for precision in (None, "bf16"):
        system = METHODS[NAME].build(config, store)
        names += [
            report.precision
            for report in fit(system, config, collective=collective, precision=precision)
        ]
    assert names == ["fp32", "bf16"]


def test_processes_without_a_driver_agree_on_what_all_of_their_machines_have(
    tiny_store: Store, tmp_path: Path
) -> None:
    run_workers(partial(one_old_machine, store=str(tiny_store.path)), 2, tmp_path)


@pytest.mark.parametrize("begun", ["fp32", "bf16"])
def test_a_resumed_run_keeps_its_precision_on_another_kind_of_machine(
    begun: str, tiny_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(max_steps: int, *, has_bf16: bool, precision: str | None = None) -> str:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has_bf16})
        config = tiny_config(NAME, **{"precision": "auto", "schedule.max_steps": max_steps})
        system, checkpoints = (
            METHODS[NAME].build(config, tiny_store.path),
            CheckpointStore(tmp_path),
        )
        (name,) = {
            one.precision
            for one in fit(system, config, precision=precision, checkpoints=checkpoints)
        }
        checkpoints.close()
        return name

    assert train(2, has_bf16=begun == "bf16") == begun
    assert train(4, has_bf16=begun != "bf16") == begun
    assert train(5, has_bf16=begun != "bf16", precision=begun) == begun
    other = {"fp32": "bf16", "bf16": "fp32"}[begun]
    with pytest.raises(
        CheckpointError, match=f"step 5 was computed in {begun}, and the run is recorded .* {other}"
    ):
        train(6, has_bf16=True, precision=other)


def test_a_run_in_tf32_is_resumed_in_it_and_nowhere_else(
    tiny_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(max_steps: int, processor: Processor, **settings: str) -> set[str]:
        monkeypatch.setattr(
            "raybio.training.precision.local_processors",
            lambda *, use_gpu, cpu_name="this CPU": [processor],
        )
        config = tiny_config(NAME, **{"schedule.max_steps": max_steps, **settings})
        system = METHODS[NAME].build(config, tiny_store.path)
        with closing(CheckpointStore(tmp_path)) as checkpoints:
            return {one.precision for one in fit(system, config, checkpoints=checkpoints)}

    assert train(2, NEW_GPU, precision="tf32") == {"tf32"}
    assert train(4, NEW_GPU, precision="tf32") == {"tf32"}
    with pytest.raises(ConfigError, match="got tf32, and this CPU has no TF32 products"):
        train(6, WITH, precision="tf32")


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match="'fp16'; want fp32, tf32, bf16 or auto"):
        resolve_precision("fp16", "cpu")


@pytest.mark.parametrize("precision", ["auto", "fp16"])
def test_a_run_without_a_decided_precision_is_refused(precision: str, tiny_store: Store) -> None:
    config = tiny_config(NAME)
    with pytest.raises(ConfigError, match=f"got '{precision}' for a run; want fp32, tf32 or bf16"):
        next(fit(METHODS[NAME].build(config, tiny_store.path), config, precision=precision))
