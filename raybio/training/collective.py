"""Collective operations: gather rows with their gradient, and sum.

Shape letters: N rows of this worker, M rows of all workers, W workers, P largest number of rows of
a worker, D width (any trailing shape is allowed).
"""

import datetime
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from raybio.core.errors import ClusterError
from raybio.core.interfaces import Gathered

_DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16,
    torch.int64, torch.int32, torch.uint8, torch.bool,
)  # fmt: skip
"""Dtypes that rows may have; workers compare their positions in this tuple."""


STALL_SECONDS = 45.0
"""A worker that waits longer than this for another one logs a warning."""

REPEAT_SECONDS = 600.0
"""Interval of further warnings where the wait has no limit."""

_UNLIMITED = datetime.timedelta(days=24)
"""Timeout of the process group of evaluations; its milliseconds fit in 32 bits."""

_log = logging.getLogger(__name__)


class SingleProcess:
    """A ``Collective`` of one process, in which each operation is the identity."""

    rank = 0
    world = 1
    num_open_gathers = 0
    step: int | None = None

    def operation(self, name: str) -> AbstractContextManager[None]:
        """Do nothing around a ``with`` block: nobody is waited for."""
        return nullcontext()

    def patient(self, name: str = "an evaluation") -> AbstractContextManager[None]:
        """Do nothing around a ``with`` block: nobody is waited for."""
        return nullcontext()

    def all_gather(self, local_ND: Tensor, like: Gathered | None = None) -> Gathered:
        """Return the rows themselves."""
        return Gathered(local_ND, 0, [len(local_ND)])

    def all_sum(self, tensor: Tensor) -> Tensor:
        """Return a detached copy of ``tensor``."""
        return tensor.detach().clone()

    def all_max(self, tensor: Tensor) -> Tensor:
        """Return a detached copy of ``tensor``."""
        return tensor.detach().clone()

    def host_sum(self, values: Sequence[int]) -> list[int]:
        """Return the values themselves."""
        return list(values)

    def start_sum(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Callable[[], None]:
        """Leave ``tensor`` as it is."""
        return lambda: None

    def start_broadcast(self, tensor: Tensor, source: int) -> Callable[[], None]:
        """Leave ``tensor`` as it is."""
        return lambda: None


class ProcessGroup:
    """A ``Collective`` over ``torch.distributed``; all workers must call its methods in one order.

    Tensors travel over the default group. Numbers that the host reads (row counts, flags) travel
    over gloo, because a read of a device would make the host wait for all work given to it.

    In a ``patient`` block, workers meet over another gloo group before each operation. Only that
    group waits without a limit, so the timeouts of the others still end a hang in training.

    Raises:
        ClusterError: from every method, if another worker died or, outside ``patient``, did not
            come within the group's timeout; the message names this rank, the operation and the
            step.
    """

    def __init__(self, *, timeout_seconds: float | None = None) -> None:
        """Join the default group; every worker must.

        Args:
            timeout_seconds: timeout of the default group, and of the gloo group that is made next
                to another backend; None: torch's default.

        Raises:
            ClusterError: if no process group was initialized.
        """
        if not dist.is_initialized():
            raise ClusterError(
                "torch.distributed has no process group. Call init_process_group first, or train "
                "with SingleProcess()."
            )
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.num_open_gathers = 0
        self.step: int | None = None
        self.waiting: tuple[str, float] | None = None
        self.stalled: tuple[str, float] | None = None
        self._is_patient = False
        self.patient_group: dist.ProcessGroup | None = None
        # Warn before a timeout ends the wait.
        self.stall_seconds = min(STALL_SECONDS, (timeout_seconds or math.inf) / 2)
        watch = threading.Thread(target=_watch, args=(weakref.ref(self),), daemon=True)
        watch.start()
        self._is_nccl = dist.get_backend() == "nccl"
        self.host_group: dist.ProcessGroup | None = None
        if dist.get_backend() != "gloo":
            timeout = None
            if timeout_seconds is not None:
                timeout = datetime.timedelta(seconds=timeout_seconds)
            name = "gloo group (GLOO_SOCKET_IFNAME chooses a network interface)"
            with _NamedFailure(self, name):
                self.host_group = dist.new_group(backend="gloo", timeout=timeout)

    def operation(self, name: str) -> AbstractContextManager[None]:
        """Name the operation of a ``with`` block in which this worker waits for the others.

        Raises:
            ClusterError: for a RuntimeError of the block.
        """
        return _NamedFailure(self, name)

    @contextmanager
    def patient(self, name: str = "an evaluation") -> Iterator[None]:
        """Lift the time limit on waiting within a ``with`` block, which all workers leave together.

        Every worker must enter the block within the group's timeout.

        Args:
            name: what the workers do in the block, for messages about a wait.
        """
        if self.patient_group is None:
            # The new group waits without a limit for workers to join it, so make sure that all are
            # here.
            self.host_sum([0])
            with _NamedFailure(self, "gloo group of waits without a limit"):
                self.patient_group = dist.new_group(backend="gloo", timeout=_UNLIMITED)
        self._is_patient = True
        try:
            yield
            # A worker that finishes early waits here, not in its next operation, which has a
            # timeout.
            self._meet(f"end of {name}")
        finally:
            self._is_patient = False

    def all_gather(self, local_ND: Tensor, like: Gathered | None = None) -> Gathered:
        """Concatenate the rows of all workers in rank order.

        Args:
            local_ND: this worker's rows. Their number may differ between workers and may be 0; the
                rest of the shape and the dtype may not.
            like: an earlier result with as many rows of each worker. Numbers of rows, shapes and
                dtypes are then neither exchanged nor compared. The caller vouches that all workers
                give rows of one shape and dtype, which require gradient on all of them or on none;
                otherwise the workers hang.

        Returns:
            Rows (M, D) of all workers, and the index of this worker's first one. If the rows of any
            worker require gradient, the result does on all of them, and ``backward`` must then run
            on every worker. The gradient of a row is the sum of the gradients of its copies.

        Raises:
            ValueError: on every worker, if shapes or dtypes do not fit together; on one that has
                more or fewer rows than in ``like``.
        """
        any_wants_grad = torch.is_grad_enabled() and local_ND.requires_grad
        if like is None:
            num_rows_W, any_wants_grad = self._compare(local_ND, any_wants_grad)
        else:
            num_rows_W = like.num_rows_W
            if len(local_ND) != num_rows_W[self.rank]:
                raise ValueError(f"got {len(local_ND)} rows, want {num_rows_W[self.rank]}")
        if any_wants_grad and not local_ND.requires_grad:
            # Backward is also a collective operation: without this worker the others would hang.
            local_ND = local_ND.detach().requires_grad_()
        if any_wants_grad:
            self.num_open_gathers += 1
            with torch.enable_grad():
                gathered = _GatherRows.apply(local_ND, self, num_rows_W)  # type: ignore[no-untyped-call]
                row_MD = cast(Tensor, gathered)
        else:
            row_MD = self._gather_rows(local_ND.detach(), num_rows_W)
        return Gathered(row_MD, sum(num_rows_W[: self.rank]), num_rows_W)

    def all_sum(self, tensor: Tensor) -> Tensor:
        """Sum over workers without gradient, bit-identical on each; booleans count as int64."""
        return self._all_reduce(tensor, dist.ReduceOp.SUM, "all_sum")

    def all_max(self, tensor: Tensor) -> Tensor:
        """Element-wise maximum over workers, without gradient; booleans become int64."""
        return self._all_reduce(tensor, dist.ReduceOp.MAX, "all_max")

    def host_sum(self, values: Sequence[int]) -> list[int]:
        """Sum numbers that are on the host over workers."""
        total_V = np.array(values, dtype=np.int64)
        with self._transfer("host_sum"):
            # The tensor shares the array's memory.
            dist.all_reduce(torch.from_numpy(total_V), group=self.host_group)
        return total_V.tolist()

    def start_sum(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Callable[[], None]:
        """Start to sum ``tensor`` over workers in place, bit-identical on each.

        Args:
            tensor: without gradient.
            dtype: dtype in which it is sent and added; None: its own.

        Returns:
            A function that waits until ``tensor`` holds the sum; on a GPU only its stream waits.
        """
        sent = self._on_backend_device(tensor.to(dtype or tensor.dtype))
        with self._transfer("sum of gradients"):
            work = dist.all_reduce(sent, async_op=True)
        return self._wait_for(work, "sum of gradients", sent, tensor)

    def start_broadcast(self, tensor: Tensor, source: int) -> Callable[[], None]:
        """Start to copy the tensor of worker ``source`` into ``tensor`` of all other workers.

        Args:
            tensor: without gradient; its shape and dtype are the same on all workers.
            source: rank of the worker.

        Returns:
            A function that waits until ``tensor`` holds the copy; on a GPU only its stream waits.
        """
        sent = self._on_backend_device(tensor.contiguous())
        with self._transfer("broadcast"):
            work = dist.broadcast(sent, src=source, async_op=True)
        return self._wait_for(work, "broadcast", sent, tensor)

    def _transfer(self, name: str) -> AbstractContextManager[None]:
        """Name an operation that moves data; in a ``patient`` block all workers meet before it."""
        if self._is_patient:
            self._meet(name)
        return _NamedFailure(self, name)

    def _meet(self, name: str) -> None:
        """Wait for all workers without a limit."""
        with _NamedFailure(self, name):
            dist.all_reduce(torch.zeros(1), group=self.patient_group)

    def _wait_for(self, work: Any, name: str, sent: Tensor, tensor: Tensor) -> Callable[[], None]:
        """Return a function that waits for the operation and copies ``sent`` to ``tensor``."""

        def wait() -> None:
            with _NamedFailure(self, name):
                work.wait()
            if sent is not tensor:
                tensor.copy_(sent)

        return wait

    def _all_reduce(self, tensor: Tensor, operation: Any, name: str) -> Tensor:
        total = self._on_backend_device(tensor.detach()).clone()
        if total.dtype == torch.bool:
            total = total.long()
        with self._transfer(name):
            dist.all_reduce(total, op=operation)
        return total.to(tensor.device)

    def _compare(self, local_ND: Tensor, wants_grad: bool) -> tuple[list[int], bool]:
        """Return the number of rows of each worker, and whether any of them wants a gradient."""
        dtype = _DTYPES.index(local_ND.dtype) if local_ND.dtype in _DTYPES else -1
        width = math.prod(local_ND.shape[1:])
        header = np.array([len(local_ND), width, dtype, int(wants_grad)])
        header_WV = np.empty((self.world, len(header)), dtype=header.dtype)
        with self._transfer("all_gather (row counts)"):
            dist.all_gather(
                list(torch.from_numpy(header_WV).unbind()),
                torch.from_numpy(header),
                group=self.host_group,
            )
        num_rows_W, width_W, dtype_W, wants_W = zip(*header_WV.tolist(), strict=True)
        if len(set(width_W)) > 1 or len(set(dtype_W)) > 1 or dtype < 0:
            dtypes = [
                str(_DTYPES[code]) if code >= 0 else "an unsupported dtype" for code in dtype_W
            ]
            raise ValueError(
                "all_gather needs rows of one width and one dtype on all workers; by rank the "
                f"widths are {width_W} and the dtypes {dtypes}. Cast or project them alike before "
                "gathering."
            )
        return list(num_rows_W), any(wants_W)

    def _gather_rows(self, local_ND: Tensor, num_rows_W: list[int]) -> Tensor:
        max_rows = max(num_rows_W)
        if max_rows == 0:
            return local_ND.clone()
        # Booleans are sent as bytes: neither gloo nor nccl gathers them.
        sent_ND = local_ND.view(torch.uint8) if local_ND.dtype == torch.bool else local_ND
        padding = sent_ND.new_zeros((max_rows - len(sent_ND), *sent_ND.shape[1:]))
        padded_PD = self._on_backend_device(torch.cat([sent_ND, padding]))
        padded_WPD = padded_PD.new_empty((self.world, *padded_PD.shape))
        with self._transfer("all_gather"):
            dist.all_gather(list(padded_WPD.unbind()), padded_PD)
        row_MD = torch.cat([padded_WPD[worker, :rows] for worker, rows in enumerate(num_rows_W)])
        return row_MD.to(local_ND.device).view(local_ND.dtype)

    def _sum_own_rows(self, grad_MD: Tensor, num_rows_W: list[int]) -> Tensor:
        """Return this worker's rows of the sum of the gradients of all workers."""
        max_rows = max(num_rows_W)
        if max_rows == 0:
            return grad_MD.clone()
        # A sum in half precision would lose bits with every worker.
        is_half = grad_MD.dtype in (torch.float16, torch.bfloat16)
        sum_dtype = torch.float32 if is_half else grad_MD.dtype
        summed_MD = self._on_backend_device(grad_MD.to(sum_dtype))
        with self._transfer("backward of all_gather"):
            if self._is_nccl:
                padded_WPD = summed_MD.new_zeros((self.world, max_rows, *summed_MD.shape[1:]))
                for worker, part_ND in enumerate(torch.split(summed_MD, num_rows_W)):
                    padded_WPD[worker, : len(part_ND)] = part_ND
                received_PD = torch.empty_like(padded_WPD[0])
                dist.reduce_scatter_tensor(received_PD, padded_WPD.flatten(0, 1))
                grad_ND = received_PD[: num_rows_W[self.rank]]
            else:
                summed_MD = summed_MD.clone(memory_format=torch.contiguous_format)
                dist.all_reduce(summed_MD)
                grad_ND = torch.split(summed_MD, num_rows_W)[self.rank]
        return grad_ND.to(device=grad_MD.device, dtype=grad_MD.dtype)

    def _on_backend_device(self, tensor: Tensor) -> Tensor:
        # NCCL takes tensors on the GPU only.
        return tensor.cuda() if self._is_nccl and not tensor.is_cuda else tensor


class _GatherRows(torch.autograd.Function):
    """Gather of unequal numbers of rows, with gradient.

    The gather of torch.distributed.nn is deprecated, and wrong on some NCCL versions (pytorch
    #120386).
    """

    @staticmethod
    def forward(
        ctx: Any, local_ND: Tensor, collective: ProcessGroup, num_rows_W: list[int]
    ) -> Tensor:
        """Return the rows (M, D) of all workers in rank order."""
        ctx.collective = collective
        ctx.num_rows_W = num_rows_W
        return collective._gather_rows(local_ND, num_rows_W)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MD: Tensor) -> tuple[Tensor, None, None]:
        """Return this worker's rows of the summed gradients of all workers."""
        grad_ND = ctx.collective._sum_own_rows(grad_MD, ctx.num_rows_W)
        ctx.collective.num_open_gathers -= 1
        return grad_ND, None, None


class _NamedFailure(AbstractContextManager[None]):
    """Context that turns torch's RuntimeError into a ClusterError with rank and operation."""

    def __init__(self, collective: ProcessGroup, name: str) -> None:
        self.collective = collective
        self.name = name

    def __enter__(self) -> None:
        self.collective.waiting = (self.name, time.monotonic())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        is_stalled = self.collective.stalled == self.collective.waiting
        self.collective.waiting = None
        if isinstance(error, RuntimeError):
            message = (
                f"rank {self.collective.rank} of {self.collective.world}: collective {self.name!r}"
                f"{_after_step(self.collective)} failed: {error}. Another worker stopped, and its "
                "own log has the cause, or it is slower than RAYBIO_COLLECTIVE_TIMEOUT_SECONDS "
                "allows."
            )
            if is_stalled:
                # The log already has the warning about the wait, so it also gets the reason for the
                # restart.
                _log.warning("%s", message)
            raise ClusterError(message) from error


def _after_step(collective: ProcessGroup) -> str:
    return "" if collective.step is None else f" after step {collective.step}"


def _watch(reference: "weakref.ref[ProcessGroup]") -> None:
    """Warn about each operation in which this worker waits for another one.

    The warning is repeated in a ``patient`` block, which nothing ends.
    """
    due = math.inf
    while (collective := reference()) is not None:
        waiting = collective.waiting
        seconds = collective.stall_seconds
        now = time.monotonic()
        if waiting is not None:
            name, since = waiting
            if waiting != collective.stalled:
                due = since + seconds
            if now > due:
                collective.stalled = waiting
                _log.warning(
                    "rank %d of %d has waited %.0f s for another worker in the collective "
                    "operation %r%s (at %s); it may hang, or be much slower",
                    collective.rank,
                    collective.world,
                    due - since,
                    name,
                    _after_step(collective),
                    # Equal messages are shown once, so the time makes each stall a message of its
                    # own.
                    time.strftime("%H:%M:%S"),
                )
                due = due + REPEAT_SECONDS if collective._is_patient else math.inf
        # Keep no reference while this thread sleeps.
        del collective
        time.sleep(min(seconds / 4, 5.0))
