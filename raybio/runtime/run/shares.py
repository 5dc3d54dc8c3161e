"""How the runs of a command share a cluster: how many at a time, and the resources of each."""

from collections.abc import Sequence
from typing import NamedTuple

from raybio.runtime.cluster.connection import cluster_nodes, cluster_to_join, local_node, started
from raybio.runtime.cluster.resources import Node, TrialResources, fit_trials
from raybio.runtime.run.spec import Compute, RunSpec


class Placement(NamedTuple):
    """The device and threads on which a run will be trained.

    Attributes:
        device: ``cuda`` or ``cpu``; None: not known before it starts.
        threads: threads of its worker; None: not known.
    """

    device: str | None
    threads: int | None


class Concurrency(NamedTuple):
    """How runs share a cluster.

    Attributes:
        num_at_a_time: number of runs that are trained at the same time.
        explanation: the reason, as a sentence.
        placements: placement of each run.
    """

    num_at_a_time: int
    explanation: str
    placements: list[Placement]


def concurrency(specs: Sequence[RunSpec], num_runs: int) -> Concurrency:
    """Return how the runs share the cluster in ``train_runs``.

    Args:
        specs: unfinished runs.
        num_runs: number of all runs of the command.

    Raises:
        ClusterError: if a run does not fit.
    """
    if num_runs == 1 or any(spec.compute.num_workers > 1 for spec in specs):
        devices = ["cpu" if spec.compute.use_gpu is False else None for spec in specs]
        return Concurrency(1, "1 run at a time", [Placement(device, None) for device in devices])
    nodes = [local_node()]
    if cluster_to_join():
        with started(threads=None, verbose=specs[0].verbose):
            nodes = cluster_nodes()
    shares = [share_of(spec.compute, nodes, num_runs) for spec in specs]
    placements = []
    for spec, share in zip(specs, shares, strict=True):
        device = "cuda" if share.gpus_per_worker else "cpu"
        placements.append(Placement(device, threads_of(spec.compute, share)))
    num_at_a_time = min(share.num_trials for share in shares)
    return Concurrency(num_at_a_time, shares[0].explanation, placements)


def share_of(compute: Compute, nodes: Sequence[Node], num_runs: int) -> TrialResources:
    """Return the resources that a run reserves: as given or recorded, else an equal share.

    Raises:
        ClusterError: if it does not fit.
    """
    cpus = compute.cpus_per_worker
    if cpus is None and compute.threads_per_worker is not None:
        # If this machine is smaller than the recorded one, threads share CPUs.
        largest = max((node.cpus for node in nodes), default=1.0)
        cpus = min(float(compute.threads_per_worker), largest)
    return fit_trials(
        nodes,
        workers=1,
        at_most=num_runs,
        least_cpus=1.0,
        cpus_per_worker=cpus,
        gpus_per_worker=compute.gpus_of_trial,
        what="run",
    )


def threads_of(compute: Compute, share: TrialResources) -> int:
    """Return the threads that a run computes with."""
    return compute.threads_per_worker or max(1, int(share.cpus_per_worker))
