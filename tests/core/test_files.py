import errno
import fcntl
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from raybio.core import files
from raybio.core.errors import ConfigError
from raybio.core.files import (
    atomic_folder,
    check_model_sources,
    check_writable_file,
    check_writable_folder,
    delete_leftovers,
    disk_problem,
    locked,
    replace_text,
    try_lock,
)
from tests.runtime_fixtures import fill, set_read_only


def contents(folder: Path) -> dict[str, str]:
    """Return the text of every file below a folder, by relative path."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def write(out: Path, text: str) -> None:
    with atomic_folder(out) as folder:
        (folder / text).write_text(text)


def test_a_folder_is_written_atomically_and_replaces_an_older_one(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "deep" / "out") as folder:
        (folder / "first").write_text("first")
        assert not (tmp_path / "deep" / "out").exists()
    assert contents(tmp_path) == {"deep/out/first": "first"}
    write(tmp_path / "deep" / "out", "second")
    assert contents(tmp_path) == {"deep/out/second": "second"}


def test_after_an_error_the_older_folder_remains(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    with pytest.raises(KeyError), atomic_folder(tmp_path / "out") as folder:
        (folder / "new").write_text("half")
        raise KeyError
    assert contents(tmp_path) == {"out/old": "old"}


def test_weights_that_the_disk_refuses_are_an_error_of_the_disk(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    refused = pytest.raises(OSError, match="File too large")
    with refused as error, atomic_folder(tmp_path / "model") as folder:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            save_file({"weight": torch.zeros(1000)}, folder / "model.safetensors")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "Repair the storage" in str(disk_problem(error.value))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("error", [OSError("no room"), KeyboardInterrupt("no room")])
def test_if_the_new_folder_cannot_be_renamed_the_older_one_remains(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older folder was moved into the temporary folder, which is then removed."""
    write(tmp_path / "out", "old")
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    monkeypatch.setattr(files, "_exchange", lambda *_: False)  # as on some network disks
    with pytest.raises(type(error), match="no room"):
        write(tmp_path / "out", "new")
    assert contents(tmp_path) == {"out/old": "old"}


def test_the_target_of_a_link_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "real", "old")
    (tmp_path / "out").symlink_to("real")
    write(tmp_path / "out", "new")
    assert (tmp_path / "out").is_symlink()
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["new"]


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(FileExistsError, match="is a file; want a folder's path"):
        write(tmp_path / "out", "new")
    assert contents(tmp_path) == {"out": "mine"}


def test_a_path_that_cannot_be_written_is_refused_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    check_writable_folder(tmp_path)
    check_writable_folder(tmp_path / "deep" / "out")
    check_writable_file(tmp_path / "file")
    check_writable_file(tmp_path / "deep" / "out.tsv")
    for refuse, path, message in [
        (check_writable_folder, "file", "--out .*file: is a file; want a folder"),
        (check_writable_folder, "file/deep/out", "--out .*out: .*file is a file; want a folder"),
        (check_writable_file, ".", "--out .*: is a folder; want a file"),
        (check_writable_file, "pipe", "--out .*: is a device or a pipe; want a file"),
        (check_writable_file, "file/out.tsv", "--out .*out.tsv: .*file is a file; want a file"),
        (check_writable_folder, "link", "link: is a file; want a folder"),
        (check_writable_folder, "x" * 300, "cannot be written .*too long"),
    ]:
        with pytest.raises(ConfigError, match=message):
            refuse(tmp_path / path)
    if Path("/proc/self").is_dir():  # root may write there, says os.access
        with pytest.raises(ConfigError, match="--index /proc/new/x: /proc cannot be written"):
            check_writable_folder(Path("/proc/new/x"), "--index")
        with pytest.raises(ConfigError, match="--out /proc/new/x: /proc cannot be written"):
            check_writable_file(Path("/proc/new/x"))
    monkeypatch.setattr(
        "os.access", lambda *_: False
    )  # tests may run as root, who may write anywhere
    with pytest.raises(ConfigError, match="file: cannot be written; choose another file"):
        check_writable_file(tmp_path / "file")
    assert contents(tmp_path) == {"file": "mine"}


def test_a_run_folder_is_refused_as_a_model_and_its_export_is_named(tmp_path: Path) -> None:
    (tmp_path / "run" / "export").mkdir(parents=True)
    for name in ("run.json", "export/config.json"):
        (tmp_path / "run" / name).write_text("{}")
    check_model_sources([str(tmp_path / "run" / "export"), "author/model"])
    with pytest.raises(ConfigError, match="is a run's folder; want its model, .*run/export"):
        check_model_sources([str(tmp_path / "run")])


KILLED = """
import os, sys
from pathlib import Path
from raybio.core.files import atomic_folder
rename = Path.rename
def killed(self, target):
    if self.name == "new":
        os._exit(9)
    return rename(self, target)
Path.rename = killed
with atomic_folder(Path(sys.argv[1])) as folder:
    (folder / "new").write_text("new")
"""


def test_a_process_killed_while_it_replaces_a_folder_leaves_the_old_one_or_the_new_one(
    tmp_path: Path,
) -> None:
    """It was killed between two renames: the path had neither."""
    write(tmp_path / "out", "old")
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "out")], check=False)
    assert [path.name for path in (tmp_path / "out").iterdir()] in (["old"], ["new"])


