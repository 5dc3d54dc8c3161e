import csv
from pathlib import Path

import pytest

from raybio.cli.contrastive_probe.curves import curves
from raybio.core.errors import ConfigError
from raybio.core.records import write_record
from raybio.runtime.compare.curves import read_curve
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import MetricsLog


def make_run(folder: Path, name: str, method: str = "contrastive_probe") -> MetricsLog:
    run = RunFolder(folder, name)
    run.make()
    config = {"schedule": {"max_steps": 50}}
    write_record(run.identity, "run", {"method": method, "config": config})
    return MetricsLog(run.metrics)


def write_run(folder: Path, name: str, values: dict[int, float]) -> None:
    log = make_run(folder, name)
    for step, value in values.items():
        log.append(
            step, {"val/acc_at_10": value, "val/acc_at_10/may_treat": value / 2, "loss": 1.0}
        )
    log.append(max(values) + 1, {"loss": 0.5})


def test_runs_of_a_label_are_averaged_at_each_step_with_the_deviation_of_a_sample(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, "a", {0: 0.1, 50: 0.2})
    write_run(tmp_path, "b", {0: 0.3, 50: 0.6, 100: 0.9})
    write_run(tmp_path, "c", {0: 0.5})
    curves(run=["sets=a", "sets=b", "c"], out=tmp_path / "out", runs=tmp_path)
    with (tmp_path / "out" / "curves.csv").open() as file:
        rows = [
            (
                row["label"],
                int(row["step"]),
                int(row["runs"]),
                float(row["mean"]),
                float(row["deviation"]),
            )
            for row in csv.DictReader(file)
        ]
    expected = [
        ("sets", 0, 2, 0.2, 0.02**0.5),
        ("sets", 50, 2, 0.4, 0.08**0.5),
        ("sets", 100, 1, 0.9, 0.0),
        ("c", 0, 1, 0.5, 0.0),
    ]
    assert [row[:3] for row in rows] == [row[:3] for row in expected]
    assert [row[3:] for row in rows] == [pytest.approx(row[3:]) for row in expected]
    assert (tmp_path / "out" / "curves.png").stat().st_size > 1000


def test_an_unfinished_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, status in (("running", None), ("stopped", "stopped"), ("whole", "finished")):
        write_run(tmp_path, name, {0: 0.1, 50: 0.2})
        if status:
            write_record(RunFolder(tmp_path, name).result, "result", {"status": status, "step": 51})
    curves(run=["running", "stopped", "whole"], out=tmp_path / "out", runs=tmp_path)
    lines = [line for line in capsys.readouterr().out.splitlines() if "is not finished" in line]
    assert lines == [
        "running: is not finished (not ended yet, at step 51), more evaluations may follow",
        "stopped: is not finished (stopped, at step 51), more evaluations may follow",
    ]


def test_an_extended_run_is_unfinished_and_a_step_that_some_runs_lack_is_not_the_highest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, "longer", {0: 0.1, 50: 0.2, 60: 0.3})
    write_run(tmp_path, "whole", {0: 0.1, 50: 0.2})
    for name, max_steps in (("longer", 100), ("whole", 50)):
        run = RunFolder(tmp_path, name)
        write_record(run.result, "result", {"status": "finished", "step": 50})
        config = {"schedule": {"max_steps": max_steps}}
        write_record(run.identity, "run", {"method": "contrastive_probe", "config": config})
    curves(run=["both=longer", "both=whole"], out=tmp_path / "out", runs=tmp_path)
    output = capsys.readouterr().out
    assert "longer: is not finished (at step 61 of 100), more evaluations may follow" in output
    assert "whole: is not finished" not in output
    assert "both  highest at step 50" in output


def write_agreeing_run(
    folder: Path, name: str, agreement: dict[int, tuple[float, float]], **others: float
) -> None:
    """Accuracy rises with the step in both relations; ``agreement`` has (treats, occurs)."""
    log = make_run(folder, name)
    for step, (treats, occurs) in agreement.items():
        values = {
            "val/acc_at_10": step / 300,
            "val/acc_at_10/treats": step / 600,
            "val/acc_at_10/occurs": step / 200,
        }
        values |= {
            "val/agreement_at_10": (treats + occurs) / 2,
            "val/agreement_at_10/treats": treats,
        }
        log.append(step, values | {"val/agreement_at_10/occurs": occurs} | others)


