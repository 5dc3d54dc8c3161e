"""The precision of all runs of a command, decided once by the driver before any worker starts."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from raybio.core.errors import ClusterError, last_line
from raybio.runtime.cluster.connection import (
    cluster_nodes,
    cluster_to_join,
    local_node,
    started,
)
from raybio.runtime.cluster.resources import (
    Node,
    Resources,
    TrialResources,
    check_resources,
    num_fitting,
)
from raybio.runtime.run.result import finished_result
from raybio.runtime.run.spec import RunSpec
from raybio.training.precision import (
    Decision,
    Processor,
    decide_precision,
    local_processors,
)

_log = logging.getLogger(__name__)


NODE_SECONDS = 120.0
"""Maximum time for a node to start a process and import torch."""


NODE_QUERIES = 5

SECONDS_BETWEEN_QUERIES = 5.0
"""Pause between queries, since a cluster takes seconds to notice that a node has died."""


Plan = Callable[[Sequence[Node]], Resources | TrialResources]
"""Nodes of a cluster -> the resources that each worker reserves."""


def with_precision(specs: Sequence[RunSpec]) -> list[RunSpec]:
    """Decide the precision of all runs of a command once, and print the decision.

    - A run that has begun keeps its precision, and a spec with a precision is decided.
    - Other runs with ``precision: auto`` take over what the first begun run has recorded.
    - If none has begun, the processors of the machines decide.
    - Finished runs need no decision.

    Raises:
        ClusterError: if a plan does not fit, or a node of the cluster does not answer.
        ConfigError: for bf16 on GPUs without it, or tf32 on anything but GPUs with it.
    """
    # An explicit setting is kept; ``RunFolder.open`` compares it with the recorded one.
    recorded: dict[str, str | None] = {}
    for spec in specs:
        is_auto = spec.config.precision == "auto"
        recorded[spec.name] = spec.folder.precision if is_auto else None
    recorded_runs = [name for name, precision in recorded.items() if precision]
    wanted: dict[str, str] = {}
    for spec in specs:
        setting: str = spec.config.precision
        if setting == "auto":
            setting = recorded[spec.name] or spec.precision or "auto"
        if setting == "auto" and recorded_runs:
            setting = recorded[recorded_runs[0]] or "auto"
        wanted[spec.name] = setting
    unfinished = [spec for spec in specs if finished_result(spec.folder, spec.config) is None]
    undecided = [spec for spec in unfinished if spec.precision is None]
    decisions: dict[str, Decision] = {}
    if undecided:
        settings = list(dict.fromkeys(wanted[spec.name] for spec in undecided))
        processors = [] if settings == ["fp32"] else _processors(undecided)
        for setting in settings:
            decision = decide_precision(setting, processors)
            origin = next((name for name in recorded_runs if recorded[name] == setting), None)
            if origin:
                show_decision(replace(decision, reason=f"as run {origin} began"))
            else:
                show_decision(decision)
            decisions[setting] = decision
    decided = dict(recorded)
    for spec in unfinished:
        setting = wanted[spec.name]
        decided[spec.name] = decisions[setting].name if setting in decisions else setting
    return [replace(spec, precision=decided[spec.name]) for spec in specs]


def _processors(specs: Sequence[RunSpec]) -> list[Processor]:
    """Return the processors on which the workers of any of the runs may train."""
    spec_by_plan = {}
    for spec in specs:
        compute = spec.compute
        spec_by_plan[compute.num_workers, compute.cpus_per_worker, compute.use_gpu] = spec
    processors = []
    for spec in spec_by_plan.values():
        compute = spec.compute
        plan = partial(
            check_resources,
            compute.num_workers,
            compute.cpus_per_worker,
            use_gpu=compute.use_gpu,
        )
        processors += worker_processors(plan, verbose=spec.verbose)
    return processors


def show_decision(decision: Decision) -> None:
    """Print the precision and its reason as a line of the output; log its warning.

    The line names the precision in which exact resume is promised (``docs/reproducibility.md``).
    """
    note = "" if decision.name == "fp32" else "; exact resume is promised with precision=fp32 only"
    print(f"precision: {decision.name} ({decision.reason}){note}", flush=True)
    if decision.warning:
        _log.warning(decision.warning)


def worker_processors(plan: Plan, *, verbose: bool = False) -> list[Processor]:
    """Return the processors of all machines on which ``plan`` lets workers run.

    Without a cluster to join, these are this machine's. On a cluster, a task runs on each node that
    has room for a worker.

    Raises:
        ClusterError: if the plan does not fit, or a node does not answer.
    """
    if not cluster_to_join():
        return local_processors(use_gpu=plan([local_node()]).gpus_per_worker > 0)
    with started(threads=None, verbose=verbose):
        reserved = plan(cluster_nodes())
        return _query_nodes(reserved.cpus_per_worker, reserved.gpus_per_worker)


def _query_nodes(cpus_per_worker: float, gpus_per_worker: float) -> list[Processor]:
    """Query each node that has room for a worker.

    For some seconds, the cluster lists a dead node as alive. Failed queries are therefore repeated
    on the nodes that are then alive.
    """
    import ray

    for attempt in range(1, NODE_QUERIES + 1):
        try:
            return _query_alive_nodes(cpus_per_worker, gpus_per_worker)
        except ray.exceptions.RayError as error:
            if attempt < NODE_QUERIES and not isinstance(error, ray.exceptions.GetTimeoutError):
                time.sleep(SECONDS_BETWEEN_QUERIES)
                continue
            raise ClusterError(
                "precision: a node of the cluster does not report whether it has bf16 instructions "
                f"({last_line(error)}). Check the nodes with raybio preflight, or set "
                "precision=fp32"
            ) from None
    raise AssertionError("the last attempt returns or raises")


def _query_alive_nodes(cpus_per_worker: float, gpus_per_worker: float) -> list[Processor]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # End the process after the task, since a CUDA context would keep GPU memory.
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
    processors = []
    for processors_of_node in ray.get(answers, timeout=NODE_SECONDS):
        processors += processors_of_node
    return processors
