"""Join or start a Ray cluster, if the planned workers fit it."""

import contextlib
import gc
import logging
import os
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from raybio.core.errors import ClusterError, ConfigError, first_line
from raybio.runtime.cluster.resources import Node, Resources, check_resources
from raybio.training.settings import EXACT_ENVIRONMENT

LOCAL_STARTS = 6
"""Number of tries to start Ray; each may fail after Ray's 30 s, which a busy machine exceeds."""

MAX_TEMPORARY_PATH = 39
"""Maximum length in bytes of the path of Ray's temporary folder.

The path of a socket holds 107 bytes, of which Ray adds up to 68, as in
``/ray/session_2026-11-29_03-00-25_742806_1234567/sockets/plasma_store``.
"""


_TRAIN_DEFAULTS = {
    # Ray's defaults are 600 s and 2 s.
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "120",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "1",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "180",
    # Keep the working directory in the workers, so that relative paths in a configuration are
    # valid.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # The machine is there for training, but Ray would run its workers with niceness 15.
    "RAY_worker_niceness": "0",
    # ray.init would wait for a first worker on each CPU, and hang, ignoring signals, if one of them
    # is killed early.
    "RAY_prestart_worker_first_driver": "0",
    # A command escapes control characters in its output, so Ray's colors would show as text.
    "RAY_COLOR_PREFIX": "0",
    # A sweep prints its own progress, and handles Ctrl-C itself.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    # A trial that fails before its first evaluation has no metric; Tune would then end the whole
    # sweep.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
}


_BARRIER_TIMEOUT = "RAY_TRAIN_COLLECTIVE_TIMEOUT_S"
"""Ray's variable for the time that workers wait for each other at a report; Ray sets no limit."""


COLLECTIVE_TIMEOUT = "RAYBIO_COLLECTIVE_TIMEOUT_SECONDS"
"""Environment variable that changes how long workers wait for each other."""


DEFAULT_COLLECTIVE_TIMEOUT_SECONDS = 1800
"""Applies only to a worker that hangs: one that dies ends the wait of the others at once."""


_QUIET = {"RAY_DATA_DISABLE_PROGRESS_BARS": "1", "RAY_TRAIN_ENABLE_PRINT_PATCH": "0"}


LOCAL_ONLY = ("127.0.0.1", "localhost", "::1")


def check_plan(
    num_workers: int, cpus_per_worker: float | None = None, use_gpu: bool | None = None
) -> Resources | None:
    """Return ``check_resources`` for this machine alone, without Ray.

    None if ``RAY_ADDRESS`` names a cluster to join.

    Raises:
        ClusterError: if the plan does not fit this machine.
    """
    if cluster_to_join():
        return None
    return check_resources(
        num_workers, cpus_per_worker, [local_node(with_gpus=use_gpu is not False)], use_gpu
    )


def cluster_to_join() -> str:
    """Return the address in ``RAY_ADDRESS``; empty where Ray starts on this machine alone."""
    address = os.environ.get("RAY_ADDRESS", "")
    return "" if address == "local" else address


def local_node(*, with_gpus: bool = True) -> Node:
    """Return the CPUs and GPUs that Ray would find on this machine."""
    return Node(local_cpus(), _local_gpus() if with_gpus else 0)


