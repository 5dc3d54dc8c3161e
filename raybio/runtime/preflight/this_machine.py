"""Checks of this machine before a start, without Ray."""

import heapq
import logging
import os
import shutil
import socket
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from raybio.core.errors import ClusterError, first_line
from raybio.core.files import nearest_existing, try_lock
from raybio.runtime.cluster.connection import (
    LOCAL_ONLY,
    cluster_to_join,
    others_can_read,
    temporary_folder,
    token_path,
)
from raybio.runtime.preflight.finding import ERROR, OK, WARNING, Finding
from raybio.runtime.tracking.tracker import shown_uri

GIB = 2**30
MIB = 2**20


CONNECT_SECONDS = 5.0


UPLOAD_SECONDS = 20.0


NEARLY = 0.8


RAY_STOPS_AT = "RAY_local_fs_capacity_threshold"  # Ray's own setting, read by its raylets
"""Share of a used disk above which Ray does not spill to it."""


DEFAULT_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306}


SHARED_MEMORY = Path("/dev/shm")


def look_at_token() -> Iterator[Finding]:
    """Check that Ray's token exists and that only its owner can read it."""
    mode = os.environ.get("RAY_AUTH_MODE", "").lower()
    joins = cluster_to_join()
    if mode not in ("", "token"):
        yield Finding(
            "token",
            WARNING,
            f"RAY_AUTH_MODE is {mode}: whoever reaches Ray runs code as you; want token",
        )
        return
    if joins and not mode:
        text = (
            "RAY_AUTH_MODE is not set: a cluster with a token refuses this driver; export "
            "RAY_AUTH_MODE=token"
        )
        yield Finding("token", WARNING, text)
    if os.environ.get("RAY_AUTH_TOKEN"):
        yield Finding("token", OK, "in RAY_AUTH_TOKEN")
        return
    path = token_path()
    if not path.is_file():
        text = "is not there; copy the cluster's (`ray get-auth-token` on the head), and chmod 600"
        yield (
            Finding("token", ERROR, f"{path} {text}")
            if joins
            else Finding("token", OK, f"{path} will be made, 0600")
        )
    elif others_can_read(path):
        text = (
            f"{path}: others can read it (mode {path.stat().st_mode & 0o777:04o}); chmod 600, "
            "and make a new one if"
        )
        yield Finding("token", ERROR, f"{text} anybody else uses this machine")
    elif not path.read_text().strip():
        yield Finding(
            "token",
            ERROR,
            f"{path} is empty; remove it, `ray get-auth-token --generate`, and chmod 600",
        )
    else:
        yield Finding("token", OK, f"{path}, mode {path.stat().st_mode & 0o777:04o}")


def look_at_addresses() -> Iterator[Finding]:
    """Check that the addresses that Ray opens or uses are closed to other machines."""
    host = os.environ.get("RAY_DASHBOARD_HOST", "127.0.0.1")
    joins = cluster_to_join()
    if host in LOCAL_ONLY:
        yield Finding("addresses", OK, f"a dashboard started here listens on {host}")
    else:
        closed = os.environ.get("RAY_AUTH_MODE", "token").lower() == "token"
        text = f"RAY_DASHBOARD_HOST is {host}: the jobs API listens for others too, "
        text += (
            "with only the token before it; "
            if closed
            else "and without a token anybody can run code; "
        )
        yield Finding(
            "addresses",
            WARNING if closed else ERROR,
            f"{text}unset it and use a tunnel (`ray dashboard`)",
        )
    if joins.startswith("http://") and urlsplit(joins).hostname not in LOCAL_ONLY:
        text = (
            f"RAY_ADDRESS is {joins}: the token and the code travel unencrypted; use a tunnel "
            "or https"
        )
        yield Finding("addresses", WARNING, text)


