"""Recorded files of each version are read, compared, continued, evaluated and used by the present code."""

import json
import re
import shutil
from pathlib import Path

import pytest

from raybio.core.errors import CheckpointError
from raybio.core.records import FORMATS, read_record
from raybio.runtime.compare.compare import compare_runs
from raybio.runtime.compare.comparison_report import write_comparison
from raybio.runtime.compare.runs import given_runs
from raybio.runtime.tune.driver import sweep
from tests import golden_records
from tests.golden_records import FOLDERS, PRESENT

MAX_BYTES = 1_500_000
"""Size of the folder of a version."""

RECOMPUTED = {
    "embedding part",
    "mirror",
    "shared scores",
    "verified files",
    "token cache",
    "word features",
    "benchmark embeddings",
}
"""Kinds of records whose content is computed again when another version wrote them."""

NEVER_READ = {
    "comparison",
    "score table",
    "cross-validation",
    "synthetic graphs",
    "report",
    "benchmark report",
}
"""Kinds of records for the user and other programs."""

every_version = pytest.mark.parametrize("golden", FOLDERS, ids=lambda golden: golden.name)

every_method = pytest.mark.parametrize(
    ("golden", "method"),
    [
        pytest.param(golden, method, id=f"{golden.name}-{method}")
        for golden in FOLDERS
        for method in golden_records.recorded_methods(golden)
    ],
)


def test_the_present_version_has_a_folder() -> None:
    assert PRESENT in FOLDERS


@every_version
def test_the_formats_of_a_version_are_those_of_today_or_have_steps_to_them(golden: Path) -> None:
    recorded = json.loads((golden / "formats.json").read_text())
    present = golden_records.formats()
    assert unreadable(recorded["records"]) == {}
    # There are no steps for these: a reader of both has to be written, or the store prepared again.
    assert [recorded[name] for name in ("store", "checkpoint")] == [
        present[name] for name in ("store", "checkpoint")
    ]


def unreadable(version_by_kind: dict[str, int]) -> dict[str, int]:
    """Return the kinds of records, with their versions, that the present code cannot read."""
    return {
        kind: version
        for kind, version in version_by_kind.items()
        if kind not in RECOMPUTED | NEVER_READ
        and (
            kind not in FORMATS
            or version > FORMATS[kind].version
            or not set(range(version, FORMATS[kind].version)) <= FORMATS[kind].steps.keys()
        )
    }


def test_a_format_with_a_new_version_needs_steps_from_the_released_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert FORMATS.keys() >= RECOMPUTED | NEVER_READ
    recorded = {"run": 1, "word features": 1, "result": 1}
    for kind in recorded:
        monkeypatch.setitem(FORMATS, kind, FORMATS[kind]._replace(version=3))
    assert unreadable(recorded) == {"run": 1, "result": 1}
    for kind, numbers in (("run", (1, 2)), ("result", (2,))):
        steps = {number: dict for number in numbers}
        monkeypatch.setitem(FORMATS, kind, FORMATS[kind]._replace(steps=steps))
    assert unreadable(recorded) == {"result": 1}


@every_method
def test_a_recorded_store_opens_and_is_whole(golden: Path, method: str) -> None:
    golden_records.check_store(method, golden)


@pytest.mark.first_tier("sppt_protein", "contrastive_probe")
@every_method
def test_a_recorded_finished_run_is_finished_and_compares(
    golden: Path, method: str, tmp_path: Path
) -> None:
    golden_records.check_finished(method, golden)
    for name in ("first", "second"):
        shutil.copytree(golden / "finished" / method, tmp_path / name)
    found = compare_runs(given_runs(["first", "second"], tmp_path))
    assert found.rows["first"] == found.rows["second"] != {}
    assert (tmp_path / "report" / "report.json") in write_comparison(found, tmp_path / "report")


@pytest.mark.first_tier("sppt_protein", "contrastive_probe")
@every_method
def test_a_recorded_half_trained_run_is_trained_to_its_end(
    golden: Path, method: str, tmp_path: Path
) -> None:
    store = golden_records.store_of(method, golden)
    before = sorted(store.rglob("*"))
    golden_records.check_half(method, tmp_path, golden)
    assert sorted(store.rglob("*")) == before


@every_version
def test_a_recorded_run_is_evaluated_and_has_the_scores_of_its_result(
    golden: Path, tmp_path: Path
) -> None:
    golden_records.check_evaluation(tmp_path, golden)


@every_method
def test_a_recorded_export_embeds_and_predicts_as_recorded(golden: Path, method: str) -> None:
    golden_records.check_export(method, golden)


@every_version
def test_a_recorded_sweep_is_resumed_and_none_of_its_trials_trains_again(
    golden: Path, empty_database: Path, tmp_path: Path
) -> None:
    shutil.copy(empty_database, tmp_path)
    golden_records.check_sweep(tmp_path, golden)


@every_version
def test_a_sweep_whose_trials_have_other_names_is_refused(golden: Path, tmp_path: Path) -> None:
    spec = golden_records.sweep_spec(tmp_path, golden)
    shutil.copytree(golden / "sweep", spec.path)
    trial = next((spec.path / "trials").iterdir())
    trial.rename(trial.with_name("trial-0123456789"))
    with pytest.raises(CheckpointError, match=f"names this trial {trial.name}.*another --name"):
        sweep(spec)


@every_version
def test_a_damaged_record_of_a_trial_is_restored_when_the_sweep_is_resumed(
    golden: Path, empty_database: Path, tmp_path: Path
) -> None:
    shutil.copy(empty_database, tmp_path)
    spec = golden_records.sweep_spec(tmp_path, golden)
    shutil.copytree(golden / "sweep", spec.path)
    record = next(spec.path.glob("trials/*/trial.json"))
    trial = read_record(record, "trial")["trial"]
    record.write_bytes(record.read_bytes()[:50])
    assert len(sweep(spec).trials) == 2
    assert read_record(record, "trial") == {"trial": trial, "worker_seconds": 0.0}


@every_version
def test_recorded_parts_of_an_embedding_are_joined(golden: Path, tmp_path: Path) -> None:
    golden_records.check_embedding(tmp_path, golden)


@every_version
def test_a_recorded_index_finds_the_neighbors_that_are_recorded(golden: Path) -> None:
    golden_records.check_index(golden)


@every_version
def test_recorded_files_are_small_and_name_neither_modules_nor_folders_of_a_machine(
    golden: Path,
) -> None:
    paths = [path for path in golden.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in paths) < MAX_BYTES
    for path in paths:
        assert not re.search(rb"raybio\.[a-z_]+|/(?:tmp|home|root)/", path.read_bytes()), path
