"""Search spaces: everything that is wrong with one is found when it is read."""

from pathlib import Path
from typing import Literal

import pytest
import yaml
from pydantic import Field

from raybio.config import Config
from raybio.errors import ConfigError
from raybio.search_space import Distribution, load_search_space

SPACES = Path(__file__).parents[1] / "search_spaces"


class Optim(Config):
    peak_lr: float = Field(1e-4, gt=0, le=1)


class Example(Config):
    seed: int = 0
    layers: int = Field(4, ge=1)
    order: Literal["uniform", "group_first"] = "uniform"
    margin: float | None = None
    flag: bool = True
    optim: Optim = Optim()


def load(tmp_path, space, **changes):
    mapping = {"system": "example", "metric": "val/x", "mode": "max", "space": space, **changes}
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(mapping))
    return load_search_space(path, {"example": Example})


def refused(tmp_path, space, **changes) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, space, **changes)
    assert str(caught.value).count("space.yaml") == 1
    return str(caught.value)


def test_every_kind_of_distribution_is_read(tmp_path):
    found = load(
        tmp_path,
        {
            "order": {"choice": ["uniform", "group_first"]},
            "margin": {"choice": [None, 0.1, 0.5]},
            "optim.peak_lr": {"log_uniform": ["1e-5", 1.0e-2]},
            "layers": {"int_uniform": [2, 6]},
        },
    )
    assert found.space["optim.peak_lr"] == Distribution("log_uniform", (1e-5, 1e-2))
    assert found.space["margin"] == Distribution("choice", (None, 0.1, 0.5))
    assert (found.budget.num_trials, found.scheduler.kind, found.search.kind) == (12, "asha", "optuna")


@pytest.mark.parametrize(
    ("distribution", "inside", "outside"),
    [
        (Distribution("choice", (1, "a", None)), [1, "a", None], [2, True, "b"]),
        (Distribution("uniform", (0.0, 1.0)), [0.0, 0.5, 1.0, 1], [-0.1, 1.1, None, True, "0.5"]),
        (Distribution("int_uniform", (1, 3)), [1, 2, 3], [0, 4, 1.5, True]),
    ],
)
def test_a_distribution_knows_what_it_may_give(distribution, inside, outside):
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
        ({"layers": {"int_uniform": [5, 9]}}, "default 4 lies outside"),
        ({"layers": {"choice": [1, 2]}}, "default 4 lies outside"),
        ({"layers": {"int_uniform": [6, 1]}}, "lower end first"),
        ({"layers": {"int_uniform": [0, 5]}}, "got 0, want a whole number >= 1"),
        ({"layers": {"int_uniform": [1, 2, 5]}}, "two whole numbers"),
        ({"layers": {"choice": []}}, "want a list"),
        ({"layers": {"choice": [4, 4]}}, "twice"),
        ({"optim.peak_lr": {"uniform": [0.0, 0.1]}}, "got 0.0, want a number > 0"),
        ({"seed": {"log_uniform": [0, 10]}}, "above 0"),
        ({"margin": {"uniform": [0.1, 0.5]}}, "default None lies outside"),
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
        ({"system": "exampel"}, "Did you mean 'example'"),
        ({"mode": "maximum"}, "mode"),
        ({"bugdet": {}}, "'bugdet' is not a setting"),
        ({"budget": {"num_trials": 0}}, "budget.num_trials"),
        ({"budget": {"max_steps": 10, "grace_steps": 11}}, "grace_steps"),
        ({"scheduler": {"kind": "medium"}}, "scheduler.kind"),
    ],
)
def test_wrong_surroundings_are_refused_with_the_reason(changes, reason, tmp_path):
    assert reason in refused(tmp_path, {"layers": {"choice": [4, 6]}}, **changes)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("space: {layers: {choice: [4]}}\nspace: {seed: {choice: [0]}}\n", "'space' stands here twice"),
        ("space: {layers: {choice: [4]}, layers: {choice: [4, 5]}}\n", "'layers' stands here twice"),
        ("space: {layers: {choice: !!python/object/apply:os.system ['true']}}\n", "python/object"),
        ("space: {layers: &l {choice: [4]}, seed: *l}\n", "alias"),
        ("space: &a [x, x, x]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\nd: [*c, *c, *c]\n", "alias"),
        ("space: {layers: {choice: [" + "[" * 5000, "not valid YAML"),
    ],
)
def test_a_hostile_file_is_refused_with_the_reason(text, reason, tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text("system: example\nmetric: val/x\nmode: max\n" + text)
    with pytest.raises(ConfigError, match=reason):
        load_search_space(path, {"example": Example})


@pytest.mark.parametrize("path", sorted(SPACES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_search_space_fits_its_system(path):
    from raybio.systems import SYSTEMS

    assert load_search_space(path, {name: entry.config for name, entry in SYSTEMS.items()}).space
