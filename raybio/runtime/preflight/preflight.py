"""Checks before anything starts: this machine first, then every node of the cluster.

``this_machine`` and ``nodes`` contain the checks; this file runs them in order.
"""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from raybio.core.cache import cache_folder
from raybio.core.errors import ClusterError, ConfigError, RaybioError, first_line
from raybio.core.location import BucketPath, Location, absolute
from raybio.core.search_space import (
    SearchSpace,
    base_values_outside,
    refuse_decided_settings,
)
from raybio.core.search_space_file import load_search_space
from raybio.encoders.config import SCRATCH
from raybio.methods import METHODS, present_name
from raybio.runtime.cluster.connection import (
    cluster_nodes,
    cluster_to_join,
    local_node,
    started,
)
from raybio.runtime.cluster.resources import Node, check_resources, fit_trials, trial_resources
from raybio.runtime.preflight import nodes, this_machine
from raybio.runtime.preflight.buckets import bucket_problem
from raybio.runtime.preflight.drivers import look_at_driver
from raybio.runtime.preflight.finding import ERROR, OK, WARNING, Finding, run_guarded
from raybio.runtime.preflight.ports import compare_ports
from raybio.runtime.run.options import (
    RunOptions,
    base_configs,
    resolve,
    runs_folder,
)
from raybio.runtime.run.spec import Compute, RunSpec
from raybio.runtime.tracking.tracker import tracking_uri
from raybio.runtime.tune.plan import planned
from raybio.runtime.tune.trial import SweepSpec
from raybio.store.store import open_store
from raybio.training.bucket_source import fetch_encoder
from raybio.training.settings import TrainingConfig

MIN_OBJECT_STORE_MIB = 512.0


LATE = "the cluster has another token (RAY_AUTH_TOKEN_PATH), or does not answer"


@dataclass(frozen=True, kw_only=True)
class Intent:
    """The run or sweep that is about to be started.

    Attributes:
        options: options of the training or the sweep; ``runs`` is the folder of sweeps for a sweep.
        method: key in ``METHODS``; None: settings are not checked.
        space: YAML file of a search space, for a sweep; it names the method.
        budget: changes of the space's budget, such as ``num_trials=6``.
        min_free_gib: minimum free disk.
        seconds: time limit of each check except that of the encoder, which may be fetched.
        with_ray: also start or join Ray.
    """

    options: RunOptions
    method: str | None = None
    space: Path | None = None
    budget: tuple[str, ...] = ()
    min_free_gib: float = 5.0
    seconds: float = 60.0
    with_ray: bool = True


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """The plan, resolved as far as its settings are valid.

    For a bucket, ``runs`` is the folder of the cache with the driver's copies of runs.
    """

    runs: Path
    store: Location | None
    compute: Compute
    bucket: BucketPath | None = None
    method: str | None = None
    space: SearchSpace | None = None
    configs: tuple[TrainingConfig, ...] = ()

    @property
    def buckets(self) -> tuple[tuple[BucketPath, bool], ...]:
        """(path in a bucket, whether it is written) of all buckets."""
        paths: list[tuple[BucketPath, bool]] = []
        if self.bucket is not None:
            paths.append((self.bucket, True))
        if isinstance(self.store, BucketPath):
            paths.append((self.store, False))
        return tuple(paths)

    @property
    def config_by_source(self) -> dict[tuple[str, str], TrainingConfig]:
        """(Source, revision) of each published encoder -> the first configuration with it."""
        config_by_source: dict[tuple[str, str], TrainingConfig] = {}
        for config in self.configs:
            encoder = getattr(config, "encoder", None)
            if encoder is not None and encoder.source != SCRATCH:
                config_by_source.setdefault((encoder.source, encoder.revision), config)
        return config_by_source


