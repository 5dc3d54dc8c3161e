"""Fine-tuning, started as a user would: the files of two tasks, two encoders beside each other."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from raybio.core.records import read_record
from raybio.core.table_layout import UNFINISHED
from raybio.methods import METHODS
from tests.jobs.test_relations_job import given
from tests.jobs.test_sppt_job import run
from tests.methods.conformance_cases import tiny_config
from tests.paths import ROOT

JOBS = ROOT / "jobs"
SETTINGS = {
    "encoder.max_length": 16,
    "encoder.pooling": "mean",
    "schedule.max_steps": 4,
    "schedule.evaluate_every_steps": 2,
    "schedule.checkpoint_every_steps": 2,
    "precision": "fp32",
}


def write_task(folder: Path) -> Path:
    """Texts of two classes; a test row is a training row too."""
    rng, rows = np.random.default_rng(0), {}
    for split, size in (("train", 40), ("dev", 10), ("test", 10)):
        rows[split] = [
            {
                "text": " ".join(rng.choice([f"{label}{number}" for number in range(5)], 6)),
                "label": label,
            }
            for label in rng.choice(["a", "b"], size).tolist()
        ]
    rows["test"][0] = rows["train"][0]
    folder.mkdir()
    for split, messages in rows.items():
        (folder / f"{split}.txt").write_text("\n".join(json.dumps(row) for row in messages))
    return folder


@pytest.mark.nightly
def test_tasks_are_reported_by_two_encoders(tmp_path: Path, empty_database: Path) -> None:
    shutil.copy(empty_database, tmp_path)
    data = write_task(tmp_path / "data")
    sizes = {"encoder.source": "scratch", "encoder.vocabulary_size": 60, "encoder.max_length": 16}
    from raybio.experiments.downstream_tasks import kept_task

    store = kept_task("scicite", data).path
    for name, seed in (("one", 1), ("two", 2)):
        METHODS["finetune"].build(tiny_config("finetune", seed=seed, **sizes), store).export(
            tmp_path / name, {}
        )
    command = [JOBS / "finetune.py", "scicite,acl_arc", "--data", data, "--data", data]
    command += ["--init", tmp_path / "one"]
    command += [
        "--compare",
        f"encoder.source={tmp_path / 'two'}",
        "--name",
        "tuned",
        *given(SETTINGS),
    ]
    done = run(tmp_path, *command)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "1 of 10 test rows are training rows too" in done.stdout
    # Beside the folder of the scores that runs share.
    runs = sorted(path.name for path in (tmp_path / "runs").glob("[!.]*"))
    assert len(runs) == 4
    assert {"tuned-scicite", "tuned-acl_arc"} < set(runs), runs
    result = read_record(tmp_path / "runs" / "tuned-scicite" / "result.json", "result")
    assert (
        result["config"]["optim"]["peak_lr"],
        result["config"]["plan"]["global_batch_rows"],
    ) == (1e-5, 32)
    assert result["step"] == 4 and result["final"]["measure"] == "macro_f1"
    assert (
        read_record(tmp_path / "runs" / "tuned-acl_arc" / "result.json", "result")["config"][
            "optim"
        ]["peak_lr"]
        == 5e-5
    )
    table = (tmp_path / "runs" / "tuned-scicite" / "table.md").read_text()
    for row in ("initial", "source = one-", "source = two-"):
        assert len(re.findall(rf"\| {row}[^|,]*\| [0-9.]+ \[", table)) == 2, (
            table
        )  # of dev and of test
    both = (tmp_path / "runs" / "tuned-scicite" / "joint_table.md").read_text()
    assert "| model | scicite | acl_arc |" in both and both in done.stdout
    cells = {
        line.split("|")[1].strip(): line.split("|")[2:4]
        # The scores come first, and rivals after them.
        for line in reversed(both.splitlines())
        if line.startswith("|")
    }
    for name, place in (("scicite", 0), ("acl_arc", 1)):
        own = (tmp_path / "runs" / f"tuned-{name}" / "table.md").read_text().split("test rows")[1]
        for label in ("source = one-", "source = two-"):
            (row,) = [cells[one][place].strip() for one in cells if one.startswith(label)]
            row = row.removesuffix(UNFINISHED)
            assert f" | {row} |" in own, (row, own)

    again = run(tmp_path, *command)
    assert again.returncode == 0 and "was finished already" in again.stdout, again.stderr[-3000:]
    assert "are training rows too" not in again.stdout  # the store is there
