"""How many trials of a sweep have room on a cluster, node by node."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from raybio.errors import ClusterError
from raybio.runtime.cluster import DATA_CPUS_PER_WORKER, Node


@dataclass(frozen=True)
class Room:
    """What trials reserve, and how many of them run at the same time.

    Attributes:
        cpus_per_worker: logical CPUs of a trial's worker.
        gpus_per_worker: GPUs of it.
        num_trials: at the same time.
        arithmetic: how that was found.
    """

    cpus_per_worker: float
    gpus_per_worker: float
    num_trials: int
    arithmetic: str


def room(
    nodes: Sequence[Node],
    *,
    workers: int,
    at_most: int,
    cpus_per_worker: float | None = None,
    gpus_per_worker: float | None = None,
) -> Room:
    """Choose what is not given, and count.

    A worker lies on one node, so a node's leftovers count for nothing.

    Args:
        nodes: the cluster's.
        workers: training workers of a trial.
        at_most: trials that are wanted at the same time.
        cpus_per_worker: None: equal parts for as many workers as are wanted and a node has GPUs for, 1 at least.
        gpus_per_worker: None: 1 if any node has one.

    Raises:
        ClusterError: with the arithmetic, if not one trial has room.
    """
    gpus = float(any(node.gpus >= 1 for node in nodes)) if gpus_per_worker is None else gpus_per_worker
    # With several workers Ray Data makes the batches, and needs CPUs of its own.
    beside = DATA_CPUS_PER_WORKER if workers > 1 else 0.0
    cpus = cpus_per_worker or _part(nodes, workers * at_most, gpus, beside)
    places = [_places(node, cpus + beside, gpus) for node in nodes]
    fitting = sum(places) // workers
    wanted = f"{workers} x {_amount(cpus + beside, gpus)}" if workers > 1 else _amount(cpus, gpus)
    has = " + ".join(_amount(node.cpus, node.gpus) for node in nodes) or "nothing"
    if fitting < 1:
        raise ClusterError(
            f"a trial takes {wanted}, and the cluster has {has}: no trial could ever start. Ask for less with "
            "--workers, --cpus-per-worker or --gpus-per-worker"
        )
    at_once = min(fitting, at_most)
    return Room(cpus, gpus, at_once, f"{at_once} trials at a time: each takes {wanted}, of {has} {fitting} have room")


def _part(nodes: Sequence[Node], workers: int, gpus: float, beside: float) -> float:
    """CPUs of a worker, if all wanted workers were spread evenly over the nodes that can hold any."""
    usable = [node for node in nodes if node.cpus > 0 and (not gpus or node.gpus >= gpus)]
    if not usable:
        return 1.0
    per_node = math.ceil(workers / len(usable))
    if gpus:
        per_node = min(per_node, max(math.floor(node.gpus / gpus + 1e-9) for node in usable))
    part = min(node.cpus for node in usable) / per_node - beside
    return float(math.floor(part)) if part >= 1 else max(math.floor(part * 10 + 1e-9) / 10, 0.1)


def _places(node: Node, cpus: float, gpus: float) -> int:
    """Workers for which a node has room."""
    by_kind = [math.floor(has / takes + 1e-9) for has, takes in ((node.cpus, cpus), (node.gpus, gpus)) if takes]
    return min(by_kind, default=0)


def _amount(cpus: float, gpus: float) -> str:
    return f"{cpus:g} CPU" + (f" and {gpus:g} GPU" if gpus else "")
