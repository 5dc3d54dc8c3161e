"""Deterministic kernels in training steps, and a record of what else affects their last bits."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from raybio.core.errors import ConfigError
from raybio.training.settings import EXACT_ENVIRONMENT

_DRIVER = Path("/proc/driver/nvidia/version")


def set_environment(setting: str) -> None:
    """Set the environment variables of ``exact`` unless they are set; call it before CUDA starts.

    Args:
        setting: ``exact`` or ``fast``, which sets none.
    """
    if setting == "exact":
        for name, value in EXACT_ENVIRONMENT.items():
            os.environ.setdefault(name, value)


@contextmanager
def deterministic_kernels(setting: str) -> Iterator[None]:
    """With ``exact``, make torch choose deterministic kernels within the block; then restore it.

    Raises:
        ConfigError: for an operation that has no deterministic kernel.
    """
    if setting != "exact":
        yield
        return
    # Torch's annotations lack its only attribute.
    memory: Any = torch.utils.deterministic
    was_on = torch.are_deterministic_algorithms_enabled()
    was_warning = torch.is_deterministic_algorithms_warn_only_enabled()
    was_filling = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    # Filling would write every new tensor twice; it only helps to find reads of uninitialized
    # memory.
    memory.fill_uninitialized_memory = False
    try:
        yield
    except RuntimeError as error:
        if "use_deterministic_algorithms" not in str(error):
            raise
        raise ConfigError(
            f"determinism: got exact, and torch refuses an operation: {error}. Set determinism=fast"
        ) from error
    finally:
        memory.fill_uninitialized_memory = was_filling
        torch.use_deterministic_algorithms(was_on, warn_only=was_warning)


def describe_arithmetic(device: torch.device, setting: str) -> dict[str, Any]:
    """Describe what the results of this process depend on, besides settings and precision.

    Args:
        device: where the model computes.
        setting: ``exact`` or ``fast``.

    Returns:
        Plain JSON. ``device`` is the name of the GPU, or the instructions of the CPU and its
        threads.
    """
    record: dict[str, Any] = {"torch": torch.__version__, "determinism": setting}
    if device.type != "cuda":
        record["device"] = f"CPU with {torch.backends.cpu.get_cpu_capability()}"
        record["threads"] = torch.get_num_threads()
        return record
    return record | {
        "device": torch.cuda.get_device_name(device),
        "driver": _driver_version(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "environment": {name: os.environ.get(name) for name in EXACT_ENVIRONMENT},
    }


def _driver_version() -> str:
    """Return the version that NVIDIA's kernel module reports."""
    try:
        return _DRIVER.read_text().splitlines()[0].removeprefix("NVRM version: ").strip()
    except (OSError, IndexError):
        return "unknown"
