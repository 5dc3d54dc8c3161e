"""Checkpoints: full and broken storage, kills at every system call."""

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from raybio.core.errors import CheckpointError
from raybio.training.checkpoint import CheckpointStore
from tests.paths import ROOT
from tests.runtime_fixtures import set_read_only
from tests.training.small_checkpoints import names, new_state, open_store, save_steps


def fail_writes(monkeypatch: pytest.MonkeyPatch, code: int, times: int) -> list[int]:
    """Let ``os.write`` fail ``times`` times within a file; return the list of requested sizes."""
    original, sizes = os.write, []

    def write(descriptor: int, data: memoryview) -> int:
        sizes.append(len(data))
        if len(sizes) % 2 == 0 and len(sizes) <= 2 * times:
            raise OSError(code, os.strerror(code))
        return original(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    return sizes


def test_a_full_disk_is_an_error_with_path_and_bytes_and_the_old_checkpoint_stays(
    tmp_path: Path, monkeypatch
) -> None:
    save_steps(tmp_path, 1, keep=1)
    store = open_store(tmp_path, keep=1, retry_delays_seconds=(0.01, 0.01))
    with monkeypatch.context() as patch:
        fail_writes(patch, errno.ENOSPC, times=100)
        store.save(new_state(), 2)
        with pytest.raises(CheckpointError) as failure:
            store.save(new_state(), 3)
    message = str(failure.value)
    assert (
        "No space left on device after" in message
        and "model.safetensors" in message
        and "3 tries" in message
    )
    assert "bytes are free there" in message and "step-00000001" in message
    assert names(tmp_path) == ["step-00000001"]
    assert CheckpointStore(tmp_path).latest().step == 1
    store.save(new_state(), 4)  # room again: the same store goes on
    store.close()
    assert names(tmp_path) == ["step-00000004"]


def test_storage_that_comes_back_is_retried_and_only_warned_about(
    tmp_path: Path, monkeypatch, caplog
) -> None:
    store = open_store(tmp_path, retry_delays_seconds=(0.01, 0.01))
    fail_writes(monkeypatch, errno.EIO, times=2)
    with caplog.at_level(logging.WARNING):
        store.save(new_state(), 1)
        store.close()
    assert caplog.text.count("again in 0.01 s") == 2
    assert CheckpointStore(tmp_path).latest().step == 1


FILE_SIZE_LIMIT_SCRIPT = """
import resource, sys
from pathlib import Path
from raybio.core.errors import CheckpointError
from tests.training.small_checkpoints import new_state, open_store, save_steps
folder = Path(sys.argv[1])
save_steps(folder, 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
store = open_store(folder)
store.save(new_state(), 2)
try:
    store.wait()
except CheckpointError as error:
    print(error)
"""


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=1500,
        check=False,
    )


@pytest.mark.nightly
def test_a_real_limit_on_file_size_names_the_file_and_how_far_it_came(tmp_path: Path) -> None:
    process = run_python("-c", FILE_SIZE_LIMIT_SCRIPT, str(tmp_path))
    assert "model.safetensors" in process.stdout, process.stderr
    assert "File too large after 300 of " in process.stdout
    assert names(tmp_path) == ["step-00000001"]
    assert CheckpointStore(tmp_path).latest().step == 1


def test_storage_that_cannot_be_written_is_refused_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file" / "checkpoints", Path("/proc/raybio/checkpoints")):
        with pytest.raises(CheckpointError, match="checkpoints cannot be written there"):
            CheckpointStore(folder).check_writable()
    CheckpointStore(tmp_path / "new" / "checkpoints").check_writable()
    assert names(tmp_path / "new" / "checkpoints") == []


@pytest.mark.parametrize("stage", ["writing", "removing"])
def test_what_a_killed_check_has_left_does_not_refuse_a_process_of_the_same_number(
    tmp_path: Path, stage: str
) -> None:
    left = tmp_path / f".{stage}-probe-{os.getpid()}"
    left.mkdir()
    (left / "state.json").touch()
    CheckpointStore(tmp_path).check_writable()
    assert names(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into read-only folders")
def test_a_read_only_folder_is_refused_before_the_first_step(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(CheckpointError, match="Permission denied"):
        CheckpointStore(tmp_path).check_writable()


def test_a_disk_that_becomes_read_only_stops_the_run_and_the_old_checkpoint_loads(
    small_disk: Path,
) -> None:
    folder = small_disk / "checkpoints"
    store = open_store(folder, retry_delays_seconds=(0.01,))
    store.save(new_state(), 1)
    store.wait()
    set_read_only(small_disk, is_read_only=True)
    store.save(new_state(), 2)
    with pytest.raises(CheckpointError, match="step 2 was not written, after 2 tries.*Read-only"):
        store.save(new_state(), 3)
    with pytest.raises(CheckpointError, match="cannot be written there.*Read-only"):
        CheckpointStore(folder).check_writable()
    assert CheckpointStore(folder).latest().step == 1
    set_read_only(small_disk, is_read_only=False)
    store.save(new_state(), 4)
    store.close()
    assert CheckpointStore(folder).latest().step == 4


def test_storage_that_goes_away_midway_stops_the_run_at_the_next_save(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    store = open_store(folder, retry_delays_seconds=(0.01,))
    store.save(new_state(), 1)
    store.wait()
    shutil.move(folder, tmp_path / "away")
    folder.write_text("in the way")
    store.save(new_state(), 2)
    with pytest.raises(CheckpointError, match="step 2 was not written, after 2 tries"):
        store.save(new_state(), 3)
    assert CheckpointStore(tmp_path / "away").latest().step == 1
    with pytest.raises(CheckpointError, match="cannot be looked for"):
        CheckpointStore(folder).latest()


@pytest.mark.parametrize(
    ("every", "at_random"), [(4, 8), pytest.param(1, 30, marks=pytest.mark.nightly)]
)
def test_a_save_killed_at_any_system_call_leaves_a_checkpoint_that_loads(
    every: int, at_random: int
) -> None:
    # Hundreds of saves: in memory where that exists, since what a kill leaves behind does not
    # depend on the disk.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        process = run_python(
            str(Path(__file__).with_name("kill_points.py")), folder, f"{every}", f"{at_random}"
        )
    assert process.returncode == 0, process.stderr[-3000:]
    kills = [json.loads(line) for line in process.stdout.splitlines()]
    at_calls = [kill for kill in kills if "after" in kill]
    calls = {"open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir"}
    called = {kill["call"] for kill in at_calls}
    assert called == calls if every == 1 else called < calls
    assert {(kill["after"], kill["step"]) for kill in at_calls} == {
        (False, 1),
        (False, 2),
        (True, 1),
        (True, 2),
    }
    assert len(kills) - len(at_calls) == at_random


def test_a_file_that_a_full_disk_cuts_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; "
        "from raybio.core.files import replace_bytes; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY)); "
        "replace_bytes(Path(sys.argv[1]) / 'part', bytes(1000))"
    )
    ended = run_python("-c", code, str(tmp_path))
    assert "File too large, writing 1,000 bytes" in ended.stderr
    assert list(tmp_path.iterdir()) == []
