"""The dry run at full number, tried at a tiny share."""

import importlib
import json
import shutil
from fractions import Fraction

import pytest

from tests.paths import ROOT

STAGE = {
    "peak_bytes": 2**30,
    "anonymous_bytes": 2**29,
    "core_seconds": 12.4,
    "disk_bytes": 3_000_000_000,
}


@pytest.fixture
def full_size(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("full_size")


@pytest.mark.parametrize(
    ("name", "share", "num_rows"),
    [("mag", Fraction(1, 2000), 324), ("pubtator", Fraction(1, 100_000), 300)],
)
def test_simulated_files_have_their_share_of_the_full_number(
    full_size, tmp_path, name, share, num_rows
):
    paper = full_size.PAPERS[name]
    counts = full_size.measured("simulate", paper, tmp_path, share)["facts"]
    assert max(counts.values()) == int(max(paper.counts.values()) * share)
    found = full_size.measured("prepare", paper, tmp_path, share)
    # Articles without a citation are left out.
    assert 0.9 * num_rows <= found["facts"]["rows"] <= num_rows
    assert 0 < found["anonymous_bytes"] <= found["peak_bytes"]
    assert 0 < found["disk_bytes"] <= found["peak_disk_bytes"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("tree_of_life_rivals", Fraction(1, 1000)),
        ("mag_rivals", Fraction(1, 2000)),
        ("pubmed", Fraction(1, 20_000)),
        ("pubtator", Fraction(1, 100_000)),
    ],
)
def test_every_stage_runs_at_a_tiny_share(full_size, tmp_path, name, share):
    paper = full_size.PAPERS[name]
    found = {
        stage: full_size.measured(stage, paper, tmp_path, share)["facts"]
        for stage in full_size.STAGES
    }
    assert found["train"]["steps"] == full_size.NUM_STEPS
    assert {"chance", "initial", "trained"} <= set(found["final"]["rows"])
    assert found["export"]["export_bytes"] > 0


def test_stages_that_ended_are_not_run_again(full_size, tmp_path, monkeypatch):
    log = tmp_path / "log.jsonl"
    ran = []

    def run_stage(stage, name, folder, share, limit):
        ran.append(stage)
        return {"problem": "did not end in 1 s"} if len(ran) == 2 else dict(STAGE)

    monkeypatch.setattr(full_size, "run_stage", run_stage)
    stages = ["simulate", "prepare", "plan"]
    arguments = ("mag", tmp_path, Fraction(1, 2), log, stages, 1.0)
    assert not full_size.run(*arguments)
    assert full_size.run(*arguments)
    assert ran == ["simulate", "prepare", "prepare", "plan"]
    assert len(log.read_text().splitlines()) == 4
    lines = full_size.read_log(log)
    assert [line["stage"] for line in lines] == stages
    assert json.loads(log.read_text().splitlines()[1])["problem"]


def test_the_table_of_the_page_is_that_of_the_figures_which_are_kept(full_size):
    page = (ROOT / "docs" / "full_size.md").read_text(encoding="utf-8")
    assert f"\n\n{full_size.table(full_size.read_results())}\n\n" in page


def test_recorded_figures_replace_those_of_their_stage_in_file_and_page(
    full_size, tmp_path, monkeypatch
):
    names = {"RESULTS": "full_size.json", "PAGE": "full_size.md"}
    for name, file in names.items():
        shutil.copy(getattr(full_size, name), tmp_path / file)
        monkeypatch.setattr(full_size, name, tmp_path / file)
    before = full_size.read_results()
    page = full_size.PAGE.read_text().splitlines()
    log = tmp_path / "log.jsonl"
    ended = {"paper": "mag", "share": "1", "stage": "final"} | STAGE
    other = {"paper": "mag", "share": "1/2", "stage": "plan", "problem": "did not end in 1 s"}
    log.write_text("\n".join(json.dumps(line) for line in (ended, other)) + "\n")
    full_size.record(log)
    full_size.record(log)
    assert len(full_size.read_results()) == len(before) + 1
    new = full_size.PAGE.read_text().splitlines()
    assert [line for line in new if line not in page] == [
        "| mag | 1/2 | plan | did not end in 1 s |  |  |  |",
        "| mag | 1 | final | 1,024 | 512 | 12 | 3.00 |",
    ]
    assert len([line for line in page if line not in new]) == 1
