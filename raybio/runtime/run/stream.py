"""Batches by Ray Data: tasks collate the steps of the plan, and a worker reads its shards in order.

A dataset row is a *block* of consecutive steps (first, last + 1). Its task collates those steps and
returns one Arrow row a step, each array as raw bytes. Only step numbers travel to the tasks, and no
Python object comes back.
"""

import contextlib
import itertools
import json
import logging
import math
import os
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
"""Many, because a task costs Ray Data about 20 ms and the worker's process 15 ms at any size."""


BLOCK_BYTES = 16 * 2**20


BLOCKS_PER_DATASET = 256
"""A limit on the blocks of a dataset bounds the memory of this process."""


DATA_CPUS = 0.1
"""CPUs that the collating tasks of a worker reserve; they mostly wait for the training step."""


NUM_TASKS_FOR_GPU = 4
"""Number of tasks that collate for a worker with a GPU, each on one core.

A core tokenizes 0.2 to 0.4 M tokens/s of uncached texts; by calculation, a GPU trains BERT-base on
0.6 to 0.75 M tokens/s. On a CPU, a single task is faster than training.
"""


NODE_ID = "ray.io/node-id"
"""Label that Ray gives to each node."""


MAX_BYTES_AHEAD = 256 * 2**20


STALL_SECONDS = 300.0


_DTYPES = frozenset("?bBhHiIlLqQefd")

_NARROW = (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32)
"""Integer types that are narrower than those of batches, the narrowest first."""


_END = object()


