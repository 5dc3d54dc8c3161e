"""Rows of trainings that were not finished are marked, and those of finished ones are not."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from raybio.core.config import override_all
from raybio.core.recipes import Recipe
from raybio.core.records import write_record
from raybio.core.table_layout import UNFINISHED
from raybio.methods import METHODS
from raybio.runtime.compare.runs import GivenRun, Group
from raybio.runtime.compare.table import ResultTable
from raybio.runtime.compare.unfinished import (
    falling_share,
    published_length,
    unfinished_reason,
    unfinished_reasons,
    unfinished_trial,
)
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import MetricsLog
from raybio.runtime.tune.leaderboard import TrialRecord
from raybio.runtime.tune.trial import FINISHED
from tests.runtime.compare.test_differences import HARDNESS, LAYOUT, METHOD, store_run
from tests.runtime.tune.sweep_folder import of, spec_of

STEPS = range(10, 1010, 10)


def curve(loss_of: Any, noise: float = 0.02) -> list[tuple[int, float]]:
    rng = np.random.default_rng(0)
    return [(step, loss_of(step / 1000) + rng.normal(0, noise)) for step in STEPS]


def test_a_loss_that_falls_to_the_end_differs_from_one_that_has_converged() -> None:
    straight = falling_share(curve(lambda part: 3 - 2 * part))
    # A quarter of the steps; the medians of both tenths lie half a tenth from the ends.
    assert straight == pytest.approx(0.25 / 0.9, abs=0.04)
    assert falling_share(curve(lambda part: 1 + 2 * np.exp(-12 * part))) is None
    assert falling_share(curve(lambda part: 1 + 2 * np.exp(-2 * part))) is not None


def test_noise_outliers_and_a_rising_loss_are_no_fall() -> None:
    assert falling_share(curve(lambda _: 1.0, noise=0.3)) is None
    assert falling_share(curve(lambda part: 1 + part)) is None
    converged = curve(lambda part: 1 + 2 * np.exp(-12 * part))
    for index, loss in ((80, 50.0), (99, 0.0)):
        converged[index] = (converged[index][0], loss)
    assert falling_share(converged) is None
    # It never fell as a whole: it rose first.
    assert falling_share(curve(lambda part: 1 + part if part < 0.75 else 2.5 - part)) is None


def test_too_few_reports_say_nothing() -> None:
    assert falling_share([]) is None
    assert falling_share([(step, 1 - step / 100) for step in range(0, 100, 10)]) is None
    assert falling_share([(step, float("nan")) for step in STEPS]) is None


def test_the_published_length_is_that_of_the_runs_recipe_or_the_least_of_all() -> None:
    def recipes(**schedule_by_name: dict[str, Any]) -> dict[str, Recipe]:
        return {
            name: Recipe(name, "", {"schedule": schedule, "plan": {"global_batch_rows": 8}})
            for name, schedule in schedule_by_name.items()
        }

    small = {"small": {"max_epochs": 1}}
    two = recipes(paper_a={"max_epochs": 4}, paper_b={"max_epochs": 3}, **small)
    assert published_length(two, "paper_a") == (4, None, False, False)
    assert published_length(two, "paper_b") == (3, None, False, False)
    assert published_length(two, "small") == published_length(two, None) == (3, None, True, False)
    equal = recipes(paper_a={"max_epochs": 4}, paper_b={"max_epochs": 4}, **small)
    least = published_length(equal, None)
    assert published_length(equal, "small") == least == (4, None, False, False)
    in_steps = recipes(paper_a={"max_steps": 30}, paper_b={"max_steps": 10})
    assert published_length(in_steps, "paper_a") == (None, 240, False, False)
    assert published_length(in_steps, None) == (None, 80, True, False)
    nothing = published_length({}, None)
    assert nothing == published_length({}, "demo") == (None, None, False, False)
    stopped = recipes(paper_a={"max_epochs": 4, "early_stopping_metric": "val/f1"}, **small)
    assert published_length(stopped, None) == (4, None, False, True)


@pytest.mark.parametrize(
    "method, epochs, rows",
    [
        ("sppt_protein", 1, None),
        ("sppt_mag", 4, None),
        ("sppt_synthetic", 1500, None),
        ("finetune", 2, None),
        ("biostransformers", None, 17578 * 384),
        ("contrastive_probe", None, 150 * 192),
        ("mtb_pretrain", 3, None),
        ("relation_finetune", 30, None),
        ("relation_graphs", 20, None),
    ],
)
def test_every_method_has_a_least_published_length(
    method: str, epochs: float | None, rows: int | None
) -> None:
    assert published_length(METHODS[method].recipes, None)[:2] == (epochs, rows)


@pytest.mark.parametrize(
    "method, settings, facts, epochs",
    [
        ("sppt_synthetic", {"graph.kind": "cliques"}, {}, 8000),
        ("sppt_synthetic", {"graph.kind": "structural"}, {}, 5000),
        ("sppt_synthetic", {"graph.kind": "torus"}, {}, 1500),
        ("finetune", {}, {"task": "fluorescence"}, 200),
        ("finetune", {}, {"task": "acl_arc"}, 4),
        ("finetune", {}, {"task": "protein_regression"}, 2),  # one of one's own: the least
        ("mtb_pretrain", {}, {"is_directed": True}, 10),
        ("relation_finetune", {}, {"is_directed": False}, 100),
        ("relation_finetune", {}, {"is_directed": True}, 30),
        ("sppt_protein", {}, {}, 1),
    ],
)
def test_the_published_length_is_that_of_a_runs_graph_task_or_documents(
    method: str, settings: dict[str, Any], facts: dict[str, Any], epochs: float
) -> None:
    entry = METHODS[method]
    config = override_all(entry.config(), settings)
    name = entry.published_recipe(config, SimpleNamespace(**facts))
    assert published_length(entry.recipes, name).epochs == epochs


def test_where_recipes_are_in_steps_rows_are_compared(tmp_path: Path) -> None:
    """150 steps of 96 sentences are half of what the probe's paper has read by then."""
    run = given(tmp_path, "half", {150: 1.0})
    settings = run.settings | {"plan.global_batch_rows": 96}
    run.__dict__["identity"] = {**run.identity, "method": "contrastive_probe"}
    run.__dict__["settings"] = settings
    assert unfinished_reason(run) == "14,400 of at least 28,800 published rows"
    run.__dict__["settings"] = settings | {"plan.global_batch_rows": 192}
    assert unfinished_reason(run) is None