def test_the_label_free_step_is_shown_next_to_those_of_gold_and_of_the_paper(
    tmp_path: Path,
) -> None:
    # Agreement is highest at step 0, before rewiring, which is not a candidate.
    agreement = {0: (0.9, 0.9), 50: (0.5, 0.1), 100: (0.4, 0.4), 150: (0.1, 0.6), 200: (0.1, 0.2)}
    write_agreeing_run(tmp_path, "a", agreement)
    curves(run=["a"], out=tmp_path / "out", runs=tmp_path)
    with (tmp_path / "out" / "choice.csv").open() as file:
        rows = list(csv.DictReader(file))
    step = {(row["chosen_by"], row["relation"]): int(row["step"]) for row in rows}
    assert {rule: (step[rule, "treats"], step[rule, "occurs"]) for rule, _ in step} == {
        "agreement of wordings": (100, 100),
        "agreement of wordings, by relation": (50, 150),
        "the last": (200, 200),
        "step 150 (the paper)": (150, 150),
        "the best by gold": (200, 200),
        "the best by gold, by relation": (200, 200),
    }
    assert all(
        float(row["value"]) == int(row["step"]) / {"treats": 600, "occurs": 200}[row["relation"]]
        for row in rows
    )
    text = (tmp_path / "out" / "choice.md").read_text()
    assert "| agreement of wordings | 100 | 33.33 | -33.33 |" in text
    assert "| agreement of wordings, by relation | 50, 150 | 41.67 | -25.00 |" in text


def test_selections_of_the_runs_of_a_label_are_averaged_and_runs_without_agreement_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_agreeing_run(
        tmp_path, "a", {50: (0.5, 0.5), 100: (0.1, 0.1)}, **{"val/held_out_mrr": 0.5}
    )
    write_agreeing_run(
        tmp_path, "b", {50: (0.1, 0.1), 100: (0.5, 0.5)}, **{"val/held_out_mrr": 0.5}
    )
    write_run(tmp_path, "c", {50: 0.1})
    curves(run=["seeds=a", "seeds=b", "c"], out=tmp_path / "out", runs=tmp_path)
    text = (tmp_path / "out" / "choice.md").read_text()
    assert "| agreement of wordings | 25.00 ± 11.79 |" in text  # 16.67 and 33.33
    assert "| held-out sentences | 16.67 ± 0.00 |" in text
    assert "## c" not in text
    skipped = (
        "c: no label-free step selection; c: without val/acc_at_10 by relation, or without both"
    )
    assert skipped in capsys.readouterr().out
    curves(run=["seeds=a", "seeds=c", "b"], out=tmp_path / "one", runs=tmp_path)
    assert "## seeds" not in (tmp_path / "one" / "choice.md").read_text()
    assert "seeds: no label-free step selection; c: without" in capsys.readouterr().out
    curves(run=["c"], out=tmp_path / "other", runs=tmp_path)
    assert not (tmp_path / "other" / "choice.md").exists()


def test_held_out_sentences_select_a_step_and_missing_metrics_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = make_run(tmp_path, "a")
    for step, mrr in {0: 0.9, 50: 0.3, 100: 0.2}.items():
        log.append(
            step,
            {
                "val/acc_at_10": step / 100,
                "val/acc_at_10/treats": step / 100,
                "val/held_out_mrr": mrr,
            },
        )
    curves(run=["a"], out=tmp_path / "out", runs=tmp_path)
    text = (tmp_path / "out" / "choice.md").read_text()
    assert "| held-out sentences | 50 | 50.00 | -50.00 |" in text and "agreement" not in text
    assert "a  highest at step 100" in capsys.readouterr().out
    curves(run=["a"], metric="val/held_out_mrr", out=tmp_path / "other", runs=tmp_path)
    wanted = "no label-free step selection by val/held_out_mrr: want val/acc_at_K"
    assert wanted in capsys.readouterr().out
    # Agreement is logged by relation and is no gold.
    write_agreeing_run(tmp_path, "b", {50: (0.3, 0.3), 100: (0.2, 0.2)})
    curves(run=["b"], metric="val/agreement_at_10", out=tmp_path / "third", runs=tmp_path)
    assert not (tmp_path / "third" / "choice.md").exists()
    assert "no label-free step selection by val/agreement_at_10" in capsys.readouterr().out


def test_curves_are_in_the_units_of_the_method_of_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path, "a", "sppt_protein").append(10, {"val/link_mrr": 0.0804})
    curves(run=["a"], metric="val/link_mrr", out=tmp_path / "out", runs=tmp_path)
    output = capsys.readouterr().out
    assert "a  step 10: 0.080\n" in output and "in percent" not in output
    assert "label-free" not in output
    write_run(tmp_path, "b", {10: 0.1})
    with pytest.raises(ConfigError, match="different methods .a: sppt_protein, b: contrastive_"):
        curves(run=["a", "b"], metric="val/link_mrr", out=tmp_path / "out", runs=tmp_path)


def test_a_missing_run_or_metric_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, "a", {0: 0.1})
    with pytest.raises(ConfigError, match="--run b: no run of that name"):
        curves(run=["b"], out=tmp_path / "out", runs=tmp_path)
    with pytest.raises(
        ConfigError, match="--metric val/f1: run a does not log it; want one of val/acc_at_10$"
    ):
        read_curve(tmp_path, "a", "val/f1")
