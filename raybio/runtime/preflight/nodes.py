"""Checks of every node of a cluster, by a task on each."""

import contextlib
import os
import platform
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from raybio.core.cache import cache_folder
from raybio.core.errors import RaybioError, last_line
from raybio.core.location import BucketPath, is_uri, location
from raybio.core.version import code_digest
from raybio.encoders.config import SCRATCH
from raybio.methods import METHODS
from raybio.runtime.cluster.connection import LOCAL_ONLY, others_can_read, token_path
from raybio.runtime.preflight.buckets import bucket_problem
from raybio.runtime.preflight.drivers import look_at_driver
from raybio.runtime.preflight.finding import ERROR, OK, WARNING, Finding, over_nodes
from raybio.runtime.preflight.ports import open_ports
from raybio.runtime.preflight.this_machine import (
    CONNECT_SECONDS,
    GIB,
    MIB,
    SHARED_MEMORY,
    disk_problem,
    free_space,
    write_and_read,
)
from raybio.runtime.search.faiss_package import CUDA_BY_PACKAGE
from raybio.store.remote_model import model_path
from raybio.store.remote_store import check_copy_fits, has_copy, store_digest
from raybio.store.store import open_store
from raybio.training.settings import TrainingConfig

NAMES = {"faiss": tuple(CUDA_BY_PACKAGE)}
"""Package -> its alternative names; a machine has one of them."""

PACKAGES = (
    "ray",
    "torch",
    "pyarrow",
    "transformers",
    "torch-geometric",
    "faiss",
    "mlflow",
    "optuna",
    "raybio",
)


SHARED_SECONDS = 10.0
"""Time until a file of another node is visible, since network file systems cache folders.
"""


HEAD = "node:__internal_head__"


@dataclass(frozen=True)
class NodeQuery:
    """A request to every node.

    Attributes:
        probe: folder in the folder of runs, with a file of the driver; "" if runs are in a bucket.
        store: path of the prepared store, if there is one.
        method: key in ``METHODS``; None: no encoder is checked.
        configs: a configuration for each published encoder.
        buckets: (path in a bucket, whether it is written).
    """

    probe: str
    store: str | None = None
    method: str | None = None
    configs: tuple[TrainingConfig, ...] = ()
    buckets: tuple[tuple[BucketPath, bool], ...] = ()


def versions() -> dict[str, str]:
    """Return the versions that results depend on.

    The version of raybio includes a digest of its code, which may be edited between versions.
    """
    version_by_package = {"python": platform.python_version()}
    for package in PACKAGES:
        version_by_package[package] = "not installed"
        for name in NAMES.get(package, (package,)):
            with contextlib.suppress(metadata.PackageNotFoundError):
                version_by_package[package] = metadata.version(name)
    version_by_package["raybio"] += f" (code {code_digest()[:8]})"
    return version_by_package


@dataclass(frozen=True)
class NodeFacts:
    """The answer of a node.

    Attributes:
        node: its address and the beginning of its id.
        file: the file that it wrote into the probe folder.
        versions: package -> version.
        storage: problem with the folder of runs, as the node sees it; empty if none.
        disks: location -> free bytes, and used share.
        shared_memory_bytes: size of /dev/shm.
        object_store_bytes: Ray's share of it.
        store: digest of the store, or the problem with it.
        encoder: problem with the encoders' sources; empty if none.
        token: problem with the token's file; empty if none.
        bucket: problem with the buckets; empty if none.
        driver: finding about NVIDIA's driver and torch's build.
        ports: kind of Ray process -> its ports that other machines can reach.
    """

    node: str
    file: str
    versions: dict[str, str]
    storage: str
    disks: dict[str, tuple[int, float]]
    shared_memory_bytes: int
    object_store_bytes: int
    store: str
    encoder: str
    token: str
    bucket: str = ""
    driver: Finding = Finding("driver", OK, "")
    ports: dict[str, list[int]] = field(default_factory=dict)


