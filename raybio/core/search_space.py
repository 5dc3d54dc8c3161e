"""Search spaces: YAML files that say which settings of a method a sweep varies, and how.

Everything is checked when the file is read: the method exists, each path is one of its settings,
and the setting accepts both ends of a range. A range may exclude the value of the base
configuration; ``base_values_outside`` reports that. A setting that applies only with certain values
of another one has a condition, ``when``:

    optim.schedule: {choice: [constant, cosine]}
    optim.final_lr_ratio: {uniform: [0.0, 0.5], when: {optim.schedule: cosine}}

The number of steps is such a setting. With a constant rate, a long run passes through every shorter
one. With a rate that falls towards the end, each number of steps needs a run of its own:

    schedule.max_steps: {choice: [100, 200], when: {optim.schedule: linear}}
"""

import itertools
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from pydantic import Field

from raybio.core.config import BaseConfig, override, present_path, value_at
from raybio.core.errors import ConfigError
from raybio.core.fields import fields

Kind = Literal["choice", "uniform", "log_uniform", "int_uniform"]

RANGES = ("uniform", "log_uniform", "int_uniform")

STEPS = "schedule.max_steps"
"""The number of steps. A sweep varies it only if the learning rate depends on it, since trials are
evaluated at each saved step anyway."""

EPOCHS = {
    "schedule.max_epochs": "budget.max_steps",
    "schedule.evaluate_every_epochs": "schedule.evaluate_every_steps",
}
"""Settings that a sweep may not have, and what decides instead."""

SEED = "seed"
"""The setting that repetitions of a trial vary."""

RATE = "optim.schedule"
"""The setting that decides whether the rate depends on ``STEPS``."""

RESAMPLE_PROBABILITY = 0.25
"""Probability that population-based training draws a setting anew instead of perturbing it."""

Settings = dict[str, Any]
"""Path -> value of each setting that a trial changes."""


def format_value(value: object) -> str:
    """Return a setting's value as text; floats with three significant digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Distribution:
    """The distribution of one setting.

    Attributes:
        kind: ``choice`` of listed values; ``uniform``, ``log_uniform`` (its logarithm is uniform)
            or ``int_uniform`` over a range.
        values: all choices, or the two ends of the range, both included.
        when: path of another setting -> values with which this one is drawn; otherwise it keeps its
            base value.
    """

    kind: Kind
    values: tuple[Any, ...]
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def applies(self, settings: Settings) -> bool:
        """Return whether the condition holds, given the settings drawn so far."""
        return all(
            path in settings and settings[path] in values for path, values in self.when.items()
        )

    def draw(self, rng: random.Random) -> Any:
        """Draw a value."""
        if self.kind == "choice":
            return rng.choice(self.values)
        low, high = self.values
        if self.kind == "int_uniform":
            return rng.randint(low, high)
        if self.kind == "uniform":
            return rng.uniform(low, high)
        return min(max(math.exp(rng.uniform(math.log(low), math.log(high))), low), high)

    def near(self, value: Any, rng: random.Random) -> Any:
        """Perturb ``value``: an adjacent choice, or 20 % more or less, within the range."""
        sign = rng.choice((-1, 1))
        if self.kind == "choice":
            index = self.values.index(value) + sign
            return self.values[min(max(index, 0), len(self.values) - 1)]
        low, high = self.values
        perturbed = value * (1 + 0.2 * sign)
        if self.kind == "int_uniform":
            # A small integer must not stay the same.
            perturbed = round(perturbed) if round(perturbed) != value else value + sign
        return min(max(perturbed, low), high)

    def __contains__(self, value: Any) -> bool:
        """Return whether ``draw`` may return ``value``."""
        if self.kind == "choice":
            # True == 1 in Python, so booleans are compared by type too.
            return any(
                value == choice and isinstance(value, bool) == isinstance(choice, bool)
                for choice in self.values
            )
        number = int if self.kind == "int_uniform" else (int, float)
        if isinstance(value, bool) or not isinstance(value, number):
            return False
        return bool(self.values[0] <= value <= self.values[1])


class Budget(BaseConfig):
    """Limits of a sweep."""

    num_trials: int = Field(
        12, ge=1, description="number of trials; a grid ignores it and runs every combination"
    )
    max_steps: int = Field(2000, ge=1, description="steps of a trial that is not stopped early")
    grace_steps: int = Field(
        250,
        ge=1,
        description="steps before a trial may be stopped; pbt: steps between two exploits",
    )
    max_concurrent_trials: int | None = Field(
        2,
        ge=1,
        description="trials at the same time, resources permitting; null: as many as CPUs",
    )
    num_repeated: int = Field(
        0,
        ge=0,
        description="best settings that are trained again with other seeds at the end; 0: none; "
        "pbt wants 0",
    )
    num_seeds: int = Field(
        3, ge=2, description="seeds per repeated setting, including the trial's own"
    )


class Scheduler(BaseConfig):
    """Scheduler of a sweep: stops trials early, or continues them from other trials' weights."""

    kind: Literal["asha", "hyperband", "median", "pbt", "none"] = Field(
        "asha",
        description="asha: asynchronous successive halving; hyperband: HyperBand, which also has "
        "brackets that stop later; median: stop a trial below the median of the others' running "
        "means; pbt: population-based training, where bad trials copy the weights of good ones and "
        "perturb their settings; none: no early stopping",
    )
    reduction_factor: int = Field(
        3, ge=2, description="asha, hyperband: one in this many trials survives each rung"
    )


