import contextlib
import errno
import logging
import os
import secrets
import signal
import stat
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path

import pytest

from raybio.core.errors import ClusterError, ConfigError
from raybio.runtime.cluster import connection as cluster
from raybio.runtime.cluster.connection import connected, ensure_token
from raybio.runtime.cluster.resources import (
    DATA_CPUS_PER_WORKER,
    Node,
    check_resources,
    memory_reason,
)
from tests.paths import ROOT


def test_one_worker_takes_whole_cpus_and_leaves_ray_data_its_share() -> None:
    assert check_resources(1, None, [Node(2)]).cpus_per_worker == 1.0
    assert check_resources(1, None, [Node(8)]).cpus_per_worker == 7.0
    assert check_resources(4, None, [Node(64)]).cpus_per_worker == 15.0


@pytest.mark.parametrize("num_cpus", [1, 2, 3, 4, 8, 63])
@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
def test_what_is_chosen_always_fits(num_workers: int, num_cpus: int) -> None:
    if num_workers == 4 and num_cpus == 1:
        pytest.skip("nothing fits")
    resources = check_resources(num_workers, None, [Node(num_cpus)])
    assert resources.cpus_per_worker > 0
    assert num_workers * (resources.cpus_per_worker + DATA_CPUS_PER_WORKER) <= num_cpus + 1e-9
    assert resources.threads_per_worker == max(1, num_cpus // num_workers)


def test_two_workers_with_half_a_cpu_each_fit_on_two_cpus() -> None:
    assert check_resources(2, 0.5, [Node(2)]).cpus_per_worker == 0.5


def test_workers_that_take_all_cpus_are_refused_at_once_with_the_arithmetic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "local_cpus", lambda: 2)
    monkeypatch.setattr(cluster, "started", lambda **_: pytest.fail("Ray was started"))
    with pytest.raises(
        ClusterError,
        match=r"2 workers x 1 CPU = 2, .*2\.4 in all, but the cluster has 2 CPU;.*--cpus",
    ):
        connected(2, 1.0, use_gpu=False).__enter__()


def test_more_workers_than_cpus_can_hold_are_refused() -> None:
    with pytest.raises(ClusterError, match="fewer workers than 12"):
        check_resources(12, None, [Node(2)])