def query_nodes(query: NodeQuery, seconds: float) -> tuple[list[NodeFacts], Finding]:
    """Query all nodes at once; nodes that fail or do not answer in time become a finding."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0)(node_facts)
    named = {}
    for node in ray.nodes():
        if node["Alive"]:
            name = f"{node['NodeManagerAddress']} {node['NodeID'][:6]}"
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            size = int(node["Resources"].get("object_store_memory", 0))
            named[task.options(scheduling_strategy=there).remote(query, name, size)] = name
    done, late = ray.wait(list(named), num_returns=len(named), timeout=seconds)
    facts = []
    problems = {
        named[answer]: f"no answer within {seconds:g} s; is it overloaded or cut off?"
        for answer in late
    }
    for answer in done:
        try:
            facts.append(ray.get(answer))
        except Exception as error:  # an error of the node, such as a missing raybio
            problems[named[answer]] = last_line(error)[:300]
    return facts, over_nodes("nodes", problems, len(named), "a task runs and answers")


def node_facts(query: NodeQuery, node: str, object_store_bytes: int) -> NodeFacts:
    """Return the answer of this machine; runs as a task."""
    import ray

    probe = Path(query.probe)
    folders = [ray.get_runtime_context().get_temp_dir()]
    if query.probe:
        folders.append(str(probe.parent))
    if query.buckets:
        folders.append(str(cache_folder()))
    file = probe / node.replace(":", "_")
    problems = [bucket_problem(path, writes=writes) for path, writes in query.buckets]
    return NodeFacts(
        node=node,
        file=str(file),
        versions=versions(),
        storage=seen_storage(probe, file) if query.probe else "",
        disks={folder: free_space(Path(folder)) for folder in folders},
        shared_memory_bytes=shutil.disk_usage(SHARED_MEMORY).total if SHARED_MEMORY.exists() else 0,
        object_store_bytes=object_store_bytes,
        # Do not wait again for a bucket that failed.
        store="" if any(problems) else _digest(query.store),
        encoder=_encoder_problem(query),
        token=_token_problem(),
        bucket="; ".join(filter(None, problems)),
        driver=next(look_at_driver()),
        ports=open_ports(folders[0]),
    )


def seen_storage(probe: Path, file: Path) -> str:
    """Return the problem with the probe folder as seen from here; empty if none."""
    deadline = time.monotonic() + SHARED_SECONDS
    while not (probe / "driver").is_file():
        if time.monotonic() > deadline:
            return (
                f"does not see what the driver wrote into {probe.parent}: it is not shared; "
                "mount it on every node"
            )
        time.sleep(0.2)
    problem = write_and_read(file)
    return f"cannot write into {probe.parent} ({problem})" if problem else ""


def _digest(store: str | None) -> str:
    if store is None:
        return ""
    try:
        path = location(store)
        if not isinstance(path, BucketPath):
            return open_store(path).digest
        # Check only the manifest, so that preflight does not fetch the store to every node.
        check_copy_fits(path)
        return store_digest(path)
    except RaybioError as error:
        return str(error)


def _encoder_problem(query: NodeQuery) -> str:
    if query.method is None or query.store is None:
        return ""
    method = METHODS[query.method]
    try:
        path = location(query.store)
        if isinstance(path, BucketPath) and not has_copy(store_digest(path)):
            return ""  # not without the store
        store = open_store(path, method.store)
    except RaybioError:
        return ""  # reported as the store's
    try:
        for config in query.configs:
            encoder = getattr(config, "encoder", None)
            if encoder is not None and is_uri(encoder.source):
                _look_at_model(encoder.source)
            elif encoder is None or not _would_be_fetched(encoder.source, encoder.revision):
                method.check(config, store)
    except RaybioError as error:
        return str(error)
    return ""


def _would_be_fetched(source: str, revision: str) -> bool:
    """Return whether a check of the method would fetch weights, which is left to training."""
    # Imported here: it needs torch.
    from raybio.encoders.bin_checkpoint import is_unconverted

    return source != SCRATCH and is_unconverted(source, revision)


def _look_at_model(address: str) -> None:
    """Refuse a model that this node cannot list; fetching is left to training."""
    path = location(address, "encoder.source")
    assert isinstance(path, BucketPath)
    model_path(path, "encoder.source")


def _token_problem() -> str:
    path = token_path()
    if os.environ.get("RAY_AUTH_TOKEN") or not path.is_file() or not others_can_read(path):
        return ""
    return f"others can read {path}; chmod 600"


def compare_versions(here: dict[str, str], nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Check that nodes have the driver's versions; another build of a version is a warning."""
    wrong: dict[str, str] = {}
    builds: dict[str, str] = {}
    for facts in nodes:
        differing = {name for name, version in here.items() if facts.versions.get(name) != version}
        serious = {
            name
            for name in differing
            if facts.versions.get(name, "").split("+")[0] != here[name].split("+")[0]
        }
        for names, problems in ((serious, wrong), (differing - serious, builds)):
            texts = [
                f"{name} {facts.versions.get(name)} (driver {here[name]})" for name in sorted(names)
            ]
            problems[facts.node] = ", ".join(texts) + "; install the same" if texts else ""
    fine = ", ".join(f"{name} {version}" for name, version in here.items())
    yield over_nodes("versions", wrong, len(nodes), fine)
    if any(builds.values()):
        yield over_nodes("versions", builds, len(nodes), "", WARNING)


def compare_storage(
    probe: Path, nodes: Sequence[NodeFacts], seconds: float = SHARED_SECONDS
) -> Finding:
    """Check that every node reads the driver's file, and the driver theirs."""
    problems = {facts.node: facts.storage for facts in nodes}
    deadline = time.monotonic() + seconds
    for facts in nodes:
        path = Path(facts.file)
        while not problems[facts.node] and not path.is_file():
            if time.monotonic() > deadline:
                problems[facts.node] = (
                    f"the driver does not see what it wrote into {probe.parent}; share that folder"
                )
            time.sleep(0.1)
    return over_nodes("storage", problems, len(nodes), f"{probe.parent} is written and read by all")


