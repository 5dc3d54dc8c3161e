"""The precision of matrix products, decided by the hardware and never by a measurement."""

import contextlib
import contextvars
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from raybio.core.errors import ConfigError

_log = logging.getLogger(__name__)

BF16_CAPABILITY = (8, 0)
"""First compute capability of GPUs with bf16 and TF32 matrix products."""


BF16_INSTRUCTIONS = ("amx_bf16", "avx512_bf16")
"""Instruction sets of bf16 matrix products, as ``torch.cpu.get_capabilities`` names them."""

# Torch's annotations lack its setting "fp32_precision".
_BACKENDS: Any = torch.backends

_FLOAT32_SETTINGS = (
    _BACKENDS.cuda.matmul,
    _BACKENDS.cudnn.conv,
    _BACKENDS.cudnn.rnn,
    _BACKENDS.mkldnn.matmul,
    _BACKENDS.mkldnn.conv,
    _BACKENDS.mkldnn.rnn,
)
"""Torch's settings of float32 products, one for each library and kind of operation."""


@dataclass(frozen=True)
class Precision:
    """The arithmetic of a training step; weights, gradients and optimizer state are always fp32.

    Attributes:
        name: ``fp32``, ``tf32`` or ``bf16``.
        device_type: ``cpu`` or ``cuda``.
    """

    name: str
    device_type: str

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Return the context of a forward pass."""
        if self.name == "bf16":
            return torch.autocast(self.device_type, dtype=torch.bfloat16)
        return self.matmul_settings()

    def shared_casts(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which all blocks of ``autocast`` share the casts of trained weights.

        Weights must not change in it. A backward pass adds the gradients of all uses of a shared
        cast in half precision.
        """
        # Torch drops cached casts at the end of the outermost block. A disabled block casts
        # nothing.
        return torch.autocast(self.device_type, enabled=False)

    @contextlib.contextmanager
    def matmul_settings(self) -> Iterator[None]:
        """Set torch to multiply float32 tensors in TF32 for ``tf32``, in float32 otherwise.

        Torch reads its settings when a product is computed: a backward pass needs the block, too.
        The settings are global to the process. They are restored when its last block ends, in
        whatever order the blocks of several threads end.
        """
        _open_blocks.begin(self)
        try:
            yield
        finally:
            _open_blocks.end(self)


class _OpenBlocks:
    """The blocks of ``Precision.matmul_settings`` in this process: the latest one decides."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._precisions: list[Precision] = []
        self._older = ""
        self._newer: list[str] = []

    def begin(self, precision: Precision) -> None:
        with self._lock:
            if not self._precisions:
                self._save()
            self._precisions.append(precision)
            _multiply_in(precision)

    def end(self, precision: Precision) -> None:
        with self._lock:
            self._precisions.reverse()
            self._precisions.remove(precision)
            self._precisions.reverse()
            if self._precisions:
                _multiply_in(self._precisions[-1])
            else:
                self._restore()

    def _save(self) -> None:
        self._newer = [setting.fp32_precision for setting in _FLOAT32_SETTINGS]
        _set_all_to_ieee()
        self._older = torch.get_float32_matmul_precision()

    def _restore(self) -> None:
        torch.set_float32_matmul_precision(self._older)
        for setting, value in zip(_FLOAT32_SETTINGS, self._newer, strict=True):
            # "none" inherits from torch.backends.fp32_precision again.
            setting.fp32_precision = "none"
            if setting.fp32_precision != value:
                setting.fp32_precision = value


_open_blocks = _OpenBlocks()


def _multiply_in(precision: Precision) -> None:
    _set_all_to_ieee()
    is_tf32 = precision.name == "tf32"
    torch.set_float32_matmul_precision("high" if is_tf32 else "highest")
    if is_tf32:
        _BACKENDS.cudnn.conv.fp32_precision = "tf32"
        _BACKENDS.cudnn.rnn.fp32_precision = "tf32"


def _set_all_to_ieee() -> None:
    # Torch has an older setting of matrix products next to these, which profilers and compilers
    # read. Reading it while both contradict each other is an error; with "ieee" they never do.
    for setting in _FLOAT32_SETTINGS:
        setting.fp32_precision = "ieee"


_of_embeddings: contextvars.ContextVar[Precision | None] = contextvars.ContextVar(
    "precision of embeddings", default=None
)


@contextlib.contextmanager
def embedding_precision(precision: Precision) -> Iterator[None]:
    """Make ``embed_rows`` encode in ``precision`` within the block; evaluations use the run's.

    It affects encoders only. Unlike in a block of ``torch.autocast``, scores, probes and ranks
    multiply float32 tensors in float32. It is a context instead of an argument because each
    method's evaluation code lies between the loop, which knows the precision, and ``embed_rows``.
    """
    token = _of_embeddings.set(precision)
    try:
        with Precision("fp32", precision.device_type).matmul_settings():
            yield
    finally:
        _of_embeddings.reset(token)


def current_embedding_precision() -> Precision:
    """Return the precision of the surrounding ``embedding_precision``; float32 outside of any."""
    return _of_embeddings.get() or Precision("fp32", "cpu")


@dataclass(frozen=True)
class Processor:
    """A CPU or GPU on which a worker may compute.

    Attributes:
        name: its name in messages.
        has_bf16: whether it has instructions for bf16 matrix products.
        is_gpu: whether it is a GPU.
    """

    name: str
    has_bf16: bool
    is_gpu: bool = False

    @property
    def has_tf32(self) -> bool:
        """Whether it has TF32 matrix products: GPUs got them together with bf16."""
        return self.is_gpu and self.has_bf16


@dataclass(frozen=True)
class Decision:
    """The precision of all runs of a command.

    Attributes:
        name: ``fp32``, ``tf32`` or ``bf16``.
        reason: why, for the first line of the output.
        warning: what the user should change; empty for nothing.
    """

    name: str
    reason: str
    warning: str = ""


def default_device() -> str:
    """Return "cuda" if this process sees a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def local_processors(*, use_gpu: bool, cpu_name: str = "this CPU") -> list[Processor]:
    """Return the processors of this machine's workers: all GPUs if ``use_gpu``, else the CPU.

    Args:
        use_gpu: whether workers compute on GPUs.
        cpu_name: what messages call the CPU.
    """
    if not use_gpu:
        capabilities = torch.cpu.get_capabilities()
        has_bf16 = any(capabilities.get(name, False) for name in BF16_INSTRUCTIONS)
        return [Processor(cpu_name, has_bf16)]
    gpus = []
    for index in range(torch.cuda.device_count()):
        has_bf16 = torch.cuda.get_device_capability(index) >= BF16_CAPABILITY
        gpus.append(Processor(torch.cuda.get_device_name(index), has_bf16, is_gpu=True))
    return gpus