def test_workers_wait_for_each_other_as_long_as_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process group's timeout, and that of Ray's barrier at a report."""
    barrier = "RAY_TRAIN_COLLECTIVE_TIMEOUT_S"
    monkeypatch.delenv(cluster.COLLECTIVE_TIMEOUT, raising=False)
    for name in (*os.environ, barrier, *cluster._TRAIN_DEFAULTS, *cluster._QUIET):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # restored afterwards
    monkeypatch.delenv(barrier)
    assert cluster.collective_timeout_seconds() == 1800
    monkeypatch.setenv(cluster.COLLECTIVE_TIMEOUT, "7200")
    assert cluster.collective_timeout_seconds() == 7200
    cluster._set_environment(verbose=False, joins=True)
    assert os.environ[barrier] == "7200"
    carried = cluster._worker_environment(threads=None)
    assert carried[barrier] == carried[cluster.COLLECTIVE_TIMEOUT] == "7200"
    for wrong in ("0", "-1", "soon", "1.5", ""):
        monkeypatch.setenv(cluster.COLLECTIVE_TIMEOUT, wrong)
        with pytest.raises(ConfigError, match="want seconds, a whole number above 0"):
            cluster.collective_timeout_seconds()


def test_more_workers_than_gpus_are_refused() -> None:
    with pytest.raises(ClusterError, match="4 workers x 1 GPU = 4 GPUs, and the cluster has 2"):
        check_resources(4, None, [Node(16, 2)], use_gpu=True)


def test_a_gpu_is_used_where_there_is_one_for_each_worker() -> None:
    assert check_resources(2, None, [Node(16, 2)]).gpus_per_worker == 1
    assert check_resources(3, None, [Node(16, 2)]).gpus_per_worker == 0


def test_workers_lie_on_nodes_and_not_on_the_sum_of_them() -> None:
    nodes = [Node(8), Node(16, 2)]
    assert (
        check_resources(2, None, nodes, use_gpu=True).cpus_per_worker == 7.0
    )  # the GPUs' node has 16 for both
    assert check_resources(2, None, [Node(2), Node(16)]).cpus_per_worker == 1.0
    with pytest.raises(
        ClusterError,
        match=r"8 CPU \+ 16 CPU and 2 GPU, where 1 of them have room;.*per-worker 7\.8",
    ):
        check_resources(2, 11.0, nodes, use_gpu=True)
    with pytest.raises(ClusterError, match="2 workers x 1 CPU = 2, .*where 0 of them have room"):
        check_resources(2, 1.0, [Node(1), Node(1), Node(1)])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return tmp_path


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_token_is_made_readable_by_its_owner_alone(home: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        ensure_token()
    finally:
        os.umask(before)
    path = home / ".ray" / "auth_token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_text()) == 64
    assert os.environ["RAY_AUTH_MODE"] == "token"


def test_a_token_that_others_can_read_is_closed_to_them_and_kept(home: Path) -> None:
    (home / ".ray").mkdir()
    path = home / ".ray" / "auth_token"
    path.write_text("a" * 64)
    path.chmod(0o644)
    ensure_token()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == "a" * 64


def test_an_empty_token_that_a_full_disk_left_is_written_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home / ".ray" / "auth_token"
    path.parent.mkdir()
    path.touch()
    ensure_token()
    assert len(path.read_text()) == 64

    path.unlink()
    written = []

    def full(num_bytes: int) -> str:
        written.append(num_bytes)
        if len(written) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return "b" * 64

    monkeypatch.setattr(secrets, "token_hex", full)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    ensure_token()
    assert [*path.parent.iterdir()] == []
    assert Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text() == "b" * 64


def test_a_home_that_cannot_be_written_gets_a_private_token_elsewhere(
    home: Path, monkeypatch
) -> None:
    (home / ".ray").write_text("a file where the folder should be")
    ensure_token()
    path = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_without_token_mode_a_dashboard_for_everybody_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_DASHBOARD_HOST", "0.0.0.0")
    with pytest.raises(ClusterError, match="without RAY_AUTH_MODE=token"):
        connected(use_gpu=False).__enter__()


def test_a_temporary_folder_too_deep_for_sockets_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("RAY_TMPDIR", "/tmp/" + "x" * 80)
    with pytest.raises(
        ClusterError, match="a path of 85 bytes .*Choose a shorter one with RAY_TMPDIR"
    ):
        connected(use_gpu=False).__enter__()


SHOW_FOLDERS = """
import os, stat
os.umask(0)
import ray
from raybio.runtime.cluster.connection import started
with started(threads=1):
    node = ray.get_runtime_context().get_temp_dir()
    for path in (os.path.dirname(node), node):
        print(path, oct(stat.S_IMODE(os.stat(path).st_mode)))
