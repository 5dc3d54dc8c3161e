"""CPUs and GPUs of the workers of a run and of the trials of a sweep, and how many fit a cluster.

A worker must fit on one node: free resources of several nodes cannot be combined.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raybio.core.errors import ClusterError
from raybio.core.search_space import SearchSpace
from raybio.core.text import count_of

DATA_CPUS_PER_WORKER = 0.2
"""CPUs that Ray Data needs for each training worker; without them its tasks never start."""

_LOW_MEMORY = re.compile(
    r"low on memory\. Memory on the node .*? was ([0-9.]+)GB used / ([0-9.]+)GB limit"
)


@dataclass(frozen=True)
class Node:
    """CPUs and GPUs of a machine of the cluster."""

    cpus: float
    gpus: float = 0


@dataclass(frozen=True)
class Resources:
    """Resources that a run reserves.

    Attributes:
        num_workers: training workers.
        cpus_per_worker: logical CPUs that each reserves.
        gpus_per_worker: GPUs that each reserves; a fraction shares one.
        threads_per_worker: compute threads of each: the requested CPUs, or else an equal share of
            all CPUs; None: the CPUs of its node divided by the workers on it.
    """

    num_workers: int
    cpus_per_worker: float
    gpus_per_worker: float
    threads_per_worker: int | None

    @property
    def device(self) -> str:
        """Device of the workers: those that have reserved no GPU see all of them."""
        return "cuda" if self.gpus_per_worker else "cpu"


@dataclass(frozen=True)
class TrialResources:
    """Resources that trials reserve, and how many trials run at the same time.

    Attributes:
        cpus_per_worker: logical CPUs of each worker of a trial.
        gpus_per_worker: GPUs of each.
        num_trials: number of trials at the same time.
        explanation: how that number was computed, for the user.
    """

    cpus_per_worker: float
    gpus_per_worker: float
    num_trials: int
    explanation: str


def check_resources(
    num_workers: int,
    cpus_per_worker: float | None,
    nodes: Sequence[Node],
    use_gpu: bool | None = None,
) -> Resources:
    """Choose or check the resources of each worker of a run, with CPUs left for Ray Data.

    Args:
        num_workers: training workers.
        cpus_per_worker: logical CPUs that each reserves; None: an equal part of a node, without
            the share of Ray Data.
        nodes: nodes of the cluster.
        use_gpu: whether each worker needs a GPU; None: only if there is one for each.

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
            f"{num_workers} workers x 1 GPU = {num_workers} GPUs, and the cluster has "
            f"{num_gpus:g}. Use at most {num_gpus:g} workers, or train on the CPU with --device cpu"
        )
    share = _share(nodes, num_workers, int(use_gpu))
    threads = max(1, int(share if cpus_per_worker is None else cpus_per_worker))
    if cpus_per_worker is None:
        cpus_per_worker = _rounded(share - DATA_CPUS_PER_WORKER)
    num_fitting_workers = sum(
        num_fitting(node, cpus_per_worker + DATA_CPUS_PER_WORKER, int(use_gpu)) for node in nodes
    )
    if cpus_per_worker <= 0 or num_fitting_workers < num_workers:
        fitting = max(math.floor((share - DATA_CPUS_PER_WORKER) * 10 + 1e-9) / 10, 0.0)
        advice = f"Use fewer workers than {num_workers}"
        if fitting > 0:
            advice = f"Use --cpus-per-worker {fitting:g}"
        cpus = num_workers * max(cpus_per_worker, 0.0)
        data_cpus = num_workers * DATA_CPUS_PER_WORKER
        has = " + ".join(_amount(node.cpus, node.gpus) for node in nodes) or "nothing"
        if len(nodes) > 1:
            has += f", where {num_fitting_workers} of them have room"
        raise ClusterError(
            f"{num_workers} workers x {max(cpus_per_worker, 0):g} CPU = {cpus:g}, and Ray Data "
            f"needs {DATA_CPUS_PER_WORKER:g} CPU beside each ({data_cpus:g}): "
            f"{cpus + data_cpus:g} in all, but the cluster has {has}; the run would wait for ever. "
            f"{advice}"
        )
    return Resources(num_workers, cpus_per_worker, int(use_gpu), threads)


