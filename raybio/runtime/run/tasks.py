"""Ray tasks that store their results, so that a task with a stored result does not run again."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from raybio.core.errors import ClusterError, RaybioError, first_line
from raybio.runtime.cluster.connection import cluster_nodes, started
from raybio.runtime.cluster.resources import TrialResources, fit_trials
from raybio.runtime.run.spec import Compute

MAX_RETRIES = 3
"""Retries of a task whose machine is lost."""


class Task(Protocol):
    """A task with plain values, so that it can be sent. Its ``str`` is printed when it is done."""

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        ...

    def work(self, reserved: TrialResources) -> Any:
        """Run on some machine of the cluster, with the reserved resources."""
        ...

    def keep(self, result: Any) -> None:
        """Store the result of ``work``; runs in the driver."""
        ...


def run_tasks(
    tasks: Sequence[Task],
    compute: Compute,
    *,
    needs_gpu: Callable[[Any], bool] = lambda task: True,
    on_lost: Callable[[Any, str], None] | None = None,
    verbose: bool = False,
) -> None:
    """Run the unfinished tasks, as many at a time as fit; start a cluster if there is none.

    Args:
        tasks: tasks, each of one worker.
        compute: CPUs and GPUs of a task; None: equal parts of the CPUs, and 1 GPU if there is any.
        needs_gpu: whether a task reserves the GPU, if there is any.
        on_lost: called with a task whose process died at each try, and the reason; None: raise an
            error.
        verbose: show Ray's own logs.

    Raises:
        ClusterError: if no task fits, or Ray cannot start.
        RaybioError: raised by a task. Earlier results are kept, the other tasks are cancelled.
    """
    missing = [task for task in tasks if not task.is_done]
    if not missing:
        return
    with started(threads=None, verbose=verbose):
        reserved = fit_trials(
            cluster_nodes(),
            workers=1,
            at_most=len(missing),
            least_cpus=1.0,
            cpus_per_worker=compute.cpus_per_worker,
            gpus_per_worker=compute.gpus_per_worker,
        )
        if reserved.gpus_per_worker and not all(map(needs_gpu, missing)):
            # Tasks with a GPU leave one CPU for tasks without.
            cpus = max(reserved.cpus_per_worker - 1, 1.0)
            reserved = replace(reserved, cpus_per_worker=cpus)
        run_tasks_here(missing, reserved, needs_gpu, on_lost)


def reservation(reserved: TrialResources, *, needs_gpu: bool) -> dict[str, float]:
    """Return Ray's options for a task; one that needs no GPU leaves it free and gets one CPU."""
    if reserved.gpus_per_worker and not needs_gpu:
        return {"num_cpus": 1.0, "num_gpus": 0.0}
    return {"num_cpus": reserved.cpus_per_worker, "num_gpus": reserved.gpus_per_worker}


def run_tasks_here(
    tasks: Sequence[Task],
    reserved: TrialResources,
    needs_gpu: Callable[[Any], bool] = lambda task: True,
    on_lost: Callable[[Any, str], None] | None = None,
) -> None:
    """Run tasks on the connected cluster; otherwise like ``run_tasks``."""
    import ray

    remote = ray.remote(_work)
    pending = {}
    for task in tasks:
        options = reservation(reserved, needs_gpu=needs_gpu(task))
        reference = remote.options(**options, max_retries=MAX_RETRIES).remote(task, reserved)
        pending[reference] = task
    try:
        while pending:
            (done,), _ = ray.wait(list(pending))
            task = pending.pop(done)
            try:
                task.keep(ray.get(done))
            except ray.exceptions.RayTaskError as error:
                # The worker has already printed its traceback, so the message is enough.
                known = isinstance(error.cause, RaybioError | OSError)
                raise (error.cause if known else error) from None
            except ray.exceptions.RayError as error:
                reason = f"its process ended: {first_line(error).rstrip('.')}"
                if on_lost is None:
                    raise ClusterError(
                        f"not {task}: {reason}. The same command runs it again, and keeps the "
                        "results of the others"
                    ) from None
                on_lost(task, reason)
                continue
            print(f"{task}: {len(tasks) - len(pending)} of {len(tasks)}", flush=True)
    finally:
        # Cancel them, since a shared cluster would continue with them.
        for reference in pending:
            ray.cancel(reference)


def _work(task: Task, reserved: TrialResources) -> Any:
    return task.work(reserved)