"""


@pytest.mark.nightly
def test_other_users_do_not_reach_the_folders_of_a_local_ray() -> None:
    """Ray opens its own folders to all users; this one has the longest path that is taken."""
    name = f"raybio-{os.getuid()}"
    rest = "x" * (cluster.MAX_TEMPORARY_PATH - len(f"/tmp/rb12345678/{name}"))
    with tempfile.TemporaryDirectory(prefix=f"rb{rest}", dir="/tmp") as base:
        environment = {key: os.environ[key] for key in os.environ if key != "RAY_TMPDIR"}
        done = subprocess.run(
            [sys.executable, "-c", SHOW_FOLDERS],
            env=environment | {"TMPDIR": base},
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        private = f"{base}/{name}"
        assert done.stdout.splitlines()[-2:] == [f"{private} 0o700", f"{private}/ray 0o777"]


def test_a_deep_folder_of_temporary_files_is_no_place_for_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    name = f"raybio-{os.getuid()}"
    monkeypatch.setenv("TMPDIR", "/tmp/" + "x" * 30)
    assert cluster.temporary_folder() == Path("/tmp", name)
    monkeypatch.setenv("TMPDIR", "/tmp/own")
    assert cluster.temporary_folder() == Path("/tmp/own", name)


def test_a_connection_that_is_there_needs_no_temporary_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setenv("RAY_TMPDIR", "/tmp/" + "x" * 80)
    with cluster.started(threads=1):
        pass


def test_the_private_folder_is_closed_again_and_nobody_elses_is_used(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    private = tmp_path / f"raybio-{os.getuid()}"
    private.mkdir(mode=0o755)
    monkeypatch.setattr(cluster, "MAX_TEMPORARY_PATH", 1000)
    monkeypatch.setattr(cluster, "_init_ray", lambda *_: None)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_TMPDIR")
    with cluster.started(threads=1):
        assert os.environ["RAY_TMPDIR"] == str(private)
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    # A folder that is named is made like it, or left as it is.
    for mode in (0o700, 0o755):
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "job"))
        with cluster.started(threads=1):
            assert stat.S_IMODE((tmp_path / "job").stat().st_mode) == mode
        (tmp_path / "job").chmod(0o755)
    # What another user could put there: a link, or a folder of his own.
    monkeypatch.delenv("RAY_TMPDIR")
    private.rmdir()
    foreign = tmp_path / "foreign"
    foreign.mkdir(mode=0o755)
    private.symlink_to(foreign)
    with pytest.raises(ClusterError, match="not a folder of yours. Name another with RAY_TMPDIR"):
        cluster.started(threads=1).__enter__()
    assert stat.S_IMODE(foreign.stat().st_mode) == 0o755
    other = os.getuid() + 1
    foreign.rename(tmp_path / f"raybio-{other}")
    monkeypatch.setattr(os, "getuid", lambda: other)
    with pytest.raises(ClusterError, match="not a folder of yours"):
        cluster.started(threads=1).__enter__()


def test_a_temporary_folder_that_is_named_is_made_or_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cluster, "MAX_TEMPORARY_PATH", 1000)
    monkeypatch.setattr(cluster, "_init_ray", lambda *_: None)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "scratch" / "job"))
    with cluster.started(threads=1):
        assert stat.S_IMODE((tmp_path / "scratch" / "job").stat().st_mode) == 0o700
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "ray"):
        monkeypatch.setenv("RAY_TMPDIR", str(path))
        with pytest.raises(ClusterError, match=f"RAY_TMPDIR: {path} is no folder"):
            cluster.started(threads=1).__enter__()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / ("x" * 300)))
    with pytest.raises(ClusterError, match="File name too long. Ray's temporary files go there"):
        cluster.started(threads=1).__enter__()


def test_checking_resources_needs_no_ray() -> None:
    code = (
        "import sys, raybio.runtime.cluster.connection as c; c.check_plan(1); assert 'ray' "
        "not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_local_cluster_that_starts_too_slowly_is_tried_for_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray

    from raybio.runtime.cluster import connection as cluster

    failures = iter(["The current node timed out during startup."] * 2)

    def init(**options: object) -> None:
        if message := next(failures, None):
            raise Exception(message)

    monkeypatch.setattr(ray, "init", init)
    cluster._init_ray({}, "")
    assert next(failures, None) is None
    # A cluster of other tests prints, too.
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Ray did")]
    assert said == [f"Ray did not start in time: try {number} of 6" for number in (2, 3)]
    failures = iter(["The current node timed out during startup."] * 6)
    with pytest.raises(ClusterError, match=r"too slow \(load \d+ on \d+ CPUs\): wait until"):
        cluster._init_ray({}, "")
    failures = iter(["No space left on device"])
    with pytest.raises(ClusterError, match="Check that the temporary folder is writable"):
        cluster._init_ray({}, "")


def test_a_cluster_that_cannot_be_reached_is_an_error_with_advice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray

    from raybio.runtime.cluster import connection as cluster

    def init(**options: object) -> None:
        raise ConnectionError("nobody there\nsecond line")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(
        ClusterError, match="cluster at 127.0.0.1:1: nobody there. Check RAY_ADDRESS"
    ):
        cluster._init_ray({}, "127.0.0.1:1")


def test_what_a_cycle_holds_is_let_go_before_ray_shuts_down(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    from raybio.runtime.cluster import connection as cluster

    class Held:
        """Stands for a reference to an object or an actor of Ray, in a cycle."""

    messages: list[str] = []
    monkeypatch.setattr(cluster, "_init_ray", lambda *_: None)
    monkeypatch.setattr(ray, "shutdown", lambda: messages.append("shut down"))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with cluster.started(threads=1):
        held = Held()
        held.itself = held  # type: ignore[attr-defined]
        weakref.finalize(held, messages.append, "let go")
        del held
    assert messages == ["let go", "shut down"]


def test_workers_start_with_the_environment_of_deterministic_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before CUDA starts."""
    name = "CUBLAS_WORKSPACE_CONFIG"
    monkeypatch.delenv(name, raising=False)
    assert cluster._worker_environment(threads=None)[name] == ":4096:8"
    monkeypatch.setenv(name, ":16:8")
    assert cluster._worker_environment(threads=None)[name] == ":16:8"


