"""Deterministic kernels in training steps, and a record of what else affects their last bits."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from raybio.core.errors import ConfigError
from raybio.core.interfaces import Collective
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


def gather_arithmetic(collective: Collective, device: torch.device, setting: str) -> dict[str, Any]:
    """Describe what the results of all workers depend on; a collective operation.

    Returns:
        As ``describe_arithmetic``, equal on every worker. Where workers differ, a value is the list
        of the values of all workers, in an order that does not depend on their ranks.
    """
    own = json.dumps(describe_arithmetic(device, setting)).encode()
    byte_N1 = torch.frombuffer(bytearray(own), dtype=torch.uint8).unsqueeze(1)
    gathered = collective.all_gather(byte_N1)
    parts = torch.split(gathered.row_MD, gathered.num_rows_W)
    texts = sorted(bytes(part.flatten().tolist()) for part in parts)
    records = [json.loads(text) for text in texts]
    shared = {}
    for name in dict.fromkeys(name for record in records for name in record):
        values = [record.get(name) for record in records]
        shared[name] = values[0] if values.count(values[0]) == len(values) else values
    return shared


def _driver_version() -> str:
    """Return the version that NVIDIA's kernel module reports."""
    try:
        return _DRIVER.read_text().splitlines()[0].removeprefix("NVRM version: ").strip()
    except (OSError, IndexError):
        return "unknown"