def look_at_upload(folder: Path) -> Iterator[Finding]:
    """Compare what ``ray job submit --working-dir .`` would upload with the limit of the jobs API.

    Ray's own code chooses the files.
    """
    from ray._private.ray_constants import DASHBOARD_CLIENT_MAX_SIZE

    limit = DASHBOARD_CLIENT_MAX_SIZE
    if "runtime_resources" in folder.absolute().parts:
        yield Finding("upload", OK, "this is a job's working directory already")
        return
    sizes, is_whole = uploaded(folder, UPLOAD_SECONDS)
    total = sum(sizes.values())
    largest = heapq.nlargest(3, sizes.items(), key=lambda item: item[1])
    text = (
        f"{'' if is_whole else 'more than '}{total / MIB:.1f} of at most {limit / MIB:.0f} "
        f"MiB: {len(sizes):,} files"
    )
    if total <= NEARLY * limit and is_whole:
        yield Finding("upload", OK, text)
        return
    text += (
        "".join(f", {path} with {size / MIB:.1f}" for path, size in largest)
        + "; name what is not code in .rayignore"
    )
    # Without a cluster nothing is sent.
    is_error = bool(cluster_to_join()) and (total >= limit or not is_whole)
    yield Finding("upload", ERROR if is_error else WARNING, text)


def uploaded(folder: Path, seconds: float = float("inf")) -> tuple[dict[Path, int], bool]:
    """Return path and size of the files that Ray would upload from a working directory.

    Also return whether ``seconds`` were enough to list all of them.
    """
    from ray._private.ray_constants import (
        RAY_RUNTIME_ENV_IGNORE_GITIGNORE,
        get_runtime_env_default_excludes,
    )
    from ray._private.runtime_env.packaging import _dir_travel, _get_excludes

    sizes: dict[Path, int] = {}
    deadline = time.monotonic() + seconds
    silent = logging.Logger("silent", logging.CRITICAL)

    def add(path: Path) -> None:
        if time.monotonic() > deadline:
            raise TimeoutError
        if path.is_file():
            sizes[path.relative_to(folder)] = path.stat().st_size

    folder = folder.absolute()
    excludes = [_get_excludes(folder, get_runtime_env_default_excludes())]
    with_gitignore = os.environ.get(RAY_RUNTIME_ENV_IGNORE_GITIGNORE, "0") != "1"
    try:
        _dir_travel(folder, excludes, add, include_gitignore=with_gitignore, logger=silent)
    except TimeoutError:
        return sizes, False
    return sizes, True


@contextmanager
def probe_folder(runs: Path) -> Iterator[Path]:
    """Create a temporary folder in ``runs``, with a file of the driver, for a ``with`` block.

    Raises:
        ClusterError: if it cannot be made, or a file of the driver is not read back as written.
    """
    runs = runs.expanduser().absolute()
    made = [folder for folder in (runs, *runs.parents) if not folder.exists()]
    probe = runs / f".preflight-{uuid.uuid4().hex[:8]}"
    try:
        try:
            probe.mkdir(parents=True)
        except OSError as error:
            raise _unwritable(runs, error.strerror or str(error)) from None
        if problem := write_and_read(probe / "driver"):
            raise _unwritable(runs, problem)
        yield probe
    finally:
        shutil.rmtree(probe, ignore_errors=True)
        with suppress(OSError):
            for folder in made:
                folder.rmdir()


def _unwritable(runs: Path, why: str) -> ClusterError:
    return ClusterError(
        f"{runs}: cannot be used as the folder of runs ({why}). Choose another with --runs"
    )


def write_and_read(path: Path) -> str:
    """Write, lock, force to disk and read back a new file; return the fault, empty if none."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            try_lock(file)
            file.write(path.name)
            file.flush()
            os.fsync(file.fileno())
        return (
            ""
            if path.read_text(encoding="utf-8") == path.name
            else "what was written is not what is read"
        )
    except OSError as error:
        return error.strerror or str(error)


def free_space(path: Path) -> tuple[int, float]:
    """Return the free bytes of the disk of a path, and its used share."""
    usage = shutil.disk_usage(nearest_existing(path.expanduser()))
    return usage.free, 1 - usage.free / usage.total


def disk_problem(free_bytes: int, used_share: float, min_free_gib: float, path: str) -> str:
    """Return the fault of a disk, empty if none."""
    if free_bytes < min_free_gib * GIB:
        return (
            f"{free_bytes / GIB:.1f} GiB free for {path}, want {min_free_gib:g}; make room or "
            "choose another disk"
        )
    stops_at = float(os.environ.get(RAY_STOPS_AT, "0.95"))
    if used_share > stops_at:
        problem = (
            f"the disk of {path} is {used_share:.0%} full; Ray refuses to use it beyond "
            f"{stops_at:.0%}"
        )
        return f"{problem}: make room, or set {RAY_STOPS_AT} for Ray and for this"
    return ""


def look_at_disk(runs: Path, min_free_gib: float) -> Iterator[Finding]:
    """Check the free disk for runs and for Ray's temporary files on this machine."""
    for path in (runs, temporary_folder()):
        yield from look_at_disk_of(path, min_free_gib)


