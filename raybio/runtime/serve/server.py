"""Serve a trained model by Ray Serve."""

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raybio.core.errors import ClusterError, ConfigError, first_line
from raybio.core.location import is_uri
from raybio.encoders.config import Pooling
from raybio.runtime.cluster.connection import (
    LOCAL_STARTS,
    cluster_nodes,
    cluster_to_join,
    local_cpus,
    started,
)
from raybio.runtime.cluster.resources import Node
from raybio.runtime.load import load
from raybio.runtime.search.index import check_model, open_index
from raybio.runtime.search.index_store import open_index_store
from raybio.runtime.serve.app import Limits, http_app

APPLICATION = "raybio"

REQUESTS_AT_ONCE = 1000
"""Maximum number of requests that a replica holds; more wait in Ray's proxy."""


@contextmanager
def serving(
    model: str | Path,
    index: str | Path | None = None,
    *,
    pooling: Pooling | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    replicas: int = 1,
    cpus_per_replica: float | None = None,
    limits: Limits | None = None,
    verbose: bool = False,
) -> Iterator[str]:
    """Serve a model within a ``with`` block; yield the address.

    Model and index are checked before Ray starts. Each replica loads both, on a GPU if the cluster
    has any. There is no authentication: on another host than loopback, anybody who reaches the port
    may use the model.

    Args:
        model: run, export or model folder, also in a bucket, as for ``raybio.load``.
        index: saved index of its embeddings.
        pooling: pooling for a model that does not state it.
        host: address to listen on.
        port: port to listen on.
        replicas: number of processes.
        cpus_per_replica: logical CPUs of each; None: an equal share of this machine's CPUs minus
            one.
        limits: limits of a request.
        verbose: show Ray's own logs.

    Raises:
        ConfigError: if Ray Serve is not installed, or there is no such model, or it neither encodes
            nor predicts.
        StoreError: if there is no such index, or it comes from another model.
        ClusterError: if Ray cannot start, the replicas do not fit, the address is taken, or Ray
            Serve runs on the cluster already.
    """
    try:
        import ray
        from ray import serve
    except ImportError:
        raise ConfigError(
            "serving needs Ray Serve, which is not installed; want pip install 'raybio[serve]'"
        ) from None
    loaded = load(model, pooling)
    if loaded.why_not_encode and (pooling is not None or not loaded.has_head):
        raise ConfigError(loaded.why_not_encode)
    if index is not None:
        check_model(open_index_store(index), loaded.digest(), str(model))
    if not cluster_to_join():
        _check_free(host, port)
    # Ray's default is 5 s, which a busy machine exceeds.
    os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
    cpus = cpus_per_replica or max(0.5, (local_cpus() - 1) / replicas)
    # Each machine fetches a model from a bucket.
    folder = str(model) if is_uri(model) else str(loaded.folder.absolute())
    index_folder = None if index is None else str(Path(index).expanduser().absolute())

    def build() -> Any:
        """Load the model in a replica."""
        opened = load(folder, pooling)
        opened_index = None if index_folder is None else open_index(index_folder, folder, pooling)
        return http_app(opened, opened_index, limits)

    if not verbose:
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
    # On a local cluster, Serve ends with the cluster. To shut down Serve alone, Ray kills its
    # controller during a call, and reports that as an error.
    is_own_cluster = not cluster_to_join() and not ray.is_initialized()
    with started(threads=max(1, int(cpus)), verbose=verbose):
        num_gpus = check_replicas(cluster_nodes(), replicas, cpus)
        options: dict[str, Any] = {"num_cpus": cpus, "num_gpus": num_gpus}
        deployment = serve.deployment(
            name="raybio",
            num_replicas=replicas,
            ray_actor_options=options,
            max_ongoing_requests=REQUESTS_AT_ONCE,
        )(serve.ingress(build)())
        if is_own_cluster:
            serve.shutdown()  # forgets the Serve of an earlier cluster of this process
        else:
            _check_no_serve(serve)
        try:
            _start(serve, host, port)
            _run(serve, deployment.bind())
            yield f"http://{host}:{port}"
            if is_own_cluster:
                serve.delete(APPLICATION)  # requests that are being answered get their answer
        finally:
            if not is_own_cluster:
                _end(serve)


def check_replicas(nodes: Sequence[Node], replicas: int, cpus: float) -> int:
    """Return the GPUs of each replica: 1 if there are any.

    Raises:
        ClusterError: if the replicas do not fit; Ray Serve would wait forever.
    """
    num_gpus = 1 if any(node.gpus for node in nodes) else 0
    room = sum(
        min(int(node.cpus / cpus + 1e-9), int(node.gpus) if num_gpus else replicas)
        for node in nodes
    )
    if room < replicas:
        each = f"{cpus:g} CPU" + (" and 1 GPU" if num_gpus else "")
        lacks_gpus = num_gpus and sum(int(node.gpus) for node in nodes) < replicas
        cure = "" if lacks_gpus else ", or a smaller --cpus-per-replica"
        raise ClusterError(
            f"--replicas {replicas}: each takes {each}, and the cluster has room for {room}; want "
            f"fewer replicas{cure}"
        )
    return num_gpus


def _check_free(host: str, port: int) -> None:
    """Refuse an address on which this machine cannot listen, before Ray starts."""
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise ClusterError(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another --port or --host"
        ) from None


def _check_no_serve(serve: Any) -> None:
    """Refuse a cluster that runs Serve: it would keep its address and lose an application."""
    status = serve.status()
    if status.proxies or status.applications:
        names = ", ".join(sorted(status.applications)) or "no application"
        raise ClusterError(
            f"Ray Serve runs on this cluster already, with {names}; end it by `serve shutdown` "
            "where it runs, or unset RAY_ADDRESS to serve on this machine alone"
        )


def _end(serve: Any) -> None:
    """Delete the application, and shut down Serve unless it serves others meanwhile."""
    if serve.status().applications.keys() - {APPLICATION}:
        serve.delete(APPLICATION)
    else:
        serve.shutdown()


def _start(serve: Any, host: str, port: int) -> None:
    """Start Ray Serve; retry if its proxy is late, as on a busy machine."""
    from ray.exceptions import RayError

    for attempt in range(1, LOCAL_STARTS + 1):
        try:
            serve.start(http_options={"host": host, "port": port})
            return
        except (RayError, TimeoutError) as error:
            serve.shutdown()
            if attempt == LOCAL_STARTS:
                reason = first_line(error).rstrip(".")
                raise ClusterError(
                    f"Ray Serve does not start: {reason}. Is the machine busy? See --verbose"
                ) from error


def _run(serve: Any, application: Any) -> None:
    """Start the replicas and wait until they are ready."""
    try:
        serve.run(application, name=APPLICATION)
    except RuntimeError as error:
        raise ClusterError(f"the model cannot be served: {error}. See --verbose") from error
