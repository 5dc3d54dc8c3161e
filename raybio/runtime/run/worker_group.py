"""The workers of a run: Ray Train starts, watches and restarts them, in a thread of the driver."""

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
from raybio.runtime.cluster.connection import collective_timeout_seconds
from raybio.runtime.cluster.resources import Resources, memory_reason
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.spec import WorkerSpec
from raybio.runtime.run.worker import work

THREAD = "raybio-train"


MAX_WORKER_FAILURES = 3


MAX_CONTROLLER_FAILURES = 5


@dataclass(frozen=True)
class Work:
    """Ray Train at work in a thread."""

    thread: threading.Thread
    errors: list[BaseException]

    @property
    def error(self) -> BaseException | None:
        """The error that ended Ray Train, if any."""
        return self.errors[0] if self.errors else None


def fit_in_thread(spec: WorkerSpec, resources: Resources) -> Work:
    """Start the workers in a thread; the caller waits for it and follows the run's log."""
    raised: list[BaseException] = []

    def fit() -> None:
        try:
            _trainer(spec, resources).fit()
        except BaseException as error:  # the caller reports it
            raised.append(error)

    work_in_thread = Work(threading.Thread(target=fit, name=THREAD, daemon=True), raised)
    work_in_thread.thread.start()
    return work_in_thread


def wait_for_workers(seconds: float) -> None:
    """Wait until the workers that this process started have ended, at most ``seconds``."""
    deadline = time.monotonic() + seconds
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join(timeout=max(deadline - time.monotonic(), 0.0))


def explained(folder: RunFolder, error: BaseException | None) -> RaybioError:
    """Return the error that ended a run: the one that a worker recorded, or a ``ClusterError``."""
    failure = read_record(folder.failure, "failure")
    if failure is not None:
        kind = getattr(errors, failure["kind"], RaybioError)
        return kind(failure["message"])  # type: ignore[no-any-return]
    reason = "no error and no outcome"
    if error is not None:
        reason = memory_reason(error) or str(error).strip() or type(error).__name__
        last_line = errors.last_line(error)
        if last_line.startswith(f"{errors.__name__}."):
            # If the disk was full, only the traceback has the worker's own error.
            reason = last_line.removeprefix(f"{errors.__name__}.")
    return ClusterError(
        f"{folder.path}: training failed more than {MAX_WORKER_FAILURES} times, the last time "
        f"with: {reason}. The same command resumes from the newest checkpoint"
    )


def _trainer(spec: WorkerSpec, resources: Resources) -> TorchTrainer:
    folder = spec.run.folder
    shutil.rmtree(folder.ray, ignore_errors=True)
    per_worker: dict[str, float] = {"CPU": resources.cpus_per_worker}
    if resources.gpus_per_worker:
        per_worker["GPU"] = resources.gpus_per_worker
    return TorchTrainer(
        lambda: work(spec),
        torch_config=TorchConfig(
            backend="nccl" if resources.gpus_per_worker else "gloo",
            timeout_s=collective_timeout_seconds(),
        ),
        scaling_config=ray.train.ScalingConfig(
            num_workers=resources.num_workers,
            use_gpu=bool(resources.gpus_per_worker),
            resources_per_worker=per_worker,
        ),
        run_config=ray.train.RunConfig(
            # Use a new name each time, so that Ray does not resume from its own, perhaps partial,
            # snapshot.
            name=f"{spec.run.name}-{uuid.uuid4().hex[:8]}",
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
