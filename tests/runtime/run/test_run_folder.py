import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from raybio.core.config import override
from raybio.core.errors import CheckpointError, ClusterError, ConfigError, RecordError, StoreError
from raybio.core.final_report import nan_for_null
from raybio.core.records import read_recomputable, read_record, write_record
from raybio.runtime.compare.curves import method_of_runs
from raybio.runtime.model_folders import model_of_run
from raybio.runtime.model_paths import model_folder
from raybio.runtime.run.folder import RunFolder, name_beginning, record_failure
from raybio.runtime.run.metrics_log import MetricsLog
from raybio.runtime.run.worker_group import explained
from raybio.training.settings import TrainingConfig
from tests.paths import ROOT

CONFIG = TrainingConfig()


def open_folder(
    folder: RunFolder,
    config: TrainingConfig = CONFIG,
    digest: str = "d",
    free: tuple[str, ...] = (),
) -> bool:
    return folder.open("sppt", config, Path("/store"), digest, free)


@pytest.mark.parametrize(
    "name", ["", "..", "a/b", ".hidden", "a#b", "a\0b", "a b", "x" * 101, "a..b", "-x"]
)
def test_a_name_that_could_leave_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="--name"):
        RunFolder(tmp_path, name)


def test_a_name_is_refused_by_the_option_that_gave_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^--run: got 'runs/first'"):
        model_of_run(tmp_path, "runs/first")
    with pytest.raises(ConfigError, match="^--run: got 'runs/first'"):
        method_of_runs(tmp_path, ["runs/first"])


@pytest.mark.parametrize(
    ("text", "name"), [("my space", "my-space"), ("..a..b", "a.b"), ("space.v2", "space.v2")]
)
def test_any_text_has_a_form_that_begins_a_name(text: str, name: str, tmp_path: Path) -> None:
    assert name_beginning(text) == name
    for each in (text, "-", "x" * 300, "\0/"):
        RunFolder(tmp_path, f"{name_beginning(each)}-9455e3")


def test_the_same_settings_continue_a_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "first")
    assert not open_folder(folder)
    assert open_folder(folder)


def test_changed_settings_and_data_are_refused_with_the_difference(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "first")
    open_folder(folder)
    folder.export.mkdir()
    changed = override(CONFIG, "optim.peak_lr", 0.2)
    with pytest.raises(CheckpointError, match=r"other settings: optim.peak_lr: 0.0003 -> 0.2"):
        open_folder(folder, changed)
    with pytest.raises(CheckpointError, match=r"data_digest: 'd' -> 'e'"):
        open_folder(folder, digest="e")


def test_a_free_setting_may_change(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "first")
    open_folder(folder)
    longer = override(CONFIG, "schedule.max_steps", 9)
    assert open_folder(folder, longer, free=("schedule.max_steps",))
    assert read_record(folder.identity, "run")["config"] == longer.to_mapping()


def test_a_run_older_than_a_setting_resumes_with_its_default_and_no_other_value(
    tmp_path: Path,
) -> None:
    folder = RunFolder(tmp_path, "first")
    open_folder(folder)
    folder.export.mkdir()
    identity = read_record(folder.identity, "run")
    del identity["config"]["optim"]["scalar_lr"]
    write_record(folder.identity, "run", identity)
    with pytest.raises(CheckpointError, match=r"optim.scalar_lr: 0.001 -> 0.5"):
        open_folder(folder, override(CONFIG, "optim.scalar_lr", 0.5))
    assert open_folder(folder)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(ClusterError, match="runs/first.*--runs"):
        open_folder(RunFolder(tmp_path / "runs", "first"))


def test_a_folder_can_be_locked_before_there_is_a_run_in_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs", "first")
    folder.make()
    with folder.lock("driver", 1):
        assert not folder.identity.exists()
        assert not open_folder(folder)