def test_what_killed_commands_left_next_to_an_output_is_deleted(tmp_path: Path) -> None:
    kept = [".out.123.txt", ".out.parquet.123", ".other.123", "out"]
    for name in [".out.123", *kept]:
        (tmp_path / name).write_text("rows")
    (tmp_path / ".out.abcd_123" / "new").mkdir(parents=True)
    (tmp_path / ".out.settings").mkdir()
    (tmp_path / ".out.settings" / "mine.toml").write_text("mine")
    (tmp_path / ".out.an_empty").mkdir()
    kept += [".out.settings", ".out.an_empty"]
    delete_leftovers(tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_leftovers_of_an_output_that_is_a_link_are_next_to_its_target(tmp_path: Path) -> None:
    (tmp_path / "disk" / ".real.abcd_123" / "new").mkdir(parents=True)
    (tmp_path / "disk" / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk" / "real")
    delete_leftovers(tmp_path / "out")
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["real"]


def test_an_old_folder_whose_replacement_did_not_come_goes_back(tmp_path: Path) -> None:
    """Where the file system cannot exchange two names, a kill leaves it only there."""
    write(tmp_path / ".out.abcd_123" / "old", "old")
    delete_leftovers(tmp_path / "out")
    assert contents(tmp_path) == {"out/old": "old"}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Flushes and renames in their order, with the file's name."""
    seen: list[str] = []
    fsync = os.fsync
    replace = os.replace
    exchange = files._exchange

    def noted_fsync(descriptor: int) -> None:
        seen.append("fsync " + Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def noted_replace(source: Path, target: Path) -> None:
        seen.append(f"rename {target.name}")
        replace(source, target)

    def noted_exchange(first: Path, second: Path) -> bool:
        seen.append(f"rename {second.name}")
        return exchange(first, second)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    monkeypatch.setattr(files, "_exchange", noted_exchange)
    return seen


def test_contents_are_on_the_disk_before_their_names_and_names_before_the_call_returns(
    tmp_path: Path, calls: list[str]
) -> None:
    replace_text(tmp_path / "a.json", "{}")
    assert calls == [f"fsync .a.json.{os.getpid()}", "rename a.json", f"fsync {tmp_path.name}"]
    (tmp_path / "out").mkdir()
    calls.clear()
    write(tmp_path / "out", "file")
    assert calls == ["fsync file", "fsync new", "rename out", f"fsync {tmp_path.name}"]


def test_a_full_disk_is_named_with_its_bytes_and_keeps_the_old_file(small_disk: Path) -> None:
    path = small_disk / "run.json"
    replace_text(path, "old")
    fill(small_disk)
    with pytest.raises(OSError, match="No space left") as caught:
        replace_text(path, "new" * 10_000)
    problem = disk_problem(caught.value)
    assert problem == (
        f"{path}: No space left on device, writing 30,000 bytes; 0 bytes are free there. Make "
        "room, then give the same command again"
    )
    assert path.read_text() == "old"
    assert sorted(one.name for one in small_disk.iterdir()) == ["filler", "run.json"]


def test_a_read_only_disk_is_named_and_keeps_the_old_file(small_disk: Path) -> None:
    path = small_disk / "run.json"
    replace_text(path, "old")
    set_read_only(small_disk, is_read_only=True)
    with pytest.raises(OSError, match="Read-only file system") as caught:
        replace_text(path, "new")
    problem = str(disk_problem(caught.value))
    assert problem.startswith(f"{path}: Read-only file system, writing 3 bytes; ")
    assert problem.endswith(
        "Repair the storage or its permissions, then give the same command again"
    )
    assert path.read_text() == "old"
    set_read_only(small_disk, is_read_only=False)
    replace_text(path, "new")
    assert path.read_text() == "new"


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_disk_without_file_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_locks(file: object, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    path = tmp_path / "lock"
    expected = (
        f"{path}: {os.strerror(number)}, its disk has no file locks (flock). Mount the disk with "
        "locks, or choose a folder on another disk"
    )
    with pytest.raises(OSError, match="no file locks") as caught, locked(path):
        pass
    assert disk_problem(caught.value) == expected
    with pytest.raises(OSError, match="no file locks") as caught, path.open("a") as file:
        try_lock(file)
    assert disk_problem(caught.value) == expected


def test_only_errors_of_a_disk_are_explained_as_such() -> None:
    refused = PermissionError(errno.EACCES, "Permission denied", "/data/x")
    assert str(disk_problem(refused)).startswith("/data/x: Permission denied; ")
    gone = OSError(errno.ENOTCONN, "Transport endpoint is not connected", "/net/x")
    assert str(disk_problem(gone)).startswith("/net/x: Transport endpoint is not connected; ")
    assert disk_problem(OSError(errno.ETIMEDOUT, "timed out")) is None  # of a socket
    assert disk_problem(OSError(errno.EOPNOTSUPP, "Operation not supported", "/data/x")) is None
    assert disk_problem(FileNotFoundError(errno.ENOENT, "No such file", "/data/x")) is None
    assert disk_problem(ConnectionRefusedError(errno.ECONNREFUSED, "refused")) is None
    assert disk_problem(PermissionError(errno.EACCES, "Permission denied")) is None
