"""The job of CLDR and CLNER, started as a user would: one fold, and a whole cross-validation."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import mlflow
import psutil
import pytest

from raybio.core.records import read_record, write_record
from raybio.core.table_layout import UNFINISHED
from raybio.methods.relation_graphs.demo import WordsConfig, write_words
from raybio.methods.relation_graphs.evaluation.evaluate_export import evaluate_exports
from raybio.methods.relation_graphs.prepare import prepare_words
from tests.jobs.test_relations_job import given
from tests.jobs.test_sppt_job import run
from tests.paths import ROOT
from tests.runtime.run.test_driver_faults import end_of_family

JOBS = ROOT / "jobs"
SETTINGS = {
    "encoder.source": "scratch",
    "encoder.num_layers": 1,
    "encoder.width": 16,
    "encoder.num_heads": 2,
    "encoder.ffn_width": 32,
    "encoder.vocabulary_size": 400,
    "encoder.num_frozen_layers": 0,
    "schedule.max_steps": 4,
    "schedule.checkpoint_every_steps": 2,
    "schedule.evaluate_every_steps": 2,
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    sentences, folds = write_words(
        tmp_path / "raw", WordsConfig(num_sentences=40, num_folds=2, num_drugs=8, num_effects=8)
    )
    return prepare_words(tmp_path / "words", [sentences], splits=folds).path


@pytest.mark.nightly
def test_a_fold_is_trained_and_its_model_scored_again_gives_the_same(
    store: Path, tmp_path: Path, empty_database: Path
) -> None:
    shutil.copy(empty_database, tmp_path)
    job = (
        JOBS / "relation_graphs.py",
        "--store",
        store,
        "--fold",
        "2",
        "--name",
        "joint",
        *given(SETTINGS),
    )
    done = run(tmp_path, *job, "--set", "model=joint")
    assert done.returncode == 0, done.stderr[-3000:]
    result = read_record(tmp_path / "runs" / "joint" / "result.json", "result")
    assert result["config"]["data"]["fold"] == 2
    export = tmp_path / "runs" / "joint" / "export"
    scored = evaluate_exports(export, export, store).intervals()
    for name, one in result["final"]["scores"]["trained"]["test"].items():
        assert scored[name]["value"] == pytest.approx(one["value"], abs=1e-5), name


@pytest.mark.nightly
def test_all_folds_are_trained_and_scored_once(
    store: Path, tmp_path: Path, empty_database: Path
) -> None:
    shutil.copy(empty_database, tmp_path)
    job = (
        JOBS / "relation_graphs.py",
        "--store",
        store,
        "--all-folds",
        "--compare",
        "model=joint",
        "--name",
        "folds",
        *given(SETTINGS),
    )
    done = run(tmp_path, *job)
    assert done.returncode == 0, done.stderr[-3000:]
    folder = tmp_path / "sweeps" / "folds"
    scores = read_record(folder / "folds.json", "cross-validation")["scores"]
    assert {model: sorted(by_fold) for model, by_fold in scores.items()} == {
        row: ["1", "2"]
        for row in (
            "chance",
            "look-up",
            "character 2-4-grams",
            "untuned",
            "untuned, fixed settings",
            "cldr + clner",
            "cldr + clner, fixed settings",
            "joint",
            "joint, fixed settings",
        )
    }
    for fold in "12":  # entities are CLNER's, and so is the space of tags
        assert scores["cldr + clner"][fold].keys() - scores["untuned"][fold].keys() == {
            "graph_accuracy"
        }
    statuses = [one["status"] for one in read_record(folder / "result.json", "result")["trials"]]
    assert statuses == ["finished"] * 6
    table = (folder / "folds.md").read_text()
    labels = [row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()[2:11]]
    assert [label.removesuffix(UNFINISHED) for label in labels] == [*scores]
    # Of the paper's 20 epochs these have a fraction.
    assert [label for label in labels if label.endswith(UNFINISHED)] == [
        row + UNFINISHED for row in scores if row.startswith(("cldr", "joint"))
    ]
    assert "the paper: " not in table
    assert "\ncost: 6 runs, " in table
    messages = [cells.split(" | ") for cells in table.splitlines()[-6:]]
    assert [(model.strip("| "), fold, seed) for model, fold, seed, _ in messages] == [
        (model, fold, "0") for model in ("cldr", "clner", "joint") for fold in "12"
    ]
    for model, _, _, place in messages:
        assert (
            f"model: {model.strip('| ')}"
            in (folder / place.strip(" |")).parent.joinpath("config.yaml").read_text()
        )

    alone = run(tmp_path, JOBS / "relation_graphs.py", "--all-folds", "--name", "folds")
    assert (
        alone.returncode == 2
        and "is a cross-validation of" in alone.stderr
        and "give --store" in alone.stderr
    )

    # Rivals lie next to the sweeps, for all of them.
    shared = {path: path.stat().st_mtime_ns for path in folder.parent.glob(".untrained/*.json")}
    assert len(shared) == 2
    marked = folder / "folds" / "cldr-clner-1.json"
    content = read_record(marked, "fold scores")
    scores = content["scores"] | {"ner_f1": 1.0}
    write_record(marked, "fold scores", content | {"scores": scores})
    again = run(tmp_path, *job, "--last-training")
    assert again.returncode == 0, again.stderr[-3000:]
    scores = read_record(folder / "folds.json", "cross-validation")["scores"]
    assert scores["cldr + clner"]["1"]["ner_f1"] == 1.0  # read, not judged again
    assert {path: path.stat().st_mtime_ns for path in shared} == shared
    for row in ("cldr + clner, last training", "joint, last training"):
        assert sorted(scores[row]) == ["1", "2"]
        assert row + ", fixed settings" not in scores
    table = (folder / "folds.md").read_text()
    assert "\ncost: 12 runs, " in table
    assert (
        "| cldr + clner, last training † | 2 |" in table
        and "| clner, last training | 2 | 0 | last/clner-2/export |" in table
    )
    last = read_record(folder / "last" / "clner-2" / "run.json", "run")["config"]
    best = {
        (one["settings"]["model"], one["settings"]["data.fold"]): one["best_step"]
        for one in read_record(folder / "result.json", "result")["trials"]
    }
    assert last["schedule"]["max_steps"] == best["clner", 2]
    rule = read_record(folder / "folds" / "cldr-clner-2.json", "fold scores")["rule"]
    assert last["evaluation"]["num_tag_neighbors"] == [rule["num_tag_neighbors"]]
    assert last["data"]["train_on_validation"] and last["data"]["fold"] == 2
    # With default settings: trials and last trainings use what the driver decided once for all.
    records = [
        folder / "run.json",
        *folder.glob("trials/*/run.json"),
        *folder.glob("last/*/run.json"),
    ]
    (precision,) = {read_record(path, "run")["precision"] for path in records}
    assert len(records) == 1 + 6 + 6
    assert (
        f"precision: {precision} (this CPU has " in done.stdout and "precision:" not in again.stdout
    )
    assert {
        read_record(path, "outcome")["precision"] for path in folder.glob("*/*/outcome.json")
    } == {precision}
    runs = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    parent = read_record(folder / "tracking.json", "tracking")["run_id"]
    child = runs.get_run(
        read_record(folder / "last" / "clner-2" / "tracking.json", "tracking")["run_id"]
    )
    assert child.data.tags["mlflow.parentRunId"] == parent and child.info.status == "FINISHED"


@pytest.mark.nightly
def test_a_cross_validation_whose_driver_is_killed_trains_nothing_again_that_is_finished(
    store: Path, tmp_path: Path, empty_database: Path
) -> None:
    shutil.copy(empty_database, tmp_path)
    folder = tmp_path / "sweeps" / "folds"
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(JOBS / "relation_graphs.py"),
        *("--store", str(store), "--all-folds", "--last-training", "--name", "folds"),
        # One training at a time.
        *("--cpus-per-worker", str(os.cpu_count())),
        *given(SETTINGS),
    ]

    def finished(parts: str) -> dict[Path, int]:
        """Return the log of each training that has come to its end, and when it was written."""
        record = {"trials": "ended.json", "last": "outcome.json"}[parts]
        logs = [path.parent / "metrics.jsonl" for path in folder.glob(f"{parts}/*/{record}")]
        return {log: log.stat().st_mtime_ns for log in logs}

    def kill_after_one_of(parts: str) -> dict[Path, int]:
        with open(tmp_path / "log", "ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=tmp_path, start_new_session=True
            )
        while not finished(parts):
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            time.sleep(0.02)
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        assert end_of_family(family) == []
        return finished(parts)

    trials = kill_after_one_of("trials")
    assert 1 <= len(trials) < 4
    last = kill_after_one_of("last")
    assert 1 <= len(last) < 4
    evaluations = {path: path.stat().st_mtime_ns for path in folder.glob("folds/*.json")}
    assert {path.name for path in evaluations} >= {"cldr-clner-1.json", "cldr-clner-2.json"}
    done = run(tmp_path, *command[3:])
    assert done.returncode == 0, done.stderr[-3000:]
    kept = trials | last | evaluations
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert (len(finished("trials")), len(finished("last"))) == (4, 4)
    scores = read_record(folder / "folds.json", "cross-validation")["scores"]
    assert sorted(scores["cldr + clner, last training"]) == ["1", "2"]
