"""Search spaces: reading one reports all of its problems."""

import math
import random
from functools import partial
from itertools import islice
from typing import Literal

import pytest
import yaml
from pydantic import Field, model_validator

from raybio.core.config import FORMERLY, BaseConfig, first_path
from raybio.core.errors import ConfigError
from raybio.core.search_space import Distribution, base_values_outside, refuse_decided_settings
from raybio.core.search_space_file import load_search_space
from tests.paths import ROOT

SPACES = ROOT / "search_spaces"


class Optim(BaseConfig):
    peak_lr: float = Field(1e-4, gt=0, le=1)
    schedule: Literal["constant", "linear"] = "constant"


class Schedule(BaseConfig):
    max_steps: int = Field(1000, ge=1)


class Example(BaseConfig):
    seed: int = 0
    layers: int = Field(4, ge=1)
    order: Literal["uniform", "group_first"] = "uniform"
    margin: float | None = None
    flag: bool = True
    optim: Optim = Optim()
    schedule: Schedule = Schedule()


class Slow(Example):
    optim: Optim = Optim(peak_lr=1e-6)

    @model_validator(mode="after")
    def _constant_rates_are_low(self):
        if self.optim.schedule == "constant" and self.optim.peak_lr > 1e-5:
            raise ValueError("a constant rate stays below 1e-05")
        return self


def load(tmp_path, space, configs=None, **changes):
    mapping = {"method": "example", "metric": "val/x", "mode": "max", "space": space, **changes}
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(mapping, sort_keys=False))
    return load_search_space(path, configs or {"example": Example})


class Renamed(BaseConfig):
    """A setting and another on which it depends, by new names."""

    width: int = Field(8, json_schema_extra={FORMERLY: ["size"]})
    updates: Optim = Field(Optim(), json_schema_extra={FORMERLY: ["optim"]})


def test_a_space_has_present_names_of_settings_and_can_have_their_first_ones(tmp_path) -> None:
    given = {
        "size": {"choice": [8, 16]},
        "optim.peak_lr": {"uniform": [0.1, 0.2], "when": {"size": 16}},
    }
    present = {
        "width": {"choice": [8, 16]},
        "updates.peak_lr": {"uniform": [0.1, 0.2], "when": {"width": 16}},
    }
    configs = {"example": Renamed}
    space = load(tmp_path, given, configs)
    assert space == load(tmp_path, present, configs)
    assert list(space.space) == ["width", "updates.peak_lr"]
    assert space.space["updates.peak_lr"].when == {"width": (16,)}
    first = space.renamed(partial(first_path, Renamed))
    assert list(first.space) == list(given)
    assert first.space["optim.peak_lr"].when == {"size": (16,)}
    tied = space.model_copy(update={"tied": {"width": {"16": {"updates.peak_lr": 0.1}}}})
    assert tied.renamed(partial(first_path, Renamed)).tied == {
        "size": {"16": {"optim.peak_lr": 0.1}}
    }
    for setting in ("size=3", "width=3"):
        with pytest.raises(ConfigError, match="the space varies width"):
            refuse_decided_settings(space, [setting], Renamed)


def test_a_space_with_a_setting_under_two_names_is_refused(tmp_path) -> None:
    given = {"size": {"choice": [8, 16]}, "width": {"choice": [8, 16]}}
    with pytest.raises(ConfigError, match="width: is given twice, once under a former name"):
        load(tmp_path, given, {"example": Renamed})


def refused(tmp_path, space, **changes) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, space, **changes)
    assert str(caught.value).count("space.yaml") == 1
    return str(caught.value)


def test_every_kind_of_distribution_is_read(tmp_path):
    result = load(
        tmp_path,
        {
            "order": {"choice": ["uniform", "group_first"]},
            "margin": {"choice": [None, 0.1, 0.5]},
            "optim.peak_lr": {"log_uniform": ["1e-5", 1.0e-2]},
            "layers": {"int_uniform": [2, 6]},
        },
    )
    assert result.space["optim.peak_lr"] == Distribution("log_uniform", (1e-5, 1e-2))
    assert result.space["margin"] == Distribution("choice", (None, 0.1, 0.5))
    assert (result.budget.num_trials, result.scheduler.kind, result.search.kind) == (
        12,
        "asha",
        "optuna",
    )


