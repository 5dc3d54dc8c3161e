"""Recorded stores, runs, exports, sweeps and indices are read, compared, continued and used by the present code."""

import re
import shutil
from pathlib import Path

import pytest

from raybio.core.errors import CheckpointError
from raybio.core.records import read_record
from raybio.methods import METHODS
from raybio.runtime.compare.compare import compare_runs
from raybio.runtime.compare.comparison_report import write_comparison
from raybio.runtime.compare.runs import given_runs
from raybio.runtime.tune.driver import sweep
from tests import golden_records
from tests.golden_records import GOLDEN

MAX_BYTES = 1_500_000


@pytest.mark.parametrize("method", METHODS)
def test_a_recorded_store_opens_and_is_whole(method: str) -> None:
    golden_records.check_store(method)


@pytest.mark.first_tier("sppt_protein", "contrastive_probe")
@pytest.mark.parametrize("method", METHODS)
def test_a_recorded_finished_run_is_finished_and_compares(method: str, tmp_path: Path) -> None:
    golden_records.check_finished(method)
    for name in ("first", "second"):
        shutil.copytree(GOLDEN / "finished" / method, tmp_path / name)
    found = compare_runs(given_runs(["first", "second"], tmp_path))
    assert found.rows["first"] == found.rows["second"] != {}
    assert (tmp_path / "report" / "report.json") in write_comparison(found, tmp_path / "report")


@pytest.mark.first_tier("sppt_protein", "contrastive_probe")
@pytest.mark.parametrize("method", METHODS)
def test_a_recorded_half_trained_run_is_trained_to_its_end(method: str, tmp_path: Path) -> None:
    store = golden_records.store_of(method)
    before = sorted(store.rglob("*"))
    golden_records.check_half(method, tmp_path)
    assert sorted(store.rglob("*")) == before


@pytest.mark.parametrize("method", METHODS)
def test_a_recorded_export_embeds_and_predicts_as_recorded(method: str) -> None:
    golden_records.check_export(method)


def test_a_recorded_sweep_is_resumed_and_none_of_its_trials_trains_again(
    empty_database: Path, tmp_path: Path
) -> None:
    shutil.copy(empty_database, tmp_path)
    golden_records.check_sweep(tmp_path)


def test_a_sweep_whose_trials_have_other_names_is_refused(tmp_path: Path) -> None:
    spec = golden_records.sweep_spec(tmp_path)
    shutil.copytree(GOLDEN / "sweep", spec.path)
    trial = next((spec.path / "trials").iterdir())
    trial.rename(trial.with_name("trial-0123456789"))
    with pytest.raises(CheckpointError, match=f"names this trial {trial.name}.*another --name"):
        sweep(spec)


def test_a_damaged_record_of_a_trial_is_restored_when_the_sweep_is_resumed(
    empty_database: Path, tmp_path: Path
) -> None:
    shutil.copy(empty_database, tmp_path)
    spec = golden_records.sweep_spec(tmp_path)
    shutil.copytree(GOLDEN / "sweep", spec.path)
    record = next(spec.path.glob("trials/*/trial.json"))
    trial = read_record(record, "trial")["trial"]
    record.write_bytes(record.read_bytes()[:50])
    assert len(sweep(spec).trials) == 2
    assert read_record(record, "trial") == {"trial": trial, "worker_seconds": 0.0}


def test_recorded_parts_of_an_embedding_are_joined(tmp_path: Path) -> None:
    golden_records.check_embedding(tmp_path)


def test_a_recorded_index_finds_the_neighbors_that_are_recorded() -> None:
    golden_records.check_index()


def test_recorded_files_are_small_and_name_neither_modules_nor_folders_of_a_machine() -> None:
    paths = [path for path in GOLDEN.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in paths) < MAX_BYTES
    for path in paths:
        assert not re.search(rb"raybio\.[a-z_]+|/(?:tmp|home|root)/", path.read_bytes()), path
