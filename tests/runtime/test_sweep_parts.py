"""The parts of a sweep that need no cluster: what is tried next, what has room, what came out of it, and the report."""

import csv
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from raybio.config import load, override_all
from raybio.errors import ClusterError, ConfigError
from raybio.runtime.metrics_log import MetricsLog
from raybio.runtime.room import Node, room
from raybio.runtime.run_folder import RunFolder, write_json
from raybio.runtime.sweeps.follow_trials import FAILED, FINISHED, STOPPED
from raybio.runtime.sweeps.leaderboard import leaderboard, write_results
from raybio.runtime.sweeps.suggest import TRIAL, LearningSearch, planned
from raybio.runtime.sweeps.sweep_report import importance, write_sweep_report
from raybio.runtime.sweeps.trial import ENDED, NOTE, OBJECTIVE, Trial, TrialOrder
from raybio.search_space import SearchSpace, load_search_space
from raybio.systems import SYSTEMS
from tests.script_process import run_script

ROOT = Path(__file__).parents[2]
SYSTEM = SYSTEMS["structure_preserving"]
LAMBDA, RATE, METRIC = "objective.lambda_spml", "optim.peak_lr", "val/link_mrr"


def space_of(folder: Path, **sections: object) -> SearchSpace:
    given = {
        "system": "structure_preserving",
        "metric": METRIC,
        "mode": "max",
        "budget": {"num_trials": 8, "max_steps": 40, "grace_steps": 10},
        "space": {LAMBDA: {"choice": [0.0, 0.1, 0.5]}, RATE: {"log_uniform": [1e-5, 1e-2]}},
        **sections,
    }
    (folder / "space.yaml").write_text(yaml.safe_dump(given))
    return load_search_space(folder / "space.yaml", {name: entry.config for name, entry in SYSTEMS.items()})


@pytest.fixture
def order(tmp_path: Path) -> TrialOrder:
    return TrialOrder(SYSTEM.demo, space_of(tmp_path), "store", str(tmp_path / "sweeps" / "mine"))


def leave(order: TrialOrder, trial: Trial, values: dict[int, float], status: str = FINISHED) -> RunFolder:
    """What a trial leaves in its folder."""
    folder = order.folder(trial)
    folder.make()
    log = MetricsLog(folder.metrics)
    log.append(0, {METRIC: 0.99})  # the start is no step of the trial
    for step, value in values.items():
        log.append(step, {METRIC: value})
    write_json(folder.path / NOTE, {"trial": {"settings": trial.settings, "branch": trial.branch}, "seconds": 36.0})
    write_json(folder.path / ENDED, {"status": status})
    return folder


def of(value: float, rate: float = 1e-3, **more: object) -> Trial:
    return Trial({LAMBDA: value, RATE: rate, **more})


def test_optuna_never_gives_the_same_settings_twice_and_begins_with_earlier_trials(tmp_path: Path) -> None:
    space = space_of(tmp_path, space={LAMBDA: {"choice": [0.0, 0.1, 0.5]}, "seed": {"choice": [0, 1]}})
    earlier = [Trial({LAMBDA: 0.5, "seed": 1}), Trial({LAMBDA: 0.1, "seed": 0})]
    search, given = LearningSearch(space, earlier), []
    while isinstance(found := search.suggest(str(len(given))), dict):
        given.append(found[TRIAL]["settings"])
        search.on_trial_complete(str(len(given) - 1), {OBJECTIVE: given[-1][LAMBDA]})
    assert given[:2] == [trial.settings for trial in earlier]
    assert len(given) == 6
    assert all(given.count(one) == 1 for one in given)


def test_optuna_learns(tmp_path: Path) -> None:
    space = space_of(tmp_path)
    search, rates = LearningSearch(space, []), []
    for number in range(40):
        settings = search.suggest(str(number))[TRIAL]["settings"]
        rates.append(abs(settings[RATE] - 0.003))
        search.on_trial_complete(str(number), {OBJECTIVE: -rates[-1]})
    assert sorted(rates[20:])[10] < sorted(rates[:10])[5]


