"""The kind of machine decides the precision, and a run keeps it."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest
import torch

from raybio.core.errors import CheckpointError, ConfigError
from raybio.methods import METHODS
from raybio.store.store import Store
from raybio.training.checkpoint import CheckpointStore
from raybio.training.collective import ProcessGroup
from raybio.training.loop import fit
from raybio.training.precision import (
    Processor,
    decide_precision,
    local_processors,
    resolve_precision,
)
from tests.methods.conformance_cases import tiny_config
from tests.training.workers import run_workers

NAME = "sppt_protein"


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


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match="'fp16'; want fp32, bf16 or auto"):
        resolve_precision("fp16", "cpu")


@pytest.mark.parametrize("precision", ["auto", "fp16"])
def test_a_run_without_a_decided_precision_is_refused(precision: str, tiny_store: Store) -> None:
    config = tiny_config(NAME)
    with pytest.raises(ConfigError, match=f"got '{precision}' for a run; want fp32 or bf16"):
        next(fit(METHODS[NAME].build(config, tiny_store.path), config, precision=precision))