def stream_batches(
    collate: Collate,
    *,
    first_step: int,
    num_steps: int,
    rank: int,
    world: int,
    batch_type: type[B],
    num_tasks: int = 1,
    prefetch: int = 8,
) -> Iterator[tuple[int, B]]:
    """Yield this worker's shards of ``num_steps`` steps from ``first_step`` on, in order.

    Ray Data takes seconds to start. Until its first block arrives, this process collates steps
    itself. The batches are the same, since a step's arrays are a pure function of its number.

    Args:
        collate: makes the arrays of a shard; travels to the tasks by cloudpickle.
        first_step: any step, since the plan is a pure function of the step.
        num_steps: number of steps.
        rank: rank of this worker.
        world: number of workers.
        batch_type: type of the batches.
        num_tasks: tasks that collate at the same time.
        prefetch: number of steps held in this process, besides the blocks in Ray's object store.

    Yields:
        (step, batch) pairs.

    Raises:
        RaybioError: raised by ``collate``, with its own message.
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
        num_tasks,
        prefetch,
    )
    try:
        step = first_step
        while arrays is not None:
            yield step, batch_type.from_arrays(arrays)
            step += 1
            arrays = collate(step, rank, world) if step < end and not pump.has_item else None
        for step_of_pump, arrays in pump:
            if step_of_pump == step:  # earlier ones were collated here
                yield step, batch_type.from_arrays(arrays)
                step += 1
    finally:
        pump.close()


class _Pump:
    """Threads that read the datasets, one each, and keep a few decoded steps ready.

    A dataset takes seconds to start. So its thread begins while training still has the last block
    of the dataset before it.
    """

    def __init__(
        self,
        collate: Collate,
        bound_K2: np.ndarray,
        rank: int,
        world: int,
        num_tasks: int,
        prefetch: int,
    ) -> None:
        self.collate = collate
        self.bound_K2 = bound_K2
        self.rank = rank
        self.world = world
        self.num_tasks = num_tasks
        self.ready: queue.Queue[Any] = queue.Queue(maxsize=max(prefetch, 1))
        self.closed = threading.Event()
        self.thread: threading.Thread | None = None
        self._start(0)

    @property
    def has_item(self) -> bool:
        """Whether an item has arrived, which may also be the end or an error."""
        return not self.ready.empty()

    def __iter__(self) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        while True:
            try:
                item = self.ready.get(timeout=STALL_SECONDS)
            except queue.Empty:
                raise ClusterError(
                    f"rank {self.rank}: Ray Data brought no batch for {STALL_SECONDS:.0f} s while "
                    "training waited. Its tasks probably get no CPU: see `ray status`, and leave "
                    "CPUs to them (fewer --cpus-per-worker)"
                ) from None
            if item is _END:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        """Stop the threads and their datasets."""
        self.closed.set()
        if self.thread is not None:
            self.thread.join(timeout=5)

    def _start(self, first_block: int) -> None:
        """Start the thread of the dataset that begins with this block."""
        self.thread = threading.Thread(
            target=self._run, args=(first_block, self.thread), name="raybio-stream", daemon=True
        )
        self.thread.start()

    def _run(self, first_block: int, before: threading.Thread | None) -> None:
        """Read a dataset; its steps follow those of the thread ``before``."""
        bound_K2 = self.bound_K2[first_block : first_block + BLOCKS_PER_DATASET]
        next_block = first_block + len(bound_K2)
        is_last = next_block == len(self.bound_K2)
        try:
            tables = _tables(self.collate, bound_K2, self.rank, self.world, self.num_tasks)
            num_tables = 0
            for num_tables, table in enumerate(tables, start=1):
                if num_tables == 1 and before is not None:
                    before.join()
                if num_tables == len(bound_K2) and not is_last and not self.closed.is_set():
                    self._start(next_block)
                for row in range(table.num_rows):
                    if not self._put(unpack(table, row)):
                        return
            if is_last or num_tables < len(bound_K2):
                self._put(_END)
        except BaseException as error:  # raised again in the training loop
            if before is not None:
                before.join()
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
    """Return (first, last + 1) of each block (K, 2).

    The first blocks are small, so that training need not wait for a full one.
    """
    num_small = 1 + math.ceil(math.log2(steps_per_block))
    ramp = [min(2**number, steps_per_block) for number in range(num_small)]
    num_full = max(0, num_steps - sum(ramp)) // steps_per_block + 1
    bounds = first_step + np.cumsum([0, *ramp, *itertools.repeat(steps_per_block, num_full)])
    bounds = np.minimum(bounds, first_step + num_steps)
    bound_K2 = np.stack([bounds[:-1], bounds[1:]], axis=1)
    return bound_K2[bound_K2[:, 0] < bound_K2[:, 1]]


def _steps_per_block(arrays: Mapping[str, np.ndarray]) -> int:
    step_bytes = sum(np.asarray(array).nbytes for array in arrays.values())
    return int(np.clip(BLOCK_BYTES // max(step_bytes, 1), 1, STEPS_PER_BLOCK))


def _tables(
    collate: Collate, bound_K2: np.ndarray, rank: int, world: int, num_tasks: int
) -> Iterator[pa.Table]:
    """Yield one table per block of a dataset, in order."""
    if not len(bound_K2):
        return
    import ray
    import ray.data

    # Other nodes may not have the store, and would fetch it from its bucket. They collate only
    # where this node has no CPU left.
    here = {NODE_ID: ray.get_runtime_context().get_node_id()}
    with _settings():
        # Tasks of ray.data.range or from_arrow would reserve a whole CPU each, which training
        # workers may not leave.
        blocks = ray.data.from_items(
            [{"bounds": bound} for bound in bound_K2.tolist()], override_num_blocks=len(bound_K2)
        )
        dataset = blocks.map_batches(
            _CollateBlock(collate, rank, world),
            batch_size=None,
            batch_format="pyarrow",
            zero_copy_batch=True,
            num_cpus=DATA_CPUS / num_tasks,
            compute=ray.data.TaskPoolStrategy(size=num_tasks),
            label_selector=here,
            fallback_strategy=[{"label_selector": {}}],
        )
        tables = iter(
            dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1)
        )
    yield from tables


class _CollateBlock:
    """Collates the steps of a block in a task of Ray Data."""

    def __init__(self, collate: Collate, rank: int, world: int) -> None:
        self.collate = collate
        self.rank = rank
        self.world = world
        self.__name__ = "collate"  # the name of the task in Ray Data

    def __call__(self, batch: pa.Table) -> pa.Table:
        # Each task tokenizes on one core. By default, the Rust tokenizers would take all cores of
        # the node from training and other tasks. They read the variable at first use.
        os.environ.setdefault("RAYON_NUM_THREADS", "1")
        ((first, end),) = batch.column("bounds").to_pylist()
        return pa.concat_tables(
            pack(step, self.collate(step, self.rank, self.world)) for step in range(first, end)
        )


def pack(step: int, arrays: Mapping[str, np.ndarray]) -> pa.Table:
    """Return one Arrow row: step, JSON header with dtypes and shapes, and the bytes of each array.

    Integers are sent in the smallest type that holds them, since batches convert them to int64.

    Raises:
        TypeError: for an array of anything but numbers or booleans.
    """
    contiguous = {name: _narrowed(np.ascontiguousarray(array)) for name, array in arrays.items()}
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


def _narrowed(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "iu" or array.size == 0:
        return array
    low = array.min()
    high = array.max()
    for dtype in _NARROW:
        limits = np.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return array.astype(dtype, copy=False)
    return array


def unpack(table: pa.Table, row: int) -> tuple[int, dict[str, np.ndarray]]:
    """Return step and arrays of a row that ``pack`` made; the arrays are read-only views."""
    arrays = {}
    for name, (dtype, shape) in json.loads(table.column("header")[row].as_py()).items():
        buffer = table.column(name)[row].as_buffer()
        arrays[name] = np.frombuffer(buffer, dtype=np.dtype(dtype)).reshape(shape)
    return table.column("step")[row].as_py(), arrays


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """Apply the stream's settings of Ray Data to datasets that are made inside the block."""
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.WARNING)
    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = True
    context.execution_options.resource_limits = ray.data.ExecutionResources(
        object_store_memory=MAX_BYTES_AHEAD
    )
    # There is no progress during evaluations. A real stall is detected where training waits.
    context.execution_no_progress_timeout_s = -1
    context.custom_execution_callback_classes = [*context.custom_execution_callback_classes, _Calm]
    with ray.data.DataContext.current(context):
        yield


class _Calm:
    """Slows the scheduling loop of Ray Data while finished blocks wait to be read.

    When its buffers are full, that loop spins without pause and takes half a core from training.
    """

    def before_execution_starts(self, executor: Any) -> None:
        """Nothing to do."""

    def on_execution_step(self, executor: Any) -> None:
        """Pause if finished blocks wait."""
        try:
            _, output = executor._output_node
            if len(output.output_queue) > 0:
                time.sleep(0.05)
        except (AttributeError, TypeError):
            # In another version of Ray, the queue may be elsewhere.
            time.sleep(0.001)

    def after_execution_succeeds(self, executor: Any) -> None:
        """Nothing to do."""

    def after_execution_fails(self, executor: Any, error: Exception) -> None:
        """Nothing to do."""


def _own_error(error: BaseException) -> BaseException:
    """Return the RaybioError that ``collate`` raised in a task, without Ray's layers around it.

    Other errors are returned as they are.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, RaybioError):
            return cause
        cause = getattr(cause, "cause", None) or cause.__cause__
    return error
