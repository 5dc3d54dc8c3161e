"""What a machine makes once for all its workers, in a Ray task next to training."""

import os
from collections.abc import Callable

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

NICENESS = 10
"""Training comes first: the task takes what it leaves of the processors."""


def start_preparation(prepare: Callable[[], None] | None) -> "ray.ObjectRef[None] | None":
    """Start ``System.prepare_node`` on this node; return its task, which nobody waits for.

    It ends with this process, and what it has made until then is kept.
    """
    if prepare is None:
        return None
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    # The process is left after the task: niceness cannot be taken back.
    task = ray.remote(max_calls=1)(_prepare)
    return task.options(
        name="prepare_node", num_cpus=0, max_retries=0, scheduling_strategy=here
    ).remote(prepare)


def _prepare(prepare: Callable[[], None]) -> None:
    os.nice(NICENESS)
    prepare()