def test_the_lock_of_a_killed_process_is_free_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "first")
    open_folder(folder)
    code = (
        f"from raybio.runtime.run.folder import RunFolder; import sys\n"
        f"with RunFolder({str(tmp_path)!r}, 'first').lock('driver', 1):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    root = ROOT
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with (
            pytest.raises(ClusterError, match="another process is at work"),
            folder.lock("driver", 0.3),
        ):
            pass
        other.kill()
        other.wait()
    with folder.lock("driver", 0):
        pass


def test_a_torn_json_file_is_an_error_unless_it_is_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_record(tmp_path / "a.json", "failure", {"step": 1})
    assert read_record(tmp_path / "a.json", "failure") == {"step": 1}
    (tmp_path / "a.json").write_text('{"step"')
    with pytest.raises(RecordError, match=r"a\.json: damaged, not JSON"):
        read_record(tmp_path / "a.json", "failure")
    assert read_recomputable(tmp_path / "a.json", "failure") is None
    assert "a.json: damaged" in caplog.text
    assert read_record(tmp_path / "b.json", "failure") is None


def test_a_start_that_came_to_no_checkpoint_is_replaced_by_other_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path, "first")
    open_folder(folder)
    key = read_record(folder.identity, "run")["key"]
    MetricsLog(folder.metrics).append(3, {"loss": 1.0})
    write_record(folder.result, "result", {"status": "failed", "step": 3})
    write_record(folder.tracking, "tracking", {"uri": "sqlite:///a.db", "run_id": "a", "key": key})
    changed = override(CONFIG, "optim.peak_lr", 0.2)
    assert not open_folder(folder, changed)
    assert (
        "first: replaces a start that ended at step 3 without a checkpoint"
        in capsys.readouterr().out
    )
    assert sorted(path.name for path in folder.path.iterdir()) == ["config.yaml", "run.json"]
    identity = read_record(folder.identity, "run")
    assert identity["config"] == changed.to_mapping()
    assert identity["key"] != key


@pytest.mark.parametrize("num_deleted", range(6))
def test_a_start_killed_while_it_replaces_another_leaves_the_next_one_no_tracked_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_deleted: int
) -> None:
    folder = RunFolder(tmp_path, "first")
    open_folder(folder)
    key = read_record(folder.identity, "run")["key"]
    write_record(folder.result, "result", {"status": "failed", "step": 3})
    write_record(folder.tracking, "tracking", {"uri": "sqlite:///a.db", "run_id": "a", "key": key})
    changed = override(CONFIG, "optim.peak_lr", 0.2)
    unlink = Path.unlink
    deleted: list[Path] = []

    def unlink_or_die(path: Path, missing_ok: bool = False) -> None:
        if len(deleted) == num_deleted:
            raise KeyboardInterrupt
        deleted.append(path)
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink_or_die)
        with pytest.raises(KeyboardInterrupt):
            open_folder(folder, changed)
    assert not open_folder(folder, changed)
    assert not folder.tracking.exists()
    identity = read_record(folder.identity, "run")
    assert identity["config"] == changed.to_mapping()
    assert identity["key"] != key


def test_a_failed_start_resumes_with_the_same_settings(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "first")
    open_folder(folder)
    key = read_record(folder.identity, "run")["key"]
    MetricsLog(folder.metrics).append(3, {"loss": 1.0})
    assert open_folder(folder)
    assert folder.metrics.exists()
    assert read_record(folder.identity, "run")["key"] == key


@pytest.mark.parametrize(
    "kept",
    [
        "checkpoints/step-00000001",
        "export",
        "trials",
        "finished",
        "damaged result",
        "damaged outcome",
    ],
)
def test_a_run_with_anything_to_keep_is_not_replaced(tmp_path: Path, kept: str) -> None:
    folder = RunFolder(tmp_path, "first")
    open_folder(folder)
    if kept == "finished":
        write_record(folder.result, "result", {"status": "finished", "step": 3})
    elif kept.startswith("damaged"):
        (folder.path / f"{kept.split()[1]}.json").write_text("{")
    else:
        (folder.path / kept).mkdir(parents=True)
    with pytest.raises(CheckpointError, match="other settings: optim.peak_lr: 0.0003 -> 0.2"):
        open_folder(folder, override(CONFIG, "optim.peak_lr", 0.2))


def test_a_damaged_run_json_of_a_run_without_a_checkpoint_begins_anew_or_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path, "first")
    open_folder(folder)
    folder.identity.write_text('{"method"')
    assert not open_folder(folder)
    assert "replaces a start" in capsys.readouterr().out
    folder.export.mkdir()
    folder.identity.write_text('{"method"')
    with pytest.raises(RecordError, match=r"run\.json: damaged"):
        open_folder(folder)