def test_a_trial_is_before_its_end_by_the_step_that_its_sweep_kept(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    trial = of(0.1)
    folder = spec.folder(trial)
    folder.make()
    log = MetricsLog(folder.metrics)
    for step in STEPS:
        log.append(step, {"loss": 3 - 2 * step / 1000, "epoch": step / 1000})
    record = TrialRecord(folder.name, trial.settings, "", FINISHED, best_step=1000)
    assert "still fell" in str(unfinished_trial(spec, record))
    assert unfinished_trial(spec, replace(record, best_step=400)) is None
    log.append(1001, {"epoch": 0.4})
    assert unfinished_trial(spec, record) == "0.4 of 1 published epochs"
    write_record(folder.outcome, "outcome", {"status": "early_stopping"})
    reason = unfinished_trial(spec, record)
    assert reason == "stopped by validation at 0.4 of 1 published epochs"
    # The published trainings of ADE end by validation, too.
    space = spec.space.model_copy(update={"method": "relation_graphs"})
    words = replace(spec, space=space)
    assert unfinished_trial(words, record) is None


def test_a_run_is_compared_with_the_recipe_that_it_began_with(tmp_path: Path) -> None:
    """The papers of ``mtb_pretrain`` have 3 and 10 epochs."""
    reasons = {}
    for recipe in ("paper_biored", "paper_docred", None):
        run = given(tmp_path, f"{recipe}", {20: 1.0})
        write_record(run.folder.launch, "launch", {"workers": 1, "recipe": recipe})
        run.__dict__["identity"] = {**run.identity, "method": "mtb_pretrain"}
        reasons[recipe] = unfinished_reason(run)
    assert reasons == {
        "paper_biored": None,
        "paper_docred": "4 of 10 published epochs",
        None: None,
    }
    # Of the published recipe of its documents, graph or task; its own published recipe goes first.
    launch = {"workers": 1, "recipe": "small", "published": "paper_docred"}
    write_record(run.folder.launch, "launch", launch)
    assert unfinished_reason(run) == "4 of 10 published epochs"
    write_record(run.folder.launch, "launch", launch | {"recipe": "paper_biored"})
    assert unfinished_reason(run) is None
    short = given(tmp_path, "short", {10: 1.0})
    short.__dict__["identity"] = {**short.identity, "method": "mtb_pretrain"}
    assert unfinished_reason(short) == "2 of at least 3 published epochs"


def given(tmp_path: Path, name: str, losses: dict[int, float], **facts: Any) -> GivenRun:
    folder = RunFolder(tmp_path, name)
    store_run(folder, METHOD.demo, {"trained": HARDNESS}, losses=losses, facts=facts)
    return GivenRun(name, folder)


def test_a_run_is_finished_when_it_stopped_early_or_its_best_weights_are_from_before(
    tmp_path: Path,
) -> None:
    falling = {step: 3 - 2 * step / 1000 for step in STEPS}
    reason = unfinished_reason(given(tmp_path, "a", falling))
    assert reason == "the training loss still fell, by 27 % of its fall in the last quarter"
    assert unfinished_reason(given(tmp_path, "b", falling, best_step=1000, step=1000)) == reason
    assert unfinished_reason(given(tmp_path, "c", falling, best_step=400, step=1000)) is None
    assert unfinished_reason(given(tmp_path, "d", falling, status="early_stopping")) is None
    # An epoch has five steps here, and the paper's recipe one epoch.
    assert unfinished_reason(given(tmp_path, "e", {3: 1.0})) == "0.6 of 1 published epochs"
    assert unfinished_reason(given(tmp_path, "f", {5: 1.0})) is None
    # Its best weights are earlier ones, and it was short nevertheless.
    short = given(tmp_path, "g", {3: 1.0}, best_step=2, step=3)
    assert unfinished_reason(short) == "0.6 of 1 published epochs"


def test_the_row_has_a_dagger_and_a_remark(tmp_path: Path) -> None:
    run = given(tmp_path, "short", {3: 1.0})
    long = given(tmp_path, "long", {5: 1.0})
    unfinished = unfinished_reasons([Group("short", [run]), Group("both", [long, run])])
    assert list(unfinished) == ["short", "both"]
    rows = {"short": run.scores, "long": long.scores}
    table = ResultTable(rows, LAYOUT, unfinished={"short": unfinished["short"]})
    assert [cells[0] for cells in table.cells("val")[1]] == [f"short{UNFINISHED}", "long"]
    assert table.all_remarks == ["† training not finished, 0.6 of 1 published epochs: short"]
    twice = ResultTable(rows, LAYOUT, unfinished=dict.fromkeys(rows, "too short"))
    assert twice.all_remarks == ["† training not finished, too short: short; long"]