class Search(BaseConfig):
    """Search algorithm of a sweep: chooses the settings of the next trial."""

    kind: Literal["optuna", "random", "grid"] = Field(
        "optuna",
        description="optuna: tree-structured Parzen estimator; random: independent draws; grid: "
        "every combination of choices",
    )
    seed: int = Field(0, ge=0, description="random seed of the draws")


class SearchSpace(BaseConfig):
    """A sweep over one method."""

    method: str = Field(description="key in METHODS")
    metric: str = Field(
        description="the reported metric to optimize, such as val/link_average_precision"
    )
    mode: Literal["max", "min"] = Field(description="whether to maximize or minimize the metric")
    budget: Budget = Budget()
    scheduler: Scheduler = Scheduler()
    search: Search = Search()
    space: dict[str, Distribution] = Field(
        min_length=1, description="distribution of each varied setting, by path"
    )
    tied: dict[str, dict[str, Settings]] = Field(
        {},
        description="path of a varied setting -> its value -> settings that come with that value",
    )

    @property
    def paths(self) -> set[str]:
        """Paths of all settings that a trial may change, including tied ones."""
        paths = set(self.space)
        for settings_by_value in self.tied.values():
            for settings in settings_by_value.values():
                paths |= settings.keys()
        return paths

    def renamed(self, new_path: Callable[[str], str]) -> "SearchSpace":
        """Return the same space with other paths of the settings."""

        def by_new_path(value_by_path: Mapping[str, Any]) -> dict[str, Any]:
            return {new_path(path): value for path, value in value_by_path.items()}

        space = {
            new_path(path): replace(distribution, when=by_new_path(distribution.when))
            for path, distribution in self.space.items()
        }
        tied = {
            new_path(path): {value: by_new_path(settings) for value, settings in by_value.items()}
            for path, by_value in self.tied.items()
        }
        return self.model_copy(update={"space": space, "tied": tied})

    def with_budget(self, given: Iterable[str]) -> "SearchSpace":
        """Return the same space with another budget, given as texts such as ``num_trials=6``.

        Raises:
            ConfigError: if a text names no setting of ``Budget``, or a value does not fit the
                space.
        """
        budget = self.budget
        for text in given:
            name, separator, value = text.partition("=")
            if not separator:
                raise ConfigError(f"--budget {text!r}: want NAME=VALUE, such as num_trials=6")
            try:
                budget = override(budget, name.strip(), value)
            except ConfigError as error:
                raise ConfigError(f"--budget: {error}") from None
        changed = self.model_copy(update={"budget": budget})
        _check_whole(changed)
        return changed

    def settings(self, pick: Callable[[str, Distribution], Any]) -> Settings:
        """Return one trial's settings, where ``pick(path, distribution)`` chooses each value.

        ``pick`` is called in order of the space, and only for settings whose condition holds.
        """
        settings: Settings = {}
        for path, distribution in self.space.items():
            if distribution.applies(settings):
                settings[path] = pick(path, distribution)
        for path, by_value in self.tied.items():
            settings |= by_value.get(str(settings.get(path)), {})
        return settings

    def drawn(self) -> Iterator[Settings]:
        """Yield an endless sequence of random settings of trials; some may be equal."""
        rng = random.Random(self.search.seed)
        while True:
            yield self.settings(lambda _, distribution: distribution.draw(rng))

    def explored(self, settings: Settings, rng: random.Random) -> Settings:
        """Perturb settings as population-based training explores (Jaderberg et al., 2017).

        Each setting is perturbed or, with probability ``RESAMPLE_PROBABILITY``, drawn anew.
        Settings whose condition starts to hold are drawn.
        """

        def pick(path: str, distribution: Distribution) -> Any:
            if path not in settings or rng.random() < RESAMPLE_PROBABILITY:
                return distribution.draw(rng)
            return distribution.near(settings[path], rng)

        return self.settings(pick)

    @property
    def num_trials(self) -> int:
        """Number of trials without repetitions, at most; a grid ignores the budget's."""
        return len(self.grid()) if self.search.kind == "grid" else self.budget.num_trials

    @property
    def has_choices_only(self) -> bool:
        """Whether no setting has a range, so that combinations can be listed."""
        return all(distribution.kind == "choice" for distribution in self.space.values())

    def combinations(self) -> Iterator[Settings]:
        """Yield every combination of choices, the last setting changing fastest.

        Some are equal where settings have conditions.
        """
        choices = [distribution.values for distribution in self.space.values()]
        for values in itertools.product(*choices):
            value_by_path = dict(zip(self.space, values, strict=True))
            yield self.settings(partial(_value_of, value_by_path))

    def grid(self) -> list[Settings]:
        """Return every combination of choices once."""
        grid: list[Settings] = []
        for settings in self.combinations():
            if settings not in grid:
                grid.append(settings)
        return grid