def preflight(intent: Intent) -> list[Finding]:
    """Return all findings; a check that fails becomes a finding and does not stop other checks.

    Raises:
        ConfigError: for settings without a method, and for options that this job does not have.
    """
    options = intent.options
    findings: list[Finding] = []
    _refuse_what_means_nothing(intent)

    def look(check: str, function: Any, *given: Any) -> None:
        findings.extend(run_guarded(check, lambda: function(*given), intent.seconds))

    runs, bucket = _folder(intent)
    plans = [_Plan(runs=runs, store=options.store, compute=options.compute, bucket=bucket)]
    look("token", this_machine.look_at_token)
    look("addresses", this_machine.look_at_addresses)
    look("upload", this_machine.look_at_upload, Path.cwd())
    _fetch_store(options.store)
    look("settings", _look_at_settings, intent, plans)
    plan = plans[-1]
    look("bucket", _look_at_buckets, plan)
    look("store", _look_at_store, plan)
    _fetch_encoders(plan.configs)
    # No time limit: pickled weights may be fetched and converted, which takes minutes, and the
    # client of the hub has its own limits.
    findings += run_guarded("encoder", lambda: _look_at_encoders(plan), None)
    look("storage", _look_at_storage, plan)
    look("disk", _look_at_disks, plan, intent.min_free_gib)
    look("MLflow", _look_at_tracking, options.tracking, plan)
    look("resources", _look_at_resources, intent, plan)
    if plan.compute.gpus_of_trial != 0:
        look("driver", look_at_driver)
    look("object store", this_machine.look_at_shared_memory, MIN_OBJECT_STORE_MIB)
    if intent.with_ray:
        findings += _look_with_ray(intent, plan)
    return findings


def _folder(intent: Intent) -> tuple[Path, BucketPath | None]:
    """Return the local folder of runs or sweeps, and their path in a bucket.

    Raises:
        ConfigError: for a URI that is not supported.
    """
    given = intent.options.runs
    if intent.space is None:
        return runs_folder(given)
    return runs_folder(given, "sweeps", "RAYBIO_SWEEPS")


def _refuse_what_means_nothing(intent: Intent) -> None:
    options = intent.options
    compute = options.compute
    has_settings = options.settings or options.config or options.recipe
    if intent.method is None and intent.space is None and has_settings:
        raise ConfigError(
            "--set, --config, --recipe and --init: got no method; want --method or --space, to "
            "which they belong"
        )
    if intent.space is None and (intent.budget or compute.gpus_per_worker is not None):
        raise ConfigError("--budget and --gpus-per-worker: only sweeps have them; want --space too")
    if intent.space is not None and compute.device != "auto":
        raise ConfigError(
            f"--device {compute.device}: a sweep has no such option; want --gpus-per-worker, "
            "0 for CPUs"
        )


def _look_at_settings(intent: Intent, plans: list[_Plan]) -> Iterator[Finding]:
    """Resolve the settings as the command would, and add the resolved plan to ``plans``."""
    method = intent.method
    space = None
    options = replace(intent.options, runs=plans[-1].runs)
    if intent.space is not None:
        space = load_search_space(intent.space, base_configs(options), present_name)
        space = space.with_budget(intent.budget)
        refuse_decided_settings(space, options.settings, METHODS[space.method].config)
        method = space.method
    if method is None:
        return
    method = present_name(method)
    if method not in METHODS:
        raise ConfigError(f"--method: got {method!r}, want one of {', '.join(METHODS)}")
    run = resolve(method, options)
    configs = (run.config,) if space is None else _trial_configs(run, space)
    plans.append(
        _Plan(
            runs=run.runs,
            bucket=plans[-1].bucket,
            store=run.store,
            compute=run.compute,
            method=method,
            space=space,
            configs=configs,
        )
    )
    text = f"{method}: those of {len(configs)} trials are valid" if space else f"{method}: valid"
    yield Finding("settings", OK, text)
    if space is not None:
        for described in base_values_outside(space, run.config):
            yield Finding("settings", WARNING, described)


def _trial_configs(run: RunSpec, space: SearchSpace) -> tuple[TrainingConfig, ...]:
    spec = SweepSpec(space=space, run=run)
    return tuple(spec.config(settings) for settings in planned(space, spec.check))


def _fetch_store(store: Location | None) -> None:
    """Fetch a store from a bucket before the checks, which have time limits; the job needs it too.

    Problems with it become findings of the checks.
    """
    if isinstance(store, BucketPath):
        with contextlib.suppress(RaybioError):
            open_store(store)


