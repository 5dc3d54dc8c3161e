"""Search spaces: YAML that says which settings of a system a sweep may vary, and how.

Everything is checked when the file is read: that the system exists, that each path is one of its settings, that each
end of a range is a value the setting takes, and that the range holds the system's own default, so that a sweep can
only do as well as no sweep or better. Drawing from the distributions is the runtime's work.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field

from raybio.config import Config, did_you_mean, fields, override, read_mapping, value_at
from raybio.errors import ConfigError

Kind = Literal["choice", "uniform", "log_uniform", "int_uniform"]
RANGES = ("uniform", "log_uniform", "int_uniform")


@dataclass(frozen=True)
class Distribution:
    """What one setting may be.

    Attributes:
        kind: ``choice`` of listed values; ``uniform``, ``log_uniform`` (its logarithm is uniform) or ``int_uniform``
            over a range.
        values: all choices, or the two ends of the range, both included.
    """

    kind: Kind
    values: tuple[Any, ...]

    def __contains__(self, value: Any) -> bool:
        """Whether a draw may give ``value``."""
        if self.kind == "choice":
            return any(
                value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in self.values
            )
        if isinstance(value, bool) or not isinstance(value, int if self.kind == "int_uniform" else (int, float)):
            return False
        return bool(self.values[0] <= value <= self.values[1])


class Budget(Config):
    """How much a sweep may spend."""

    num_trials: int = Field(12, ge=1, description="trials in all")
    max_steps: int = Field(2000, ge=1, description="steps of a trial that is never stopped")
    grace_steps: int = Field(250, ge=1, description="steps that every trial gets before it may be stopped")
    max_concurrent_trials: int = Field(2, ge=1, description="trials at the same time")


class Scheduler(Config):
    """Which trials are stopped early."""

    kind: Literal["asha", "none"] = Field("asha", description="asynchronous successive halving, or nothing")
    reduction_factor: int = Field(3, ge=2, description="one trial in so many goes on at each rung")


class Search(Config):
    """How the next trial's settings are picked."""

    kind: Literal["optuna", "random"] = Field("optuna", description="tree-structured Parzen estimator, or at random")


class SearchSpace(Config):
    """A sweep over one system."""

    system: str = Field(description="key in SYSTEMS")
    metric: str = Field(description="the reported metric that decides, such as val/link_average_precision")
    mode: Literal["max", "min"] = Field(description="whether more of the metric is better")
    budget: Budget = Budget()
    scheduler: Scheduler = Scheduler()
    search: Search = Search()
    space: dict[str, Distribution] = Field(min_length=1, description="distribution of each varied setting, by path")


def load_search_space(path: str | Path, configs: Mapping[str, type[Config]]) -> SearchSpace:
    """Read and check a search space; ``configs`` names the configuration class of each system.

    Raises:
        ConfigError: for anything unknown (with the nearest known name), a range that does not fit its setting or does
            not hold the setting's default.
    """
    try:
        mapping = read_mapping(path)
        system, space = mapping.get("system"), mapping.get("space")
        if not isinstance(system, str) or system not in configs:
            raise ConfigError(f"system: {system!r} is not a system.{did_you_mean(str(system), list(configs))}")
        if not isinstance(space, dict):
            raise ConfigError(f"space: got {space!r}; want a mapping of setting to distribution")
        defaults = configs[system].from_mapping({})
        distributions = {str(name): _distribution(str(name), entry, defaults) for name, entry in space.items()}
        found = SearchSpace.from_mapping({**mapping, "space": distributions})
        if found.budget.grace_steps > found.budget.max_steps:
            raise ConfigError(f"budget.grace_steps: {found.budget.grace_steps} is above max_steps; lower it")
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None
    return found


def _distribution(path: str, entry: Any, defaults: Config) -> Distribution:
    known = [field.path for field in fields(type(defaults))]
    if path not in known:
        raise ConfigError(f"{path!r} is not a setting.{did_you_mean(path, known)}")
    kinds = get_args(Kind)
    if not isinstance(entry, dict) or len(entry) != 1 or next(iter(entry)) not in kinds:
        hint = ""
        if isinstance(entry, dict) and len(entry) == 1:
            hint = did_you_mean(str(next(iter(entry))), list(kinds)).replace(" See --help for all settings.", "")
        raise ConfigError(f"{path}: got {entry!r}; want exactly one of {', '.join(kinds)}.{hint}")
    ((kind, values),) = entry.items()
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{path}: {kind} got {values!r}; want a list of values")
    # The setting's own type decides what a value is: 1e-4, which YAML takes for a string, becomes a number here.
    distribution = Distribution(kind, tuple(_accepted(path, value, defaults) for value in values))
    if kind in RANGES:
        _check_range(path, distribution)
    elif len({repr(value) for value in distribution.values}) < len(values):
        raise ConfigError(f"{path}: {kind} {values!r} lists a value twice; keep one")
    default = value_at(defaults, path)
    if default not in distribution:
        raise ConfigError(f"{path}: the default {default!r} lies outside {kind} {list(distribution.values)}; widen it")
    return distribution


def _check_range(path: str, distribution: Distribution) -> None:
    kind, ends = distribution.kind, distribution.values
    number = int if kind == "int_uniform" else (int, float)
    if len(ends) != 2 or not all(isinstance(end, number) and not isinstance(end, bool) for end in ends):
        raise ConfigError(f"{path}: {kind} got {list(ends)}; want two {'whole ' * (kind == 'int_uniform')}numbers")
    if not ends[0] < ends[1]:
        raise ConfigError(f"{path}: {kind} got {list(ends)}; want the lower end first, below the upper")
    if kind == "log_uniform" and ends[0] <= 0:
        raise ConfigError(f"{path}: log_uniform got {list(ends)}; want a lower end above 0, or use uniform")


def _accepted(path: str, value: Any, defaults: Config) -> Any:
    quoted = f"'{value}'" if isinstance(value, str) and "'" not in value else value
    return value_at(override(defaults, path, quoted), path)