def _value_of(value_by_path: Settings, path: str, _: Distribution) -> Any:
    return value_by_path[path]


def base_values_outside(space: SearchSpace, base: BaseConfig) -> list[str]:
    """Describe each setting whose value in ``base`` lies outside its distribution.

    Distributions of one value are ignored: they fix a setting for all trials.
    """
    settings = {field.path: value_at(base, field.path) for field in fields(type(base))}
    described = []
    for path, distribution in space.space.items():
        # The budget decides how long trials train.
        if path == STEPS or not distribution.applies(settings) or settings[path] in distribution:
            continue
        if distribution.kind == "choice" and len(distribution.values) == 1:
            continue
        given = f"{distribution.kind} {list(distribution.values)}"
        described.append(
            f"{path}: the base value {settings[path]!r} lies outside {given}; no trial has it"
        )
    return described


def refuse_decided_settings(
    space: SearchSpace, settings: Iterable[str], model: type[BaseConfig]
) -> None:
    """Refuse settings that the space or its budget decides: they would be ignored.

    Args:
        space: the search space of a sweep.
        settings: settings as ``--set`` takes them.
        model: class of the settings.

    Raises:
        ConfigError: naming the setting.
    """
    grace = space.budget.grace_steps
    for text in settings:
        path, _, value = (part.strip() for part in text.partition("="))
        path = present_path(model, path)
        if path in space.space:
            raise ConfigError(f"--set {text}: the space varies {path}; take it out of one of them")
        if path in EPOCHS:
            raise ConfigError(f"--set {text}: a sweep counts in steps; want {EPOCHS[path]}")
        if path == STEPS:
            raise ConfigError(
                f"--set {text}: the space's budget decides how long trials train; want "
                "--budget max_steps="
            )
        is_rare = (
            path == "schedule.evaluate_every_steps"
            and value.isdigit()
            and not 0 < int(value) <= grace
        )
        if is_rare or path == "schedule.checkpoint_every_steps":
            raise ConfigError(
                f"--set {text}: trials are evaluated and saved whenever one may be stopped, every "
                f"{grace} steps at least; want --budget grace_steps=, or "
                "schedule.evaluate_every_steps below it"
            )


def _check_whole(search_space: SearchSpace) -> None:
    if problems := whole_problems(search_space):
        raise ConfigError("\n  ".join(problems))


def whole_problems(search_space: SearchSpace) -> list[str]:
    """Describe parts of a search space that do not fit each other."""
    budget = search_space.budget
    scheduler = search_space.scheduler.kind
    search = search_space.search.kind
    problems = []
    if budget.grace_steps > budget.max_steps:
        problems.append(f"budget.grace_steps: {budget.grace_steps} is above max_steps; lower it")
    ranges = [
        name for name, distribution in search_space.space.items() if distribution.kind in RANGES
    ]
    if search == "grid" and ranges:
        problems.append(
            f"search.kind: grid, and {ranges[0]} has a range; list choices, or search at random"
        )
    if steps := search_space.space.get(STEPS):
        if scheduler != "none":
            problems.append(
                f"{STEPS}: scheduler.kind {scheduler} cannot compare trials of different lengths; "
                "want none"
            )
        if max(steps.values) > budget.max_steps:
            problems.append(
                f"{STEPS}: {max(steps.values)} is above budget.max_steps {budget.max_steps}; "
                "raise that"
            )
    if scheduler == "pbt" and search == "optuna":
        problems.append(
            "scheduler.kind: pbt changes settings during a trial, which optuna cannot learn from; "
            "want random"
        )
    if scheduler == "pbt" and budget.num_repeated:
        problems.append(
            f"budget.num_repeated: {budget.num_repeated}, with scheduler.kind pbt; want 0. Its "
            "best trial has the weights of several settings, and cannot be trained again with "
            "other seeds"
        )
    if SEED in search_space.paths and budget.num_repeated:
        problems.append(
            f"budget.num_repeated: {budget.num_repeated} trains the best settings with other "
            f"seeds, and the space has {SEED}; want one of them"
        )
    return problems


def quoted(value: Any) -> Any:
    """Return ``value`` so that ``override`` takes it literally and does not read text as YAML."""
    return json.dumps(value) if isinstance(value, str) else value
