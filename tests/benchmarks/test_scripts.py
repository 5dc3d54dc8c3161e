"""Benchmarks tried at tiny size, where their figures mean nothing, and the runner that collects them."""

import importlib
import json
import os
import sys

import pytest

from tests.paths import ROOT
from tests.script_process import run_script

BENCHMARKS = ROOT / "benchmarks"


def nightly(script, rows):
    """A script that is slow at tiny size, too."""
    return pytest.param(script, rows, marks=pytest.mark.nightly)


SCRIPTS = pytest.mark.parametrize(
    ("script", "rows"),
    [
        nightly("p01_link_retrieval", ["P1"] * 3),
        nightly("p02_has_edge", ["P2"] * 2),
        nightly("p03_negatives", ["P3"] * 2),
        nightly("p05_tiered_negatives", ["P5"] * 2),
        nightly("p08_contrastive_training", ["P8", "P8"]),
        nightly("p09_gradient_caching", ["P9", "P9"]),
        nightly("p10_grad_cache_cost", ["P10"]),
        nightly("p11_tiled_loss", ["P11"] * 2),
        nightly("p13_bf16", ["P13", "P13"]),
        nightly("p14_mfu", None),
        nightly("p15_first_step", ["P15"]),
        nightly("p16_checkpoint_stall", ["P16"]),
        nightly("p17_resume", ["P17"] * 4),
        nightly("p18_metric_logging", ["P18"] * 2),
        nightly("p19_sweep", ["P19"]),
        nightly("p21_prepare_tree_of_life", ["P21"] * 2),
        nightly("p22_plan_and_collate", ["P22"]),
        nightly("p23_mccl_memory", ["P23"]),
        nightly("p24_probe", ["P24", "P24", "P24", "P24"]),
        ("p25_word_pair_neighbors", ["P25", "P25"]),
        nightly("p26_marker_attention", ["P26"]),
        nightly("p27_synchronizations", None),
        ("p28_padding", ["P28"] * 10),
        nightly("p29_packed", ["P29"] * 8),
        nightly("p30_kernels", ["P30"] * 3),
        nightly("p31_collate", ["P31"] * 5),
        nightly("p32_many_workers", None),
        nightly("p33_bytes", ["P33"] * 6),
        nightly("p34_recurring", ["P34"]),
        nightly("p37_pubmed", ["P37", "P37"]),
        nightly("p38_imports", ["P38"] * 3),
        nightly("p39_ray_cost", ["P39"]),
        ("p35_evaluation", ["P35", "P35", "P35"]),
        ("p36_intervals", ["P36"]),
        ("p20_medline", ["P20", "P20", "P20", "P20"]),
        nightly("p41_imbalance", ["P41"] * 9),
        ("p42_store_verification", ["P42"]),
        ("p43_prefetch", ["P43"]),
        nightly("p44_bucket_checkpoints", ["P44"]),
        nightly("p47_search", ["P47"]),
        nightly("p48_empty_node", ["P48"]),
    ],
)
"""The rows that a script prints; None where their number depends on the machine or on the methods."""


