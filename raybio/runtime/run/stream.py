"""The stream: Ray Data executes the plan, and a worker reads its shards of the steps in order.

A dataset row is a *block* of consecutive steps (first, last + 1); its task collates those steps and sends back one
Arrow row a step, each array as raw bytes. Nothing but step numbers travels to the tasks, no Python object comes back.
"""

import contextlib
import itertools
import json
import logging
import math
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from raybio.core.batch import Batch
from raybio.core.errors import ClusterError, RaybioError
from raybio.core.interfaces import Collate

B = TypeVar("B", bound=Batch)


STEPS_PER_BLOCK = 32
"""A task costs Ray Data about 20 ms and the worker's own process 15 ms, whatever is in it."""


BLOCK_BYTES = 16 * 2**20


BLOCKS_PER_DATASET = 256


DATA_CPUS = 0.1
"""What one collating task reserves. Most of its time it waits for the training step to catch up."""


MAX_BYTES_AHEAD = 256 * 2**20


STALL_SECONDS = 300.0


_DTYPES = frozenset("?bBhHiIlLqQefd")


_END = object()


def stream_batches(
    collate: Collate,
    *,
    first_step: int,
    num_steps: int,
    rank: int,
    world: int,
    batch_type: type[B],
    prefetch: int = 8,
) -> Iterator[tuple[int, B]]:
    """This worker's shards of steps ``first_step`` to ``first_step + num_steps - 1``, in order.

    Ray Data takes seconds to start, or many on a busy machine; until its first block arrives, steps are collated here,
    which changes nothing, since a step's arrays are a pure function of its number.

    Args:
        collate: makes the arrays of a shard; travels to the tasks by cloudpickle.
        first_step: the step to begin with; any, since the plan is a pure function of the step.
        num_steps: how many steps.
        rank: this worker's number.
        world: number of workers.
        batch_type: what the arrays become.
        prefetch: steps that wait in this process, beside the blocks in Ray's object store.

    Yields:
        (step, batch) pairs.

    Raises:
        RaybioError: what ``collate`` raised, with its own message.
        ClusterError: if nothing arrives for five minutes while the training waits.
    """
    if num_steps <= 0:
        return
    end = first_step + num_steps
    arrays: Mapping[str, np.ndarray] | None = collate(first_step, rank, world)
    assert arrays is not None
    pump = _Pump(
        collate,
        _blocks(first_step + 1, num_steps - 1, _steps_per_block(arrays)),
        rank,
        world,
        prefetch,
    )
    try:
        step = first_step
        while arrays is not None:
            yield step, batch_type.from_arrays(arrays)
            step += 1
            arrays = collate(step, rank, world) if step < end and not pump.has_begun else None
        for step_of_pump, arrays in pump:
            if step_of_pump == step:  # earlier ones were collated here
                yield step, batch_type.from_arrays(arrays)
                step += 1
    finally:
        pump.close()


class _Pump:
    """A thread that walks the datasets and keeps a few decoded steps ready."""

    def __init__(
        self, collate: Collate, bound_K2: np.ndarray, rank: int, world: int, prefetch: int
    ) -> None:
        self.collate, self.bound_K2, self.rank, self.world = collate, bound_K2, rank, world
        self.ready: queue.Queue[Any] = queue.Queue(maxsize=max(prefetch, 1))
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._run, name="raybio-stream", daemon=True)
        self.thread.start()

    @property
    def has_begun(self) -> bool:
        """Whether anything has arrived yet, be it the end or an error."""
        return not self.ready.empty()

    def __iter__(self) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        while True:
            try:
                item = self.ready.get(timeout=STALL_SECONDS)
            except queue.Empty:
                raise ClusterError(
                    f"rank {self.rank}: Ray Data brought no batch for {STALL_SECONDS:.0f} s while training waited. Its "
                    "tasks probably get no CPU: see `ray status`, and leave CPUs to them (fewer --cpus-per-worker)"
                ) from None
            if item is _END:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        """Stop; the thread and its dataset end within a moment."""
        self.closed.set()
        self.thread.join(timeout=5)

    def _run(self) -> None:
        try:
            for table in _tables(self.collate, self.bound_K2, self.rank, self.world):
                for row in range(table.num_rows):
                    if not self._put(unpack(table, row)):
                        return
            self._put(_END)
        except (
            BaseException
        ) as error:  # whatever it is belongs to the training loop, not to this thread
            self._put(_own_error(error))

    def _put(self, item: Any) -> bool:
        while not self.closed.is_set():
            try:
                self.ready.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False


def _blocks(first_step: int, num_steps: int, steps_per_block: int) -> np.ndarray:
    """(first, last + 1) of each block: small ones at first, so that training need not wait for a full one."""
    ramp = [
        min(2**number, steps_per_block)
        for number in range(1 + math.ceil(math.log2(steps_per_block)))
    ]
    num_full = max(0, num_steps - sum(ramp)) // steps_per_block + 1
    bounds = first_step + np.cumsum([0, *ramp, *itertools.repeat(steps_per_block, num_full)])
    bounds = np.minimum(bounds, first_step + num_steps)
    bound_K2 = np.stack([bounds[:-1], bounds[1:]], axis=1)
    return bound_K2[bound_K2[:, 0] < bound_K2[:, 1]]


