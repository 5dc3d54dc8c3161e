"""The acceptance script of a GPU, tried at tiny size where there is none."""

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def gpu(monkeypatch):
    """The script, its figures, and a tiny bench on a CPU."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = importlib.import_module("gpu_acceptance")
    bench = script.Bench(script.SMALL, torch.device("cpu"))
    return SimpleNamespace(script=script, figures=script.gpu_figures, bench=bench)


def printed(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.mark.nightly
def test_parts_that_need_no_other_process_run_at_tiny_size(gpu, capsys):
    parts = ("machine", "steps", "kernels", "caching", "retrieval", "contrast", "search")
    for name in parts:
        getattr(gpu.figures, name)(gpu.bench)
    gpu.script.packing(gpu.bench)
    results = printed(capsys.readouterr().out)
    names = [result["name"] for result in results]
    assert names == [
        "machine",
        *["training step"] * 8,
        "kernels",
        "gradient caching",
        *["link retrieval"] * 2,
        "contrastive loss",
        *["search"] * 2,
        *["packing"] * 6,
    ]
    assert all(result["device"] == "CPU" for result in results)
    steps = [result for result in results if result["name"] == "training step"]
    assert [step["layout"] for step in steps] == ["padded", "packed"] * 4
    assert all(0 < step["mfu"] < 10 for step in steps)
    assert all(result["recall"] >= 0.999 for result in results if result["name"] == "search")


def run_small(*options):
    """The whole script in a process of its own, which starts others."""
    script = str(BENCHMARKS / "gpu_acceptance.py")
    return subprocess.run(
        [sys.executable, "-W", "ignore", script, "--small", *options],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.nightly
def test_the_whole_script_passes_at_tiny_size():
    done = run_small("--no-compile")
    assert done.returncode == 0, done.stdout + done.stderr
    names = {result["name"] for result in printed(done.stdout)}
    assert names >= {"packing", "waits", "resume", "feeding", "evaluation", "workers"}


def test_a_compiled_step_is_that_of_memory_compile(gpu, monkeypatch, capsys):
    """Without a compiler here: what the step asks torch to compile is noted, and it runs eagerly."""
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda function, **how: compiled.append(how) or function)
    encoder = gpu.script.build_protein_encoder(gpu.script.SMALL.encoder, seed=0)
    batch = gpu.bench.protein_batch(encoder, 64)
    gpu.bench.protein_step(encoder, batch, compiled=True)()
    assert compiled and not any(how.get("dynamic") for how in compiled)


def test_steps_are_timed_as_training_takes_them_with_one_wait_at_the_end_of_a_group(
    gpu, monkeypatch
):
    events = []
    launched = SimpleNamespace(read=lambda: events.append("read"))
    take_step = SimpleNamespace(launch=lambda *_: events.append("launch") or launched)
    monkeypatch.setattr(gpu.bench, "train_step", lambda system: take_step)
    monkeypatch.setattr(gpu.bench, "synchronize", lambda: events.append("wait"))
    step = gpu.bench.step(system=None, batch=None)
    assert gpu.bench.seconds_of_step(step) >= 0
    # A step is read when the next one is launched.
    warm_up = ["launch", "launch", "read", "read"]
    group = ["wait", "launch", *["launch", "read"] * 4, "read", "wait"]
    assert events == [*warm_up, *group * 3]


def test_long_documents_fill_512_tokens_in_one_window(gpu, tmp_path):
    case = gpu.script.FULL.methods["mtb_pretrain, 512 tokens"]
    small = {name: value for name, value in case.settings.items() if "encoder" not in name}
    small["encoder.max_length"] = case.settings["encoder.max_length"]
    demo = gpu.figures.method_step(tmp_path, replace(case, settings=small))
    assert demo.system.model.text.max_tokens == 512
    lengths = demo.batch(1).length_R
    assert len(lengths) == 64  # each of 32 documents is read twice
    assert int(lengths.min()) >= 448 and int(lengths.max()) <= 512


@pytest.mark.nightly
def test_tf32_is_evaluated_in_tf32_and_each_precision_says_how_far_its_score_is_off(
    gpu, monkeypatch, capsys
):
    names = []
    entered = gpu.figures.embedding_precision
    monkeypatch.setattr(
        gpu.figures,
        "embedding_precision",
        lambda precision: names.append(precision.name) or entered(precision),
    )
    gpu.figures.evaluation(gpu.bench)
    assert names == ["fp32", "tf32", "bf16"]
    results = printed(capsys.readouterr().out)
    assert [result["precision"] for result in results] == names
    assert results[0]["lrap_off"] == 0
    assert all(isinstance(result["is_within_a_thousandth"], bool) for result in results)


def test_packed_gradients_that_are_wrong_fail_the_check(gpu, monkeypatch):
    right = gpu.script.gradients_on

    def wrong(*arguments, is_packed, **settings):
        gradients = right(*arguments, is_packed=is_packed, **settings)
        if is_packed:
            gradients[0] = gradients[0] + 0.1
        return gradients

    monkeypatch.setattr(gpu.script, "gradients_on", wrong)
    with pytest.raises(gpu.script.CheckError, match="BERT, packed: gradients are off by"):
        gpu.script.packing(gpu.bench)


def test_a_part_that_runs_out_of_memory_leaves_the_others_their_turn(gpu, monkeypatch, capsys):
    def out_of_memory(bench):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(gpu.script, "packing", out_of_memory)
    monkeypatch.setattr(gpu.script, "set_environment", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["gpu_acceptance.py", "--small", "--only", "packing,contrast"])
    with pytest.raises(SystemExit) as ended:
        gpu.script.main()
    assert ended.value.code == 1
    packing, contrast = printed(capsys.readouterr().out)
    assert "CUDA out of memory" in packing["failed"]
    assert contrast["name"] == "contrastive loss"


def test_an_operation_that_waits_fails_the_check(gpu):
    with (
        pytest.raises(gpu.script.CheckError, match="demo: {'_local_scalar_dense': 1}"),
        gpu.script.no_waiting(gpu.bench, "demo"),
    ):
        torch.zeros(1).item()


def test_the_idle_share_counts_what_no_kernel_covers(gpu):
    assert gpu.figures.idle_share([(0, 4), (2, 3), (6, 8), (7, 10)]) == pytest.approx(0.2)


def test_flop_of_a_step_are_those_of_its_real_tokens(gpu):
    encoder = gpu.script.build_protein_encoder(gpu.script.SMALL.encoder, seed=0)
    batch = gpu.bench.protein_batch(encoder, 64)
    layer = 4 * (32 * 32 + 32) + (32 * 64 + 64) + (64 * 32 + 32) + 4 * 32
    expected = sum(
        6 * 2 * layer * length + 12 * 2 * 32 * length**2 for length in batch.length_R.tolist()
    )
    assert gpu.figures.flop_of_step(encoder, batch) == pytest.approx(expected)


def test_the_links_belong_to_the_first_rows(gpu):
    indptr, indices = gpu.figures.random_links(100, 7)
    assert indptr[7] == indptr[-1] == len(indices) == 84
    assert len(indptr) == 101


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_whole_script_passes_on_a_gpu():
    done = run_small()
    assert done.returncode == 0, done.stdout + done.stderr