WAITS_FOR_RAY = """
import os, signal, sys, threading, time
import ray
from raybio.runtime.cluster.connection import started

def send():
    while not getattr(signal.getsignal(signal.SIGTERM), "__module__", "").startswith(HANDLED_BY):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=send, daemon=True).start()
try:
    with started(threads=1):
        ray.get(ray.remote(num_cpus=99)(lambda: 0).remote())
finally:
    default = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    print('left in order', ray.is_initialized(), default)
"""


@pytest.mark.first_tier("raybio.")
@pytest.mark.parametrize("handled_by", ["ray.", "raybio."])
def test_sigterm_ends_a_command_that_starts_ray_or_waits_for_it_by_an_exception(
    handled_by: str,
) -> None:
    code = WAITS_FOR_RAY.replace("HANDLED_BY", repr(handled_by))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert done.stdout.endswith("left in order False True\n")
    assert "SIGTERM: ended\n" in done.stderr


STARTS_RAY = """
import psutil
import ray
from raybio.runtime.cluster.connection import started

def is_worker(process):
    # The raylet's own arguments name the script, too.
    title = " ".join(process.cmdline())
    return title.startswith("ray::IDLE") or ("default_worker.py" in title and "raylet/raylet" not in title)

with started(threads=1):
    print(sum(map(is_worker, psutil.Process().children(recursive=True))))
    print(ray.get(ray.remote(lambda: 7).remote()))
"""


@pytest.mark.nightly
def test_a_start_of_ray_waits_for_no_worker_which_might_be_killed_before_it_is_there() -> None:
    done = subprocess.run([sys.executable, "-c", STARTS_RAY], capture_output=True, text=True)
    assert done.stdout == "0\n7\n", done.stderr


def test_sigterm_has_its_exit_code_where_nobody_reads_stderr(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_init_ray", lambda *_: None)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    reader, writer = os.pipe()
    os.close(reader)
    with contextlib.suppress(BrokenPipeError), os.fdopen(writer, "w", buffering=1) as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        with pytest.raises(SystemExit) as ended, cluster.started(threads=1):
            os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM


def test_rays_line_of_its_dashboard_has_no_colors(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_init_ray", lambda *_: None)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with cluster.started(threads=1, verbose=True):
        record = logging.LogRecord(
            "ray", logging.INFO, "", 1, "at %s%s%s", ("\x1b[1m", "http://[::1]", "\x1b[39m"), None
        )
        logging.getLogger("ray._private.worker").handle(record)
    assert record.getMessage() == "at http://[::1]"


def test_a_node_without_memory_is_explained_in_one_line_with_what_to_do() -> None:
    # As Ray 2.60 writes it, shortened.
    text = (
        "Caught unexpected exception: 3 worker(s) were killed due to the node running low on memory. "
        "Memory on the node (IP: 192.0.2.2, ID: 4d74) was 22.22GB used / 23.54GB limit (0.943822)\n"
        "OOM kill reason: Memory usage 24039874560B exceeded threshold of 24012257280B\n"
    )
    assert memory_reason(RuntimeError(text)) == (
        "a node had too little memory (22.22 of 23.54 GB in use), so Ray killed processes. Lower "
        "memory.max_tokens_per_micro_batch, or raise --cpus-per-worker: fewer run at a time"
    )
    assert memory_reason(RuntimeError("the node has no disk")) == ""