def _fetch_encoders(configs: Sequence[TrainingConfig]) -> None:
    """Fetch encoders from buckets before the check, like ``_fetch_store``."""
    for config in configs:
        with contextlib.suppress(RaybioError):
            fetch_encoder(config)


def _look_at_store(plan: _Plan) -> Iterator[Finding]:
    if plan.store is None:
        return
    store = open_store(plan.store)
    store.verify()
    yield Finding(
        "store", OK, f"{plan.store}: {store.num_rows:,} rows, and every file is as it was written"
    )


def _look_at_encoders(plan: _Plan) -> Iterator[Finding]:
    if plan.method is None or plan.store is None:
        return
    entry = METHODS[plan.method]
    store = open_store(plan.store, entry.store)
    for config in plan.configs:
        entry.check(config, store)
    names = ", ".join(source for source, _ in sorted(plan.config_by_source))
    yield Finding("encoder", OK, f"{names or 'random weights'}; settings fit the store")


def _look_at_buckets(plan: _Plan) -> Iterator[Finding]:
    for path, writes in plan.buckets:
        problem = bucket_problem(path, writes=writes)
        done = "written with conditions, read and deleted" if writes else "read"
        if problem:
            yield Finding("bucket", ERROR, problem)
        else:
            yield Finding("bucket", OK, f"{path} is {done} here; the clocks agree")


def _look_at_disks(plan: _Plan, min_free_gib: float) -> Iterator[Finding]:
    yield from this_machine.look_at_disk(plan.runs, min_free_gib)
    if plan.buckets:
        yield from this_machine.look_at_disk_of(cache_folder(), min_free_gib)


def _look_at_storage(plan: _Plan) -> Iterator[Finding]:
    with this_machine.probe_folder(plan.runs):
        yield Finding("storage", OK, f"{plan.runs.absolute()} is written and read here")


def _look_at_tracking(uri: str | None, plan: _Plan) -> Iterator[Finding]:
    yield from this_machine.look_at_tracking(tracking_uri(uri, plan.runs), bool(cluster_to_join()))


def _look_at_resources(intent: Intent, plan: _Plan) -> Iterator[Finding]:
    """Check this machine; the nodes of a cluster to join are checked later."""
    if not cluster_to_join():
        yield from _fits(intent, plan, [local_node(with_gpus=plan.compute.use_gpu is not False)])


def _fits(intent: Intent, plan: _Plan, nodes: Sequence[Node]) -> Iterator[Finding]:
    """Check that a training, or at least one trial, fits these nodes."""
    compute = plan.compute
    if intent.space is not None:
        given: dict[str, Any] = {
            "workers": compute.num_workers,
            "cpus_per_worker": compute.cpus_per_worker,
            "gpus_per_worker": compute.gpus_per_worker,
        }
        if plan.space is None:
            # The space cannot be read, so the number of trials is unknown.
            resources = fit_trials(nodes, at_most=1, **given)
        else:
            resources = trial_resources(nodes, plan.space, **given)
        yield Finding("resources", OK, resources.explanation)
        return
    reserved = check_resources(compute.num_workers, compute.cpus_per_worker, nodes, compute.use_gpu)
    cpus = sum(node.cpus for node in nodes)
    gpus = sum(node.gpus for node in nodes)
    amount = (
        f"{compute.num_workers} x {reserved.cpus_per_worker:g} CPU and "
        f"{reserved.gpus_per_worker:g} GPU"
    )
    where = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}"
    yield Finding("resources", OK, f"{amount}, of {cpus:g} CPU and {gpus:g} GPU on {where}")


