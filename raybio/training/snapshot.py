"""A model and its optimizer as named tensors and JSON, and back, bit-identical.

Optimizer state is keyed by the *name* of its parameter: indices would silently change their meaning
with the order or the grouping of parameters.

Weights of the encoder's source below adapters (``encoders/lora.py``) are not saved, but identified
by their digest.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from raybio.core.digest import weights_digest
from raybio.core.errors import CheckpointError
from raybio.encoders.lora import source_weights
from raybio.training.durable import tensor_bytes

Tensors = dict[str, Tensor]


class BaseWeights(NamedTuple):
    """Frozen weights below adapters, which checkpoints leave out: the encoder's source has them.

    Attributes:
        names: names of the parameters.
        sha256: digest of the weights; see ``core.digest.weights_digest``.
    """

    names: frozenset[str]
    sha256: str

    @classmethod
    def of(cls, model: nn.Module) -> Self | None:
        """Return the base weights of a freshly built model; None for a model without adapters."""
        weights = source_weights(model)
        if not weights:
            return None
        return cls(frozenset(weights), weights_digest(weights.items()))


@dataclass(frozen=True)
class TrainingState:
    """The state from which the next step continues.

    Attributes:
        model: the trained module; parameters and persistent buffers are saved.
        optimizer: over parameters of ``model``.
        extra: the loop's own state; plain JSON.
        base: weights of ``model`` that are not saved; None: all weights are saved.
        optimizer_state: state of all parameters, gathered from the workers; None: ``optimizer``
            holds it.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    extra: dict[str, Any]
    base: BaseWeights | None = None
    optimizer_state: Mapping[nn.Parameter, Mapping[str, Any]] | None = None


def model_tensors(model: nn.Module, base: BaseWeights | None = None) -> Tensors:
    """Return the model's own tensors (not copies) by name; tied ones under their first name only.

    Args:
        model: the model.
        base: its weights that are left out.

    Raises:
        CheckpointError: if the model's state holds anything but tensors.
    """
    tensors: Tensors = {}
    seen = set()
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor):
            raise CheckpointError(
                f"{name} is {type(tensor).__name__}, want a tensor: it cannot be saved without "
                "pickle"
            )
        memory = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and memory in seen:
            continue
        seen.add(memory)
        if base is None or name not in base.names:
            tensors[name] = tensor
    return tensors


def optimizer_tensors(state: TrainingState) -> tuple[Tensors, dict[str, Any]]:
    """Return the optimizer's tensors (not copies) by ``<kind>:<parameter>``, and its JSON state."""
    tensors: Tensors = {}
    scalars: dict[str, Any] = {}
    names = _parameter_names(state)
    states: Iterable[tuple[Tensor, Mapping[str, Any]]] = state.optimizer.state.items()
    if state.optimizer_state is not None:
        states = state.optimizer_state.items()
    for parameter, entries in states:
        for kind, value in entries.items():
            key = f"{kind}:{names[id(parameter)]}"
            if isinstance(value, Tensor):
                tensors[key] = value
            else:
                scalars[key] = value
    groups = [
        {"parameters": [names[id(parameter)] for parameter in group["params"]]}
        for group in state.optimizer.param_groups
    ]
    return tensors, {"groups": groups, "scalars": scalars}


def restore_model(
    model: nn.Module, saved: Mapping[str, Tensor], base: BaseWeights | None = None
) -> None:
    """Copy saved tensors into the model's own; those of ``base`` stay as they are.

    Raises:
        CheckpointError: if names, shapes or dtypes differ; the model is then unchanged.
    """
    own = model_tensors(model, base)
    _check_same_names("the model", set(saved), set(own))
    for name, tensor in own.items():
        if saved[name].shape != tensor.shape or saved[name].dtype != tensor.dtype:
            raise CheckpointError(
                f"{name}: the checkpoint has {saved[name].dtype} {tuple(saved[name].shape)}, the "
                f"model {tensor.dtype} "
                f"{tuple(tensor.shape)}. Build the model with the checkpoint's configuration."
            )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(saved[name])


def restore_optimizer(
    state: TrainingState, saved: Mapping[str, Tensor], description: Mapping[str, Any]
) -> None:
    """Put saved state into a fresh optimizer of the same parameters, which keeps its own options.

    Raises:
        CheckpointError: if the parameters or their grouping differ.
    """
    names = _parameter_names(state)
    target = state.optimizer.state_dict()
    entries: dict[str, dict[str, Any]] = {}
    for key, value in [*saved.items(), *description["scalars"].items()]:
        kind, name = key.split(":", 1)
        entries.setdefault(name, {})[kind] = value
    saved_groups = description["groups"]
    own_groups = [
        [names[id(parameter)] for parameter in group["params"]]
        for group in state.optimizer.param_groups
    ]
    saved_names = {name for group in saved_groups for name in group["parameters"]}
    own_names = {name for group in own_groups for name in group}
    _check_same_names("the optimizer", saved_names, own_names)
    if [group["parameters"] for group in saved_groups] != own_groups:
        raise CheckpointError(
            "the checkpoint's optimizer groups its parameters differently. Build the optimizer "
            "with the checkpoint's configuration."
        )
    target["state"] = {}
    for group, names_of_group in zip(target["param_groups"], own_groups, strict=True):
        for index, name in zip(group["params"], names_of_group, strict=True):
            if name in entries:
                target["state"][index] = entries[name]
    state.optimizer.load_state_dict(target)


class Staging:
    """CPU copies of tensors, in memory that is reused from one snapshot to the next.

    Fresh memory would cost a page fault every 4 KiB, more than the copying itself. The memory is
    pinned where tensors are on a GPU.
    """

    def __init__(self) -> None:
        self._held: Tensors = {}

    def copy(self, tensors: Mapping[str, Tensor]) -> Tensors:
        """Return copies of ``tensors``, valid until the next call."""
        self._held = {name: self._buffer(name, tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            if tensor.is_cpu and tensor.is_contiguous():
                # One thread saturates the memory bandwidth. torch's copy would wait until all its
                # threads are scheduled.
                np.copyto(tensor_bytes(self._held[name]), tensor_bytes(tensor))
            else:
                self._held[name].copy_(tensor.detach(), non_blocking=True)
        if any(tensor.is_cuda for tensor in tensors.values()):
            torch.cuda.synchronize()
        return self._held

    def _buffer(self, name: str, like: Tensor) -> Tensor:
        held = self._held.get(name)
        if held is not None and (held.shape, held.dtype) == (like.shape, like.dtype):
            return held
        return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=like.is_cuda)


def _parameter_names(state: TrainingState) -> dict[int, str]:
    names = {id(parameter): name for name, parameter in state.model.named_parameters()}
    for group in state.optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise CheckpointError(
                    f"the optimizer updates a parameter of shape {tuple(parameter.shape)} that is "
                    "not in the model, so "
                    "it has no name to be saved under. Make it part of the model."
                )
    return names


def _check_same_names(whose: str, saved: set[str], own: set[str]) -> None:
    if saved != own:
        raise CheckpointError(
            f"{whose} does not fit the checkpoint: missing in the checkpoint {_few(own - saved)}, "
            f"unknown to {whose} {_few(saved - own)}. Build it with the checkpoint's configuration."
        )


def _few(names: set[str]) -> str:
    shown = sorted(names)[:3]
    if len(names) > 3:
        shown.append(f"and {len(names) - 3} more")
    return ", ".join(shown) or "nothing"
