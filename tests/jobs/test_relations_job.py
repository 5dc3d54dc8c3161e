"""The jobs of MTB and MCCL, as a user starts them: pre-training, then fine-tuning."""

import shutil
import statistics
from pathlib import Path

import pytest
from safetensors.torch import load_file

from raybio.core.config import override_all
from raybio.core.records import read_record
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.encoder import read_parts
from raybio.methods.mtb_mccl.mccl.evaluate_export import evaluate_relations
from raybio.methods.mtb_mccl.mtb import system as mtb_system
from raybio.methods.mtb_mccl.mtb.config import DEMO
from raybio.training.loop import fit
from tests.jobs.test_sppt_job import run
from tests.paths import ROOT

JOBS = ROOT / "jobs"
LR = 1e-3
COMMON = {
    "optim.warmup_ratio": 0,
    "plan.global_batch_rows": 8,
    "schedule.max_steps": 4,
    "schedule.checkpoint_every_steps": 2,
    "schedule.evaluate_every_steps": 2,
    "precision": "fp32",
    "encoder.max_length": 64,
}
PRETRAINING = COMMON | {
    "encoder.source": "scratch",
    "encoder.num_layers": 1,
    "encoder.width": 16,
    "encoder.num_heads": 2,
    "encoder.ffn_width": 32,
    "encoder.vocabulary_size": 400,
    "pairs.min_documents": 2,
    "pairs.held_out_share": 0.4,
    "optim.peak_lr": 1e-2,
}
FINETUNING = COMMON | {
    "objective.kind": "mccl",
    "data.label_fraction": 0.5,
    "optim.peak_lr": LR,
}


def given(settings: dict[str, object]) -> list[str]:
    return [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]


@pytest.mark.nightly
def test_fine_tuning_begins_with_what_was_pretrained_and_two_seeds_give_a_mean(
    tiny_documents: DocumentStore, tmp_path: Path, empty_database: Path
) -> None:
    shutil.copy(empty_database, tmp_path)
    config = override_all(DEMO, PRETRAINING)
    system = mtb_system.build(config, tiny_documents.path)
    list(fit(system, config))  # a run of it: test_a_corpus_is_pretrained_on
    pretrained = system.export(tmp_path / "mtb", {"name": "mtb"})
    command = [JOBS / "relation_finetune.py", "--store", tiny_documents.path, "--init", pretrained]
    done = run(tmp_path, *command, "--name", "tuned", "--seeds", "2", *given(FINETUNING))
    assert done.returncode == 0, done.stderr[-3000:]
    runs = tmp_path / "runs"
    tuned = runs / "tuned"
    before, after = (
        load_file(path / "model.safetensors") | read_parts(str(path))
        for path in (pretrained, tuned / "export")
    )
    assert after.keys() - before.keys() == {"head.bias_C", "head.proxy_CD"}
    assert {name.split(".")[0] for name in before.keys() - after.keys()} == {"mask_head"}
    shared = before.keys() & after.keys()
    assert "projection.weight" in shared
    moved = max(float((after[name] - before[name]).abs().max()) for name in shared)
    assert 0 < moved < 1.5 * 4 * LR  # what four steps of Adam can do

    results = [
        read_record(runs / name / "result.json", "result") for name in ("tuned", "tuned.seed-1")
    ]
    assert [(one["status"], one["step"]) for one in results] == [("finished", 4)] * 2
    scores = [one["final"]["scores"]["trained"]["test"] for one in results]
    f1 = [100 * one["f1"]["value"] for one in scores]
    assert f1[0] != f1[1]
    table = (tuned / "table.md").read_text()
    assert f"| {statistics.mean(f1):.2f} ± {statistics.stdev(f1):.2f} [" in table
    assert "fewer than 3 seeds on a side: no test over seeds" in table
    assert "2 runs" in done.stdout
    again = evaluate_relations(tuned / "export", tiny_documents.path, "test")
    assert again.scores.values == pytest.approx(
        {name: one["value"] for name, one in scores[0].items()}, abs=1e-6
    )


@pytest.mark.nightly
def test_a_corpus_is_pretrained_on_and_fine_tuning_begins_with_that_run(
    tiny_documents: DocumentStore, tmp_path: Path, empty_database: Path
) -> None:
    shutil.copy(empty_database, tmp_path)
    store = ["--store", tiny_documents.path]
    done = run(tmp_path, JOBS / "mtb_pretrain.py", *store, "--name", "mtb", *given(PRETRAINING))
    assert done.returncode == 0, done.stderr[-3000:]
    assert read_record(tmp_path / "runs" / "mtb" / "result.json", "result")["status"] == "finished"
    command = [
        JOBS / "relation_finetune.py",
        *store,
        "--init",
        "runs/mtb",
        "--name",
        "tuned",
        *given(FINETUNING),
    ]
    done = run(tmp_path, *command)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (
        read_record(tmp_path / "runs" / "tuned" / "result.json", "result")["status"] == "finished"
    )
