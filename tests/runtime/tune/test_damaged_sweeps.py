"""Records of a sweep and its trials, cut short, zeroed or missing: written again, or refused; never
another result.
"""

from dataclasses import asdict
from pathlib import Path

import pytest

from raybio.core.errors import RecordError
from raybio.core.records import read_record, write_record
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.notices import report_start, warnings_to
from raybio.runtime.tracking.tracker import Tracker
from raybio.runtime.tune.callback import TrialCallback
from raybio.runtime.tune.driver import _forget_cluster_failures, _restore_records
from raybio.runtime.tune.leaderboard import leaderboard, records
from raybio.runtime.tune.trial import (
    ENDED,
    FAILED,
    FINISHED,
    INTERRUPTED,
    TRIAL_RECORD,
    TRIALS,
    SweepSpec,
    earlier_trials,
    status_of,
)
from tests.runtime.run.test_damaged_records import DAMAGES, zero
from tests.runtime.tune.sweep_folder import leave, of, spec_of
from tests.runtime.tune.test_sweep_driver import begin, callback_of

GOOD, BAD, LATE = of(0.0), of(0.5), of(0.1)


@pytest.fixture
def spec(tmp_path: Path) -> SweepSpec:
    """Two trials that ended and one that failed for want of memory."""
    spec = spec_of(tmp_path)
    folder = sweep_folder(spec)
    open_again(folder, spec)
    folder.record_precision("fp32")
    leave(spec, GOOD, {10: 0.7})
    leave(spec, BAD, {10: 0.2})
    failed = leave(spec, LATE, {}, FAILED)
    write_record(failed.failure, "failure", {"kind": "ClusterError", "message": "no memory"})
    trials = [asdict(trial) for trial in (GOOD, BAD, LATE)]
    write_record(spec.path / TRIALS, "trials", {"trials": trials})
    return spec


def sweep_folder(spec: SweepSpec) -> RunFolder:
    return RunFolder(spec.path.parent, spec.path.name)


def open_again(folder: RunFolder, spec: SweepSpec) -> bool:
    return folder.open(spec.space.method, spec.run.config, Path("store"), "d" * 64, ())


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_trial_json_is_written_again_from_the_list_of_trials(
    spec: SweepSpec, damage: str
) -> None:
    before = leaderboard(spec, records(spec))[0].settings
    DAMAGES[damage](spec.folder(GOOD).path / TRIAL_RECORD)
    _restore_records(sweep_folder(spec), spec)
    assert read_record(spec.folder(GOOD).path / TRIAL_RECORD, "trial") == {
        "trial": asdict(GOOD),
        "worker_seconds": 0.0,
    }
    assert leaderboard(spec, records(spec))[0].settings == before


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_trial_that_nothing_describes_any_more_is_refused(spec: SweepSpec, damage: str) -> None:
    (spec.path / TRIALS).unlink()
    DAMAGES[damage](spec.folder(GOOD).path / TRIAL_RECORD)
    with pytest.raises(RecordError, match=r"trial\.json: (damaged|missing)"):
        _restore_records(sweep_folder(spec), spec)


def test_a_trial_of_which_only_its_end_is_left_has_nothing_to_send(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    folder = sweep_folder(spec)
    open_again(folder, spec)
    ended = spec.folder(LATE)
    ended.make()
    write_record(ended.path / ENDED, "trial end", {"status": FAILED})
    _restore_records(folder, spec)
    callback: TrialCallback = callback_of(spec)
    callback.catch_up()
    assert callback._ended == []
    assert records(spec) == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_trial_with_a_damaged_end_is_not_taken_for_ended(spec: SweepSpec, damage: str) -> None:
    DAMAGES[damage](spec.folder(GOOD).path / ENDED)
    _restore_records(sweep_folder(spec), spec)
    assert status_of(spec.folder(GOOD)) == INTERRUPTED
    assert status_of(spec.folder(BAD)) == FINISHED


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_trial_with_a_damaged_failure_is_tried_again(spec: SweepSpec, damage: str) -> None:
    folder = spec.folder(LATE)
    DAMAGES[damage](folder.failure)
    _restore_records(sweep_folder(spec), spec)
    _forget_cluster_failures(sweep_folder(spec), spec)
    assert not folder.failure.exists()
    assert status_of(folder) == (FAILED if damage == "missing" else INTERRUPTED)


@pytest.mark.parametrize("kind", ["CheckpointError", "ClusterError", "DiskError"])
def test_a_trial_for_which_the_disk_had_no_room_is_tried_again(spec: SweepSpec, kind: str) -> None:
    # A checkpoint that finds no room is a CheckpointError.
    folder = spec.folder(LATE)
    write_record(folder.failure, "failure", {"kind": kind, "message": "Make room"})
    _forget_cluster_failures(sweep_folder(spec), spec)
    assert status_of(folder) == INTERRUPTED
    write_record(folder.failure, "failure", {"kind": "DivergedError", "message": "loss nan"})
    _forget_cluster_failures(sweep_folder(spec), spec)
    assert folder.failure.exists()


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name != "missing"])
def test_a_damaged_list_of_trials_is_refused(spec: SweepSpec, damage: str) -> None:
    DAMAGES[damage](spec.path / TRIALS)
    with pytest.raises(RecordError, match=rf"{TRIALS}: damaged, not JSON .*Restore it"):
        _restore_records(sweep_folder(spec), spec)


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name != "missing"])
def test_a_sweep_whose_precision_is_lost_with_its_run_json_is_refused(
    spec: SweepSpec, damage: str
) -> None:
    folder = sweep_folder(spec)
    assert open_again(folder, spec)
    assert folder.precision == "fp32"
    DAMAGES[damage](folder.identity)
    with pytest.raises(RecordError, match=r"run\.json: damaged, not JSON"):
        open_again(folder, spec)


def test_a_trial_finds_its_mlflow_run_again_without_its_tracking_json(spec: SweepSpec) -> None:
    folder = sweep_folder(spec)
    write_record(folder.identity, "run", {"key": "k" * 32})
    parent = Tracker(folder, "http://127.0.0.1:9", "sppt_protein", {}, "d" * 64)
    trial = spec.folder(GOOD)

    def key() -> str:
        return Tracker(trial, parent.uri, "sppt_protein", {}, "d" * 64, parent=parent).key

    first = key()
    write_record(trial.tracking, "tracking", {"uri": parent.uri, "key": first})
    zero(trial.tracking)
    assert key() == first
    assert (
        first
        != Tracker(spec.folder(BAD), parent.uri, "sppt_protein", {}, "d" * 64, parent=parent).key
    )


def test_the_driver_prints_a_warning_of_trials_once(
    spec: SweepSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    import logging

    callback: TrialCallback = callback_of(spec)
    begin(callback, GOOD, BAD)
    for trial in (GOOD, BAD):
        with warnings_to(spec.folder(trial).notices):
            logging.getLogger("raybio.training").warning("bf16 is slow here")
        report_start(spec.folder(trial).notices, 5, 4.0)
    for trial in (GOOD, BAD):
        callback._show_warnings(trial)
    shown = capsys.readouterr().out
    assert shown.count("| warning: bf16 is slow here") == 1
    assert earlier_trials(spec)[:2] == [GOOD, BAD]
