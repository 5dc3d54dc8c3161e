"""The parts of a sweep that need no cluster: what has room, what came out of it, and the report."""

import csv
import json
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from scipy import stats
from typer.testing import CliRunner

from raybio.cli.sweep import SweepOptions, _print_result, _report_unused
from raybio.cli.sweep import app as sweep_app
from raybio.core.config import load, override_all
from raybio.core.errors import ClusterError, ConfigError, DivergedError, MetricError, StoreError
from raybio.core.records import read_record, write_record
from raybio.core.search_space import Distribution, refuse_decided_settings
from raybio.methods import METHODS
from raybio.runtime.cluster.resources import Node, check_resources, fit_trials, trial_resources
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.goal import Goal
from raybio.runtime.run.metrics_log import MetricsLog, read_reports
from raybio.runtime.run.options import RunOptions, base_configs
from raybio.runtime.run.spec import Compute
from raybio.runtime.tune.driver import SweepResult, _is_complete
from raybio.runtime.tune.leaderboard import leaderboard, records, repetitions, write_results
from raybio.runtime.tune.length import SweepLength, trainings_left
from raybio.runtime.tune.report import importance, ranking_remarks, write_sweep_report
from raybio.runtime.tune.trial import FAILED, FINISHED, STOPPED, TRIALS, SweepSpec, Trial
from raybio.store.store import Store
from raybio.training.loop import FIRST_REPORTED_STEPS
from tests.paths import ROOT
from tests.runtime.tune.sweep_folder import (
    LAMBDA,
    METRIC,
    RATE,
    SYSTEM,
    leave,
    of,
    space_of,
    spec_of,
)
from tests.script_process import run_script


@pytest.fixture
def spec(tmp_path: Path) -> SweepSpec:
    return spec_of(tmp_path)


@pytest.mark.parametrize(
    ("nodes", "given", "expected"),
    [
        ([Node(2)], {"workers": 1, "at_most": 2}, (1, 0, 2)),
        ([Node(16)], {"workers": 1, "at_most": 2}, (8, 0, 2)),
        ([Node(16)], {"workers": 1, "at_most": 4, "cpus_per_worker": 6.0}, (6, 0, 2)),
        ([Node(0), Node(16, 1), Node(16, 1)], {"workers": 1, "at_most": 8}, (16, 1, 2)),
        (
            [Node(0), Node(16, 1), Node(16, 1)],
            {"workers": 1, "at_most": 8, "gpus_per_worker": 0.25},
            (4, 0.25, 8),
        ),
        ([Node(16, 4)], {"workers": 2, "at_most": 2}, (3, 1, 2)),
        ([Node(2)], {"workers": 2, "at_most": 1}, (0.8, 0, 1)),
        ([Node(2)], {"workers": 1, "at_most": 30}, (0.1, 0, 20)),
        ([Node(2)], {"workers": 1, "at_most": 30, "least_cpus": 1.0}, (1, 0, 2)),
        ([Node(2)], {"workers": 2, "at_most": 30, "least_cpus": 1.0}, (0.8, 0, 1)),
        ([Node(64, 8)], {"workers": 1, "at_most": 30, "least_cpus": 1.0}, (8, 1, 8)),
        (
            [Node(3), Node(3)],
            {"workers": 1, "at_most": 4, "cpus_per_worker": 2.0},
            (2, 0, 2),
        ),  # not 6 // 2 = 3
    ],
)
def test_trials_get_what_nodes_have(nodes: list[Node], given: dict, expected: tuple) -> None:
    found = fit_trials(nodes, **given)
    assert (found.cpus_per_worker, found.gpus_per_worker, found.num_trials) == expected


def test_a_plan_says_how_many_trials_fit_the_cluster() -> None:
    found = fit_trials([Node(2), Node(2)], workers=1, at_most=3, cpus_per_worker=1.0)
    assert found.explanation == (
        "3 trials at a time: each takes 1 CPU; 4 fit the cluster's 2 CPU + 2 CPU"
    )


@pytest.mark.parametrize("num_weights", [3, 6])
def test_a_grid_trains_all_of_its_combinations_at_once_if_no_number_is_given(
    tmp_path: Path, num_weights: int
) -> None:
    """The budget's num_trials, which a grid ignores, was taken for their number."""
    grid = {LAMBDA: {"choice": [number / 10 for number in range(num_weights)]}}
    budget = {"num_trials": 4, "max_concurrent_trials": None}
    space = space_of(tmp_path, search={"kind": "grid"}, space=grid, budget=budget)
    found = trial_resources([Node(12)], space, workers=1)
    assert (found.num_trials, found.cpus_per_worker) == (num_weights, 12 / num_weights)
    drawn = space_of(tmp_path, search={"kind": "random"}, space=grid, budget=budget)
    assert trial_resources([Node(12)], drawn, workers=1).num_trials == 4


