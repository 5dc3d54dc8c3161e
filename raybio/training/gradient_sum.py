"""Gradients of parameters, summed over the workers while the last backward pass still runs.

The gradients of a step are views of flat buckets of about 32 MB, so they are never copied into or
out of a bucket. In the step's last backward pass, a bucket is sent once its last gradient is
complete. Workers may have different numbers of micro-batches, or none. All send the buckets in the
same order, and send those that are left after the backward pass.

Shape letters: P parameters of a bucket.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from raybio.core.interfaces import Collective

BUCKET_BYTES = 32 * 2**20


class GradientSum:
    """The gradients of a model's parameters for the global batch.

    A parameter without a gradient on some workers counts as zero there; without a gradient on any
    worker, its gradient is None. The result is bit-identical on every worker. In fp32 it is also
    bit-identical to a sum after the backward pass.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        collective: Collective,
        *,
        sent_as: Literal["fp32", "bf16"] = "fp32",
    ) -> None:
        """Make the buckets.

        Args:
            parameters: the parameters, in the same order on every worker; frozen ones are ignored.
                Their device and dtype must not change afterwards.
            collective: the workers.
            sent_as: ``bf16``: each worker's gradients are rounded to bf16 and summed in bf16;
                ``fp32``: they are sent unchanged.
        """
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._collective = collective
        self._dtype = torch.bfloat16 if sent_as == "bf16" else None
        self._buckets: list[_Bucket] = []
        if collective.world > 1:
            self._buckets = [_Bucket(bucket) for bucket in cut_into_buckets(self._parameters)]
        # Backward reaches the last parameters first.
        self._buckets.reverse()
        self._is_last = False
        self._is_counted = False
        self._waits: list[Callable[[], None]] = []

    @contextmanager
    def of_step(self) -> Iterator[None]:
        """Context of all passes of a step: begin without gradients, and end with their sums."""
        for parameter in self._parameters:
            parameter.grad = None
        self._waits = []
        self._is_counted = False
        self._collective.num_open_gathers = 0
        hooks = []
        for bucket in self._buckets:
            bucket.begin()
            for index, parameter in enumerate(bucket.parameters):
                hook = partial(self._on_gradient, bucket, index)
                hooks.append(parameter.register_post_accumulate_grad_hook(hook))
        try:
            yield
        finally:
            for registered in hooks:
                registered.remove()
        while len(self._waits) < len(self._buckets):
            self._start_next()
        if self._buckets:
            self._drop_missing()
        for wait in self._waits:
            wait()

    @contextmanager
    def last_backward(self) -> Iterator[None]:
        """Context of the step's last backward pass on this worker, which overlaps with the sums."""
        self._is_last = True
        try:
            yield
        finally:
            self._is_last = False

    def _on_gradient(self, bucket: "_Bucket", index: int, _: Tensor) -> None:
        """Record that a backward pass has added to a gradient; start the sums that are ready."""
        bucket.has_grad_P[index] = True
        if not self._is_last:
            return
        if not self._is_counted:
            self._is_counted = True
            for each in self._buckets:
                each.count_missing()
        bucket.num_missing -= 1
        assert bucket.num_missing >= 0, "a gradient came after its bucket was complete"
        # Gathers of the backward pass come before all buckets on every worker.
        while (
            len(self._waits) < len(self._buckets)
            and self._buckets[len(self._waits)].num_missing == 0
            and not self._collective.num_open_gathers
        ):
            self._start_next()

    def _start_next(self) -> None:
        bucket = self._buckets[len(self._waits)]
        self._waits.append(self._collective.start_sum(bucket.flat, self._dtype))

    def _drop_missing(self) -> None:
        """Set the gradient to None for parameters that have none on any worker."""
        parameters = [each for bucket in self._buckets for each in bucket.parameters]
        has_grad = [each for bucket in self._buckets for each in bucket.has_grad_P]
        num_workers = self._collective.host_sum(has_grad)
        for parameter, number in zip(parameters, num_workers, strict=True):
            if number == 0:
                parameter.grad = None


class _Bucket:
    """Gradients of a run of parameters in one flat tensor.

    Attributes:
        parameters: P parameters of one dtype and device.
        flat: their gradients.
        has_grad_P: whether a parameter has a gradient on this worker.
        num_missing: number of gradients that the last backward pass still has to reach.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        first = parameters[0]
        sizes = [parameter.numel() for parameter in parameters]
        self.parameters = parameters
        self.flat = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        self._gradients = []
        for parameter, piece in zip(parameters, self.flat.split(sizes), strict=True):
            strides = torch.empty_like(parameter, device="meta").stride()
            self._gradients.append(piece.as_strided(parameter.shape, strides))
        # Keep a reference: otherwise the node is freed, and the parameter gets another one.
        self._nodes = [get_gradient_edge(parameter).node for parameter in parameters]
        self.has_grad_P: list[bool] = []
        self.num_missing = 0

    def begin(self) -> None:
        """Set all gradients to zero."""
        self.flat.zero_()
        self.has_grad_P = [False] * len(self.parameters)
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            parameter.grad = gradient

    def count_missing(self) -> None:
        """Count the gradients that the running backward pass reaches."""
        self.num_missing = sum(map(torch._C._will_engine_execute_node, self._nodes))


def cut_into_buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yield runs of parameters of one dtype and device, of at most ``BUCKET_BYTES`` each."""
    bucket: list[nn.Parameter] = []
    num_bytes = 0
    for parameter in parameters:
        if bucket:
            first = bucket[0]
            is_other_kind = (first.dtype, first.device) != (parameter.dtype, parameter.device)
            if is_other_kind or num_bytes + parameter.nbytes > BUCKET_BYTES:
                yield bucket
                bucket = []
                num_bytes = 0
        bucket.append(parameter)
        num_bytes += parameter.nbytes
    if bucket:
        yield bucket