def _steps_per_block(arrays: Mapping[str, np.ndarray]) -> int:
    step_bytes = sum(np.asarray(array).nbytes for array in arrays.values())
    return int(np.clip(BLOCK_BYTES // max(step_bytes, 1), 1, STEPS_PER_BLOCK))


def _tables(collate: Collate, bound_K2: np.ndarray, rank: int, world: int) -> Iterator[pa.Table]:
    """One table a block, in order; a new dataset every ``BLOCKS_PER_DATASET`` keeps this process's memory bounded."""
    import ray.data

    for start in range(0, len(bound_K2), BLOCKS_PER_DATASET):
        bounds = bound_K2[start : start + BLOCKS_PER_DATASET].tolist()
        with _settings():
            # Not ray.data.range: its read tasks ask for a whole CPU each, which training may have left none of.
            dataset = ray.data.from_arrow(
                [pa.table({"bounds": [bound]}) for bound in bounds]
            ).map_batches(
                _CollateBlock(collate, rank, world),
                batch_size=None,
                batch_format="pyarrow",
                zero_copy_batch=True,
                num_cpus=DATA_CPUS,
                compute=ray.data.TaskPoolStrategy(size=1),
            )
            tables = iter(
                dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1)
            )
        yield from tables


class _CollateBlock:
    """Runs in Ray Data's tasks: a block's bounds become the packed shards of its steps."""

    def __init__(self, collate: Collate, rank: int, world: int) -> None:
        self.collate, self.rank, self.world = collate, rank, world
        self.__name__ = "collate"  # what Ray Data calls the task

    def __call__(self, batch: pa.Table) -> pa.Table:
        ((first, end),) = batch.column("bounds").to_pylist()
        return pa.concat_tables(
            pack(step, self.collate(step, self.rank, self.world)) for step in range(first, end)
        )


def pack(step: int, arrays: Mapping[str, np.ndarray]) -> pa.Table:
    """One Arrow row: the step, a JSON header with each array's dtype and shape, and each array's bytes.

    Raises:
        TypeError: for an array of anything but numbers or booleans.
    """
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    # ascontiguousarray makes a 0-d array 1-d, so shapes are taken from the originals.
    header = {
        name: [array.dtype.str, list(np.shape(arrays[name]))] for name, array in contiguous.items()
    }
    for name, array in contiguous.items():
        if array.dtype.char not in _DTYPES:
            raise TypeError(f"array {name!r} has dtype {array.dtype}; want numbers or booleans")
    columns = {
        name: pa.array([array.tobytes()], pa.large_binary()) for name, array in contiguous.items()
    }
    return pa.table(
        {"step": pa.array([step], pa.int64()), "header": pa.array([json.dumps(header)]), **columns}
    )


def unpack(table: pa.Table, row: int) -> tuple[int, dict[str, np.ndarray]]:
    """The inverse of ``pack`` for one row of a table; the arrays are read-only views of Arrow's memory."""
    arrays = {}
    for name, (dtype, shape) in json.loads(table.column("header")[row].as_py()).items():
        buffer = table.column(name)[row].as_buffer()
        arrays[name] = np.frombuffer(buffer, dtype=np.dtype(dtype)).reshape(shape)
    return table.column("step")[row].as_py(), arrays


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """Ray Data's settings for a stream, put on the datasets that are made inside the block."""
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.WARNING)
    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = True
    context.execution_options.resource_limits = ray.data.ExecutionResources(
        object_store_memory=MAX_BYTES_AHEAD
    )
    # While training evaluates, nothing moves and nothing is wrong; a stall is noticed where batches are waited for.
    context.execution_no_progress_timeout_s = -1
    context.custom_execution_callback_classes = [*context.custom_execution_callback_classes, _Calm]
    with ray.data.DataContext.current(context):
        yield


class _Calm:
    """Slows Ray Data's scheduling loop while finished blocks wait to be taken.

    A loop that is held back by its limits spins without pause: more than half a core, which training needs.
    """

    def before_execution_starts(self, executor: Any) -> None:
        """Nothing to do."""

    def on_execution_step(self, executor: Any) -> None:
        """Pause if the consumer is well supplied."""
        try:
            _, output = executor._output_node
            if len(output.output_queue) > 0:
                time.sleep(0.05)
        except (AttributeError, TypeError):
            # Another Ray keeps its queue elsewhere: less calm, equally right.
            time.sleep(0.001)

    def after_execution_succeeds(self, executor: Any) -> None:
        """Nothing to do."""

    def after_execution_fails(self, executor: Any, error: Exception) -> None:
        """Nothing to do."""


def _own_error(error: BaseException) -> BaseException:
    """The RaybioError that ``collate`` raised in a task, unwrapped from Ray's layers; or the error itself."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, RaybioError):
            return seen
        seen = getattr(seen, "cause", None) or seen.__cause__
    return error