def test_a_random_search_is_the_same_each_time_and_has_no_trial_twice(tmp_path: Path) -> None:
    space = space_of(tmp_path, search={"kind": "random"}, space={LAMBDA: {"choice": [0.0, 0.1, 0.5]}})
    assert planned(space) == planned(space)
    assert sorted(one[LAMBDA] for one in planned(space)) == [0.0, 0.1, 0.5]  # no more than there are


@pytest.mark.parametrize(
    ("nodes", "given", "expected"),
    [
        ([Node(2)], {"workers": 1, "at_most": 2}, (1, 0, 2)),
        ([Node(16)], {"workers": 1, "at_most": 2}, (8, 0, 2)),
        ([Node(16)], {"workers": 1, "at_most": 4, "cpus_per_worker": 6.0}, (6, 0, 2)),
        ([Node(0), Node(16, 1), Node(16, 1)], {"workers": 1, "at_most": 8}, (16, 1, 2)),
        ([Node(0), Node(16, 1), Node(16, 1)], {"workers": 1, "at_most": 8, "gpus_per_worker": 0.25}, (4, 0.25, 8)),
        ([Node(16, 4)], {"workers": 2, "at_most": 2}, (3, 1, 2)),
        ([Node(2)], {"workers": 2, "at_most": 1}, (0.8, 0, 1)),
        ([Node(3), Node(3)], {"workers": 1, "at_most": 4, "cpus_per_worker": 2.0}, (2, 0, 2)),  # not 6 // 2 = 3
    ],
)
def test_trials_get_what_nodes_have(nodes: list[Node], given: dict, expected: tuple) -> None:
    found = room(nodes, **given)
    assert (found.cpus_per_worker, found.gpus_per_worker, found.num_trials) == expected


def test_a_trial_that_no_node_can_hold_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(ClusterError, match=r"a trial takes 4 CPU, and the cluster has 3 CPU \+ 3 CPU"):
        room([Node(3), Node(3)], workers=1, at_most=2, cpus_per_worker=4)
    with pytest.raises(ClusterError, match=r"2 x 1.2 CPU and 1 GPU, and the cluster has 8 CPU and 1 GPU"):
        room([Node(8, 1)], workers=2, at_most=2, cpus_per_worker=1, gpus_per_worker=1)