@pytest.mark.parametrize("kept", ["export", "trials", "finished"])
def test_a_missing_run_json_does_not_let_another_run_take_over_results(
    tmp_path: Path, kept: str
) -> None:
    folder = RunFolder(tmp_path, "first")
    open_folder(folder)
    if kept == "finished":
        write_record(folder.result, "result", {"status": "finished", "step": 3})
    else:
        (folder.path / kept).mkdir()
    folder.identity.unlink()
    for config in (CONFIG, override(CONFIG, "optim.peak_lr", 0.2)):
        with pytest.raises(
            RecordError, match=r"run\.json: missing, although the folder holds results"
        ):
            open_folder(folder, config)
    assert not folder.identity.exists()


def test_a_start_with_a_torn_log_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path, "first")
    open_folder(folder)
    folder.metrics.write_bytes(bytes(64) + b"\n")
    assert not open_folder(folder, override(CONFIG, "optim.peak_lr", 0.2))
    assert "first: replaces a start that ended without a checkpoint" in capsys.readouterr().out


def test_checkpoints_that_cannot_be_read_are_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path, "first")
    open_folder(folder)
    (folder.checkpoints / "step-00000001").mkdir(parents=True)
    listdir = os.listdir

    def denied(path: Path) -> list[str]:
        # root, as whom tests may run, is denied nothing
        if Path(path) == folder.checkpoints:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", denied)
    with pytest.raises(ClusterError, match="checkpoints: cannot be read"):
        open_folder(folder, override(CONFIG, "optim.peak_lr", 0.2))
    assert folder.identity.exists()


def test_an_undefined_number_is_null_for_every_reader_of_json_and_nan_for_ours(
    tmp_path: Path,
) -> None:
    scores = {
        "test": {
            "spearman": {"value": math.nan},
            "mse": {"value": 0.5, "low": np.float64(0.4), "high": math.inf},
        }
    }
    write_record(tmp_path / "a.json", "failure", {"scores": scores})

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    read = json.loads((tmp_path / "a.json").read_text(), parse_constant=refuse)
    assert read["scores"]["test"]["spearman"] == {"value": None}
    found = nan_for_null(read["scores"])["test"]
    assert math.isnan(found["spearman"]["value"])
    assert found["mse"]["low"] == 0.4


def test_other_weights_of_the_encoder_are_refused_once_there_is_a_checkpoint(
    tmp_path: Path,
) -> None:
    folder = RunFolder(tmp_path, "first")
    open_folder(folder)
    assert folder.encoder is None
    began = {"source": "enc", "revision": "main", "weights": "model.safetensors", "sha256": "a"}
    folder.record_encoder(began)
    now = began | {"sha256": "b"}
    folder.record_encoder(now)  # nothing stands on the old ones
    (folder.checkpoints / "step-00000001").mkdir(parents=True)
    with pytest.raises(
        CheckpointError, match=r"other weights in encoder\.source 'enc': .*sha256 b"
    ):
        folder.record_encoder(began)
    open_folder(folder)
    folder.record_encoder(None)  # random weights leave the record alone
    assert folder.encoder == now


def test_the_name_of_a_run_is_not_taken_for_a_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAYBIO_RUNS", raising=False)
    assert model_folder("first", "--init") == "first"
    open_folder(RunFolder(tmp_path / "runs", "first"))
    with pytest.raises(ConfigError, match="^--init first: .* of that name give runs/first$"):
        model_folder("first", "--init")
    monkeypatch.setenv("RAYBIO_RUNS", str(tmp_path / "elsewhere"))
    assert model_folder("first", "--init") == "first"


def test_a_failure_is_raised_again_as_the_nearest_common_error(tmp_path: Path) -> None:
    class OwnError(StoreError):
        """A class that a package keeps for itself."""

    folder = RunFolder(tmp_path, "first")
    folder.make()
    record_failure(folder, OwnError("part 3 is damaged"))
    error = explained(folder, None)
    assert type(error) is StoreError
    assert str(error) == "part 3 is damaged"
