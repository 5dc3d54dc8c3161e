"""The driver's decision about precision: once for all runs of a command, before any worker starts."""

import logging
from collections.abc import Callable, Sequence

from raybio.core.errors import ClusterError
from raybio.runtime.cluster.connection import (
    cluster_nodes,
    cluster_to_join,
    local_node,
    started,
)
from raybio.runtime.cluster.resources import Node, Resources, TrialResources, num_fitting
from raybio.training.precision import Decision, Processor, local_processors

_log = logging.getLogger(__name__)


NODE_SECONDS = 120.0
"""Time for a node to start a process and import torch."""


Plan = Callable[[Sequence[Node]], Resources | TrialResources]
"""Nodes of a cluster -> what each worker reserves."""


def show_decision(decision: Decision) -> None:
    """Print the precision and its reason as a line of the output; log its warning."""
    print(f"precision: {decision.name} ({decision.reason})", flush=True)
    if decision.warning:
        _log.warning(decision.warning)


def worker_processors(plan: Plan, *, verbose: bool = False) -> list[Processor]:
    """Return the processors of all machines on which ``plan`` lets workers run.

    Without a cluster to join that is this machine. On a cluster, each node with room for a worker is asked.

    Raises:
        ClusterError: if the plan does not fit, or a node does not answer.
    """
    if not cluster_to_join():
        return local_processors(use_gpu=plan([local_node()]).gpus_per_worker > 0)
    with started(threads=None, verbose=verbose):
        reserved = plan(cluster_nodes())
        return _ask_nodes(reserved.cpus_per_worker, reserved.gpus_per_worker)


def _ask_nodes(cpus_per_worker: float, gpus_per_worker: float) -> list[Processor]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # Its process ends with it: a CUDA context would keep memory of a GPU.
    task = ray.remote(num_cpus=0, max_calls=1)(local_processors)
    answers = []
    for node in ray.nodes():
        has = node["Resources"]
        if node["Alive"] and num_fitting(
            Node(has.get("CPU", 0), has.get("GPU", 0)), cpus_per_worker, gpus_per_worker
        ):
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            cpu_name = f"the CPU of {node['NodeManagerAddress']}"
            answers.append(
                task.options(scheduling_strategy=there).remote(
                    use_gpu=gpus_per_worker > 0, cpu_name=cpu_name
                )
            )
    try:
        return [
            processor for of_node in ray.get(answers, timeout=NODE_SECONDS) for processor in of_node
        ]
    except ray.exceptions.RayError as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise ClusterError(
            f"precision: a node of the cluster does not say whether it has bf16 instructions ({why}). Check the nodes "
            "with jobs/preflight.py, or set precision=fp32"
        ) from None
