"""SPPT on articles and on synthetic graphs, started as a user would: without arguments but sizes, killed, again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raybio.core.records import read_record
from raybio.methods.sppt.articles.store import LinkedTextStore
from raybio.methods.sppt.synthetic.store import TopicStore
from tests.jobs.test_relations_job import given
from tests.jobs.test_sppt_job import run
from tests.paths import ROOT

JOBS = ROOT / "jobs"
ENCODER = {
    "encoder.num_layers": 1,
    "encoder.width": 16,
    "encoder.num_heads": 2,
    "encoder.ffn_width": 32,
    "encoder.max_length": 24,
    "precision": "fp32",
}
pytestmark = pytest.mark.slow


@pytest.mark.nightly
def test_articles_are_trained_with_and_without_their_links_and_requested_by_samples(
    tiny_citations: LinkedTextStore, tmp_path: Path
) -> None:
    settings = ENCODER | {
        "encoder.source": "scratch",
        "encoder.vocabulary_size": 200,
        "encoder.pooling": "mean",
        "plan.global_batch_rows": 8,
        "objective.lambda_spml": 0.5,
        "schedule.max_steps": 4,
        "schedule.checkpoint_every_steps": 2,
        "schedule.evaluate_every_steps": 2,
        "evaluation.test_graphs": 2,
        "evaluation.samples": 3,
        "evaluation.nodes_per_sample": 5,
    }
    command = [
        JOBS / "sppt_mag.py",
        "--store",
        tiny_citations.path,
        "--name",
        "mag",
        *given(settings),
    ]
    command += ["--compare", "objective.lambda_spml=0"]
    done = run(tmp_path, *command)
    assert done.returncode == 0, done.stderr[-3000:]
    folders = [path.name for path in (tmp_path / "runs").iterdir()]
    assert sorted(name for name in folders if not name.startswith(".")) == [
        "mag",
        "mag.lambda_spml-0",
    ]
    table = (tmp_path / "runs" / "mag" / "table.md").read_text()
    of_samples = table.split("samples of test graphs")[1].splitlines()
    labels = [line.split("|")[1].strip() for line in of_samples if line.startswith("|")][2:]
    runs = ["lambda_spml = 0", "lambda_spml = 0.5 (this run)"]
    # So few steps are no four epochs, as the paper has them.
    first_run = labels.index(f"{runs[0]} †")
    assert labels[first_run : first_run + 2] == [f"{run} †" for run in runs]
    assert labels[:3] == ["chance", "random", "degree"] and labels[first_run - 1] == "initial"
    assert "of 4 published epochs" in table
    models = [
        "--model",
        tmp_path / "runs" / "mag",
        "--model",
        tmp_path / "runs" / "mag.lambda_spml-0",
    ]
    sizes = ["--trials", "2", "--samples", "3", "--nodes", "5"]
    scored = run(
        tmp_path,
        JOBS / "evaluate.py",
        "link-samples",
        "--store",
        tiny_citations.path,
        *models,
        *sizes,
    )
    assert scored.returncode == 0, scored.stderr[-3000:]
    lrap = read_record(tmp_path / "runs" / "mag" / "result.json", "result")["final"]["scores"][
        "trained"
    ]["samples"]["lrap"]
    assert f"| {100 * lrap['value']:.2f} ± " in scored.stdout, scored.stdout


@pytest.mark.nightly
def test_synthetic_graphs_that_were_killed_go_on_and_end_in_the_same_table(
    tiny_topics: TopicStore, tmp_path: Path
) -> None:
    settings = ENCODER | {
        "plan.global_batch_rows": 8,
        "schedule.max_steps": 60,
        "schedule.checkpoint_every_steps": 10,
        "graph.num_nodes": 30,
        "graph.min_sentences": 5,
    }
    queries = [
        "--graph",
        "cliques",
        "--graph",
        "plane",
        "--store",
        tiny_topics.path,
        "--cpus-per-worker",
        "1",
        "--yes",
    ]
    command = [
        sys.executable,
        *map(str, [JOBS / "sppt_synthetic.py", *queries, *given(settings), "--name", "syn"]),
    ]
    tables = []
    for home in (tmp_path / "killed", tmp_path / "whole"):
        home.mkdir()
        if home.name == "killed":
            kill_when_begun(command, home)
            assert not (home / "sweeps" / "syn" / "graphs.md").exists()
        done = run(home, *command[1:])
        assert done.returncode == 0, done.stderr[-3000:]
        folder = home / "sweeps" / "syn"
        assert (read_record(folder / "launch.json", "launch") or {})["is_length_accepted"]
        tables.append(read_record(folder / "graphs.json", "synthetic graphs")["graphs"])
        assert (folder / "graphs.md").read_text() in done.stdout
        assert {path.name for path in folder.glob("map-*.png")} == {
            "map-cliques.png",
            "map-plane.png",
        }
    assert [one["kind"] for one in tables[0]] == ["cliques", "plane"]
    assert tables[0] == tables[1]


def kill_when_begun(command: list[str], home: Path) -> None:
    """Start it, and end it by SIGTERM as soon as a trial has saved its first checkpoint."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(home), "RAY_TMPDIR": os.environ.get("RAY_TMPDIR", "/tmp")}
    with (home / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=home, env=environment, stdout=log, stderr=log)
        try:
            while process.poll() is None and not list(
                home.glob("sweeps/syn/trials/*/checkpoints/*")
            ):
                time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 143, (home / "log").read_text()[-3000:]
        finally:
            process.kill()
