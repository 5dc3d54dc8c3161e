"""Benchmarks tried at tiny size, where their figures mean nothing, and the runner that collects them."""

import importlib
import json
import math
import os
import sys

import pytest

from tests.paths import ROOT
from tests.script_process import run_script

BENCHMARKS = ROOT / "benchmarks"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "rows"),
    [
        pytest.param("p08_contrastive_training", ["P8", "P8"], marks=pytest.mark.nightly),
        pytest.param("p09_gradient_caching", ["P9", "P9"], marks=pytest.mark.nightly),
        pytest.param("p10_grad_cache_cost", ["P10"], marks=pytest.mark.nightly),
        ("p13_bf16", ["P13", "P13"]),
        pytest.param("p23_mccl_memory", ["P23"], marks=pytest.mark.nightly),
        ("p24_probe", ["P24", "P24", "P24", "P24"]),
        ("p25_word_pair_neighbors", ["P25", "P25"]),
        ("p26_marker_attention", ["P26"]),
        ("p28_padding", ["P28"] * 5),
        pytest.param("p37_pubmed", ["P37", "P37"], marks=pytest.mark.nightly),
        ("p35_evaluation", ["P35", "P35", "P35"]),
        ("p36_intervals", ["P36"]),
        ("p20_medline", ["P20", "P20", "P20"]),
        pytest.param("p41_imbalance", ["P41"] * 9, marks=pytest.mark.nightly),
        ("p42_store_verification", ["P42"]),
        ("p43_prefetch", ["P43"]),
        ("p44_bucket_checkpoints", ["P44"]),
        pytest.param("p47_search", ["P47"], marks=pytest.mark.nightly),
    ],
)
def test_a_script_runs_at_tiny_size_and_prints_its_rows(script, rows, tmp_path):
    paths = os.pathsep.join(
        filter(None, [str(BENCHMARKS.parent), os.environ.get("PYTHONPATH", "")])
    )
    done = run_script(
        BENCHMARKS / f"{script}.py", tmp_path, RAYBIO_BENCH_SMALL="1", PYTHONPATH=paths
    )
    if done.returncode == 75:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"row"')]
    assert [result["row"] for result in results] == rows
    assert all(0 < result["min_ratio"] <= result["median_ratio"] < math.inf for result in results)
    assert all(result["peer"] and result["note"] for result in results)


@pytest.mark.nightly
def test_the_scaling_report_agrees_with_real_processes_or_fails(tmp_path):
    paths = os.pathsep.join([str(BENCHMARKS.parent), os.environ.get("PYTHONPATH", "")])
    options = [
        "--methods",
        "contrastive_probe",
        "--max-counted",
        "4",
        "--out",
        tmp_path / "page.md",
    ]
    done = run_script(
        BENCHMARKS / "scaling.py",
        tmp_path,
        *map(str, options),
        RAYBIO_BENCH_SMALL="1",
        PYTHONPATH=paths,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.md").read_text()
    rows = [
        line.split("|")[1:-1] for line in page.splitlines() if ", gra" in line or ", sums" in line
    ]
    assert len(rows) == 6
    assert all(predicted == counted for _, _, predicted, counted in rows)


@pytest.fixture
def runner(monkeypatch, tmp_path):
    """``run_all`` over the scripts of an empty folder."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module("run_all")
    monkeypatch.setattr(sys, "argv", ["run_all.py"])
    for name, path in {
        "HERE": tmp_path,
        "STORED": tmp_path / "results.json",
        "TABLE": tmp_path / "R.md",
    }.items():
        monkeypatch.setattr(module, name, path)
    return module


def row(median_ratio):
    return f"""print('{{"row": "P1", "peer": "p", "median_ratio": {median_ratio}, "min_ratio": 1, "note": ""}}')\n"""


def test_a_row_whose_peer_is_not_installed_keeps_its_last_results(runner, tmp_path, capsys):
    script = tmp_path / "p01_x.py"
    found = []
    for code in (row(2.5), "import sys; print('peer is missing', file=sys.stderr); sys.exit(75)"):
        script.write_text(code)
        with pytest.raises(SystemExit) as ended:
            runner.main()
        assert not ended.value.code
        found.append(runner.STORED.read_text())
    assert found[0] == found[1]
    assert "| P1 | exact ranks for link retrieval | p | 2.5 |" in runner.TABLE.read_text()
    assert "left out: peer is missing" in capsys.readouterr().out


def test_what_libraries_print_is_no_result_and_a_failure_is_a_row(runner, tmp_path):
    (tmp_path / "p01_x.py").write_text(
        "print({'train_runtime': '1.4'})\n" + row(3) + "raise SystemExit(3)"
    )
    with pytest.raises(SystemExit) as ended:
        runner.main()
    assert ended.value.code
    assert [one["note"] for one in json.loads(runner.STORED.read_text())] == [
        "",
        "p01_x.py failed, exit 3",
    ]


def test_results_of_a_script_that_ran_elsewhere_replace_its_rows(runner, tmp_path, monkeypatch):
    runner.STORED.write_text(
        json.dumps(
            [
                {
                    "row": name,
                    "peer": "old",
                    "median_ratio": 1,
                    "min_ratio": 1,
                    "note": "",
                    "machine": "m",
                    "date": "d",
                    "versions": "v",
                }
                for name in ("P1", "P2")
            ]
        )
    )
    printed = tmp_path / "printed.log"
    printed.write_text(
        "a date\n"
        + json.dumps({"row": "P1", "peer": "new", "median_ratio": 2, "min_ratio": 2, "note": "n"})
        + "\n"
    )
    monkeypatch.setattr(sys, "argv", ["run_all.py", "--take", str(printed)])
    runner.main()
    stored = json.loads(runner.STORED.read_text())
    assert [(one["row"], one["peer"]) for one in stored] == [("P2", "old"), ("P1", "new")]
    printed.write_text("nothing")
    with pytest.raises(SystemExit, match="no line begins with"):
        runner.main()


def test_rows_are_described_in_order(runner):
    numbers = [int(name[1:]) for name in runner.WHAT]
    assert numbers == sorted(numbers)


def test_a_round_goes_there_and_back(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    measure = importlib.import_module("_measure")
    called, seconds = [], iter([1.0, 10.0, 100.0, 300.0, 20.0, 3.0])
    sides = [lambda name=name: called.append(name) for name in "abc"]

    def clock(side):
        side()
        return next(seconds)

    assert measure.interleaved(sides, 1, clock) == [(2.0, 15.0, 200.0)]
    assert "".join(called) == "abc" + "abccba"