def decide_precision(setting: str, processors: Sequence[Processor]) -> Decision:
    """Decide the precision from the setting and the processors that workers may compute on.

    ``auto`` is bf16 if all processors have bf16 instructions, and fp32 otherwise. ``fp32``,
    ``tf32`` and ``bf16`` are taken as they are.

    Raises:
        ConfigError: for an unknown setting, bf16 on a GPU without bf16 instructions, or tf32 on
            anything but GPUs that have it.
    """
    if setting not in ("fp32", "tf32", "bf16", "auto"):
        raise ConfigError(f"precision: got {setting!r}; want fp32, tf32, bf16 or auto")
    if setting == "fp32":
        return Decision("fp32", "as set")
    if setting == "tf32":
        without = list(dict.fromkeys(chip.name for chip in processors if not chip.has_tf32))
        if without:
            raise ConfigError(
                f"precision: got tf32, and {_have(without)} no TF32 products; GPUs have them from "
                "compute capability 8.0 on. Set precision=auto or fp32"
            )
        return Decision("tf32", "as set")
    without = list(dict.fromkeys(chip.name for chip in processors if not chip.has_bf16))
    has_no_bf16 = f"{_have(without)} no bf16 instructions"
    if setting == "auto":
        if not processors:
            return Decision("fp32", "the processors of the workers are unknown")
        if without:
            return Decision("fp32", has_no_bf16)
        names = list(dict.fromkeys(chip.name for chip in processors))
        return Decision("bf16", f"{_have(names)} bf16 instructions")
    if any(chip.is_gpu and not chip.has_bf16 for chip in processors):
        raise ConfigError(
            f"precision: got bf16, and {has_no_bf16}. Set precision=fp32, or choose other GPUs"
        )
    if without:
        return Decision(
            "bf16",
            "as set",
            f"precision: got bf16, and {has_no_bf16}: slower than fp32. Set precision=auto or fp32",
        )
    return Decision("bf16", "as set")


def check_precision(name: str, device: torch.device | str) -> None:
    """Refuse a decided precision that ``device`` does not have.

    Raises:
        ConfigError: for anything but ``fp32``, ``tf32`` and ``bf16``, or one that the device
            does not have.
    """
    if name not in ("fp32", "tf32", "bf16"):
        raise ConfigError(
            f"precision: got {name!r} for a run; want fp32, tf32 or bf16, decided from the setting"
        )
    decide_precision(name, local_processors(use_gpu=torch.device(device).type == "cuda"))


def resolve_precision(setting: str, device: torch.device | str) -> Precision:
    """Return the precision of a process that computes on one device; see ``decide_precision``.

    Raises:
        ConfigError: as ``decide_precision``.
    """
    device = torch.device(device)
    decision = decide_precision(setting, local_processors(use_gpu=device.type == "cuda"))
    if decision.warning:
        _log.warning(decision.warning)
    return Precision(decision.name, device.type)


def _have(names: Sequence[str]) -> str:
    listed = " and ".join(names[:2])
    if len(names) > 2:
        listed += f" and {len(names) - 2} more"
    return f"{listed} {'has' if len(names) == 1 else 'have'}"