def test_every_script_is_tried_and_each_row_says_what_it_measures(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    known = importlib.import_module("run_all").WHAT
    tried = {case.values[0] if hasattr(case, "values") else case[0] for case in SCRIPTS.args[1]}
    assert tried == {path.stem for path in BENCHMARKS.glob("p[0-9]*_*.py")}
    assert {f"P{int(script[1:3])}" for script in tried} == known.keys()


@pytest.mark.slow
@SCRIPTS
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
    expected = rows or [f"P{int(script[1:3])}"] * len(results)
    assert results and [result["row"] for result in results] == expected
    ratios = [(result["min_ratio"], result["median_ratio"]) for result in results]
    if script != "p27_synchronizations":  # counts alone
        # A clock may not see what takes less than its tick: a ratio of 0 or infinity.
        assert all(0 <= least <= middle for least, middle in ratios)
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
def scaling(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("scaling")


def scaling_inputs(scaling, *, collate_seconds=(0.0, 0.0), num_headers=0.0):
    """A method that gathers nothing and whose shards are of equal size."""
    collectives = dict.fromkeys(scaling.PARTS, 0.0) | {"headers and flags": num_headers}
    at_two = scaling.Counts(collectives, dict.fromkeys(scaling.PARTS, 0.0), 1000)
    return scaling.Inputs(at_two, 768, {1: 1.0}, collate_seconds)


def test_a_wait_for_input_that_one_worker_has_too_is_no_loss_of_scaling(scaling):
    # 400 µs of 4 cores a token, of which a GPU trains a hundred times as many.
    inputs = scaling_inputs(scaling, collate_seconds=(400e-6, 400e-6))
    rates = scaling.Rates(tokens=1e6, host_latency=1e-4)
    assert scaling.input_share(inputs, 1, rates) == pytest.approx(0.99, abs=0.001)
    assert scaling.input_share(inputs, 8, rates) == pytest.approx(0.99, abs=0.001)
    assert scaling.efficiency(inputs, 8, rates) == pytest.approx(1)


def test_efficiency_is_the_time_of_one_worker_over_that_of_many(scaling):
    inputs = scaling_inputs(scaling, num_headers=10)
    # No parameters: gradients and checkpoints take no time, and only headers grow with the workers.
    rates = scaling.Rates(
        tokens=1e6, tokens_per_worker=1e5, parameters=1e-9, host_latency=1e-3, latency=0
    )
    assert sum(scaling.step_seconds(inputs, 1, rates).values()) == pytest.approx(0.1)
    # gloo hands numbers from worker to worker: 7 times the latency of two for 8.
    assert scaling.efficiency(inputs, 8, rates) == pytest.approx(0.1 / (0.1 + 10 * 7 * 1e-3))


def test_only_workers_of_one_node_use_its_bandwidth(scaling):
    inputs = scaling_inputs(scaling)
    one_node = {"node_bandwidth": 450e9, "micro_batch": 0, "host_latency": 1e-4}
    seconds = [
        scaling.step_seconds(inputs, world, scaling.Rates(**one_node))["bytes"] for world in (8, 16)
    ]
    assert seconds == pytest.approx([2 * 7 / 8 * 440e6 / 450e9, 2 * 15 / 16 * 440e6 / 12.5e9])
    in_bf16 = scaling.Rates(**one_node, gradient_bytes=2)
    assert scaling.step_seconds(inputs, 8, in_bf16)["bytes"] == pytest.approx(seconds[0] / 2)


def test_the_goal_is_compared_without_the_wait_for_input_that_hides_other_losses(scaling):
    rates = scaling.Rates(host_latency=1e-3)
    hidden = scaling_inputs(scaling, collate_seconds=(100e-6, 100e-6), num_headers=10)
    assert scaling.efficiency(hidden, 8, rates) == pytest.approx(1)
    assert scaling.goal_verdict(hidden, rates) == "missed: headers and flags"
    starved = scaling_inputs(scaling, collate_seconds=(100e-6, 100e-6))
    assert scaling.goal_verdict(starved, rates).startswith("met, waits for input")
    assert scaling.goal_verdict(scaling_inputs(scaling), rates) == "met"


def test_processor_time_is_that_of_single_workers_and_of_collectives(scaling):
    alone = scaling.Counts({}, {}, 100, collate_seconds=0.01, train_seconds=0.09)
    of_two = scaling.Counts({}, {}, 200, collate_seconds=0.04, train_seconds=0.19)
    of_four = scaling.Counts({}, {}, 200, collate_seconds=0.08, train_seconds=0.24)
    times = {
        2: scaling.ProcessorTime([of_two], [alone], [0.008]),
        4: scaling.ProcessorTime([of_four], [alone], [0.01, 0.03]),
    }
    # A token takes one of 64 workers 64 times as long to collate, so one of 2 twice and one of 4 four times.
    assert scaling.processor_rows("m", times, (1e-6, 64e-6)) == [
        ["m", "2", "220.0", "8.0", "228.0", "230.0", "-1 %"],
        ["m", "4", "260.0", "20.0", "280.0", "320.0", "**-12 %**"],
    ]


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
    assert "| P1 | link_retrieval itself | p | 2.5 |" in runner.TABLE.read_text()
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


def test_each_row_is_listed_under_the_environment_that_measured_it(runner):
    where = {"machine": "m", "date": "2026-01-02", "peer": "p", "note": ""}
    results = [
        {"row": "P1", "versions": "torch 1", **where},
        {"row": "P2", "versions": "torch 2", **where},
    ]
    lines = runner.table(results).partition("Where and when:\n\n")[2].splitlines()
    assert lines == ["- P1: m, 2026-01-02; torch 1", "- P2: m, 2026-01-02; torch 2"]


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


def test_the_table_of_a_gpu_has_every_line_that_was_kept(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = importlib.import_module("gpu_table")
    text = module.STORED.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    described = {name.removesuffix(", compiled") for name in module.DESCRIPTIONS}
    assert {line["name"] for line in lines} <= {*described, "training step"}
    section = module.gpu_section(text)
    steps = [line for line in lines if line["name"] == "training step"]
    for line in steps:
        rate = f"{line['real_tokens_per_second'] / 1000:.0f} ({line['mfu']:.2f})"
        assert f"| {rate} |" in section
    assert (ROOT / "benchmarks" / "RESULTS.md").read_text().endswith(section)


def test_the_table_of_a_gpu_has_each_part_of_the_acceptance_and_what_was_left_out(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = importlib.import_module("gpu_table")
    where = {"commit": "unknown", "device": "A GPU", "torch": "2"}
    search = {"rows": 20_000, "width": 384, "faiss": "faiss-gpu 1", "queries_per_second": 5e4}
    lines = [
        {"name": "feeding", "method": "sppt_mag", "tokens_per_core_second": 6.5e6, "packed": True},
        {"name": "feeding", "method": "other", "tokens_per_core_second": 1e6, "packed": False},
        {"name": "search", "metric": "cosine", "recall": 0.9995, **search},
        {"name": "search", "left_out": "faiss is not installed"},
        {"name": "workers", "left_out": "there is one GPU"},
        {"name": "workers", "world": 2},
    ]
    section = module.gpu_section("".join(f"{json.dumps(line | where)}\n" for line in lines))
    for cells in (
        "| tokens that a core collates, sppt_mag |  | 6.50 M tokens/s |",
        "| tokens that a core collates, other |  | 1.00 M tokens/s; read padded |",
        "20,000 × 384, cosine | 0.999 | 0.9995; 50,000 queries/s, faiss-gpu 1 |",
        "| left out: faiss is not installed |",
        "fp32 | 1e-4 | passed |",
        "| left out: there is one GPU |",
    ):
        assert cells in section


def test_the_goal_of_documents_is_shown_where_they_have_its_length(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = importlib.import_module("gpu_table")
    measured = importlib.import_module("gpu_bench").FULL.methods
    assert "mtb_pretrain" not in module.GOALS
    (name,) = [name for name in module.GOALS if name.startswith("mtb_pretrain")]
    assert "512" in name and name in measured


def test_a_part_that_failed_on_a_gpu_is_a_line_below_the_table(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = importlib.import_module("gpu_table")
    where = {"commit": "unknown", "device": "A GPU", "torch": "2"}
    lines = [
        {"name": "training step", **where, "encoder": "BERT-base", "failed": "out of memory"},
        {"name": "workers", **where, "failed": "gradients are off"},
    ]
    section = module.gpu_section("".join(f"{json.dumps(line)}\n" for line in lines))
    assert "- `training step` failed: out of memory" in section
    assert "- `workers` failed: gradients are off" in section
