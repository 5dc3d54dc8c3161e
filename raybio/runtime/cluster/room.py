"""What has room on a cluster, node by node: the workers of a run, the trials of a sweep.

A worker lies on one node, so the leftovers of nodes count for nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raybio.core.errors import ClusterError
from raybio.core.search_space import Budget

DATA_CPUS_PER_WORKER = 0.2
"""CPUs that Ray Data needs beside each training worker; without them its tasks never start and the run hangs."""


@dataclass(frozen=True)
class Node:
    """What a machine of the cluster offers to Ray."""

    cpus: float
    gpus: float = 0


@dataclass(frozen=True)
class Resources:
    """What a run reserves.

    Attributes:
        num_workers: training workers.
        cpus_per_worker: logical CPUs that each reserves.
        gpus_per_worker: GPUs that each reserves; a fraction shares one.
        threads_per_worker: threads that each computes with: the CPUs that were asked for, else an equal part of all;
            None: its node's CPUs over the workers there.
    """

    num_workers: int
    cpus_per_worker: float
    gpus_per_worker: float
    threads_per_worker: int | None


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


def check_resources(
    num_workers: int,
    cpus_per_worker: float | None,
    nodes: Sequence[Node],
    use_gpu: bool | None = None,
) -> Resources:
    """Choose or check what each worker of a run reserves, so that Ray Data keeps CPUs of its own.

    Args:
        num_workers: training workers.
        cpus_per_worker: logical CPUs that each reserves; None: as many as leave Ray Data its share, at most
            an equal part of a node.
        nodes: the cluster's.
        use_gpu: whether each worker needs a GPU; None: if there is one for each.

    Raises:
        ClusterError: with the arithmetic, if the plan could not run or would hang.
    """
    if num_workers < 1:
        raise ClusterError(f"--workers: got {num_workers}, want at least 1")
    if cpus_per_worker is not None and not math.isfinite(cpus_per_worker):
        raise ClusterError(f"--cpus-per-worker: got {cpus_per_worker:g}, want a number above 0")
    num_gpus = sum(math.floor(node.gpus) for node in nodes)
    if use_gpu is None:
        use_gpu = num_gpus >= num_workers
    if use_gpu and num_gpus < num_workers:
        raise ClusterError(
            f"{num_workers} workers x 1 GPU = {num_workers} GPUs, and the cluster has {num_gpus:g}. Use at most "
            f"{num_gpus:g} workers, or train on the CPU with --device cpu"
        )
    share = _share(nodes, num_workers, int(use_gpu))
    threads = max(1, int(share if cpus_per_worker is None else cpus_per_worker))
    if cpus_per_worker is None:
        cpus_per_worker = _rounded(share - DATA_CPUS_PER_WORKER)
    num_places = sum(
        places(node, cpus_per_worker + DATA_CPUS_PER_WORKER, int(use_gpu)) for node in nodes
    )
    if cpus_per_worker <= 0 or num_places < num_workers:
        fitting = max(math.floor((share - DATA_CPUS_PER_WORKER) * 10 + 1e-9) / 10, 0.0)
        advice = (
            f"Use --cpus-per-worker {fitting:g}"
            if fitting > 0
            else f"Use fewer workers than {num_workers}"
        )
        cpus, beside = num_workers * max(cpus_per_worker, 0.0), num_workers * DATA_CPUS_PER_WORKER
        has = " + ".join(_amount(node.cpus, node.gpus) for node in nodes) or "nothing"
        raise ClusterError(
            f"{num_workers} workers x {max(cpus_per_worker, 0):g} CPU = {cpus:g}, and Ray Data needs "
            f"{DATA_CPUS_PER_WORKER:g} CPU beside each ({beside:g}): {cpus + beside:g} in all, but the cluster has "
            + has
            + (f", where {num_places} of them have room" if len(nodes) > 1 else "")
            + f"; the run would wait for ever. {advice}"
        )
    return Resources(num_workers, cpus_per_worker, int(use_gpu), threads)


def room(
    nodes: Sequence[Node],
    *,
    workers: int,
    at_most: int,
    least_cpus: float = 0.0,
    cpus_per_worker: float | None = None,
    gpus_per_worker: float | None = None,
) -> Room:
    """Choose what is not given to trials, and count how many have room.

    Args:
        nodes: the cluster's.
        workers: training workers of a trial.
        at_most: trials that are wanted at the same time.
        least_cpus: what each worker gets at least, with Ray Data's share, if that is not given.
        cpus_per_worker: None: equal parts for as many workers as are wanted and a node has GPUs for, 1 at least.
        gpus_per_worker: None: 1 if any node has one.

    Raises:
        ClusterError: with the arithmetic, if not one trial has room.
    """
    gpus = (
        float(any(node.gpus >= 1 for node in nodes)) if gpus_per_worker is None else gpus_per_worker
    )
    # With several workers Ray Data makes the batches, and needs CPUs of its own.
    beside = DATA_CPUS_PER_WORKER if workers > 1 else 0.0
    cpus = cpus_per_worker or max(
        _rounded(_share(nodes, workers * at_most, gpus) - beside), least_cpus - beside, 0.1
    )
    fitting = sum(places(node, cpus + beside, gpus) for node in nodes) // workers
    wanted = f"{workers} x {_amount(cpus + beside, gpus)}" if workers > 1 else _amount(cpus, gpus)
    has = " + ".join(_amount(node.cpus, node.gpus) for node in nodes) or "nothing"
    if fitting < 1:
        raise ClusterError(
            f"a trial takes {wanted}, and the cluster has {has}: no trial could ever start. Ask for less with "
            "--workers, --cpus-per-worker or --gpus-per-worker"
        )
    at_once = min(fitting, at_most)
    return Room(
        cpus,
        gpus,
        at_once,
        f"{at_once} trials at a time: each takes {wanted}, of {has} {fitting} have room",
    )


def room_of_trials(nodes: Sequence[Node], budget: Budget, **given: Any) -> Room:
    """As ``room``, for the trials of a sweep; without a number of its own as many at a time as have a CPU each."""
    if budget.max_concurrent_trials is None:
        return room(nodes, at_most=budget.num_trials, least_cpus=1.0, **given)
    return room(nodes, at_most=budget.max_concurrent_trials, **given)


def _share(nodes: Sequence[Node], workers: int, gpus: float) -> float:
    """CPUs of a node for each worker, if all were spread evenly over the nodes that can hold any."""
    usable = [node for node in nodes if node.cpus > 0 and (not gpus or node.gpus >= gpus)]
    if not usable:
        return 1.0
    per_node = math.ceil(workers / len(usable))
    if gpus:
        per_node = min(per_node, max(math.floor(node.gpus / gpus + 1e-9) for node in usable))
    return min(node.cpus for node in usable) / per_node


def _rounded(cpus: float) -> float:
    """Whole CPUs from one on, tenths below."""
    return float(math.floor(cpus)) if cpus >= 1 else math.floor(cpus * 10 + 1e-9) / 10


def places(node: Node, cpus: float, gpus: float) -> int:
    """Return the number of workers for which a node has room."""
    by_kind = [
        math.floor(has / takes + 1e-9)
        for has, takes in ((node.cpus, cpus), (node.gpus, gpus))
        if takes
    ]
    return min(by_kind, default=0)


def _amount(cpus: float, gpus: float) -> str:
    return f"{cpus:g} CPU" + (f" and {gpus:g} GPU" if gpus else "")