def local_cpus() -> int:
    """Return the CPUs that this process may use, by affinity and the container's quota."""
    cpus = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cpus = min(cpus, max(1, int(quota) // int(period)))
    return cpus


@contextlib.contextmanager
def connected(
    num_workers: int = 1,
    cpus_per_worker: float | None = None,
    *,
    use_gpu: bool | None = None,
    threads: int | None = None,
    verbose: bool = False,
) -> Iterator[Resources]:
    """Connect to the cluster that ``RAY_ADDRESS`` names, or start one on this machine only.

    An existing connection is used and left open.

    Args:
        num_workers: training workers that will be started.
        cpus_per_worker: see ``check_resources``.
        use_gpu: see ``check_resources``.
        threads: compute threads of each worker; None: as many as its CPUs.
        verbose: show Ray's own logs and progress bars.

    Raises:
        ClusterError: for a plan that does not fit, if possible before Ray starts; or if Ray cannot
            start.
    """
    planned = check_plan(num_workers, cpus_per_worker, use_gpu)
    if threads is None and planned is not None:
        threads = planned.threads_per_worker
    with started(threads=threads, verbose=verbose):
        resources = check_resources(num_workers, cpus_per_worker, cluster_nodes(), use_gpu)
        # The CPUs of a cluster do not tell those of a node, so workers of a cluster count their
        # own.
        yield replace(resources, threads_per_worker=threads)


def cluster_nodes() -> list[Node]:
    """Return the resources of each living machine of the connected cluster."""
    import ray

    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [Node(resources.get("CPU", 0), resources.get("GPU", 0)) for resources in alive]


@contextlib.contextmanager
def started(
    *, threads: int | None, with_dashboard: bool = False, verbose: bool = False
) -> Iterator[None]:
    """Start Ray or join its cluster for the duration of the context, without checking resources.

    Args:
        threads: compute threads of processes of a local cluster; None: they choose.
        with_dashboard: start the dashboard of a local cluster too, on loopback.
        verbose: show Ray's own logs and progress bars.

    Raises:
        ClusterError: if Ray cannot start or be reached.
    """
    address = cluster_to_join()
    _set_environment(verbose, bool(address))
    import ray

    if ray.is_initialized():
        yield
        return
    if not address:
        _set_temporary_folder()
    logging.getLogger("ray._private.worker").addFilter(_without_colors)
    options: dict[str, Any] = {
        "log_to_driver": verbose,
        "logging_level": logging.INFO if verbose else logging.ERROR,
        "runtime_env": {"env_vars": _worker_environment(threads)},
    }
    if not address:
        options |= {
            "address": "local",
            "num_cpus": local_cpus(),
            "include_dashboard": with_dashboard,
        }
    ended = list[int]()

    def end(number: int, _: object) -> None:
        """End the command by an exception, so that it leaves nothing behind."""
        ended.append(128 + number)
        with contextlib.suppress(OSError):
            print(f"{signal.Signals(number).name}: ended", file=sys.stderr, flush=True)
        sys.exit(ended[0])

    before = signal.getsignal(signal.SIGTERM)
    handler = before if callable(before) else end
    _handle_sigterm(handler)
    try:
        _init_ray(options, address)
        _handle_sigterm(handler)
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        # While Ray starts, its own handler exits with the number of the signal. If the signal
        # arrives in Ray's code, Ray raises another exit.
        is_of_ray = isinstance(error, SystemExit) and error.code == signal.SIGTERM
        if is_of_ray and handler is end and not ended:
            end(signal.SIGTERM, None)
        if ended:
            sys.exit(ended[0])
        raise
    finally:
        # Free Ray references in reference cycles now: if another thread's garbage collection freed
        # them while Ray shuts down, the process would crash.
        gc.collect()
        ray.shutdown()
        _handle_sigterm(before or signal.SIG_DFL)


def _without_colors(record: logging.LogRecord) -> bool:
    """Remove colors from a log record, since control characters are escaped when printed."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            "" if isinstance(part, str) and part.startswith("\x1b[") else part
            for part in record.args
        )
    return True


def _handle_sigterm(handler: Any) -> None:
    """Replace Ray's handlers of SIGTERM, which abort the process with a C++ trace."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _init_ray(options: dict[str, Any], address: str) -> None:
    """Call ``ray.init``; a local cluster is retried, as a busy machine may exceed Ray's 30 s."""
    import ray

    tries = 1 if address else LOCAL_STARTS
    for attempt in range(1, tries + 1):
        try:
            # Ray's processes inherit this mask, so a closed terminal ends only this process, which
            # then lets the workers write a last checkpoint. Ray does the same for Ctrl-C.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
            try:
                ray.init(**options)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return
        except Exception as error:  # Ray raises this very class when its raylet is not up in time
            ray.shutdown()
            if attempt < tries and "timed out" in str(error):
                print(f"Ray did not start in time: try {attempt + 1} of {tries}", flush=True)
                continue
            where = f"the cluster at {address}" if address else "a local cluster"
            raise ClusterError(
                f"cannot reach {where}: {first_line(error).rstrip('.')}. "
                f"{_advice(bool(address), str(error))}"
            ) from error


def ensure_token() -> None:
    """Enable token authentication explicitly, with a token file that only its owner can read.

    Ray enables it by default but makes the file readable for everybody. Where the home folder
    cannot be written, the token lies in a private temporary folder for the life of this process.

    Raises:
        ClusterError: if a token file exists that others can read and that cannot be closed to them.
    """
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        if "ray" in sys.modules:
            # Ray read the mode at import; Ray itself uses this call to read it again when it
            # enables tokens.
            from ray._raylet import Config  # type: ignore[attr-defined]

            Config.initialize("")
    if os.environ["RAY_AUTH_MODE"].lower() != "token" or os.environ.get("RAY_AUTH_TOKEN"):
        return
    path = token_path()
    if path.is_file() and path.stat().st_size > 0:
        _close_to_others(path)
        return
    try:
        # On a full disk, another program may have left an empty file.
        path.unlink(missing_ok=True)
        _write_token(path)
    except OSError:
        path = Path(tempfile.mkdtemp(prefix="rb")) / "auth_token"
        _write_token(path)
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(path)


def token_path() -> Path:
    """Return the path of Ray's token, unless ``RAY_AUTH_TOKEN`` holds it."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def others_can_read(path: Path) -> bool:
    """Return whether anybody but the owner can read the file."""
    return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


def _write_token(path: Path) -> None:
    import secrets

    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Write under another name first, so that no other process sees an empty token.
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        # Unlike a rename, a link does not replace the token of a process that was faster.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)


def _close_to_others(path: Path) -> None:
    if others_can_read(path):
        try:
            path.chmod(0o600)
        except OSError as error:
            raise ClusterError(
                f"{path}: others can read this token ({error.strerror}); run `chmod 600` on it"
            ) from None


def _set_environment(verbose: bool, joins: bool) -> None:
    for name, value in {**_TRAIN_DEFAULTS, **({} if verbose else _QUIET)}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault(_BARRIER_TIMEOUT, str(collective_timeout_seconds()))
    if joins:
        return
    # A local cluster has no nodes that could be preempted, and the watcher costs seconds at
    # startup.
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    ensure_token()
    host = os.environ.get("RAY_DASHBOARD_HOST", "127.0.0.1")
    if host not in LOCAL_ONLY and os.environ["RAY_AUTH_MODE"].lower() != "token":
        raise ClusterError(
            f"RAY_DASHBOARD_HOST is {host} without RAY_AUTH_MODE=token: anybody could run code here"
        )


def temporary_folder() -> Path:
    """Return the folder of Ray's sockets and logs, which Ray creates at startup.

    It is ``RAY_TMPDIR`` if set. Otherwise it is below ``TMPDIR``, or below ``/tmp`` if that path is
    too long.
    """
    given = os.environ.get("RAY_TMPDIR")
    if given:
        return Path(given)
    name = f"raybio-{os.getuid()}"
    folder = Path(os.environ.get("TMPDIR") or "/tmp", name)
    return folder if len(os.fsencode(folder)) <= MAX_TEMPORARY_PATH else Path("/tmp", name)


def _set_temporary_folder() -> None:
    """Create the folder of Ray's sockets and logs, closed to other users, and set Ray to use it.

    It must be closed because everything that Ray creates in it is open to all users. An existing
    folder that ``RAY_TMPDIR`` names is not changed.

    Raises:
        ClusterError: if it cannot be made, its path is too long, or another user made it.
    """
    folder = temporary_folder()
    length = len(os.fsencode(folder))
    if length > MAX_TEMPORARY_PATH:
        raise ClusterError(
            f"Ray's temporary folder has a path of {length} bytes ({folder}), want at most "
            f"{MAX_TEMPORARY_PATH}: Ray's sockets lie below it, and a socket's path holds 107. "
            "Choose a shorter one with RAY_TMPDIR, such as /tmp/ray-me"
        )
    is_given = bool(os.environ.get("RAY_TMPDIR"))
    try:
        if is_given:
            folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not is_given:
            _check_is_own(folder)
        elif not folder.is_dir():
            raise ClusterError(f"RAY_TMPDIR: {folder} is no folder, and cannot be made") from None
    except OSError as error:
        raise ClusterError(
            f"{folder}: {error.strerror}. Ray's temporary files go there. Name another folder with "
            "RAY_TMPDIR"
        ) from None
    os.environ["RAY_TMPDIR"] = str(folder)


def _check_is_own(folder: Path) -> None:
    """Close a folder to other users; refuse one that another user owns."""
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise ClusterError(
            f"{folder}: this is where Ray's temporary files go, but not a folder of yours. Name "
            "another with RAY_TMPDIR"
        )
    folder.chmod(0o700)


def collective_timeout_seconds() -> int:
    """Return how long a worker waits for another, in a collective operation and at a report.

    Raises:
        ConfigError: if its environment variable is not a whole number of seconds.
    """
    text = os.environ.get(COLLECTIVE_TIMEOUT, str(DEFAULT_COLLECTIVE_TIMEOUT_SECONDS))
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise ConfigError(
            f"{COLLECTIVE_TIMEOUT}: got {text!r}, want seconds, a whole number above 0"
        )
    return int(text)


def _worker_environment(threads: int | None) -> dict[str, str]:
    names = (*_TRAIN_DEFAULTS, *_QUIET, _BARRIER_TIMEOUT, COLLECTIVE_TIMEOUT)
    carried = {name: os.environ[name] for name in names if name in os.environ}
    # Set before torch is imported. In a cluster, each worker sets it, since only it knows its CPUs.
    cublas = "CUBLAS_WORKSPACE_CONFIG"
    carried[cublas] = os.environ.get(cublas, EXACT_ENVIRONMENT[cublas])
    return carried | ({} if threads is None else {"OMP_NUM_THREADS": str(threads)})


def _local_gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _advice(joins: bool, problem: str) -> str:
    if joins:
        return (
            "Check RAY_ADDRESS, and that RAY_AUTH_MODE=token and the cluster's token are set "
            "(RAY_AUTH_TOKEN_PATH)"
        )
    if "timed out" in problem:
        load = f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} CPUs"
        return (
            f"Ray's processes were too slow ({load}): wait until the machine is less busy, or see "
            "--verbose"
        )
    return "Check that the temporary folder is writable, and see --verbose"
