"""A downstream task on the command line."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from raybio.cli.finetune import with_tasks
from raybio.cli.train_and_compare import train_and_compare
from raybio.cli.training_command import options_by_part
from raybio.core.errors import ConfigError, DataError
from raybio.methods import METHODS
from raybio.methods.sppt.downstream.config import TASKS, Config
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.runtime.run.options import RunOptions, resolve, resolve_config
from tests.methods.conformance_cases import tiny_config


def write(folder: Path, num_train: int = 70) -> Path:
    for split, size in (("train", num_train), ("dev", 5), ("test", 5)):
        lines = (
            json.dumps({"text": f"text {split} {n}", "label": "ab"[n % 2]}) for n in range(size)
        )
        (folder / f"{split}.txt").write_text("\n".join(lines))
    return folder


def settled(arguments: list[str], **more: object) -> Config:
    """Return the settings that the job computes from a command line with a task."""
    (part,) = with_tasks(arguments).parts.values()
    given = replace(part, **more)
    return resolve_config(METHODS["finetune"], given, Path("runs"))[1]


def test_a_task_becomes_a_store_that_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_STORES", str(tmp_path / "stores"))
    data = str(write(tmp_path))
    arguments, parts = with_tasks(["acl_arc", "--data", data, "--init", "m"])
    assert (arguments, list(parts)) == (["--init", "m"], ["acl_arc"])
    part = parts["acl_arc"]
    manifest = part.store / "manifest.json"
    assert manifest.parents[2] == tmp_path / "stores"
    before = manifest.stat().st_mtime_ns
    with_tasks(["acl_arc", "--data", data])
    assert manifest.stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match=r"is of acl_arc, want one of scicite"):
        with_tasks(["scicite", "--store", str(part.store)])


def test_skipped_rows_are_printed_with_the_first_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAYBIO_STORES", str(tmp_path / "stores"))
    rows = [
        f"MKTAYIAKQ{letter}{other},0.{n}" for n, letter in enumerate("ACDEFGHIKL") for other in "AC"
    ]
    rows[3] = "MKTAYIAKQW,nan"
    rows[5] = "MKTAY*AKQW,0.5"
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["sequence,label", *rows]) + "\n")
    with_tasks(["protein_regression", "--data", str(table)])
    printed = capsys.readouterr().out
    assert "skipped: label that is no finite number: 1, first table.csv:5 (MKTAYIAKQW)" in printed
    assert "skipped: stop symbol '*' in the sequence: 1, first table.csv:7 (MKTAY*AKQW)" in printed


def test_the_name_of_several_tasks_alone_is_reported_to_be_none_of_a_run(tmp_path: Path) -> None:
    for run in ("two-acl_arc", "two-scicite", "three"):
        (tmp_path / run).mkdir()
    with pytest.raises(
        ConfigError,
        match="there are runs of scicite, acl_arc beginning with it; .* --name two-scicite",
    ):
        with_tasks(["--name", "two", "--runs", str(tmp_path)])
    for more in (["--store", "s"], ["--config", "c.yaml"]):
        assert with_tasks(["--name", "two", "--runs", str(tmp_path), *more]).parts == {}
    for name in ("three", "four", "two-scicite"):
        assert with_tasks(["--name", name, "--runs", str(tmp_path)]).parts == {}


def test_several_tasks_have_a_store_and_settings_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_STORES", str(tmp_path / "stores"))
    data = ["--data", str(write(tmp_path))]
    arguments, parts = with_tasks(["acl_arc,scicite", *data, "--seeds", "3", *data])
    assert arguments == ["--seeds", "3"]
    assert list(parts) == ["acl_arc", "scicite"]
    assert [part.published(None)["optim.peak_lr"] for part in parts.values()] == [5e-5, 1e-5]
    again = with_tasks(
        [
            "scicite,acl_arc",
            "--store",
            str(parts["scicite"].store),
            "--store",
            str(parts["acl_arc"].store),
        ]
    ).parts
    assert [part.store for part in again.values()] == [
        parts["scicite"].store,
        parts["acl_arc"].store,
    ]


def test_what_is_wrong_with_a_later_task_is_reported_before_the_first_is_trained(
    tmp_path: Path, tiny_task: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_STORES", str(tmp_path / "stores"))
    texts = with_tasks(["acl_arc", "--data", str(write(tmp_path))]).parts["acl_arc"].store
    settings = {"encoder.source": "scratch", "schedule.max_steps": 1}
    model = (
        METHODS["finetune"]
        .build(tiny_config("finetune", **settings), texts)
        .export(tmp_path / "model", {})
    )
    monkeypatch.setattr("sys.argv", ["finetune.py"])
    given = RunOptions(settings=(f"encoder.source={model}",), name="two", runs=tmp_path / "runs")
    # The second reads proteins, of which a model of words knows nothing.
    parts = {
        name: RunOptions(store=store, published=lambda _: {})
        for name, store in (("words", texts), ("folds", tiny_task.path))
    }
    specs = {name: resolve("finetune", one) for name, one in options_by_part(given, parts).items()}
    with pytest.raises(ConfigError, match="is no protein encoder"):
        train_and_compare(specs, (), 1)
    assert not (tmp_path / "runs").exists()


def test_what_was_read_is_reported_by_which_swapped_files_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAYBIO_STORES", str(tmp_path / "stores"))
    with_tasks(["acl_arc", "--data", str(write(tmp_path))])
    assert ": 70 / 5 / 5 rows (train, dev, test), 2 classes (a, b)\n" in capsys.readouterr().out
    (tmp_path / "test.txt").write_text("{}\n")
    with pytest.raises(DataError):
        with_tasks(["acl_arc", "--data", str(tmp_path)])
    assert "a store of" not in capsys.readouterr().out


def test_published_settings_lie_below_what_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_STORES", str(tmp_path / "stores"))
    task = ["acl_arc", "--data", str(write(tmp_path))]
    config = settled(task)
    assert (config.plan.global_batch_rows, config.optim.peak_lr, config.optim.schedule) == (
        32,
        5e-5,
        "linear",
    )
    assert config.schedule.max_steps == 12  # four epochs of three steps
    assert (config.optim.warmup_ratio, config.schedule.early_stopping_metric) == (0.2, None)
    (tmp_path / "mine.yaml").write_text("plan: {global_batch_rows: 10}\noptim: {peak_lr: 3.0e-4}\n")
    config = settled(task, config=tmp_path / "mine.yaml")
    assert (config.plan.global_batch_rows, config.optim.peak_lr, config.schedule.max_steps) == (
        10,
        3e-4,
        28,
    )
    more = ("plan.global_batch_rows=70", "schedule.max_steps=5")
    config = settled(task, config=tmp_path / "mine.yaml", settings=more)
    assert (config.plan.global_batch_rows, config.schedule.max_steps) == (70, 5)
    assert config.schedule.evaluate_every_steps == 1


def test_proteins_stop_early_and_residues_are_read_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_STORES", str(tmp_path / "stores"))
    for ending, sequence in (("train", "ACDEFGHIKL" * 70), ("valid", "ACD"), ("cb513", "ACD")):
        record = {"primary": sequence, "ss3": "HEC" + "C" * (len(sequence) - 3)}
        (tmp_path / f"secondary_structure_{ending}.json").write_text(json.dumps([record]))
    config = settled(["secondary_structure", "--data", str(tmp_path)])
    assert config.encoder.max_length == 702
    assert (config.plan.global_batch_rows, config.optim.peak_lr, config.schedule.max_steps) == (
        16,
        1e-5,
        200,
    )
    assert config.schedule.early_stopping_metric == "val/log_likelihood"
    assert (config.schedule.early_stopping_patience, config.optim.schedule) == (25, "constant")


@pytest.mark.parametrize(("num_residues", "max_length"), [(700, 702), (20, 512)])
def test_sequences_are_read_to_the_end_too(
    num_residues: int, max_length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_STORES", str(tmp_path / "stores"))
    for ending, sequence in (
        ("train", "ACDEFGHIKL" * (num_residues // 10)),
        ("valid", "ACD"),
        ("test", "ACE"),
    ):
        record = {"primary": sequence, "stability_score": [1.0]}
        (tmp_path / f"stability_{ending}.json").write_text(json.dumps([record]))
    assert settled(["stability", "--data", str(tmp_path)]).encoder.max_length == max_length


@pytest.mark.parametrize("given", [["--set", "schedule.max_step=3"], ["--config", "mine.yaml"]])
def test_wrong_settings_are_refused_before_the_files_are_read(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_STORES", str(tmp_path / "stores"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("schedule: {max_step: 3}\n")
    with pytest.raises(ConfigError, match=r"Did you mean 'schedule.max_steps'"):
        with_tasks(["acl_arc", "--data", str(write(tmp_path)), *given])
    assert not (tmp_path / "stores").exists()


def test_classes_that_training_does_not_have_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAYBIO_STORES", str(tmp_path / "stores"))
    write(tmp_path)
    (tmp_path / "test.txt").write_text(
        '{"text": "t", "label": "new"}\n{"text": "u", "label": "a"}\n'
    )
    with_tasks(["acl_arc", "--data", str(tmp_path)])
    assert (
        "test classes absent from training, which can never be predicted: new\n"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize("task", ["text_classification", "text_multilabel"])
def test_classes_with_one_training_row_and_of_almost_one_name_are_reported(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAYBIO_STORES", str(tmp_path / "stores"))
    lines = ["text\tlabel\tsplit", "one\tADVERSE\ttrain", "two\trare\ttrain"]
    for split in ("train", "dev", "test"):
        lines += [f"{split} {number}\tadverse\t{split}" for number in range(2)]
        lines += [f"{split} {number}\tother\t{split}" for number in range(2, 4)]
    table = tmp_path / "texts.tsv"
    table.write_text("\n".join(lines) + "\n")
    with_tasks([task, "--data", str(table)])
    printed = capsys.readouterr().out
    assert "2 classes have a single training row, too few to learn from: ADVERSE, rare\n" in printed
    assert "differ only in case or outer blanks: 'ADVERSE' and 'adverse'. Give them" in printed


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_published_settings(name: str) -> None:
    """Proteins stop early, and the rate of texts decays."""
    settings = METHODS["finetune"].recipes[TASKS[name].recipe or f"paper_{name}"].settings
    stops_early = "early_stopping_metric" in settings["schedule"]
    assert stops_early != TASKS[name].on_texts
    assert settings["optim"]["schedule"] == ("constant" if stops_early else "linear")


def test_a_recipe_lies_above_published_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_STORES", str(tmp_path / "stores"))
    task = ["acl_arc", "--data", str(write(tmp_path))]
    config = settled(task, recipe="small")
    assert (config.optim.peak_lr, config.optim.schedule) == (1e-3, "constant")
    assert (config.schedule.max_steps, config.encoder.num_layers) == (300, 2)
    assert settled(task, recipe="demo") == METHODS["finetune"].demo
    published = settled(task, recipe="paper_acl_arc").optim
    assert published == settled(task).optim


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    assert with_tasks(["--store", "x"]) == (["--store", "x"], {})
    assert with_tasks([]) == ([], {})
    with pytest.raises(ConfigError, match="'scicit' is no task.*Did you mean 'scicite'"):
        with_tasks(["scicit"])
    with pytest.raises(ConfigError, match=r"'zzqq' is no task.*or options alone\.$"):
        with_tasks(["zzqq"])
    for given, got in (
        ([], "no data is given"),
        (["--data", "x", "--store", "y"], "got 1 --data and 1 --store"),
    ):
        with pytest.raises(ConfigError, match=f"scicite: {got}, want either --data FILES"):
            with_tasks(["scicite", *given])
    for data in (["--data", "x"], ["--data=x"]):
        with pytest.raises(ConfigError, match="--data: no task is given; want it first"):
            with_tasks(["--name", "a", *data])
    with pytest.raises(ConfigError, match="scicite: is there twice"):
        with_tasks(["scicite,scicite", "--data", "x", "--data", "y"])
    with pytest.raises(
        ConfigError, match="got 1 --data and 0 --store, want .* once a task, in their order"
    ):
        with_tasks(["scicite,acl_arc", "--data", "x"])
    with pytest.raises(DataError, match="does not exist"):
        with_tasks(["scicite", "--data", str(tmp_path / "nowhere")])
