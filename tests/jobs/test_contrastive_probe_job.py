"""The job of Contrastive-Probe: sentence files and a benchmark in, a probed run out."""

import shutil
from pathlib import Path

import pytest

from raybio.cli.contrastive_probe.train import prepare_given_store
from raybio.core.records import read_record
from raybio.methods.contrastive_probe.demo import KnowledgeConfig, write_knowledge
from raybio.methods.contrastive_probe.store import ClozeStore
from raybio.runtime.run.metrics_log import read_reports
from raybio.store.store import open_store
from tests.jobs.test_sppt_job import run
from tests.paths import ROOT
from tests.script_process import run_script

JOB = ROOT / "jobs" / "contrastive_probe.py"
SETTINGS = {
    "encoder.source": "scratch",
    "encoder.num_layers": 1,
    "encoder.width": 16,
    "encoder.num_heads": 2,
    "encoder.ffn_width": 32,
    "encoder.vocabulary_size": 400,
    "plan.global_batch_rows": 16,
    "schedule.max_steps": 4,
    "schedule.checkpoint_every_steps": 2,
    "schedule.evaluate_every_steps": 2,
    "precision": "fp32",
}


@pytest.mark.nightly
def test_sentences_and_a_benchmark_become_a_run_that_is_probed_at_every_saved_step(
    tmp_path: Path, empty_database: Path
) -> None:
    shutil.copy(empty_database, tmp_path)
    sentences, benchmark = write_knowledge(
        tmp_path / "raw", KnowledgeConfig(num_heads=8, num_tails=6)
    )
    settings = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    done = run(
        tmp_path,
        JOB,
        "--sentences",
        sentences,
        "--benchmark",
        benchmark,
        "--name",
        "first",
        *settings,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "full set" in done.stdout
    folder = tmp_path / "runs" / "first"
    result = read_record(folder / "result.json", "result")
    assert (result["status"], result["step"]) == ("finished", 4)
    rivals = {"oracle prior", "character 2-4-grams"}
    assert result["final"]["scores"].keys() == {"chance", "initial", "trained"} | rivals
    probed = [
        report["step"]
        for report in read_reports(folder / "metrics.jsonl")
        if "val/acc_at_10" in report["metrics"]
    ]
    assert probed == [0, 2, 4]
    assert (folder / "export" / "modules.json").exists()


@pytest.mark.nightly
def test_a_sweep_takes_sentences_and_a_benchmark_too(tmp_path: Path) -> None:
    sentences, benchmark = write_knowledge(
        tmp_path / "raw", KnowledgeConfig(num_heads=8, num_tails=6)
    )
    given = [
        str(JOB.parents[1] / "search_spaces" / "contrastive_probe.yaml"),
        "--set",
        "encoder.source=scratch",
    ]
    given += ["--sentences", str(sentences), "--benchmark", str(benchmark), "--dry-run"]
    done = run_script(JOB.with_name("sweep.py"), tmp_path, *given)
    assert done.returncode == 0, done.stderr
    assert "16 trials of 500 steps at most" in done.stdout
    assert len(list((tmp_path / "stores").glob("sentences-*/store/manifest.json"))) == 1


def test_each_file_of_a_pattern_is_a_sentence_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_STORES", str(tmp_path / "stores"))
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"A sentence of {name}.\n")
    arguments = prepare_given_store(["--sentences", f"{tmp_path}/*.txt"])
    assert open_store(Path(arguments[-1]), ClozeStore).set_names == ("a.txt", "b.txt")


def test_sentences_without_a_file_with_a_store_or_a_benchmark_without_them_are_refused(
    tmp_path: Path,
) -> None:
    for arguments, message in (
        (["--benchmark", str(tmp_path)], "--benchmark without --sentences: want sentences"),
        (["--sentences", str(tmp_path / "nowhere.txt")], "nowhere.txt: no such file"),
        (
            ["prob", "--model", "x"],
            "No such command 'prob'. Did you mean 'probe'?",
        ),
        (
            ["--sentences", str(tmp_path / "nowhere.txt"), f"--store={tmp_path}"],
            f"--store {tmp_path}: is prepared",
        ),
        (
            ["--store", str(tmp_path), "--benchmark", str(tmp_path)],
            f"--store {tmp_path}: is prepared",
        ),
    ):
        done = run_script(JOB, tmp_path, *arguments)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr
