"""Search spaces: YAML that says which settings of a method a sweep may vary, and how.

Everything is checked when the file is read: that the method exists, that each path is one of its settings, and that
each end of a range is a value that the setting takes. A range may exclude the base configuration's own value, which
``base_values_outside`` reports. A setting that means nothing without another one's value is drawn
``when`` that one has it:

    optim.schedule: {choice: [constant, cosine]}
    optim.final_lr_ratio: {uniform: [0.0, 0.5], when: {optim.schedule: cosine}}

How long a trial trains is such a setting: with a constant rate every number of steps is seen on the way, and with one
that falls towards the end each is a training of its own:

    schedule.max_steps: {choice: [100, 200], when: {optim.schedule: linear}}
"""

import contextlib
import itertools
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field

from raybio.core.config import BaseConfig, did_you_mean, fields, override, read_mapping, value_at
from raybio.core.errors import ConfigError

Kind = Literal["choice", "uniform", "log_uniform", "int_uniform"]


RANGES = ("uniform", "log_uniform", "int_uniform")


STEPS = "schedule.max_steps"
"""Varied only where the rate depends on the end: any trial is judged at each of its saved steps."""


RATE = "optim.schedule"


RESAMPLE_PROBABILITY = 0.25
"""How often population-based training draws a setting anew instead of moving it."""


Settings = dict[str, Any]
"""Path -> value, of the settings that a trial changes."""


def format_value(value: object) -> str:
    """A setting's value, with three digits of a number."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Distribution:
    """What one setting may be.

    Attributes:
        kind: ``choice`` of listed values; ``uniform``, ``log_uniform`` (its logarithm is uniform) or ``int_uniform``
            over a range.
        values: all choices, or the two ends of the range, both included.
        when: other settings, and the values of theirs with which this one is drawn; it is left as it is otherwise.
    """

    kind: Kind
    values: tuple[Any, ...]
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def applies(self, settings: Settings) -> bool:
        """Whether the setting means anything beside those drawn so far."""
        return all(
            path in settings and settings[path] in values for path, values in self.when.items()
        )

    def draw(self, rng: random.Random) -> Any:
        """A value by chance."""
        if self.kind == "choice":
            return rng.choice(self.values)
        low, high = self.values
        if self.kind == "int_uniform":
            return rng.randint(low, high)
        if self.kind == "uniform":
            return rng.uniform(low, high)
        return min(max(math.exp(rng.uniform(math.log(low), math.log(high))), low), high)

    def near(self, value: Any, rng: random.Random) -> Any:
        """A value close to another: a neighbour in the list of choices, or a fifth more or less, within the range."""
        side = rng.choice((-1, 1))
        if self.kind == "choice":
            place = self.values.index(value) + side
            return self.values[min(max(place, 0), len(self.values) - 1)]
        low, high = self.values
        moved = value * (1 + 0.2 * side)
        if self.kind == "int_uniform":
            moved = round(moved) if round(moved) != value else value + side
        return min(max(moved, low), high)

    def __contains__(self, value: Any) -> bool:
        """Whether a draw may give ``value``."""
        if self.kind == "choice":
            return any(
                value == choice and isinstance(value, bool) == isinstance(choice, bool)
                for choice in self.values
            )
        if isinstance(value, bool) or not isinstance(
            value, int if self.kind == "int_uniform" else (int, float)
        ):
            return False
        return bool(self.values[0] <= value <= self.values[1])


class Budget(BaseConfig):
    """How much a sweep may spend."""

    num_trials: int = Field(
        12, ge=1, description="trials in all; a grid takes every combination, whatever this says"
    )
    max_steps: int = Field(2000, ge=1, description="steps of a trial that is never stopped")
    grace_steps: int = Field(
        250,
        ge=1,
        description="steps that every trial gets before it may be stopped; pbt: between two exploits",
    )
    max_concurrent_trials: int | None = Field(
        2,
        ge=1,
        description="trials at the same time, where the cluster has room; null: as many as have a CPU each",
    )
    num_repeated: int = Field(
        0,
        ge=0,
        description="settings, the best first, that are trained again with other seeds at the end; 0: none",
    )
    num_seeds: int = Field(
        3, ge=2, description="seeds of settings that are repeated, the trial's own included"
    )


class Scheduler(BaseConfig):
    """Which trials are stopped early, or go on with another's weights."""

    kind: Literal["asha", "hyperband", "median", "pbt", "none"] = Field(
        "asha",
        description="asynchronous successive halving; HyperBand, which spares some trials for longer; a trial "
        "worse than the median of the others' means is stopped; population-based training, which lets bad trials go "
        "on from good ones' weights with settings changed; or nothing",
    )
    reduction_factor: int = Field(
        3, ge=2, description="asha, hyperband: one trial in so many goes on at each rung"
    )


class Search(BaseConfig):
    """How the next trial's settings are picked."""

    kind: Literal["optuna", "random", "grid"] = Field(
        "optuna",
        description="tree-structured Parzen estimator, at random, or every combination of choices",
    )
    seed: int = Field(0, ge=0, description="of the drawing")


class SearchSpace(BaseConfig):
    """A sweep over one system."""

    method: str = Field(description="key in METHODS")
    metric: str = Field(
        description="the reported metric that decides, such as val/link_average_precision"
    )
    mode: Literal["max", "min"] = Field(description="whether more of the metric is better")
    budget: Budget = Budget()
    scheduler: Scheduler = Scheduler()
    search: Search = Search()
    space: dict[str, Distribution] = Field(
        min_length=1, description="distribution of each varied setting, by path"
    )
    tied: dict[str, dict[str, Settings]] = Field(
        {},
        description="further settings that come with a value of a varied one, by its path and the value",
    )

    @property
    def paths(self) -> set[str]:
        """All settings that a trial may change, tied ones too."""
        tied = (
            path for by_value in self.tied.values() for own in by_value.values() for path in own
        )
        return {*self.space, *tied}

    def with_budget(self, given: Iterable[str]) -> "SearchSpace":
        """The same space with another budget: texts such as ``num_trials=6``.

        Raises:
            ConfigError: if they are no settings of ``Budget``, or do not fit the space.
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
        """One trial's settings: ``pick`` is asked for a value of each setting that applies, in order."""
        settings: Settings = {}
        for path, distribution in self.space.items():
            if distribution.applies(settings):
                settings[path] = pick(path, distribution)
        for path, by_value in self.tied.items():
            settings |= by_value.get(str(settings.get(path)), {})
        return settings

    def drawn(self) -> Iterator[Settings]:
        """Trials' settings at random, without end; some may be equal."""
        rng = random.Random(self.search.seed)
        while True:
            yield self.settings(lambda _, distribution: distribution.draw(rng))

    def explored(self, settings: Settings, rng: random.Random) -> Settings:
        """Settings close to others, as population-based training explores (Jaderberg et al. 2017): drawn anew or near.

        Those that a changed setting gives a meaning to are drawn.
        """

        def pick(path: str, distribution: Distribution) -> Any:
            if path not in settings or rng.random() < RESAMPLE_PROBABILITY:
                return distribution.draw(rng)
            return distribution.near(settings[path], rng)

        return self.settings(pick)

    def grid(self) -> list[Settings]:
        """Every combination of choices once, the last setting changing fastest."""
        combinations: list[Settings] = []
        for values in itertools.product(
            *(distribution.values for distribution in self.space.values())
        ):
            value_by_path = dict(zip(self.space, values, strict=True))
            settings = self.settings(partial(_value_of, value_by_path))
            if settings not in combinations:
                combinations.append(settings)
        return combinations


def _value_of(value_by_path: Settings, path: str, _: Distribution) -> Any:
    return value_by_path[path]


def load_search_space(
    path: str | Path, configs: Mapping[str, Callable[[], BaseConfig]]
) -> SearchSpace:
    """Read and check a search space.

    Args:
        path: the YAML file.
        configs: name of each method -> returns the configuration that trials' settings are put on; a class of
            configurations returns its defaults.

    Raises:
        ConfigError: for anything unknown (with the nearest known name) and any value that its setting does not accept;
            all of them at once.
    """
    try:
        mapping = read_mapping(path)
        method, space = mapping.get("method"), mapping.get("space")
        if not isinstance(method, str) or method not in configs:
            raise ConfigError(
                f"method: {method!r} is not a method.{did_you_mean(str(method), list(configs))}"
            )
        if not isinstance(space, dict):
            raise ConfigError(f"space: got {space!r}; want a mapping of setting to distribution")
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None
    base = configs[method]()
    found, problems = _checked(mapping, space, base)
    if found is None or problems:
        several = f"{len(problems)} problems\n  " if len(problems) > 1 else ""
        raise ConfigError(f"{path}: {several}" + "\n  ".join(problems))
    return found