def compare_disks(nodes: Sequence[NodeFacts], min_free_gib: float) -> Finding:
    """Check the free disk of every node."""
    problems = {
        facts.node: "; ".join(
            filter(
                None, (disk_problem(*disk, min_free_gib, at) for at, disk in facts.disks.items())
            )
        )
        for facts in nodes
    }
    least = min((free for facts in nodes for free, _ in facts.disks.values()), default=0)
    return over_nodes("disk", problems, len(nodes), f"{least / GIB:.1f} GiB or more")


def compare_object_stores(nodes: Sequence[NodeFacts], min_mib: float) -> Finding:
    """Check that Ray's object store is large enough and in memory."""
    problems = {}
    for facts in nodes:
        size = facts.object_store_bytes / MIB
        memory = facts.shared_memory_bytes / MIB
        if size < min_mib:
            problems[facts.node] = (
                f"{size:.0f} MiB, want {min_mib:g}; ray start --object-store-memory"
            )
        elif memory < size:
            problems[facts.node] = (
                f"{size:.0f} MiB, and /dev/shm holds {memory:.0f}: the rest goes to disk, slowly"
            )
    least = min((facts.object_store_bytes for facts in nodes), default=0)
    return over_nodes(
        "object store", problems, len(nodes), f"{least / GIB:.1f} GiB or more", WARNING
    )


def compare_buckets(nodes: Sequence[NodeFacts]) -> Finding:
    """Check that every node reads the buckets, and writes those of runs."""
    problems = {facts.node: facts.bucket for facts in nodes}
    return over_nodes("bucket", problems, len(nodes), "reached and permitted")


def compare_drivers(nodes: Sequence[NodeFacts]) -> Iterator[Finding]:
    """Check that the driver of every node runs torch's build."""
    fine = {facts.driver.found for facts in nodes if facts.driver.state == OK}
    for state in (ERROR, WARNING):
        problems = {
            facts.node: facts.driver.found if facts.driver.state == state else "" for facts in nodes
        }
        if state == ERROR or any(problems.values()):
            yield over_nodes("driver", problems, len(nodes), "; ".join(sorted(fine)), state)


def compare_stores(digest: str, nodes: Sequence[NodeFacts]) -> Finding:
    """Check that every node opens the driver's store."""
    problems = {
        facts.node: _store_problem(digest, facts.store) for facts in nodes if not facts.bucket
    }
    return over_nodes("store", problems, len(nodes), "opens")


def _store_problem(digest: str, there: str) -> str:
    if there == digest:
        return ""
    is_digest = len(there) == len(digest) and " " not in there
    return (
        f"has another store there, {there[:16]}, want {digest[:16]}; copy it anew"
        if is_digest
        else there
    )


def compare_rest(nodes: Sequence[NodeFacts], with_encoder: bool) -> Iterator[Finding]:
    """Check encoders and tokens of every node."""
    if with_encoder:
        yield over_nodes(
            "encoder", {facts.node: facts.encoder for facts in nodes}, len(nodes), "can be loaded"
        )
    yield over_nodes(
        "token", {facts.node: facts.token for facts in nodes}, len(nodes), "nobody else can read it"
    )


def look_at_dashboard(address: str, with_token: bool, ask: bool) -> Iterator[Finding]:
    """Check that the cluster's dashboard, which accepts jobs, is closed to others.

    Args:
        address: its host and port; empty for none.
        with_token: whether the cluster is used with a token.
        ask: whether this machine is the one of the dashboard, on which a loopback address refers to
            it.
    """
    if not address:
        yield Finding("dashboard", OK, "there is none")
        return
    host = urlsplit(f"//{address.split('://')[-1]}").hostname
    status = status_without_token(address) if ask or host not in LOCAL_ONLY else None
    if status is not None and status < 400:
        text = f"{address} answers without a token: whoever reaches it runs code as you;"
        yield Finding("dashboard", ERROR, f"{text} start every node with RAY_AUTH_MODE=token")
    elif host not in LOCAL_ONLY:
        text = (
            f"listens on {address}, not on loopback alone; ray start "
            "--dashboard-host=127.0.0.1, and use a tunnel"
        )
        yield Finding("dashboard", WARNING if with_token else ERROR, text)
    else:
        answer = "refuses who has no token" if status in (401, 403) else "is not reached from here"
        yield Finding("dashboard", OK, f"{address} is loopback, and {answer}")


def status_without_token(address: str) -> int | None:
    """Return the HTTP status of an unauthenticated request to the jobs API; None without answer."""
    url = f"http://{address.split('://')[-1]}/api/jobs/"
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            url, timeout=CONNECT_SECONDS
        ) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None