def fit_trials(
    nodes: Sequence[Node],
    *,
    workers: int,
    at_most: int,
    least_cpus: float = 0.0,
    cpus_per_worker: float | None = None,
    gpus_per_worker: float | None = None,
    what: str = "trial",
) -> TrialResources:
    """Choose the resources of trials, unless they are given, and count the trials that fit.

    Args:
        nodes: nodes of the cluster.
        workers: training workers of a trial.
        at_most: maximum number of trials at the same time.
        least_cpus: minimum CPUs of each worker, with Ray Data's share, if ``cpus_per_worker`` is
            None.
        cpus_per_worker: CPUs of each worker; None: equal shares, as far as GPUs allow.
        gpus_per_worker: GPUs of each worker; None: 1 if any node has one.
        what: word for a trial in messages.

    Raises:
        ClusterError: with the arithmetic, if not one trial fits.
    """
    gpus = gpus_per_worker
    if gpus is None:
        gpus = float(any(node.gpus >= 1 for node in nodes))
    # With several workers, Ray Data makes the batches and needs CPUs for itself.
    data_cpus = DATA_CPUS_PER_WORKER if workers > 1 else 0.0
    equal_share = _rounded(_share(nodes, workers * at_most, gpus) - data_cpus)
    cpus = cpus_per_worker or max(equal_share, least_cpus - data_cpus, 0.1)
    fitting = sum(num_fitting(node, cpus + data_cpus, gpus) for node in nodes) // workers
    wanted = _amount(cpus, gpus)
    if workers > 1:
        wanted = f"{workers} x {_amount(cpus + data_cpus, gpus)}"
    has = " + ".join(_amount(node.cpus, node.gpus) for node in nodes) or "nothing"
    if fitting < 1:
        raise ClusterError(
            f"a {what} takes {wanted}, and the cluster has {has}: no {what} could ever start. Ask "
            "for less with --workers, --cpus-per-worker or --gpus-per-worker"
        )
    num_trials = min(fitting, at_most)
    return TrialResources(
        cpus,
        gpus,
        num_trials,
        f"{count_of(num_trials, what)} at a time: each takes {wanted}; {fitting} fit the cluster's "
        f"{has}",
    )


def trial_resources(nodes: Sequence[Node], space: SearchSpace, **given: Any) -> TrialResources:
    """Return the resources of the trials of a sweep; see ``fit_trials``.

    Without ``max_concurrent_trials``, one trial per CPU runs at a time.
    """
    at_most = space.budget.max_concurrent_trials
    if at_most is None:
        return fit_trials(nodes, at_most=space.num_trials, least_cpus=1.0, **given)
    return fit_trials(nodes, at_most=at_most, **given)


def _share(nodes: Sequence[Node], workers: int, gpus: float) -> float:
    """Return the CPUs of each worker if all are spread evenly over the nodes that fit any."""
    usable = [node for node in nodes if node.cpus > 0 and (not gpus or node.gpus >= gpus)]
    if not usable:
        return 1.0
    per_node = math.ceil(workers / len(usable))
    if gpus:
        per_node = min(per_node, max(math.floor(node.gpus / gpus + 1e-9) for node in usable))
    return min(node.cpus for node in usable) / per_node


def _rounded(cpus: float) -> float:
    """Round down to whole CPUs, or to tenths below one."""
    return float(math.floor(cpus)) if cpus >= 1 else math.floor(cpus * 10 + 1e-9) / 10


def num_fitting(node: Node, cpus: float, gpus: float) -> int:
    """Return the number of workers that fit a node."""
    numbers = []
    if cpus:
        numbers.append(math.floor(node.cpus / cpus + 1e-9))
    if gpus:
        numbers.append(math.floor(node.gpus / gpus + 1e-9))
    return min(numbers, default=0)


def _amount(cpus: float, gpus: float) -> str:
    return f"{cpus:g} CPU" + (f" and {gpus:g} GPU" if gpus else "")


def memory_reason(error: BaseException) -> str:
    """Return a line about a node's lack of memory if that caused the error, else ""."""
    found = _LOW_MEMORY.search(str(error))
    if found is None:
        return ""
    return (
        f"a node had too little memory ({found[1]} of {found[2]} GB in use), so Ray killed "
        "processes. Lower memory.max_tokens_per_micro_batch, or raise --cpus-per-worker: fewer run "
        "at a time"
    )