def _checked(
    mapping: Mapping[str, Any], entry_by_path: Mapping[Any, Any], base: BaseConfig
) -> tuple[SearchSpace | None, list[str]]:
    """The search space, None where its parts cannot be put together, and everything that is wrong with it."""
    problems: list[str] = []
    distributions: dict[str, Distribution] = {}
    for path, entry in entry_by_path.items():
        distribution, wrong = _distribution(str(path), entry, base)
        if distribution is not None:
            wrong += _unmet(str(path), distribution, distributions, list(map(str, entry_by_path)))
        problems += wrong
        if distribution is not None and not wrong:
            distributions[str(path)] = distribution
    if "tied" in mapping:
        problems.append(
            "tied: is for jobs that know their settings; want space, with when where it depends"
        )
    # Where every entry is wrong, the rest of the file is checked with stand-ins: it is not empty.
    stand_ins = {str(path): Distribution("choice", (None,)) for path in entry_by_path}
    rest = {name: value for name, value in mapping.items() if name != "tied"}
    try:
        found = SearchSpace.from_mapping(rest | {"space": distributions or stand_ins})
    except ConfigError as error:
        return None, [*problems, str(error)]
    return found, problems + (_misfits(found) if distributions else [])


def base_values_outside(space: SearchSpace, base: BaseConfig) -> list[str]:
    """Describe each setting whose value in ``base`` no draw can give: the sweep cannot find it again."""
    settings = {path: value_at(base, path) for path in (field.path for field in fields(type(base)))}
    described = []
    for path, distribution in space.space.items():
        # How long trials train is decided by the budget.
        if path == STEPS or not distribution.applies(settings) or settings[path] in distribution:
            continue
        given = f"{distribution.kind} {list(distribution.values)}"
        described.append(
            f"{path}: the base value {settings[path]!r} lies outside {given}; no trial has it"
        )
    return described


def _check_whole(found: SearchSpace) -> None:
    if problems := _misfits(found):
        raise ConfigError("\n  ".join(problems))


def _misfits(found: SearchSpace) -> list[str]:
    """What is wrong with the parts of a search space taken together."""
    problems = []
    if found.budget.grace_steps > found.budget.max_steps:
        problems.append(
            f"budget.grace_steps: {found.budget.grace_steps} is above max_steps; lower it"
        )
    ranges = [name for name, distribution in found.space.items() if distribution.kind in RANGES]
    if found.search.kind == "grid" and ranges:
        problems.append(
            f"search.kind: grid, and {ranges[0]} has a range; list choices, or search at random"
        )
    if steps := found.space.get(STEPS):
        if found.scheduler.kind != "none":
            problems.append(
                f"{STEPS}: trials of other lengths do not meet in scheduler.kind {found.scheduler.kind}; want none"
            )
        if max(steps.values) > found.budget.max_steps:
            problems.append(
                f"{STEPS}: {max(steps.values)} is above budget.max_steps {found.budget.max_steps}; raise that"
            )
    if found.scheduler.kind == "pbt" and found.search.kind == "optuna":
        problems.append(
            "scheduler.kind: pbt changes settings on the way, which optuna cannot learn from; want random"
        )
    return problems


def _unmet(
    path: str,
    distribution: Distribution,
    earlier: Mapping[str, Distribution],
    listed: Sequence[str],
) -> list[str]:
    """What is wrong with the conditions of an entry, next to the entries above it."""
    problems = []
    for other, values in distribution.when.items():
        if other not in earlier:
            if other in listed[: listed.index(path)]:
                continue  # that entry is wrong itself, and reported
            hint = did_you_mean(other, list(earlier))
            problems.append(
                f"{path}: when {other!r}: want a setting that is listed above it.{hint}"
            )
            continue
        problems += [
            f"{path}: when {other} is {value!r}: it never is; want one of its values"
            for value in values
            if value not in earlier[other]
        ]
    return problems