@pytest.mark.parametrize(
    ("distribution", "inside", "outside"),
    [
        (Distribution("choice", (1, "a", None)), [1, "a", None], [2, True, "b"]),
        (Distribution("uniform", (0.0, 1.0)), [0.0, 0.5, 1.0, 1], [-0.1, 1.1, None, True, "0.5"]),
        (Distribution("int_uniform", (1, 3)), [1, 2, 3], [0, 4, 1.5, True]),
    ],
)
def test_a_distribution_contains_the_values_that_it_may_draw(distribution, inside, outside):
    assert all(value in distribution for value in inside)
    assert not any(value in distribution for value in outside)


@pytest.mark.parametrize(
    ("space", "reason"),
    [
        ({"optim.peek_lr": {"uniform": [0.0001, 0.1]}}, "Did you mean 'optim.peak_lr'"),
        ({"optim": {"choice": [{}]}}, "'optim' is not a setting"),
        ({"layers": {"int_unifrom": [1, 5]}}, "Did you mean 'int_uniform'"),
        ({"layers": {"choice": [4], "int_uniform": [1, 5]}}, "exactly one of"),
        ({"layers": {}}, "exactly one of"),
        ({"layers": [1, 5]}, "exactly one of"),
        ({"layers": {"int_uniform": [6, 1]}}, "lower end first"),
        ({"layers": {"uniform": [2, 6]}}, "whole numbers; want int_uniform"),
        ({"layers": {"log_uniform": [2, 6]}}, "whole numbers; want int_uniform"),
        ({"layers": {"int_uniform": [0, 5]}}, "got 0, want a whole number >= 1"),
        ({"layers": {"int_uniform": [1, 2, 5]}}, "two whole numbers"),
        ({"layers": {"choice": []}}, "want a list"),
        ({"layers": {"choice": [4, 4]}}, "twice"),
        ({"optim.peak_lr": {"uniform": [0.0, 0.1]}}, "got 0.0, want a number > 0"),
        ({"seed": {"log_uniform": [0, 10]}}, "above 0"),
        ({"order": {"choice": ["uniform", "sideways"]}}, "sideways"),
        ({}, "space"),
        ([], "want a mapping"),
    ],
)
def test_a_wrong_entry_is_refused_with_the_reason(space, reason, tmp_path):
    assert reason in refused(tmp_path, space)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": "exampel"}, "Did you mean 'example'"),
        ({"mode": "maximum"}, "mode"),
        ({"bugdet": {}}, "'bugdet' is not a setting"),
        ({"budget": {"num_trials": 0}}, "budget.num_trials"),
        ({"tied": {"layers": {"4": {"seed": 1}}}}, "want space, with when"),
        ({"budget": {"max_steps": 10, "grace_steps": 11}}, "grace_steps"),
        ({"scheduler": {"kind": "medium"}}, "scheduler.kind"),
    ],
)
def test_invalid_sections_are_refused_with_the_reason(changes, reason, tmp_path):
    assert reason in refused(tmp_path, {"layers": {"choice": [4, 6]}}, **changes)