def test_a_trial_counts_by_its_best_step_and_repeated_settings_by_their_mean(order: TrialOrder) -> None:
    leave(order, of(0.0), {10: 0.2, 20: 0.7, 30: 0.6})
    leave(order, of(0.5), {10: 0.3, 20: 0.5, 30: 0.6})
    leave(order, of(0.5, seed=order.base.seed + 1), {10: 0.3, 20: 0.6, 30: 0.5})
    leave(order, of(0.1), {10: 0.1}, STOPPED)
    failed = leave(order, of(0.1, 1e-5), {}, FAILED)
    write_json(failed.failure, {"kind": "DivergedError", "message": "no | longer <finite>"})
    folder = RunFolder(Path(order.sweep).parent, "mine")
    places, trials = write_results(folder, order)
    assert [(one.best_step, one.best_value, one.status) for one in trials] == [
        (20, 0.7, FINISHED),
        (30, 0.6, FINISHED),
        (20, 0.6, FINISHED),
        (10, 0.1, STOPPED),
        (None, None, FAILED),
    ]
    # Two seeds speak for 0.5, one for 0.0: its 0.7 may be luck.
    assert [place.settings[LAMBDA] for place in places] == [0.5, 0.0, 0.1]
    best = places[0]
    assert (best.best_step, best.mean) == (20, pytest.approx(0.55))
    half = 12.706 * 0.05  # of Student's t with one degree of freedom, times the standard error
    assert (best.low, best.high) == (pytest.approx(0.55 - half, abs=1e-3), pytest.approx(0.55 + half, abs=1e-3))
    assert (places[1].low, places[1].high) == (None, None)
    config = load(SYSTEM.config, folder.path / "best.yaml")
    assert (config.objective.lambda_spml, config.optim.peak_lr, config.seed) == (0.5, 1e-3, order.base.seed)
    with (folder.path / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == [one.status for one in trials]
    assert rows[0]["worker_hours"] == "0.01000"
    assert json.loads(folder.result.read_text())["leaderboard"][0]["best_step"] == 20


@pytest.mark.parametrize(("rule", "last_step"), [("constant", 20), ("linear", 40)])
def test_the_best_file_ends_at_the_best_step_where_the_learning_rate_does_not_depend_on_the_end(
    tmp_path: Path, rule: str, last_step: int
) -> None:
    base = override_all(SYSTEM.demo, {"optim.schedule": rule, "optim.warmup_ratio": 0, "optim.num_warmup_steps": 5})
    order = TrialOrder(base, space_of(tmp_path), "store", str(tmp_path / "sweeps" / "mine"))
    leave(order, of(0.5), {10: 0.3, 20: 0.6, 30: 0.5})
    folder = RunFolder(Path(order.sweep).parent, "mine")
    write_results(folder, order)
    assert load(SYSTEM.config, folder.path / "best.yaml").schedule.max_steps == last_step


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


def test_the_report_stands_alone_and_shows_every_trial(order: TrialOrder) -> None:
    for number, rate in enumerate((1e-5, 1e-4, 1e-3, 3e-3)):
        for value in (0.0, 0.5):
            score = number / 10 + value / 100
            leave(order, of(value, rate), {10: score, 20: score + 0.1}, STOPPED if number < 2 else FINISHED)
    failed = leave(order, of(0.1), {}, FAILED)
    write_json(failed.failure, {"kind": "DivergedError", "message": "loss <b>is</b> infinite"})
    folder = RunFolder(Path(order.sweep).parent, "mine")
    places, trials = write_results(folder, order)
    page = Page(write_sweep_report(folder, order, places, trials)[1].read_text())
    assert len(page.sources) == 5
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert all(one.name in page.text for one in trials)
    assert "loss <b>is</b> infinite" in page.text  # as text, not as markup
    shares = importance(order.space, trials)
    assert shares is not None
    assert shares[RATE] > 0.9  # it was planted
    assert sum(shares.values()) == pytest.approx(1)
    assert {path.name for path in folder.plots.iterdir()} == {
        "parameters.png", "parallel.png", "importance.png", "learning.png", "cost.png",
    }  # fmt: skip


def test_a_report_of_trials_that_all_failed_says_so(order: TrialOrder) -> None:
    write_json(leave(order, of(0.1), {}, FAILED).failure, {"kind": "DataError", "message": "torn"})
    folder = RunFolder(Path(order.sweep).parent, "mine")
    places, trials = write_results(folder, order)
    assert places == leaderboard(order, trials) == []
    assert "torn" in write_sweep_report(folder, order, places, trials)[1].read_text()
    assert not (folder.path / "best.yaml").exists()


def test_a_trial_needs_its_own_evaluations_and_checkpoints(order: TrialOrder) -> None:
    config = order.config({LAMBDA: 0.5})
    assert (config.schedule.max_steps, config.objective.lambda_spml) == (40, 0.5)
    assert config.schedule.evaluate_every_steps == config.schedule.checkpoint_every_steps <= 10
    assert order.folder(of(0.5)).path == order.folder(of(0.5)).path != order.folder(of(0.5, seed=7)).path
    with pytest.raises(ConfigError, match="objective.lambda_spml"):
        order.config({LAMBDA: 7.0})


def test_a_dry_run_prints_the_trials_and_starts_nothing(tmp_path: Path) -> None:
    space_of(tmp_path, search={"kind": "grid"}, space={LAMBDA: {"choice": [0.0, 0.1, 0.5]}})
    done = run_script(ROOT / "jobs" / "sweep.py", tmp_path, "space.yaml", "--dry-run", HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "objective.lambda_spml=0.5" in done.stdout
    assert "3 trials of 40 steps at most, judged by asha from step 10 on" in done.stdout
    assert not (tmp_path / "sweeps").exists()
    wrong = run_script(ROOT / "jobs" / "sweep.py", tmp_path, "space.yaml", "--dry-run", "--set", f"{LAMBDA}=0.1")
    assert wrong.returncode == 2
    assert "the space varies objective.lambda_spml" in wrong.stderr