def _distribution(path: str, entry: Any, base: BaseConfig) -> tuple[Distribution | None, list[str]]:
    """Return what an entry says, None where it says nothing that can be drawn from, and all that is wrong with it."""
    known = [one.path for one in fields(type(base))]
    if path not in known:
        return None, [f"{path!r} is not a setting.{did_you_mean(path, known)}"]
    when: dict[str, tuple[Any, ...]] = {}
    problems: list[str] = []
    if isinstance(entry, dict) and "when" in entry:
        entry = dict(entry)
        when, problems = _conditions(path, entry.pop("when"), base)
    if path == STEPS and not problems and (RATE not in when or "constant" in when[RATE]):
        problems.append(
            f"{path}: a trial is judged at every saved step, and its best one is told; a training for each number of "
            "steps would be wasted where the rate does not depend on it. Set budget.max_steps, or add when: "
            "{optim.schedule: linear}"
        )
    kinds = get_args(Kind)
    if not isinstance(entry, dict) or len(entry) != 1 or next(iter(entry)) not in kinds:
        hint = ""
        if isinstance(entry, dict) and len(entry) == 1:
            hint = did_you_mean(str(next(iter(entry))), list(kinds)).replace(
                " See --help for all settings.", ""
            )
        return None, [
            *problems,
            f"{path}: got {entry!r}; want exactly one of {', '.join(kinds)}.{hint}",
        ]
    ((kind, values),) = entry.items()
    if not isinstance(values, list) or not values:
        return None, [*problems, f"{path}: {kind} got {values!r}; want a list of values"]
    # The setting's own type decides what a value is: 1e-4, which YAML takes for a string, becomes a number here.
    accepted, wrong = _all_accepted(path, values, base)
    problems += wrong
    if kind in RANGES:
        problems += _range_problems(path, kind, values, accepted)
    elif len({repr(value) for value in accepted}) < len(accepted):
        problems.append(f"{path}: {kind} {values!r} lists a value twice; keep one")
    return Distribution(kind, accepted, when), problems


def _conditions(
    path: str, entry: Any, base: BaseConfig
) -> tuple[dict[str, tuple[Any, ...]], list[str]]:
    """Return the values with which an entry is drawn, by setting, and what is wrong with them."""
    if not isinstance(entry, dict) or not entry:
        return {}, [f"{path}: when got {entry!r}; want SETTING: VALUE, or SETTING: [VALUE, VALUE]"]
    when = {}
    problems = []
    for other, values in entry.items():
        accepted, wrong = _all_accepted(
            str(other), values if isinstance(values, list) else [values], base
        )
        problems += wrong
        if not wrong:
            when[str(other)] = accepted
    return when, problems


def _range_problems(path: str, kind: Kind, given: Sequence[Any], ends: Sequence[Any]) -> list[str]:
    """Return what is wrong with a range.

    Args:
        path: of its setting.
        kind: of ``RANGES``.
        given: its ends as in the file.
        ends: those that the setting accepts; the others are reported already.
    """
    number = int if kind == "int_uniform" else (int, float)
    if len(given) != 2 or not all(
        isinstance(end, number) and not isinstance(end, bool) for end in ends
    ):
        return [
            f"{path}: {kind} got {list(given)}; want two {'whole ' * (kind == 'int_uniform')}numbers"
        ]
    problems = []
    if len(ends) == 2 and not ends[0] < ends[1]:
        problems.append(
            f"{path}: {kind} got {list(given)}; want the lower end first, below the upper"
        )
    if kind == "log_uniform" and any(end <= 0 for end in ends):
        problems.append(
            f"{path}: log_uniform got {list(given)}; want both ends above 0, or use uniform"
        )
    return problems


def _all_accepted(
    path: str, values: Iterable[Any], base: BaseConfig
) -> tuple[tuple[Any, ...], list[str]]:
    """Return the values that a setting accepts, as it has them, and what is wrong with each other one, once."""
    accepted = []
    problems: dict[str, None] = {}
    for value in values:
        try:
            accepted.append(_accepted(path, value, base))
        except ConfigError as error:
            problems[str(error)] = None
    return tuple(accepted), list(problems)


def _accepted(path: str, value: Any, base: BaseConfig) -> Any:
    """The value as its setting has it, which fits the other settings of the base or else the defaults.

    Whether values fit each other is checked for each trial: several may be drawn that fit together alone.
    """
    try:
        return value_at(override(base, path, quoted(value)), path)
    except ConfigError:
        with contextlib.suppress(ConfigError):
            return value_at(override(type(base).from_mapping({}), path, quoted(value)), path)
        raise


def quoted(value: Any) -> Any:
    """A value such that ``override`` takes it as it is, and reads no text as YAML."""
    return json.dumps(value) if isinstance(value, str) else value