def test_steps_are_varied_only_if_the_rate_depends_on_them(tmp_path):
    rates = {"optim.schedule": {"choice": ["constant", "linear"]}}
    lengths = {"choice": [10, 20], "when": {"optim.schedule": "linear"}}
    alone = {
        "scheduler": {"kind": "none"},
        "budget": {"max_steps": 20, "grace_steps": 5},
        "search": {"kind": "grid"},
    }
    result = load(tmp_path, rates | {"schedule.max_steps": lengths}, **alone)
    assert result.grid() == [
        {"optim.schedule": "constant"},
        {"optim.schedule": "linear", "schedule.max_steps": 10},
        {"optim.schedule": "linear", "schedule.max_steps": 20},
    ]
    for wrong in (
        {"choice": [10, 20]},
        {"choice": [10, 20], "when": {"optim.schedule": ["constant", "linear"]}},
        {"choice": [10, 20], "when": {"layers": 4}},
    ):
        space = rates | {"layers": {"choice": [4]}, "schedule.max_steps": wrong}
        assert "add when: {optim.schedule: linear}" in refused(tmp_path, space, **alone)
    space = rates | {"schedule.max_steps": lengths}
    assert "scheduler.kind asha cannot compare trials of different lengths; want none" in refused(
        tmp_path, space, budget=alone["budget"]
    )
    assert "20 is above budget.max_steps 15" in refused(
        tmp_path, space, **alone | {"budget": {"max_steps": 15, "grace_steps": 5}}
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "space: {layers: {choice: [4]}}\nspace: {seed: {choice: [0]}}\n",
            "'space' is repeated",
        ),
        (
            "space: {layers: {choice: [4]}, layers: {choice: [4, 5]}}\n",
            "'layers' is repeated",
        ),
        ("space: {layers: {choice: !!python/object/apply:os.system ['true']}}\n", "python/object"),
        ("space: {layers: &l {choice: [4]}, seed: *l}\n", "alias"),
        ("space: &a [x, x, x]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\nd: [*c, *c, *c]\n", "alias"),
        ("space: {layers: {choice: [" + "[" * 5000, "not valid YAML"),
    ],
)
def test_a_hostile_file_is_refused_with_the_reason(text, reason, tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text("method: example\nmetric: val/x\nmode: max\n" + text)
    with pytest.raises(ConfigError, match=reason):
        load_search_space(path, {"example": Example})


def test_a_file_of_no_method_says_which_there_are(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text("method: exampel\nmetric: val/x\nmode: max\nspace: {}\n")
    with pytest.raises(ConfigError, match="'exampel', want one of example. Did you mean 'example'"):
        load_search_space(path, {"example": Example})


@pytest.mark.parametrize("path", sorted(SPACES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_search_space_fits_its_method(path):
    from raybio.methods import METHODS

    assert load_search_space(path, {name: entry.config for name, entry in METHODS.items()}).space


@pytest.mark.parametrize("path", sorted(SPACES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_search_space_fits_the_settings_of_the_embedded_corpus(path):
    from raybio.methods import METHODS

    assert load_search_space(
        path, {name: lambda entry=entry: entry.demo for name, entry in METHODS.items()}
    ).space


@pytest.mark.parametrize(
    ("space", "base", "described"),
    [
        (
            {"layers": {"int_uniform": [5, 9]}},
            {},
            ["layers: the base value 4 lies outside int_uniform [5, 9]"],
        ),
        ({"layers": {"int_uniform": [5, 9]}}, {"layers": 6}, []),
        (
            {"layers": {"int_uniform": [3, 5]}},
            {"layers": 6},
            ["layers: the base value 6 lies outside"],
        ),
        ({"margin": {"uniform": [0.1, 0.5]}}, {}, ["margin: the base value None lies outside"]),
        (
            {"layers": {"choice": [1, 2]}, "optim.peak_lr": {"uniform": [0.1, 0.2]}},
            {"optim": {"peak_lr": 0.3}},
            ["layers: the base value 4", "optim.peak_lr: the base value 0.3"],
        ),
        (
            {
                "optim.peak_lr": {"choice": [0.1, 0.2]},
                "layers": {"choice": [1, 2], "when": {"optim.peak_lr": 0.1}},
            },
            {"optim": {"peak_lr": 0.3}},
            ["optim.peak_lr: the base value 0.3"],
        ),
        # One value is what all trials have.
        ({"layers": {"choice": [1]}}, {"layers": 4}, []),
    ],
)
def test_a_base_value_outside_its_range_is_described_and_not_refused(
    space, base, described, tmp_path
):
    config = Example.from_mapping(base)
    result = load(tmp_path, space, configs={"example": lambda: config})
    lines = base_values_outside(result, config)
    assert len(lines) == len(described)
    assert all(line.startswith(start) for line, start in zip(lines, described, strict=True))


def test_a_value_is_accepted_next_to_those_of_the_base(tmp_path):
    space = {"optim.peak_lr": {"log_uniform": [1e-5, 1e-3]}}
    slow = Slow(optim=Optim(peak_lr=1e-4, schedule="linear"))
    assert load(tmp_path, space, configs={"example": lambda: slow}).space
    with pytest.raises(ConfigError, match="a constant rate stays below 1e-05"):
        load(tmp_path, space, configs={"example": Slow})
    schedule = {"optim.schedule": {"choice": ["constant", "linear"]}}
    assert load(
        tmp_path, schedule, configs={"example": lambda: slow}
    ).space  # a lower rate may be drawn with it


def test_all_problems_are_reported_at_once(tmp_path):
    space = {
        "optim.peek_lr": {"uniform": [0.0001, 0.1]},
        "layers": {"int_uniform": [0, 5]},
        "order": {"choice": ["uniform", "sideways"]},
        "seed": {"choice": [1, 1]},
        "flag": {"choice": [True], "when": {"order": "uniform"}},
        "margin": {"choice": [0.1], "when": {"flga": True}},
    }
    message = refused(tmp_path, space, budget={"max_steps": 10, "grace_steps": 11}, mode="maximum")
    for reason in (
        "6 problems",
        "Did you mean 'optim.peak_lr'",
        "got 0, want a whole number >= 1",
        "sideways",
        "lists a value twice",
        "Did you mean 'flag'",
        "mode: got 'maximum', want max or min",
    ):
        assert message.count(reason) == 1, (reason, message)
    message = refused(
        tmp_path,
        {"layers": {"int_uniform": [0, 5]}, "seed": {"choice": [1]}},
        search={"kind": "gird"},
    )
    assert message.count("\n") == 2
    assert "search.kind: got 'gird'" in message
    message = refused(tmp_path, {"layers": {"int_uniform": [0, 5]}}, mode="maximum")
    assert "space:" not in message
    wrong = {"scheduler": {"kind": "pbt"}, "budget": {"max_steps": 10, "grace_steps": 11}}
    message = refused(tmp_path, {"layers": {"int_uniform": [1, 5]}}, **wrong)
    assert "grace_steps" in message
    assert "want random" in message


def test_all_problems_of_one_entry_are_reported_at_once(tmp_path):
    space = {
        "order": {"choice": ["uniform", "group_first"]},
        "layers": {
            "choice": ["abc", -1, 4, "xyz", 4],
            "when": {"order": ["sideways", "upward"], "flga": True, "seed": [1, "one"]},
        },
        "optim.peak_lr": {"log_uniform": ["low", 0.0, 0.1], "when": {"margin": [0.5]}},
        "seed": {"log_uniform": [0, "many"]},
        "margin": {"uniform": [5.0, 1.0], "when": {"order": "uniform", "flag": True}},
    }
    message = refused(tmp_path, space)
    for reason in (
        "17 problems",
        "layers: got 'abc', want a whole number",
        "layers: got -1, want a whole number >= 1",
        "layers: got 'xyz', want a whole number",
        "lists a value twice",
        "order: got 'sideways'",
        "order: got 'upward'",
        "Did you mean 'flag'",
        "seed: got 'one'",
        "optim.peak_lr: got 'low'",
        "optim.peak_lr: got 0.0, want a number > 0",
        "want two numbers",
        "seed: got 'many'",
        "log_uniform got [0, 'many']; want both ends above 0",
        "seed: log_uniform got [0, 'many'] for a setting of whole numbers; want int_uniform",
        "uniform got [5.0, 1.0]; want the lower end first",
        "optim.peak_lr: when 'margin': want a setting that is listed above it",
        "margin: when 'flag': want a setting that is listed above it",
    ):
        assert message.count(reason) == 1, (reason, message)


def test_the_shipped_sweep_of_lambda_compares_all_published_values_without_early_stopping():
    from raybio.methods import METHODS

    space = load_search_space(
        SPACES / "sppt_protein.yaml", {name: entry.config for name, entry in METHODS.items()}
    )
    assert (space.metric, space.scheduler.kind) == ("val/link_ndcg", "none")
    lambdas = [trial["objective.lambda_spml"] for trial in space.grid()]
    assert sorted(set(lambdas)) == [0.0, 0.01, 0.1, 0.5, 0.9, 0.99]
    assert (
        len(lambdas) == space.budget.num_trials
    )  # the number that the file states is the number that is trained
    assert space.budget.num_repeated > 0


CONDITIONAL = {
    "order": {"choice": ["uniform", "group_first"]},
    "layers": {"int_uniform": [2, 6], "when": {"order": "group_first"}},
    "optim.peak_lr": {"log_uniform": [1e-5, 1e-2]},
}


def test_a_setting_is_drawn_only_where_its_condition_holds(tmp_path):
    drawn = list(islice(load(tmp_path, CONDITIONAL).drawn(), 200))
    assert all(("layers" in settings) == (settings["order"] == "group_first") for settings in drawn)
    assert {settings["layers"] for settings in drawn if "layers" in settings} == {2, 3, 4, 5, 6}
    assert all(1e-5 <= settings["optim.peak_lr"] <= 1e-2 for settings in drawn)
    logarithms = [math.log10(settings["optim.peak_lr"]) for settings in drawn]
    assert -3.8 < sum(logarithms) / 200 < -3.2  # uniform in the logarithm


def test_a_grid_has_every_combination_once(tmp_path):
    space = {
        "order": {"choice": ["uniform", "group_first"]},
        "layers": {"choice": [2, 4], "when": {"order": "group_first"}},
        "flag": {"choice": [True, False]},
    }
    grid = load(tmp_path, space, search={"kind": "grid"}).grid()
    assert len(grid) == 2 + 4
    assert all(grid.count(settings) == 1 for settings in grid)
    assert {"order": "uniform", "flag": False} in grid


def test_exploring_stays_near_and_inside_and_keeps_conditions(tmp_path):
    space, rng = load(tmp_path, CONDITIONAL), random.Random(0)
    near = 0
    for settings in islice(space.drawn(), 300):
        explored = space.explored(settings, rng)
        assert all(value in space.space[path] for path, value in explored.items())
        assert ("layers" in explored) == (explored["order"] == "group_first")
        ratio = explored["optim.peak_lr"] / settings["optim.peak_lr"]
        near += any(abs(ratio - factor) < 1e-9 for factor in (0.8, 1.2)) or explored[
            "optim.peak_lr"
        ] in (
            1e-5,
            1e-2,
        )
    assert 0.65 < near / 300 < 0.85  # three of four are moved, the others drawn anew


@pytest.mark.parametrize(
    ("when", "reason"),
    [
        ({"ordre": "uniform"}, "Did you mean 'order'"),
        ({"flag": True}, "want a setting that is listed above it"),
        ({"order": "sideways"}, "sideways"),
        ({"margin": 0.25}, "'margin': it is drawn from a range"),
        ("order", "want SETTING: VALUE"),
        ({}, "want SETTING: VALUE"),
    ],
)
def test_a_wrong_condition_is_refused(when, reason, tmp_path):
    space = {
        "order": {"choice": ["uniform", "group_first"]},
        "margin": {"uniform": [0.1, 0.5]},
        "layers": {"choice": [2, 4], "when": when},
    }
    assert reason in refused(tmp_path, {**space, "flag": {"choice": [True, False]}})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"search": {"kind": "grid"}}, "has a range; list choices"),
        ({"scheduler": {"kind": "pbt"}}, "want random"),
    ],
)
def test_inconsistent_sections_are_refused(changes, reason, tmp_path):
    assert reason in refused(tmp_path, {"optim.peak_lr": {"uniform": [1e-5, 1e-2]}}, **changes)


def test_seeds_are_either_searched_or_repeated(tmp_path):
    space = {"layers": {"choice": [2, 4]}, "seed": {"choice": [10, 20]}}
    assert "want one of them" in refused(tmp_path, space, budget={"num_repeated": 1})
    assert len(load(tmp_path, space, search={"kind": "grid"}).grid()) == 4


def test_the_best_of_a_population_cannot_be_repeated(tmp_path):
    space = {"layers": {"choice": [2, 4]}}
    kinds = {"scheduler": {"kind": "pbt"}, "search": {"kind": "random"}}
    reason = "num_repeated: 2, with scheduler.kind pbt; want 0"
    assert reason in refused(tmp_path, space, budget={"num_repeated": 2}, **kinds)
    with pytest.raises(ConfigError, match=reason):
        load(tmp_path, space, **kinds).with_budget(["num_repeated=2"])


def test_the_budget_can_be_changed_and_is_checked_again(tmp_path):
    result = load(tmp_path, {"layers": {"choice": [2, 4]}})
    assert result.with_budget(["num_trials=5", "max_steps=300"]).budget.num_trials == 5
    for wrong, reason in {
        "num_trails=5": "num_trials",
        "num_trials": "NAME=VALUE",
        "max_steps=10": "grace_steps",
    }.items():
        with pytest.raises(ConfigError, match=reason):
            result.with_budget([wrong])


def test_the_sweep_of_sppt_is_the_papers_grid_with_200_nodes_a_species():
    from raybio.methods import METHODS

    space = load_search_space(
        SPACES / "sppt_protein.yaml", {name: method.config for name, method in METHODS.items()}
    )
    grid = space.grid()
    assert {settings["objective.lambda_spml"] for settings in grid} == {
        0,
        0.01,
        0.1,
        0.5,
        0.9,
        0.99,
    }
    assert len(grid) == space.budget.num_trials == 12
    assert {settings["evaluation.num_nodes_per_group"] for settings in grid} == {200}
    assert (space.metric, space.scheduler.kind) == ("val/link_ndcg", "none")
    assert (space.budget.num_repeated, space.budget.num_seeds) == (3, 3)