def look_at_disk_of(path: Path, min_free_gib: float) -> Iterator[Finding]:
    """Check the free disk of one folder on this machine."""
    free, used = free_space(path)
    problem = disk_problem(free, used, min_free_gib, str(path))
    if problem:
        yield Finding("disk", ERROR, problem)
    else:
        yield Finding("disk", OK, f"{free / GIB:.1f} GiB at {path}")


def look_at_shared_memory(
    min_object_store_mib: float, path: Path = SHARED_MEMORY
) -> Iterator[Finding]:
    """Check that Ray's object store fits the shared memory of this machine."""
    free = shutil.disk_usage(path).free / MIB
    if free < min_object_store_mib:
        text = (
            f"{path} has {free:.0f} MiB free, want {min_object_store_mib:g}: Ray would use "
            "the disk instead, slowly;"
        )
        yield Finding(
            "object store", WARNING, f"{text} in a container, give it more (docker run --shm-size)"
        )
    else:
        yield Finding("object store", OK, f"{free / 1024:.1f} GiB free in {path}")


def look_at_tracking(uri: str, on_cluster: bool) -> Iterator[Finding]:
    """Check that MLflow answers, or that its database can be written."""
    shown = shown_uri(uri)
    advice = "start the server, open the way to it, or name another with --tracking-uri"
    if uri.startswith("sqlite:"):
        path = Path(uri.removeprefix("sqlite:///"))
        yield from _look_at_database(path)
        if on_cluster:
            text = (
                "sqlite takes one writer: with several drivers at a time, give them an "
                "`mlflow server`"
            )
            yield Finding("MLflow", WARNING, f"{shown}: {text} with --tracking-uri")
        if not path.exists():
            return
    elif problem := _unreachable(uri):
        yield Finding("MLflow", ERROR, f"{shown}: {problem}; {advice}")
        return
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    try:
        from mlflow import MlflowClient

        MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
    except Exception as error:  # an error of the client, its driver or the server
        why = first_line(error).replace(uri, shown)[:300]  # the full address may hold a password
        yield Finding("MLflow", ERROR, f"{shown}: {why}; {advice}")
    else:
        yield Finding("MLflow", OK, f"{shown} answers")


def _unreachable(uri: str) -> str:
    """Return why an address cannot be reached, empty if it can; libraries would try for minutes."""
    parts = urlsplit(uri)
    port = parts.port or DEFAULT_PORTS.get(parts.scheme.split("+")[0])
    if not parts.hostname or port is None:
        return ""
    try:
        socket.create_connection((parts.hostname, port), CONNECT_SECONDS).close()
    except OSError as error:
        return f"nobody answers at {parts.hostname}:{port} ({error.strerror or error})"
    return ""


def _look_at_database(path: Path) -> Iterator[Finding]:
    if not path.exists():
        nearest = nearest_existing(path)
        if not os.access(nearest, os.W_OK | os.X_OK):
            yield Finding(
                "MLflow",
                ERROR,
                f"{nearest}: cannot be written, and {path.name} is to be made there",
            )
        else:
            yield Finding("MLflow", OK, f"{path} will be made")
        return
    try:
        with closing(sqlite3.connect(path, timeout=2.0, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")  # takes the write lock; ROLLBACK releases it
            database.execute("ROLLBACK")
    except sqlite3.Error as error:
        text = (
            f"{path}: {error}; end the other writer, make it writable, or choose another with "
            "--tracking-uri"
        )
        yield Finding("MLflow", ERROR, text)
