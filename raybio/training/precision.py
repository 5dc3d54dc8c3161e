"""Choosing the precision of matrix products: by measuring, never by guessing."""

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from raybio.errors import ConfigError
from raybio.protocols import Collective

_log = logging.getLogger(__name__)

PrecisionName = Literal["fp32", "bf16", "auto"]

MIN_CPU_SPEEDUP = 1.2
"""bf16 has to beat fp32 by this on the matrix product alone, since the rest of a step gains nothing from it."""


@dataclass(frozen=True)
class Precision:
    """How a step computes: ``name`` is ``fp32`` or ``bf16``; weights, gradients and optimiser stay fp32 either way."""

    name: str
    device_type: str

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Around a forward pass: matrix products in bf16, or nothing."""
        if self.name == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device_type, dtype=torch.bfloat16)


def resolve_precision(
    setting: PrecisionName, device: torch.device | str, collective: Collective | None = None
) -> Precision:
    """Turn the setting into what this machine does.

    ``auto`` is bf16 on a GPU that has it; on a CPU both are timed (about 0.1 s) and bf16 is taken where it is
    at least ``MIN_CPU_SPEEDUP`` times faster. All workers of ``collective`` end up with the same: fp32 if any needs it.
    A resumed run should ask for the ``name`` that it began with instead of measuring again. ``bf16`` is done as asked;
    where it is slow, the first worker says so once.

    On CUDA, fp32 products follow ``torch.get_float32_matmul_precision()``; the run's entry point may allow TF32
    with ``torch.set_float32_matmul_precision("high")``, this function changes no global setting.

    Raises:
        ConfigError: for another word, or bf16 on a GPU without it.
    """
    device = torch.device(device)
    if setting not in ("fp32", "bf16", "auto"):
        raise ConfigError(f"precision: got {setting!r}; want fp32, bf16 or auto")
    has_bf16 = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
    if setting == "bf16" and not has_bf16:
        name = torch.cuda.get_device_name(device)
        raise ConfigError(f"precision: bf16 was asked for and {name} does not have it. Use fp32 or auto.")
    if collective is None or collective.rank == 0:
        warn_of_slow_bf16(setting, device)
    if setting != "auto":
        return Precision(setting, device.type)
    wants_bf16 = has_bf16 if device.type == "cuda" else bf16_speedup(device) >= MIN_CPU_SPEEDUP
    if collective is not None:
        refusals = collective.all_sum(torch.tensor(int(not wants_bf16)))
        wants_bf16 = int(refusals) == 0
    return Precision("bf16" if wants_bf16 else "fp32", device.type)


def warn_of_slow_bf16(setting: PrecisionName, device: torch.device | str) -> None:
    """Log a warning if bf16 is asked for and this CPU, timed, is clearly slower with it: it lacks the instructions."""
    if setting != "bf16" or torch.device(device).type != "cpu":
        return
    speedup = bf16_speedup(device)
    if speedup < 1 / MIN_CPU_SPEEDUP:
        _log.warning(
            "precision: bf16 was asked for, and on this CPU, which has no fast instructions for it, matrix products "
            "take %.1f times as long as in fp32. Set precision=auto or fp32",
            1 / speedup,
        )


def bf16_speedup(device: torch.device | str, width: int = 512, num_pairs: int = 5) -> float:
    """How many times faster a bf16 autocast matrix product of ``width`` is than fp32: the median over ABBA pairs."""
    device = torch.device(device)
    weight_DD = torch.ones(width, width, device=device)

    def multiply() -> Tensor:
        return torch.nn.functional.linear(weight_DD, weight_DD)

    def multiply_bf16() -> Tensor:
        with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16):
            return multiply()

    for warm in (multiply, multiply_bf16):
        warm()
    ratios = []
    for _ in range(num_pairs):
        fp32 = _seconds(multiply)
        bf16 = _seconds(multiply_bf16) + _seconds(multiply_bf16)
        fp32 += _seconds(multiply)
        ratios.append(fp32 / bf16)
    return sorted(ratios)[num_pairs // 2]


def _seconds(function: Callable[[], Tensor]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
