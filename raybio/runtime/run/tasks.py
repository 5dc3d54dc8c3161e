"""Tasks of Ray's that are done once: each keeps what it came to, and what is kept is not done again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from raybio.core.errors import RaybioError
from raybio.runtime.cluster.connection import cluster_nodes, started
from raybio.runtime.cluster.resources import TrialResources, fit_trials

MAX_RETRIES = 3
"""Of a task whose machine is lost."""


class Task(Protocol):
    """What can be worked off; plain values, so that it travels. Its text is what is told when it is done."""

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to do."""
        ...

    def work(self, place: TrialResources) -> Any:
        """Do it, on some machine of the cluster, with what ``place`` reserves."""
        ...

    def keep(self, found: Any) -> None:
        """Keep what ``work`` returned; in the driver."""
        ...


@dataclass(frozen=True)
class Share:
    """What each task gets of the cluster.

    Attributes:
        cpus: None: an equal part, for as many tasks as there are.
        gpus: None: 1 if there are any.
        verbose: show Ray's own logs.
    """

    cpus: float | None = None
    gpus: float | None = None
    verbose: bool = False


def work_off(tasks: Sequence[Task], share: Share) -> None:
    """Work off those that are not done, as many at a time as have room; start a cluster if there is none.

    Raises:
        ClusterError: if not one has room, or Ray cannot start.
        RaybioError: what a task raises; what was done before is kept, the others are cancelled.
    """
    missing = [task for task in tasks if not task.is_done]
    if missing:
        with started(threads=None, verbose=share.verbose):
            asked = {"cpus_per_worker": share.cpus, "gpus_per_worker": share.gpus}
            work_off_here(
                missing,
                fit_trials(
                    cluster_nodes(), workers=1, at_most=len(missing), least_cpus=1.0, **asked
                ),
            )


def work_off_here(tasks: Sequence[Task], place: TrialResources) -> None:
    """Work off tasks on the connected cluster; as ``work_off`` otherwise."""
    import ray

    reserved = {"num_cpus": place.cpus_per_worker, "num_gpus": place.gpus_per_worker}
    remote = ray.remote(_work).options(**reserved, max_retries=MAX_RETRIES)
    pending = {remote.remote(task, place): task for task in tasks}
    try:
        while pending:
            (done,), _ = ray.wait(list(pending))
            task = pending.pop(done)
            task.keep(ray.get(done))
            print(f"{task}: {len(tasks) - len(pending)} of {len(tasks)}", flush=True)
    except ray.exceptions.RayTaskError as error:
        # Told where it was raised; here its own words are enough.
        raise (error.cause if isinstance(error.cause, RaybioError) else error) from None
    finally:
        for left in pending:  # a cluster that others use too would go on with them
            ray.cancel(left)


def _work(task: Task, place: TrialResources) -> Any:
    return task.work(place)
