"""The workers of a run: Ray Train starts them, watches them and starts them again, in a thread of the driver."""

import shutil
import threading
import time
import uuid
from dataclasses import dataclass

import ray.train
from ray.train.torch import TorchConfig, TorchTrainer

from raybio.core import errors
from raybio.core.errors import ClusterError, RaybioError
from raybio.core.records import read_record
from raybio.runtime.cluster.resources import Resources
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.worker import Order, work

THREAD = "raybio-train"


COLLECTIVE_TIMEOUT_SECONDS = 300


MAX_WORKER_FAILURES = 3


MAX_CONTROLLER_FAILURES = 5


@dataclass(frozen=True)
class Work:
    """Ray Train at work in a thread."""

    thread: threading.Thread
    errors: list[BaseException]

    @property
    def error(self) -> BaseException | None:
        """What ended it, if it did not end by itself."""
        return self.errors[0] if self.errors else None


def fit_in_thread(order: Order, resources: Resources) -> Work:
    """Start the workers; whoever waits for the thread follows the run's log."""
    found: list[BaseException] = []

    def fit() -> None:
        try:
            _trainer(order, resources).fit()
        except BaseException as error:  # reported by whoever waits for the thread
            found.append(error)

    started = Work(threading.Thread(target=fit, name=THREAD, daemon=True), found)
    started.thread.start()
    return started


def wait_for_workers(seconds: float) -> None:
    """Wait until all workers that this process started have ended and what they reserved is free, or so long."""
    deadline = time.monotonic() + seconds
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join(timeout=max(deadline - time.monotonic(), 0.0))


def explained(folder: RunFolder, error: BaseException | None) -> RaybioError:
    """The error that ended a run, as itself where a worker wrote it down."""
    failure = read_record(folder.failure, "failure")
    if failure is not None:
        kind = getattr(errors, failure["kind"], RaybioError)
        return kind(failure["message"])  # type: ignore[no-any-return]
    reason = str(error).strip() or type(error).__name__
    return ClusterError(
        f"{folder.path}: training failed more than {MAX_WORKER_FAILURES} times, the last time with: {reason}. The same "
        "command goes on from the newest checkpoint"
    )


def _trainer(order: Order, resources: Resources) -> TorchTrainer:
    folder = RunFolder(order.runs, order.name)
    shutil.rmtree(folder.ray, ignore_errors=True)
    per_worker: dict[str, float] = {"CPU": resources.cpus_per_worker}
    if resources.gpus_per_worker:
        per_worker["GPU"] = resources.gpus_per_worker
    return TorchTrainer(
        lambda: work(order),
        torch_config=TorchConfig(
            backend="nccl" if resources.gpus_per_worker else "gloo",
            timeout_s=COLLECTIVE_TIMEOUT_SECONDS,
        ),
        scaling_config=ray.train.ScalingConfig(
            num_workers=resources.num_workers,
            use_gpu=bool(resources.gpus_per_worker),
            resources_per_worker=per_worker,
        ),
        run_config=ray.train.RunConfig(
            # A new name each time: Ray's own snapshot of an earlier start, perhaps torn, is of no use to us.
            name=f"{order.name}-{uuid.uuid4().hex[:8]}",
            storage_path=str(folder.ray),
            failure_config=ray.train.FailureConfig(
                max_failures=MAX_WORKER_FAILURES,
                max_preemption_failures=-1,
                controller_failure_limit=MAX_CONTROLLER_FAILURES,
                relax_collectives_on_preemption=True,
                preemption_grace_s=60,
            ),
        ),
    )
