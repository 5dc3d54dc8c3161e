"""What a sweep tries next, and what a trial tells; without a cluster."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from raybio.core.config import override
from raybio.core.errors import ClusterError, ConfigError
from raybio.core.records import write_record
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.tune.length import trainings_left
from raybio.runtime.tune.plan import planned
from raybio.runtime.tune.run_trial import BEST_VALUE, run_trial
from raybio.runtime.tune.search import TRIAL, LearningSearch, scheduler, tune_config
from raybio.runtime.tune.trial import TRIAL_RECORD, SweepSpec, Trial
from raybio.store.store import Store
from tests.runtime.tune.sweep_folder import LAMBDA, RATE, leave, of, space_of, spec_of
from tests.store.test_verification import flip_a_byte


@pytest.fixture
def spec(tmp_path: Path) -> SweepSpec:
    return spec_of(tmp_path)


def test_optuna_never_gives_the_same_settings_twice_and_begins_with_earlier_trials(
    tmp_path: Path,
) -> None:
    spec = spec_of(
        tmp_path, space={LAMBDA: {"choice": [0.0, 0.1, 0.5]}, "seed": {"choice": [0, 1]}}
    )
    earlier = [Trial({LAMBDA: 0.5, "seed": 1}), Trial({LAMBDA: 0.1, "seed": 0})]
    search, given = LearningSearch(spec, earlier), []
    while isinstance(found := search.suggest(str(len(given))), dict):
        given.append(found[TRIAL]["settings"])
        search.on_trial_complete(str(len(given) - 1), {BEST_VALUE: given[-1][LAMBDA]})
    assert given[:2] == [trial.settings for trial in earlier]
    assert len(given) == 6
    assert all(given.count(one) == 1 for one in given)


@pytest.mark.parametrize("num_trials", [20, 30])
def test_optuna_tries_as_many_of_many_combinations_as_the_budget_wants(
    tmp_path: Path, num_trials: int
) -> None:
    """After some ten random draws it draws the best ones again and again."""
    space = {
        LAMBDA: {"choice": [0.0, 0.1, 0.25, 0.5]},
        RATE: {"choice": [1e-4, 3e-4, 1e-3]},
        "seed": {"choice": [0, 1]},
    }
    budget = {"num_trials": num_trials, "max_steps": 40, "grace_steps": 10}
    spec = spec_of(tmp_path, space=space, budget=budget)
    search, given = LearningSearch(spec, []), []
    while len(given) < num_trials and isinstance(found := search.suggest(str(len(given))), dict):
        given.append(found[TRIAL]["settings"])
        search.on_trial_complete(str(len(given) - 1), {BEST_VALUE: given[-1][LAMBDA]})
    assert len(given) == min(num_trials, 24) == len(planned(spec.space, spec.check))
    assert all(given.count(one) == 1 for one in given)
    assert len(trainings_left(spec)) == len(given)


LOSS, NEGATIVES = "objective.loss", "plan.num_negatives_per_anchor"
MISFITS = {
    LOSS: {"choice": ["multi_similarity", "margin_contrastive"]},
    NEGATIVES: {"choice": [0, 1]},
}
"""The second loss wants as many negatives as positives: one."""


def test_settings_that_do_not_fit_each_other_are_drawn_again(tmp_path: Path) -> None:
    budget = {"num_trials": 4, "max_steps": 40, "grace_steps": 10}
    drawn = {"space": MISFITS, "budget": budget}
    fitting = [("margin_contrastive", 1), ("multi_similarity", 0), ("multi_similarity", 1)]
    learning, found = (
        LearningSearch(
            spec_of(tmp_path, **drawn), [Trial({LOSS: "margin_contrastive", NEGATIVES: 0})]
        ),
        [],
    )
    while isinstance(suggested := learning.suggest(str(len(found))), dict):
        found.append(tuple(suggested[TRIAL]["settings"].values()))
    assert sorted(found) == fitting
    spec = spec_of(tmp_path, **drawn, search={"kind": "random"}, scheduler={"kind": "pbt"})
    assert sorted(tuple(one.values()) for one in planned(spec.space, spec.check)) == fitting
    explore = scheduler(spec)._custom_explore_fn
    heirs = [
        explore({TRIAL: {"settings": {LOSS: "margin_contrastive", NEGATIVES: 1}}})
        for _ in range(30)
    ]
    assert {tuple(successor[TRIAL]["settings"].values()) for successor in heirs} == set(fitting)
    donor = Trial({LOSS: "margin_contrastive", NEGATIVES: 1})
    assert {each[TRIAL]["donor"] for each in heirs} == {spec.folder(donor).path.name}
    grid = spec_of(tmp_path, **drawn, search={"kind": "grid"})
    with pytest.raises(ConfigError, match="want equal numbers"):  # it was asked for by name
        planned(grid.space, grid.check)
    with pytest.raises(ConfigError, match="this never fits"):
        planned(spec.space, refuse)


def accept(settings: dict) -> None:
    """Check nothing."""


def refuse(settings: dict) -> None:
    raise ConfigError("this never fits")


def test_optuna_learns_nothing_from_trials_that_failed(spec: SweepSpec) -> None:
    search = LearningSearch(spec, [])
    trials = [Trial(search.suggest(str(number))[TRIAL]["settings"]) for number in range(3)]
    for number, trial in enumerate(trials):
        folder = leave(spec, trial, {10: 0.5})
        if number == 1:
            write_record(
                folder.failure, "failure", {"kind": "DivergedError", "message": "not finite"}
            )
        search.on_trial_complete(str(number), {BEST_VALUE: 0.5}, error=number == 2)
    assert [one.state.name for one in search._study.trials] == ["COMPLETE", "FAIL", "FAIL"]


def test_a_population_resumes_with_its_members(tmp_path: Path) -> None:
    rates = {RATE: {"choice": [1e-5, 3e-4, 1e-3, 3e-3]}}
    spec = spec_of(tmp_path, scheduler={"kind": "pbt"}, search={"kind": "grid"}, space=rates)
    successor = Trial({RATE: 2e-3}, branch="abc")
    earlier = [Trial({RATE: 1e-5}), successor, Trial({RATE: 1e-3})]
    leave(spec, earlier[0], {10: 0.1, 20: 0.2})  # it has ended

    def started() -> list[Trial]:
        (entry,) = tune_config(spec, earlier, 2)[0].values()
        return [Trial(**one) for one in entry["grid_search"]]

    assert started() == [
        successor,
        earlier[2],
        Trial({RATE: 3e-3}),
    ]  # the last one had not begun yet
    for trial in started():
        leave(spec, trial, {10: 0.1})
    assert tune_config(spec, [*earlier, Trial({RATE: 3e-3})], 2) is None


@pytest.mark.parametrize(
    ("kind", "messages"), [("asha", [(10, 0.3), (20, 0.3)]), ("pbt", [(20, 0.3)])]
)
def test_an_ended_trial_reports_all_its_steps_and_a_member_of_a_population_its_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, messages: list[tuple[int, float]]
) -> None:
    import ray.tune

    spec = spec_of(tmp_path, scheduler={"kind": kind}, search={"kind": "random"})
    leave(spec, of(0.5), {10: 0.3, 20: 0.2})
    heard = []
    monkeypatch.setattr(ray.tune, "get_checkpoint", lambda: None)
    monkeypatch.setattr(
        ray.tune,
        "report",
        lambda report, checkpoint: heard.append((report["step"], report[BEST_VALUE])),
    )
    run_trial(asdict(of(0.5)), spec)
    assert heard == messages


def test_a_trial_on_a_machine_that_does_not_see_the_sweep_says_so(spec: SweepSpec) -> None:
    with pytest.raises(ClusterError, match="does not see .*which the driver made.*RAYBIO_SWEEPS"):
        run_trial(asdict(of(0.5)), spec)


def test_a_trial_verifies_the_copy_of_the_store_on_its_node(
    spec: SweepSpec, tiny_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray.tune

    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))  # no file is verified yet
    shutil.copytree(tiny_store.path, tmp_path / "store")
    changed = max(tiny_store.manifest["files"])
    flip_a_byte(tmp_path / "store" / changed)
    spec = replace(spec, run=replace(spec.run, store=tmp_path / "store"))
    folder = spec.folder(of(0.5))
    folder.make()
    write_record(
        folder.path / TRIAL_RECORD, "trial", {"trial": asdict(of(0.5)), "worker_seconds": 0.0}
    )
    monkeypatch.setattr(ray.tune, "get_checkpoint", lambda: None)
    monkeypatch.setattr(
        "raybio.runtime.tune.run_trial._train_here", lambda process: pytest.fail("trains")
    )
    run_trial(asdict(of(0.5)), spec)
    failure = json.loads(folder.failure.read_text())
    assert f"{changed}: sha256 is" in failure["message"]


def test_a_trial_whose_donor_has_no_checkpoint_fails_at_once_with_the_reason(
    spec: SweepSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import ray.tune

    folder, donor = spec.folder(of(0.5)), RunFolder(tmp_path, "donor")
    folder.make()
    write_record(
        folder.path / TRIAL_RECORD, "trial", {"trial": asdict(of(0.5)), "worker_seconds": 0.0}
    )
    (donor.checkpoints / "step-00000010").mkdir(parents=True)  # torn
    (tmp_path / "donated").mkdir()
    write_record(
        tmp_path / "donated" / TRIAL_RECORD,
        "trial checkpoint",
        {"folder": str(donor.path), "step": 10},
    )
    monkeypatch.setattr(
        ray.tune, "get_checkpoint", lambda: ray.tune.Checkpoint.from_directory(tmp_path / "donated")
    )
    run_trial(asdict(of(0.5)), spec)
    assert json.loads(folder.failure.read_text())["kind"] == "CheckpointError"
    assert (
        json.loads((folder.path / TRIAL_RECORD).read_text())["worker_seconds"] > 0
    )  # it has cost something all the same


def test_trials_of_auto_have_the_precision_of_the_sweep_and_others_their_own(
    tmp_path: Path,
) -> None:
    spec = spec_of(tmp_path)
    spec = replace(spec, run=replace(spec.run, precision="bf16"))
    auto = override(spec.run.config, "precision", "auto")
    assert spec.precision_of(auto) == "bf16"
    assert spec.precision_of(override(auto, "precision", "fp32")) == "fp32"


def test_a_trial_checkpoints_when_its_node_will_be_taken_away_and_again_until_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray

    from raybio.runtime.run import preemption

    now, draining = [0.0], {"other": 0}
    monkeypatch.setattr(preemption.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(
        ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "mine")
    )
    monkeypatch.setattr(ray._private.state.state, "get_draining_nodes", lambda: draining)
    is_due, due_at = preemption.notice_of_this_node(), []
    for second in range(30):
        now[0] = float(second)
        if second == 5:
            draining["mine"] = 0
        if is_due():
            due_at.append(second)
    assert due_at == [6, 16, 26]


def test_optuna_learns(spec: SweepSpec) -> None:
    search, rates = LearningSearch(spec, []), []
    for number in range(40):
        settings = search.suggest(str(number))[TRIAL]["settings"]
        rates.append(abs(settings[RATE] - 0.003))
        search.on_trial_complete(str(number), {BEST_VALUE: -rates[-1]})
    assert sorted(rates[20:])[10] < sorted(rates[:10])[5]


def test_a_random_search_is_the_same_each_time_and_has_no_trial_twice(tmp_path: Path) -> None:
    space = space_of(
        tmp_path, search={"kind": "random"}, space={LAMBDA: {"choice": [0.0, 0.1, 0.5]}}
    )
    assert planned(space, accept) == planned(space, accept)
    assert sorted(one[LAMBDA] for one in planned(space, accept)) == [
        0.0,
        0.1,
        0.5,
    ]  # no more than there are


def test_hyperband_gives_brackets_more_time_and_stops_the_same_trials_when_resumed(
    tmp_path: Path,
) -> None:
    spec = spec_of(tmp_path, scheduler={"kind": "hyperband", "reduction_factor": 2})
    trials = [
        SimpleNamespace(
            trial_id=str(number), config={TRIAL: asdict(of(number / 40))}, is_finished=lambda: False
        )
        for number in range(40)
    ]

    def stopped_at() -> dict[str, int]:
        """Trial -> the step at which it is stopped; trials report in turn, a later one is worse."""
        rule, found = scheduler(spec), {}
        for trial in trials:
            rule.on_trial_add(None, trial)
        for step in (10, 20, 30, 40):
            for number, trial in enumerate(trials):
                result = {"step": step, "training_iteration": step, BEST_VALUE: 1 - number / 40}
                if (
                    trial.trial_id not in found
                    and rule.on_trial_result(None, trial, result) == "STOP"
                ):
                    found[trial.trial_id] = step
        return found

    first = stopped_at()
    at = [sum(step == one for one in first.values()) for step in (10, 20)]
    assert min(at) > 0, first
    assert first["0"] == 40, "the best of all goes to the end"
    assert 0 < sum(step < 40 for step in first.values()) < 40
    assert stopped_at() == first