def test_a_trial_that_no_node_can_hold_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(
        ClusterError, match=r"a trial takes 4 CPU, and the cluster has 3 CPU \+ 3 CPU"
    ):
        fit_trials([Node(3), Node(3)], workers=1, at_most=2, cpus_per_worker=4)
    with pytest.raises(
        ClusterError, match=r"2 x 1.2 CPU and 1 GPU, and the cluster has 8 CPU and 1 GPU"
    ):
        fit_trials([Node(8, 1)], workers=2, at_most=2, cpus_per_worker=1, gpus_per_worker=1)


def test_a_trial_counts_by_its_best_step_and_repeated_settings_by_their_mean(
    spec: SweepSpec,
) -> None:
    leave(spec, of(0.0), {10: 0.2, 20: 0.7, 30: 0.6})
    leave(spec, of(0.5), {10: 0.3, 20: 0.5, 30: 0.6})
    leave(spec, of(0.5, seed=spec.run.config.seed + 1), {10: 0.3, 20: 0.6, 30: 0.5})
    leave(spec, of(0.1), {10: 0.1}, STOPPED)
    failed = leave(spec, of(0.1, 1e-5), {}, FAILED)
    write_record(
        failed.failure, "failure", {"kind": "DivergedError", "message": "no | longer <finite>"}
    )
    folder = RunFolder(spec.path.parent, "mine")
    ranking, trials = write_results(folder, spec)
    first, *equal, fourth, last = [(one.best_step, one.best_value, one.status) for one in trials]
    assert (first, fourth, last) == ((20, 0.7, FINISHED), (10, 0.1, STOPPED), (None, None, FAILED))
    assert sorted(equal) == [(20, 0.6, FINISHED), (30, 0.6, FINISHED)]
    # Two seeds speak for 0.5, one for 0.0: its 0.7 may be luck.
    assert [place.settings[LAMBDA] for place in ranking] == [0.5, 0.0, 0.1]
    best = ranking[0]
    assert (best.best_step, best.mean) == (20, pytest.approx(0.55))
    half = 12.706 * 0.05  # of Student's t with one degree of freedom, times the standard error
    assert (best.low, best.high) == (
        pytest.approx(0.55 - half, abs=1e-3),
        pytest.approx(0.55 + half, abs=1e-3),
    )
    assert (ranking[1].low, ranking[1].high) == (None, None)
    config = load(SYSTEM.config, folder.path / "best.yaml")
    assert (config.objective.lambda_spml, config.optim.peak_lr, config.seed) == (
        0.5,
        1e-3,
        spec.run.config.seed,
    )
    with (folder.path / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == [one.status for one in trials]
    assert rows[0]["worker_hours"] == "0.01000"
    assert json.loads(folder.result.read_text())["leaderboard"][0]["best_step"] == 20


def test_the_best_settings_are_tested_against_the_runner_up_from_three_seeds_on(
    spec: SweepSpec,
) -> None:
    own_seed = spec.run.config.seed
    values = {0.5: [0.60, 0.64, 0.62], 0.0: [0.50, 0.49, 0.54]}
    folder = RunFolder(spec.path.parent, "mine")
    for num_seeds in (2, 3):
        for weight, of_seeds in values.items():
            for seed, value in enumerate(of_seeds[:num_seeds]):
                # The best step is the second: the metric there counts.
                seeds = {"seed": own_seed + seed} if seed else {}
                leave(spec, of(weight, **seeds), {10: value - 0.2, 20: value})
        ranking, trials = write_results(folder, spec)
        content = json.loads(folder.result.read_text())
        report = write_sweep_report(folder, spec, ranking, trials)
        text = next(path for path in report if path.suffix == ".md").read_text()
        if num_seeds == 2:
            assert "best_against_second" not in content
            assert "Fewer than 3 seeds each: the first two are not tested." in text
    test = stats.ttest_ind(values[0.5], values[0.0], equal_var=False)
    found = content["best_against_second"]
    assert found["value"] == pytest.approx(0.11)
    assert found["p"] == pytest.approx(test.pvalue)
    assert found["low"] == pytest.approx(test.confidence_interval().low)
    assert f"The first minus the second: +0.1100 [{found['low']:+.4f}" in text


def test_a_repetition_that_shares_no_step_with_the_others_is_not_compared_yet(
    spec: SweepSpec,
) -> None:
    """Its mean was taken over no step, which ended the sweep with a traceback."""
    leave(spec, of(0.5), {20: 0.3, 40: 0.4})  # no number at step 10
    leave(spec, of(0.5, seed=1), {10: 0.9})  # stopped there
    leave(spec, of(0.5, seed=2), {20: 0.1, 40: 0.2})
    (ranked,) = leaderboard(spec, records(spec))
    assert [trial.settings.get("seed", 0) for trial in ranked.trials] == [0, 2]
    assert (ranked.best_step, ranked.mean) == (40, pytest.approx(0.3))


@pytest.mark.parametrize("status", [STOPPED, None])
def test_a_seed_that_ended_early_does_not_hide_the_best_steps_of_the_others(
    spec: SweepSpec, status: str | None
) -> None:
    own = spec.run.config.seed
    for seed in range(3):
        seeds = {"seed": own + seed} if seed else {}
        leave(spec, of(0.1, **seeds), {150: 0.3, 500: 0.6})
        if seed:
            leave(spec, of(0.5, **seeds), {150: 0.45, 500: 0.8})
    leave(spec, of(0.5), {150: 0.45}, status)
    ranking = leaderboard(spec, records(spec))
    assert [ranked.settings[LAMBDA] for ranked in ranking] == [0.5, 0.1]
    assert (ranking[0].best_step, ranking[0].mean) == (500, pytest.approx(0.8))
    assert len(ranking[0].trials) == 2


def test_seeds_that_were_all_stopped_are_compared_without_an_interrupted_one(
    spec: SweepSpec,
) -> None:
    leave(spec, of(0.5), {10: 0.3, 20: 0.5}, STOPPED)
    leave(spec, of(0.5, seed=1), {10: 0.3, 20: 0.4}, STOPPED)
    leave(spec, of(0.5, seed=2), {10: 0.3}, None)
    (ranked,) = leaderboard(spec, records(spec))
    assert (ranked.best_step, ranked.mean) == (20, pytest.approx(0.45))


def test_settings_whose_own_trial_finished_are_repeated_first(tmp_path: Path) -> None:
    budget = {"max_steps": 40, "grace_steps": 10, "num_repeated": 2, "num_seeds": 2}
    spec = spec_of(tmp_path, budget=budget)
    own = spec.run.config.seed
    leave(spec, of(0.0), {10: 0.5}, STOPPED)
    leave(spec, of(0.1), {10: 0.9}, STOPPED)
    leave(spec, of(0.5), {10: 0.3, 40: 0.6})
    assert repetitions(spec) == [of(0.5, seed=own + 1), of(0.1, seed=own + 1)]


def test_a_repetition_that_is_no_longer_wanted_does_not_keep_a_sweep_open(tmp_path: Path) -> None:
    """Each start of such a sweep started Ray, and a stop file ended it as interrupted."""
    budget = {"max_steps": 40, "grace_steps": 10, "num_repeated": 1, "num_seeds": 2}
    weights = (0.1, 0.5)
    grid = {LAMBDA: {"choice": list(weights)}}
    spec = spec_of(tmp_path, search={"kind": "grid"}, space=grid, budget=budget)
    own = spec.run.config.seed
    trials = [Trial({LAMBDA: weight}) for weight in weights]
    trials += [Trial({LAMBDA: weight, "seed": own + 1}) for weight in weights]
    for trial, status in zip(trials, (FINISHED, FINISHED, None, None), strict=True):
        leave(spec, trial, {10: trial.settings[LAMBDA]}, status)
    write_record(spec.path / TRIALS, "trials", {"trials": [asdict(trial) for trial in trials]})
    assert not _is_complete(spec)
    leave(spec, trials[3], {20: 0.5})  # of the best settings
    assert _is_complete(spec)


def test_an_exploiting_trial_is_ranked_by_its_own_values_and_not_by_its_donors(
    spec: SweepSpec,
) -> None:
    leave(spec, of(0.5), {10: 0.5, 20: 0.9})
    successor = leave(spec, Trial({LAMBDA: 0.1, RATE: 1e-3}, branch="abc"), {})
    log = MetricsLog(successor.metrics)
    log.append(20, {METRIC: 0.9}, exploited_from="donor")
    assert [one.best_value for one in records(spec)] == [0.9, None]
    log.append(30, {METRIC: 0.6})
    log.append(40, {METRIC: 0.7})
    found = records(spec)
    assert [(one.best_step, one.best_value, one.exploited_from) for one in found] == [
        (20, 0.9, ""),
        (40, 0.7, "donor"),
    ]
    assert found[1].values == [(30, 0.6), (40, 0.7)]
    # It is exported at each, as any trial whose own best so far this is.
    reports = read_reports(successor.metrics)
    assert [
        spec.goal.is_reached_first(reports[:number], reports[number - 1]["step"])
        for number in (3, 4)
    ] == [True] * 2


def test_which_settings_are_repeated_does_not_depend_on_what_was_repeated_before(
    tmp_path: Path,
) -> None:
    budget = {
        "num_trials": 8,
        "max_steps": 40,
        "grace_steps": 10,
        "num_repeated": 1,
        "num_seeds": 2,
    }
    spec = spec_of(tmp_path, budget=budget)
    own = spec.run.config.seed
    leave(spec, of(0.1), {10: 0.5})
    assert repetitions(spec) == [of(0.1, seed=own + 1)]
    leave(spec, of(0.1, seed=own + 1), {10: 0.8})  # other seeds' luck does not count either
    leave(spec, of(0.5), {10: 0.7})  # of a larger budget
    leave(spec, of(0.0), {10: 0.9}, FAILED)
    assert repetitions(spec) == [of(0.5, seed=own + 1)]
    leave(spec, of(0.5, seed=own + 1), {10: 0.6})
    assert [place.settings[LAMBDA] for place in leaderboard(spec, records(spec))] == [0.1, 0.5]
    assert repetitions(spec) == [of(0.5, seed=own + 1)]


def test_a_trial_that_failed_wins_nothing(spec: SweepSpec) -> None:
    leave(spec, of(0.1), {10: 0.9}, FAILED)
    leave(spec, of(0.5), {10: 0.5})
    folder = RunFolder(spec.path.parent, "mine")
    ranking, trials = write_results(folder, spec)
    assert [place.settings[LAMBDA] for place in ranking] == [0.5]
    assert len(trials) == 2
    assert load(SYSTEM.config, folder.path / "best.yaml").objective.lambda_spml == 0.5


@pytest.mark.parametrize(("rule", "last_step"), [("constant", 20), ("linear", 40)])
def test_the_best_file_ends_at_the_best_step_where_the_learning_rate_does_not_depend_on_the_end(
    tmp_path: Path, rule: str, last_step: int
) -> None:
    base = override_all(
        SYSTEM.demo, {"optim.schedule": rule, "optim.warmup_ratio": 0, "optim.num_warmup_steps": 5}
    )
    spec = replace(spec_of(tmp_path), run=replace(spec_of(tmp_path).run, config=base))
    leave(spec, of(0.5), {10: 0.3, 20: 0.6, 30: 0.5})
    folder = RunFolder(spec.path.parent, "mine")
    write_results(folder, spec)
    assert load(SYSTEM.config, folder.path / "best.yaml").schedule.max_steps == last_step


def test_remarks_say_why_one_seed_is_not_first_and_whether_training_helped(
    spec: SweepSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(spec, of(0.0), {10: 0.7})
    leave(spec, of(0.5), {10: 0.6})
    leave(spec, of(0.5, seed=spec.run.config.seed + 1), {10: 0.5})
    folder = RunFolder(spec.path.parent, "mine")
    ranking, trials = write_results(folder, spec)
    order = "Settings with several seeds rank before those with one."
    best = "The best settings, 0.5500, are no better than before training, 0.9900 (of one seed)."
    markdown, _ = write_sweep_report(folder, spec, ranking, trials)
    _print_result(SweepResult(folder, spec, ranking, trials, None, ""))
    for text in (markdown.read_text(), capsys.readouterr().out.replace("\n", " ")):
        assert f"{order} {best}" in " ".join(text.split())
    worst = [replace(ranked, trials=[replace(ranked.trials[0], initial=0.1)]) for ranked in ranking]
    assert ranking_remarks(spec.space, worst) == [
        "The best settings, 0.5500, are better than before training, 0.1000"
    ]
    less = spec.space.model_copy(update={"mode": "min"})
    assert "no better" in ranking_remarks(less, worst)[0]
    assert ranking_remarks(less, []) == []


class Page(HTMLParser):
    """What a browser would load from elsewhere, the pictures, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def test_the_report_stands_alone_and_shows_every_trial(spec: SweepSpec) -> None:
    for number, rate in enumerate((1e-5, 1e-4, 1e-3, 3e-3)):
        for value in (0.0, 0.5):
            score = number / 10 + value / 100
            leave(
                spec,
                of(value, rate),
                {10: score, 20: score + 0.1},
                STOPPED if number < 2 else FINISHED,
            )
    failed = leave(spec, of(0.1), {}, FAILED)
    write_record(
        failed.failure, "failure", {"kind": "DivergedError", "message": "loss <b>is</b> infinite"}
    )
    folder = RunFolder(spec.path.parent, "mine")
    ranking, trials = write_results(folder, spec)
    markdown, html = write_sweep_report(folder, spec, ranking, trials)
    initial = next(
        line for line in markdown.read_text().splitlines() if "| before training" in line
    )
    assert initial == f"| before training | – | – | 0.9900 | 0 | 1 | {trials[0].name} |"
    page = Page(html.read_text())
    assert len(page.sources) == 5
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert all(one.name in page.text for one in trials)
    assert "loss <b>is</b> infinite" in page.text  # as text, not as markup
    shares = importance(spec.space, trials)
    assert shares is not None
    assert shares[RATE] > 0.9  # it was planted
    assert sum(shares.values()) == pytest.approx(1)
    assert {path.name for path in folder.plots.iterdir()} == {
        "parameters.png", "parallel.png", "importance.png", "learning.png", "cost.png",
    }  # fmt: skip


def test_trials_of_equal_values_have_a_report_without_importance(spec: SweepSpec) -> None:
    for rate in (1e-5, 1e-4, 1e-3):
        for value in (0.0, 0.5):
            leave(spec, of(value, rate), {10: 1.0, 20: 1.0}, FINISHED)
    folder = RunFolder(spec.path.parent, "mine")
    ranking, trials = write_results(folder, spec)
    assert importance(spec.space, trials) is None
    markdown, _ = write_sweep_report(folder, spec, ranking, trials)
    assert (
        "fANOVA wants at least 6 trials of different values, and two parameters that vary."
        in markdown.read_text()
    )


def test_a_report_of_trials_that_all_failed_says_so(spec: SweepSpec) -> None:
    write_record(
        leave(spec, of(0.1), {}, FAILED).failure,
        "failure",
        {"kind": "DataError", "message": "torn"},
    )
    folder = RunFolder(spec.path.parent, "mine")
    ranking, trials = write_results(folder, spec)
    assert ranking == leaderboard(spec, trials) == []
    assert "torn" in write_sweep_report(folder, spec, ranking, trials)[1].read_text()
    assert not (folder.path / "best.yaml").exists()


def test_a_trial_needs_its_own_evaluations_and_checkpoints(spec: SweepSpec) -> None:
    config = spec.config({LAMBDA: 0.5})
    assert (config.schedule.max_steps, config.objective.lambda_spml) == (40, 0.5)
    assert config.schedule.evaluate_every_steps == config.schedule.checkpoint_every_steps <= 10
    assert (
        spec.folder(of(0.5)).path == spec.folder(of(0.5)).path != spec.folder(of(0.5, seed=7)).path
    )
    assert (
        spec.config({LAMBDA: 0.5, "schedule.max_steps": 20}).schedule.max_steps == 20
    )  # a space may vary it
    with pytest.raises(ConfigError, match="objective.lambda_spml"):
        spec.config({LAMBDA: 7.0})


def test_a_dry_run_prints_the_trials_and_starts_nothing(tmp_path: Path) -> None:
    space_of(tmp_path, search={"kind": "grid"}, space={LAMBDA: {"choice": [0.0, 0.1, 0.5]}})
    done = run_script(
        ROOT / "jobs" / "sweep.py", tmp_path, "space.yaml", "--dry-run", HOME=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    assert "objective.lambda_spml=0.5" in done.stdout
    assert "3 trials of 40 steps at most, stopped by asha from step 10 on" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {
        "space.yaml",
        "stdout",
        "stderr",
    }  # no store either


def test_an_initial_encoder_is_a_setting_of_all_trials(tmp_path: Path) -> None:
    space_of(tmp_path, space={"encoder.source": {"choice": ["scratch", "owner/other"]}})
    arguments = ("space.yaml", "--dry-run", "--init", "owner/model")
    done = run_script(ROOT / "jobs" / "sweep.py", tmp_path, *arguments, HOME=str(tmp_path))
    assert done.returncode == 2
    assert "the space varies encoder.source" in done.stderr


def test_a_range_is_measured_against_the_base_settings_and_not_against_the_defaults(
    tmp_path: Path,
) -> None:
    space_of(tmp_path, search={"kind": "grid"}, space={RATE: {"choice": [1e-5, 2e-5]}})
    (tmp_path / "base.yaml").write_text("optim: {peak_lr: 2.0e-5}\n")
    arguments = ("space.yaml", "--dry-run", "--config", "base.yaml")
    done = run_script(ROOT / "jobs" / "sweep.py", tmp_path, *arguments, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "2 trials" in done.stdout
    assert "outside" not in done.stderr
    (tmp_path / "base.yaml").write_text("optim: {peak_lr: 3.0e-5}\n")
    done = run_script(ROOT / "jobs" / "sweep.py", tmp_path, *arguments, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "2 trials" in done.stdout
    assert (
        f"warning: {RATE}: the base value 3e-05 lies outside choice [1e-05, 2e-05]" in done.stderr
    )


def test_a_recipe_gives_the_settings_that_trials_share(tiny_store: Store) -> None:
    words = ["sppt_protein", "--store", str(tiny_store.path), "--dry-run"]
    words += ["--budget", "max_steps=200", "--budget", "grace_steps=200"]
    done = CliRunner().invoke(
        sweep_app, [*words, "--recipe", "small", "--set", "plan.global_batch_rows=16"]
    )
    assert done.exit_code == 0, (done.output, done.exception)
    assert "12 trials of 200 steps at most" in done.output
    assert "is similar to 18 of them" in done.output
    refused = CliRunner().invoke(sweep_app, [*words, "--recipe", "smal"])
    assert "--recipe smal: there is no such recipe" in str(refused.exception)
    small = base_configs(RunOptions(recipe="small"))["sppt_protein"]()
    assert small.encoder.num_layers == 2


@pytest.mark.parametrize(
    ("seconds_per_step", "yes", "is_refused"),
    [(10.0, False, True), (10.0, True, False), (0.1, False, False)],
)
def test_a_sweep_of_more_than_a_day_on_cpus_is_stopped_unless_that_is_accepted(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    seconds_per_step: float,
    yes: bool,
    is_refused: bool,
) -> None:
    budget = {"max_steps": 5000, "grace_steps": 10, "num_repeated": 2, "num_seeds": 3}
    grid = {LAMBDA: {"choice": [0.0, 0.1, 0.5]}}
    spec = spec_of(tmp_path, search={"kind": "grid"}, space=grid, budget=budget)
    spec = replace(spec, run=replace(spec.run, accepts_long_run=yes))
    assert steps_left(spec) == (3 + 2 * 2) * [5000]
    begun = Trial({LAMBDA: 0.1})  # by an earlier start
    folder = leave(spec, begun, {}, status=None)
    record(spec, [begun])
    launch_path = spec.path / "launch.json"
    write_record(launch_path, "launch", {"tracking": "mine"})
    for step in (1, 3, 10):
        MetricsLog(folder.metrics).append(step, {"steps_per_second": 1e-9})
    length = SweepLength(spec, num_at_a_time=2)
    folder = leave(spec, of(0.5), {}, status=None)
    for step in FIRST_REPORTED_STEPS:
        length.update()
        assert length.refusal is None
        MetricsLog(folder.metrics).append(step, {"steps_per_second": 1 / seconds_per_step})
    length.update()
    assert capsys.readouterr().out.count("trials left, 2 at a time: ") == 1
    assert (length.refusal is not None) == is_refused
    assert spec.stop.exists() == is_refused
    launch = read_record(launch_path, "launch")
    assert launch["tracking"] == "mine"
    if is_refused:
        # Four rounds of 5,000 steps; one began with 10 steps, and three more were over when it was
        # measured.
        assert "mine: 19,987 steps, 10 s a step: about 2.3 days on CPUs" in length.refusal
    is_short = not yes and not is_refused
    assert launch.get("num_accepted_steps", 0) == (7 * 5000 - 10 if is_short else 0)
    if is_short:
        # Not measured again, unless there are more trials.
        assert SweepLength(spec, num_at_a_time=1)._is_settled
        grid = {LAMBDA: {"choice": [0.0, 0.1, 0.5, 1.0]}}
        larger = spec_of(tmp_path, search={"kind": "grid"}, space=grid, budget=budget)
        assert not SweepLength(larger, num_at_a_time=2)._is_settled


def steps_left(spec: SweepSpec) -> list[int]:
    return [num_steps for _, num_steps in trainings_left(spec)]


def record(spec: SweepSpec, trials: list[Trial]) -> None:
    """Leave the sweep's list of trials that have begun."""
    write_record(spec.path / TRIALS, "trials", {"trials": [asdict(trial) for trial in trials]})


def test_a_resumed_sweep_is_as_long_as_what_is_left_of_it(tmp_path: Path) -> None:
    """Twelve trials were counted again, and the last of them was stopped for it."""
    weights = [number / 100 for number in range(12)]
    grid = {LAMBDA: {"choice": weights}}
    budget = {"max_steps": 5000, "grace_steps": 10}
    spec = spec_of(tmp_path, search={"kind": "grid"}, space=grid, budget=budget)
    assert steps_left(spec) == 12 * [5000]
    trials = [Trial({LAMBDA: weight}) for weight in weights]
    for trial in trials[1:]:
        leave(spec, trial, {10: 0.5}, STOPPED)
    folder = leave(spec, trials[0], {4000: 0.5}, status=None)
    record(spec, trials)
    assert steps_left(spec) == [1000]
    length = SweepLength(spec, num_at_a_time=2)
    for step in FIRST_REPORTED_STEPS:
        MetricsLog(folder.metrics).append(4000 + step, {"steps_per_second": 0.1})
        length.update()
    assert length.refusal is None
    assert length._is_settled
    extended = {LAMBDA: {"choice": [*weights, 0.5]}}
    spec = spec_of(tmp_path, search={"kind": "grid"}, space=extended, budget=budget)
    assert steps_left(spec) == [1000 - FIRST_REPORTED_STEPS[-1], 5000]


def test_repetitions_count_until_they_have_ended(tmp_path: Path) -> None:
    grid = {LAMBDA: {"choice": [0.1, 0.5]}}
    budget = {"max_steps": 40, "grace_steps": 10, "num_repeated": 1, "num_seeds": 3}
    spec = spec_of(tmp_path, search={"kind": "grid"}, space=grid, budget=budget)
    own = spec.run.config.seed
    trials = [Trial({LAMBDA: 0.1}), Trial({LAMBDA: 0.5})]
    repeated = [Trial({LAMBDA: 0.5, "seed": own + number}) for number in (1, 2)]
    leave(spec, trials[0], {40: 0.3})
    record(spec, [*trials, *repeated])
    leave(spec, trials[1], {10: 0.5}, status=None)
    assert steps_left(spec) == [30, 40, 40]
    leave(spec, trials[1], {40: 0.5})
    leave(spec, repeated[0], {40: 0.5})
    leave(spec, repeated[1], {30: 0.4}, status=None)
    assert steps_left(spec) == [10]


def test_a_sweep_over_the_number_of_steps_has_the_steps_of_each_trial(tmp_path: Path) -> None:
    varied = {"optim.schedule": {"choice": ["linear"]}}
    varied["schedule.max_steps"] = {"choice": [20, 40], "when": {"optim.schedule": "linear"}}
    budget = {"max_steps": 40, "grace_steps": 10, "num_repeated": 1, "num_seeds": 2}
    kinds = {"search": {"kind": "grid"}, "scheduler": {"kind": "none"}}
    spec = spec_of(tmp_path, space=varied, budget=budget, **kinds)
    assert steps_left(spec) == [20, 40, 40]


def test_the_length_of_a_sweep_holds_no_files_of_trials_that_have_ended(tmp_path: Path) -> None:
    """Sweeps of very short trials ran out of file descriptors."""
    spec = spec_of(tmp_path, search={"kind": "grid"}, space={LAMBDA: {"choice": [0.0, 0.1, 0.5]}})
    length = SweepLength(spec, num_at_a_time=2)
    for weight in (0.0, 0.1, 0.5):
        folder = leave(spec, of(weight), {}, status=None)
        MetricsLog(folder.metrics).append(1, {"steps_per_second": 1.0})
        length.update()
        assert list(length._followed) == [folder.name]
        write_record(folder.path / "ended.json", "trial end", {"status": "finished"})
        # A report that came before the end is read.
        MetricsLog(folder.metrics).append(2, {"steps_per_second": 1.0})
        tail, _ = length._followed[folder.name]
        length.update()
        assert tail.last[0] == 2
        assert not length._followed
    assert not SweepLength(spec, num_at_a_time=2)._followed


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("schedule.max_epochs", "budget.max_steps"),
        ("schedule.evaluate_every_epochs", "schedule.evaluate_every_steps"),
    ],
)
def test_a_space_cannot_vary_epochs_which_would_pass_by_the_budget(
    tmp_path: Path, path: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=f"{path}: a sweep counts in steps.*want {hint}"):
        space_of(tmp_path, space={path: {"choice": [1, 2]}})