def _look_with_ray(intent: Intent, plan: _Plan) -> list[Finding]:
    address = cluster_to_join()
    if address.startswith(("http://", "https://")):
        return run_guarded("cluster", lambda: _look_at_jobs(address), intent.seconds)
    with ExitStack() as stack:
        # Processes that Ray starts end with the thread that started them, so a local start runs in
        # this thread; Ray's own limits end a start that takes too long.
        limit = intent.seconds if address else None
        joined = run_guarded("cluster", lambda: _join(stack, address, plan), limit, LATE)
        if any(finding.state == ERROR for finding in joined):
            return joined
        findings = [
            *joined,
            *run_guarded("resources", lambda: _fits(intent, plan, cluster_nodes()), intent.seconds),
        ]
        findings += run_guarded("dashboard", _look_at_dashboard, intent.seconds)
        # The time limit applies to the nodes; evaluating their answers takes little more.
        return findings + run_guarded(
            "nodes", lambda: _look_at_nodes(intent, plan), 2 * intent.seconds
        )


def _join(stack: ExitStack, address: str, plan: _Plan) -> Iterator[Finding]:
    if address and address != "auto" and "://" not in address:
        host, _, port = address.rpartition(":")
        try:  # Ray itself would try for a minute
            socket.create_connection((host, int(port)), this_machine.CONNECT_SECONDS).close()
        except (OSError, ValueError) as error:
            raise ClusterError(
                f"cannot reach the cluster at {address} ({error}). Check RAY_ADDRESS, and that the "
                "cluster runs"
            ) from None
    stack.enter_context(started(threads=1, with_dashboard=plan.space is not None))
    num_nodes = len(cluster_nodes())
    yield Finding(
        "cluster", OK, f"{address or 'a local one'}: {num_nodes} node{'s' if num_nodes > 1 else ''}"
    )


def _look_at_jobs(address: str) -> Iterator[Finding]:
    """Check the jobs API alone: a preflight that is submitted as a job checks the nodes."""
    from ray.job_submission import JobSubmissionClient

    try:
        JobSubmissionClient(address).list_jobs()
    except Exception as error:  # ConnectionError, or RuntimeError with the server's own words
        raise ClusterError(
            f"{address}: the jobs API refuses or does not answer ({first_line(error)[:200]}). "
            "Check RAY_ADDRESS, the tunnel (`ray dashboard`), and that RAY_AUTH_MODE=token and the "
            "cluster's token are set"
        ) from None
    host = urlsplit(address).hostname
    yield Finding("cluster", OK, f"the jobs API at {host} takes jobs with this token")
    text = (
        "not looked at from here: ray job submit --working-dir . -- raybio preflight ... looks "
        "at them"
    )
    yield Finding("nodes", WARNING, text)


def _look_at_dashboard() -> Iterator[Finding]:
    import ray

    me = ray.get_runtime_context().get_node_id()
    context = ray.init(
        ignore_reinit_error=True, logging_level=logging.ERROR
    )  # the context of the running cluster
    address = context.address_info["webui_url"] or ""
    is_head = any(node["NodeID"] == me and nodes.HEAD in node["Resources"] for node in ray.nodes())
    with_token = os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
    yield from nodes.look_at_dashboard(address, with_token, ask=is_head)


def _look_at_nodes(intent: Intent, plan: _Plan) -> Iterator[Finding]:
    with this_machine.probe_folder(plan.runs) as probe:
        store = None if plan.store is None else str(absolute(plan.store))
        configs = tuple(plan.config_by_source.values())
        # Nodes need not see the driver's copies.
        shared = "" if plan.bucket is not None else str(probe)
        query = nodes.NodeQuery(shared, store, plan.method, configs, plan.buckets)
        facts, answered = nodes.query_nodes(query, intent.seconds)
        yield answered
        if not facts:
            return
        if shared:
            yield nodes.compare_storage(probe, facts)
        if plan.buckets:
            yield nodes.compare_buckets(facts)
        yield from nodes.compare_versions(nodes.versions(), facts)
        if plan.compute.gpus_of_trial != 0:
            yield from nodes.compare_drivers(facts)
        yield nodes.compare_disks(facts, intent.min_free_gib)
        yield nodes.compare_object_stores(facts, MIN_OBJECT_STORE_MIB)
        yield from nodes.compare_rest(facts, bool(configs))
        yield compare_ports({each.node: each.ports for each in facts})
        if store is not None:
            yield nodes.compare_stores(open_store(store).digest, facts)
