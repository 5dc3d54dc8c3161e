"""The script that trains the papers' tables on a GPU, tried at tiny size where there is none."""

import importlib
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raybio.core.digest import weights_digest
from raybio.core.final_report import UnitScores
from raybio.evaluation.unit_scores import (
    interval_over_runs,
    read_unit_scores,
    write_unit_scores,
)
from tests.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("gpu_evidence")


def small_turn(script: Any, out: Path) -> Any:
    return script.Turn(out=out, data=None, encoder=None, deadline=1e12, is_small=True)


@pytest.mark.nightly
def test_the_queue_has_every_combination_once_with_settings_that_its_method_has(
    script: Any, tmp_path: Path
) -> None:
    turn = replace(small_turn(script, tmp_path), is_small=False, encoder=tmp_path / "minilm")
    trainings = script.queue(12, is_small=False)
    names = [training.name for training in trainings]
    assert len(set(names)) == len(names)
    num_by_part = {
        part: sum(training.row[0] == part for training in trainings)
        for part in ("biored", "ade", "medlama", "graphs")
    }
    assert num_by_part == {
        "biored": 1 + 5 * 2 * 3 * 2,
        "ade": 10 * 4 * 2,
        "medlama": 3 * 3 * 6,
        "graphs": 8 * 3 * 2,
    }
    chosen = {"num_pair_neighbors": 3, "num_tag_neighbors": 7, "probe_positive_weight": 4.0}
    lines = [{"name": name, "best_epoch": 11.5, "chosen": chosen} for name in names]
    turn.results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for number, training in enumerate(trainings):
        config = script.configuration(turn, training)
        earlier = names[:number]
        assert all(name in earlier for name in training.needed_exports)
        if training.steps_of is None:
            continue
        assert training.steps_of in earlier
        assert config.data.train_on_validation and config.schedule.max_epochs == 11.5
        assert list(config.evaluation.num_pair_neighbors) == [3]
        assert list(config.evaluation.probe_positive_weights) == [4.0]
    # The published lengths are those of the recipes.
    by_name = dict(zip(names, trainings, strict=True))
    assert script.configuration(turn, by_name["ade-cldr-1"]).schedule.max_epochs == 20
    assert script.configuration(turn, by_name["biored-ce-1-mtb-0"]).schedule.max_epochs == 100
    graphs = script.configuration(turn, by_name["graph-motif-0.1-0"]).graph
    assert (graphs.sentences, graphs.min_share) == ("strongest", 0.9)
    stores = {training.row[1].split(",")[0]: training.store for training in trainings}
    assert (stores["motif"], stores["cliques"]) == ("topics", "topics")
    assert (stores["plane"], stores["torus"]) == ("topics-20", "topics-20")
    # With PubTator Central MTB has the published threshold of documents.
    assert script.configuration(turn, by_name["mtb"]).pairs.min_documents == 2
    (tmp_path / "pubtator_central").mkdir()
    (tmp_path / "pubtator_central" / "a.PubTator.gz").touch()
    with_central = replace(turn, data=tmp_path)
    assert script.configuration(with_central, by_name["mtb"]).pairs.min_documents == 16


def test_an_export_that_is_gone_is_trained_again_where_it_is_needed(
    script: Any, tmp_path: Path
) -> None:
    turn = small_turn(script, tmp_path)
    trainings = {training.name: training for training in script.queue(2, is_small=True)}
    done = [name for name in trainings if not name.startswith("biored-mccl-1-mtb")]
    turn.results.write_text("".join(json.dumps({"name": name}) + "\n" for name in done))
    # The last line was cut off.
    with turn.results.open("a") as file:
        file.write('{"name": "biored-mcc')
    names = [training.name for training in script.unended(turn, trainings)]
    assert names == ["mtb", "biored-mccl-1-mtb-0"]
    turn.export("mtb").mkdir(parents=True)
    names = [training.name for training in script.unended(turn, trainings)]
    assert names == ["biored-mccl-1-mtb-0"]


