"""Count what a training step asks of a device: kernels, and operations that make the host wait for it.

All of it is counted on a CPU. Operations of torch count, with any tensor; what is computed with numpy is work of the
host and does not.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

SYNCHRONIZING = frozenset(
    {
        "_local_scalar_dense",  # item, int, float, bool
        "_unique2",
        "bincount",
        "equal",
        "masked_select",
        "nonzero",
        "unique_consecutive",
        "unique_dim",
    }
)
"""Operations of ATen whose result the host reads, or whose shape depends on values."""

READS = {Tensor.tolist: "tolist", Tensor.cpu: "cpu"}
"""Methods that copy values to the host, which on a CPU are no operation of ATen."""

FROM_HOST = (torch.tensor, torch.as_tensor)
"""Functions that copy numbers to a device and wait for the copy; ``torch.full`` does not."""

_NO_KERNEL = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})


class DeviceOperations:
    """Context that counts operations.

    Attributes:
        synchronizing: name -> calls that would make the host wait for a GPU.
        num_kernels: operations that compute or copy something; those on lists of tensors count once.
    """

    def __init__(self) -> None:
        self.synchronizing: Counter[str] = Counter()
        self.num_kernels = 0
        self._modes = (_Operations(self), _Methods(self))

    def __enter__(self) -> Self:
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)


class _Operations(TorchDispatchMode):
    def __init__(self, counts: DeviceOperations) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in SYNCHRONIZING:
            self.counts.synchronizing[name] += 1
        is_repeat = name == "repeat_interleave" and func._overloadname == "Tensor"
        if is_repeat and (kwargs or {}).get("output_size") is None:
            # Without the size of the result, the host reads it.
            self.counts.synchronizing[name] += 1
        is_indexing = name in ("index", "index_put", "index_put_")
        if is_indexing and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        ):
            self.counts.synchronizing[f"{name} by booleans"] += 1
        if not func.is_view and name not in _NO_KERNEL:
            self.counts.num_kernels += 1
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    def __init__(self, counts: DeviceOperations) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in READS:
            self.counts.synchronizing[READS[func]] += 1
        if func in FROM_HOST and not isinstance(args[0], Tensor) and (kwargs or {}).get("device"):
            self.counts.synchronizing["tensor from the host"] += 1
        return func(*args, **(kwargs or {}))
