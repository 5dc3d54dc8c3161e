"""Preparation that a machine does once for all its workers, in a Ray task next to training."""

import os
from collections.abc import Callable

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

NICENESS = 10
"""Niceness of the task, so that training has priority on the processors."""


def start_preparation(prepare: Callable[[], None] | None) -> "ray.ObjectRef[None] | None":
    """Start ``System.prepare_node`` on this node; return its task, which need not be awaited.

    The task ends with this process; its results until then are kept.
    """
    if prepare is None:
        return None
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    # The process ends with the task, since its niceness cannot be reset.
    task = ray.remote(max_calls=1)(_prepare)
    return task.options(
        name="prepare_node", num_cpus=0, max_retries=0, scheduling_strategy=here
    ).remote(prepare)


def _prepare(prepare: Callable[[], None]) -> None:
    os.nice(NICENESS)
    prepare()