@pytest.mark.nightly
def test_a_training_that_the_time_cuts_off_resumes_and_ends_with_the_same_weights(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digests = []

    def kept(system: Any, *arguments: Any, **options: Any) -> Any:
        yield from fit(system, *arguments, **options)
        digests.append(weights_digest(system.model.state_dict().items()))

    fit = script.fit
    monkeypatch.setattr(script, "fit", kept)
    training = script.queue(2, is_small=True)[-1]
    cut_off = small_turn(script, tmp_path / "cut off")
    cut_off.out.mkdir()
    # The queue asks, and the loop at its start and after step 1; then the queue again.
    answers = iter([False, False, True, True])
    monkeypatch.setattr(script.Turn, "is_over", lambda turn: next(answers))
    assert script.run_queue(cut_off, [training], 1) == 0
    assert '"stopped": true' in capsys.readouterr().out
    assert not script.ended(cut_off)
    monkeypatch.undo()
    monkeypatch.setattr(script, "fit", kept)
    whole = small_turn(script, tmp_path / "whole")
    whole.out.mkdir()
    for turn in (cut_off, whole):
        assert script.run_queue(turn, [training], 1) == 0
        # Nothing is left to do.
        assert script.run_queue(turn, [training], 1) == 0
    stopped, resumed, unbroken = digests
    assert stopped != resumed == unbroken
    lines = [script.ended(turn)[training.name] for turn in (cut_off, whole)]
    assert lines[0]["scores"] == lines[1]["scores"]
    assert {"chance", "character 2-4-grams", "initial", "trained"} <= lines[0]["scores"].keys()
    assert "| cliques, λ = 0.1: character 2-4-grams | 1 |  |" in script.table(whole)
    assert "| cliques, λ = 0.1 | 1 | 0.4 of 8000 |" in script.table(whole)


def test_stores_are_prepared_once_before_several_processes_read_them(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = small_turn(script, tmp_path)
    events = []
    monkeypatch.setattr(script, "store_path", lambda _, training: events.append(training.store))
    monkeypatch.setattr(script, "train", lambda _, training: events.append("a training"))
    trainings = script.queue(12, is_small=False)
    first_of_biored = [one for one in trainings if one.store == "biored"][:2]
    first_of_topics = [one for one in trainings if one.store == "topics"][:2]
    script.run_queue(turn, [*first_of_biored, *first_of_topics], 1)
    assert sorted(events[:2]) == ["biored", "topics"]
    assert set(events[2:]) == {"a training"}


@pytest.mark.parametrize(
    ("first", "num_waiting", "is_alone"), [("mtb", 4, True), ("ade-clner-1", 2, False)]
)
def test_a_training_runs_alone_if_more_others_wait_for_it_than_there_are_processes(
    script: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    num_waiting: int,
    is_alone: bool,
) -> None:
    turn = small_turn(script, tmp_path)
    started = []
    has_company = threading.Event()

    def train(turn: Any, training: Any) -> dict[str, Any]:
        started.append(training.name)
        if training.name == first:
            has_company.wait(0.3 if is_alone else 30)
        elif not turn.export(first).exists():
            has_company.set()
        turn.export(training.name).mkdir(parents=True)
        return {"name": training.name, "steps": 1, "epochs": 1.0, "seconds": 0.1}

    monkeypatch.setattr(script, "train", train)
    monkeypatch.setattr(script, "store_path", lambda *_: None)
    monkeypatch.setattr(
        script, "ProcessPoolExecutor", lambda processes, **_: ThreadPoolExecutor(processes)
    )
    if first == "mtb":
        queue = list(script.biored_queue([1.0], ["ce", "mccl"], 2))
    else:
        queue = list(script.ade_queue(["clner", "cldr", "clgs"], 2, 1))
    assert script.run_queue(turn, queue, 3) == 0
    assert started[0] == first
    assert has_company.is_set() != is_alone
    assert script.ended(turn).keys() == {training.name for training in queue}
    # Of those of its part, as many wait for its export.
    assert script.num_waiting_for(queue[0], queue[1:]) == num_waiting


def test_rows_of_several_seeds_have_intervals_over_seeds_and_units(
    script: Any, tmp_path: Path
) -> None:
    turn = small_turn(script, tmp_path)
    turn.unit_scores("any").parent.mkdir()
    lines = []
    rng = np.random.default_rng(0)
    for seed in range(3):
        f1_U = rng.random(40)
        name = f"biored-{seed}"
        units = {"trained": {"test": UnitScores(np.arange(40), {"f1": f1_U})}}
        write_unit_scores(turn.unit_scores(name), units)
        scores = {"trained": {"test": {"f1": {"value": float(f1_U.mean())}}}}
        line = {"name": name, "row": ["biored", "1%, ce"], "method": "relation_finetune"}
        line |= {"recipe": "paper_biored", "epochs": 10.0 * (seed + 1), "scores": scores}
        lines.append(line | {"status": "early_stopping" if seed == 0 else "finished"})
    turn.results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = script.table(turn)
    assert "| 1%, ce | 3 | 10 to 30 of 100, 1 stopped by validation |" in table
    means = [line["scores"]["trained"]["test"]["f1"]["value"] for line in lines]
    units = [read_unit_scores(turn.unit_scores(line["name"]))["trained"]["test"] for line in lines]
    _, low, high = interval_over_runs(means, units, "f1")
    assert f"{100 * np.mean(means):.2f} ± {100 * np.std(means, ddof=1):.2f}" in table
    assert f"[{100 * low:.2f}, {100 * high:.2f}]" in table
    # Other units: no interval.
    other = {"trained": {"test": UnitScores(np.arange(1, 41), {"f1": f1_U})}}
    write_unit_scores(turn.unit_scores("biored-2"), other)
    assert f"± {100 * np.std(means, ddof=1):.2f} |" in script.table(turn)


@pytest.mark.slow
@pytest.mark.nightly
def test_the_whole_script_runs_at_tiny_size(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(BENCHMARKS / "gpu_evidence.py")]
    done = subprocess.run(
        [*command, "--small", "--out", str(tmp_path), "--processes", "2"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"ended": 10, "of": 10}
    lines = [json.loads(text) for text in (tmp_path / "results.jsonl").read_text().splitlines()]
    for line in lines:
        assert {"chance", "initial", "trained"} < line["scores"].keys()
        # A last training has the epochs of the best one, and more sentences in each.
        assert line["curve"] and 2 <= line["steps"] <= 3
        if line["method"] == "relation_finetune":
            assert (tmp_path / "unit_scores" / f"{line['name']}.npz").is_file()