def test_a_dry_run_refuses_what_the_sweep_would_refuse(tmp_path: Path) -> None:
    space_of(tmp_path)
    words = [str(tmp_path / "space.yaml"), "--sweeps", str(tmp_path), "--dry-run"]
    refused = CliRunner().invoke(sweep_app, [*words, "--store", str(tmp_path / "nowhere")])
    assert isinstance(refused.exception, StoreError)
    assert "nowhere" in str(refused.exception)
    space_of(tmp_path, space={RATE: {"log_uniform": [1e-5, 1e-2]}})
    refused = CliRunner().invoke(sweep_app, [*words, "--set", "objective.loss=margin_contrastive"])
    assert isinstance(refused.exception, ConfigError)
    assert "want equal numbers" in str(refused.exception)


def test_a_dry_run_without_a_name_is_that_of_the_sweep_which_has_its_default_name(
    tiny_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked for trials that have ended in ``sweeps/plan``."""
    begun = []

    def not_started(spec: SweepSpec) -> None:
        begun.append(spec)
        raise ClusterError("nothing is trained here")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("raybio.runtime.tune.driver.sweep", not_started)
    space_of(tmp_path, search={"kind": "grid"}, space={LAMBDA: {"choice": [0.1, 0.5]}})
    words = ["space.yaml", "--store", str(tiny_store.path), "--set", "plan.global_batch_rows=16"]
    assert not CliRunner().invoke(sweep_app, words).output
    (spec,) = begun
    leave(spec, Trial({LAMBDA: 0.5}), {40: 0.5})
    record(spec, [Trial({LAMBDA: 0.5})])
    done = CliRunner().invoke(sweep_app, [*words, "--dry-run"])
    assert done.exit_code == 0, (done.output, done.exception)
    assert f"   1  {LAMBDA}=0.1\n   2  {LAMBDA}=0.5: finished\n" in done.output
    assert "is similar to 1 of them" in done.output


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (f"{LAMBDA}=0.1", "the space varies objective.lambda_spml"),
        ("schedule.max_steps=500", "want --budget max_steps="),
        ("schedule.max_epochs=3", "want budget.max_steps"),
        ("schedule.evaluate_every_epochs=5", "want schedule.evaluate_every_steps"),
        (
            "schedule.checkpoint_every_steps=5",
            "every 10 steps at least; want --budget grace_steps=",
        ),
        ("schedule.evaluate_every_steps=11", "every 10 steps at least; want --budget grace_steps="),
        ("schedule.evaluate_every_steps=0", "every 10 steps at least; want --budget grace_steps="),
    ],
)
def test_settings_that_the_space_decides_are_refused(
    tmp_path: Path, setting: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        refuse_decided_settings(
            space_of(tmp_path),
            ("seed=3", "schedule.evaluate_every_steps=10", setting),
            METHODS["sppt_protein"].config,
        )


@pytest.mark.parametrize("node", [Node(2), Node(16, 1), Node(1)])
def test_the_winner_has_room_with_the_threads_of_its_trial_even_if_that_had_a_whole_node(
    tmp_path: Path, node: Node
) -> None:
    found = fit_trials([node], workers=1, at_most=1)
    compute = Compute(cpus_per_worker=found.cpus_per_worker, gpus_per_worker=found.gpus_per_worker)
    spec = spec_of(tmp_path)
    spec = replace(spec, run=replace(spec.run, compute=compute))
    assert spec.launch == {"workers": 1, "threads_per_worker": node.cpus, "use_gpu": node.gpus > 0}
    again = Compute().or_recorded(spec.launch)  # as the job of best.yaml asks
    check_resources(again.num_workers, None, [node], again.use_gpu)


def test_the_best_file_brings_how_its_own_trial_was_trained_and_not_how_the_sweep_was_started_last(
    tmp_path: Path,
) -> None:
    spec = spec_of(tmp_path)
    for value, score, workers in ((0.1, 0.5, 1), (0.5, 0.3, 2)):
        folder = leave(spec, of(value), {10: score})
        write_record(
            folder.launch, "launch", {"workers": workers, "threads_per_worker": 4, "use_gpu": False}
        )
    folder = RunFolder(tmp_path / "sweeps", "mine")
    write_record(folder.launch, "launch", {"given": {"workers": 2}})
    write_results(folder, spec)
    own = {"workers": 1, "threads_per_worker": 4, "use_gpu": False}
    assert read_record(folder.launch, "launch") == {"given": {"workers": 2}} | own


def test_settings_of_a_file_that_the_space_decides_are_reported(tmp_path: Path, capsys) -> None:
    space = space_of(tmp_path)
    space = space.model_copy(
        update={"space": {**space.space, "seed": Distribution("choice", (1, 2))}}
    )
    config = tmp_path / "config.yaml"
    for text, messages in (
        (
            "seed: 3\nobjective: {lambda_spml: 0.3, loss: margin_contrastive}\nschedule:\n",
            f"{LAMBDA}, seed are not",
        ),
        ("schedule: {max_steps: 7}\n", "schedule.max_steps is not"),
        ("optim: {weight_decay: 0.1}\nprecision: fp32\n", ""),
    ):
        config.write_text(text)
        _report_unused(space, config)
        out = capsys.readouterr().out
        assert out == (f"of {config}, {messages} used: the space decides\n" if messages else "")


def test_a_metric_that_is_no_number_fails_its_trial_and_a_metric_that_is_not_there_the_sweep() -> (
    None
):
    goal = Goal("val/x", "max")
    report = {"step": 10, "is_evaluation": True, "metrics": {"val/y": 1.0}}
    with pytest.raises(MetricError, match="'val/x' is not evaluated; want one of val/y"):
        goal.check(report)
    for broken in (
        report | {"not_finite": {"val/x": "inf"}},
        report | {"metrics": {"val/x": float("inf")}},
    ):
        with pytest.raises(DivergedError, match="step 10: val/x is inf, want a finite number"):
            goal.check(broken)


def test_a_metric_that_is_undefined_at_a_step_never_wins() -> None:
    """Spearman's correlation of a constant predictor; a later evaluation may define it."""
    for mode, best in (("max", (30, 0.4)), ("min", (20, 0.1))):
        goal = Goal("val/x", mode)
        reports = [
            {"step": 10, "is_evaluation": True, "metrics": {"val/x": float("nan")}},
            {"step": 15, "is_evaluation": True, "metrics": {}, "not_finite": {"val/x": "nan"}},
            {"step": 20, "is_evaluation": True, "metrics": {"val/x": 0.1}},
            {"step": 30, "is_evaluation": True, "metrics": {"val/x": 0.4}},
            {"step": 40, "is_evaluation": True, "metrics": {"val/x": float("nan")}},
        ]
        for report in reports:
            goal.check(report)
        assert goal.best(goal.values(reports)) == best
        assert goal.is_reached_first(reports, best[0])
        assert not goal.is_reached_first(reports[:2], 15)


def test_a_resumed_sweep_keeps_its_options(tmp_path: Path, capsys) -> None:
    folder = RunFolder(tmp_path, "mine")
    assert SweepOptions(budget=("num_trials=3",)).or_recorded(folder) == SweepOptions(
        budget=("num_trials=3",)
    )
    folder.make()
    earlier = SweepOptions(
        budget=("num_trials=20", "num_seeds=4"), workers=2, tracking_uri="http://127.0.0.1:5"
    )
    write_record(folder.launch, "launch", {"given": asdict(earlier)})
    assert SweepOptions().or_recorded(folder) == earlier
    messages = (
        "--budget num_trials=20 --budget num_seeds=4 --workers 2 --tracking-uri http://127.0.0.1:5"
    )
    assert f"as mine was started before: {messages}" in capsys.readouterr().out
    now = SweepOptions(budget=("num_trials = 30",), workers=1).or_recorded(folder)
    assert now == SweepOptions(
        budget=("num_seeds=4", "num_trials = 30"), workers=1, tracking_uri="http://127.0.0.1:5"
    )
