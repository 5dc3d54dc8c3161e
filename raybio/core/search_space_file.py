"""Reading of search spaces: every problem of a YAML file is reported at once."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from raybio.core.config import BaseConfig, override, present_path, value_at
from raybio.core.errors import ConfigError
from raybio.core.fields import fields, setting_hint
from raybio.core.plain_yaml import read_mapping
from raybio.core.search_space import (
    EPOCHS,
    RANGES,
    RATE,
    STEPS,
    Distribution,
    Kind,
    SearchSpace,
    quoted,
    whole_problems,
)
from raybio.core.text import did_you_mean

_PACKAGE = Path(__file__).parents[1]
_IN_PACKAGE = _PACKAGE / "search_spaces"

SHIPPED = _IN_PACKAGE if _IN_PACKAGE.is_dir() else _PACKAGE.parent / "search_spaces"
"""Search spaces that come with raybio; those of a clone lie next to the package."""

SUFFIX = ".yaml"


def load_search_space(
    path: str | Path,
    configs: Mapping[str, Callable[[], BaseConfig]],
    present_name: Callable[[str], str] = str,
) -> SearchSpace:
    """Read and check a search space.

    Args:
        path: the YAML file, or the name of a search space that comes with raybio.
        configs: name of a method -> a callable that returns the base configuration of its trials,
            such as the configuration's class, which returns the defaults.
        present_name: returns the present name of a method.

    Raises:
        ConfigError: listing every unknown name (with the nearest known one) and every value that
            its setting does not accept.
    """
    path = _find(Path(path))
    try:
        mapping = read_mapping(path)
        method = mapping.get("method")
        if isinstance(method, str):
            method = present_name(method)
            mapping["method"] = method
        space = mapping.get("space")
        if not isinstance(method, str) or method not in configs:
            raise ConfigError(
                f"method: got {method!r:.60}, want one of {', '.join(configs)}."
                f"{did_you_mean(str(method), configs)}"
            )
        if not isinstance(space, dict):
            raise ConfigError(
                f"space: got {space!r:.60}; want a mapping of setting to distribution"
            )
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None
    base = configs[method]()
    search_space, problems = _parse(mapping, space, base)
    if search_space is None or problems:
        several = f"{len(problems)} problems\n  " if len(problems) > 1 else ""
        raise ConfigError(f"{path}: {several}" + "\n  ".join(problems))
    return search_space


def _find(given: Path) -> Path:
    """Return a file of a search space, or the one of that name that comes with raybio."""
    if given.is_file() or given.suffix == SUFFIX:
        return given
    shipped = {path.stem: path for path in sorted(SHIPPED.glob(f"*{SUFFIX}"))}
    if str(given) not in shipped:
        raise ConfigError(
            f"search space {given}: want a YAML file, or one of {', '.join(shipped)}."
            f"{did_you_mean(str(given), shipped)}"
        )
    return shipped[str(given)]


def _parse(
    mapping: Mapping[str, Any], entry_by_path: Mapping[Any, Any], base: BaseConfig
) -> tuple[SearchSpace | None, list[str]]:
    """Return the search space (None if it cannot be assembled) and all problems of the file."""
    problems: list[str] = []
    distributions: dict[str, Distribution] = {}
    listed = [present_path(type(base), str(given)) for given in entry_by_path]
    for path, entry in zip(listed, entry_by_path.values(), strict=True):
        distribution, wrong = _parse_entry(path, entry, base)
        if distribution is not None:
            wrong += _condition_problems(path, distribution, distributions, listed)
        problems += wrong
        if distribution is not None and not wrong:
            distributions[path] = distribution
    if "tied" in mapping:
        problems.append(
            "tied: is for jobs that know their settings; want space, with when where it depends"
        )
    twice = [path for path in dict.fromkeys(listed) if listed.count(path) > 1]
    problems += [f"{path}: is given twice, once under a former name; keep one" for path in twice]
    # If every entry is wrong, stand-ins let the rest of the file be checked: the space must not be
    # empty.
    stand_ins = {path: Distribution("choice", (None,)) for path in listed}
    rest = {name: value for name, value in mapping.items() if name != "tied"}
    try:
        search_space = SearchSpace.from_mapping(rest | {"space": distributions or stand_ins})
    except ConfigError as error:
        return None, [*problems, str(error)]
    return search_space, problems + (whole_problems(search_space) if distributions else [])


def _condition_problems(
    path: str,
    distribution: Distribution,
    earlier: Mapping[str, Distribution],
    listed: Sequence[str],
) -> list[str]:
    """Describe conditions of an entry that the entries above it cannot meet."""
    problems = []
    for other, values in distribution.when.items():
        if other not in earlier:
            if other in listed[: listed.index(path)]:
                continue  # that entry is invalid itself and already reported
            hint = did_you_mean(other, earlier)
            problems.append(
                f"{path}: when {other!r}: want a setting that is listed above it.{hint}"
            )
            continue
        if earlier[other].kind in ("uniform", "log_uniform"):
            problems.append(
                f"{path}: when {other!r}: it is drawn from a range, and no draw equals a value; "
                "want a setting with choices or whole numbers"
            )
            continue
        impossible = [value for value in values if value not in earlier[other]]
        problems += [
            f"{path}: when {other} is {value!r}: it never is; want one of its values"
            for value in impossible
        ]
    return problems


def _parse_entry(path: str, entry: Any, base: BaseConfig) -> tuple[Distribution | None, list[str]]:
    """Return the distribution of an entry (None if it is unusable) and all its problems."""
    known = [field.path for field in fields(type(base))]
    if path not in known:
        return None, [f"{path!r} is not a setting.{setting_hint(path, known)}"]
    if path in EPOCHS:
        return None, [
            f"{path}: a sweep counts in steps, so that trials are comparable and can be stopped; "
            f"want {EPOCHS[path]}"
        ]
    when: dict[str, tuple[Any, ...]] = {}
    problems: list[str] = []
    if isinstance(entry, dict) and "when" in entry:
        entry = dict(entry)
        when, problems = _conditions(path, entry.pop("when"), base)
    if path == STEPS and not problems and (RATE not in when or "constant" in when[RATE]):
        problems.append(
            f"{path}: trials are evaluated at every saved step and report their best one, so other "
            "numbers of steps add nothing while the rate does not depend on them. Set "
            "budget.max_steps, or add when: {optim.schedule: linear}"
        )
    kinds = get_args(Kind)
    if not isinstance(entry, dict) or len(entry) != 1 or next(iter(entry)) not in kinds:
        hint = ""
        if isinstance(entry, dict) and len(entry) == 1:
            hint = did_you_mean(str(next(iter(entry))), kinds)
        return None, [
            *problems,
            f"{path}: got {entry!r}; want exactly one of {', '.join(kinds)}.{hint}",
        ]
    ((kind, values),) = entry.items()
    if not isinstance(values, list) or not values:
        return None, [*problems, f"{path}: {kind} got {values!r}; want a list of values"]
    # The setting's own type decides what a value is: YAML reads 1e-4 as a string, which becomes a
    # number here.
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
    """Return the accepted values of each condition, by setting, and all problems."""
    if not isinstance(entry, dict) or not entry:
        return {}, [f"{path}: when got {entry!r}; want SETTING: VALUE, or SETTING: [VALUE, VALUE]"]
    when = {}
    problems = []
    for name, values in entry.items():
        other = present_path(type(base), str(name))
        given = values if isinstance(values, list) else [values]
        accepted, wrong = _all_accepted(other, given, base)
        problems += wrong
        if not wrong:
            when[other] = accepted
    return when, problems


def _range_problems(path: str, kind: Kind, given: Sequence[Any], ends: Sequence[Any]) -> list[str]:
    """Describe the problems of a range.

    Args:
        path: path of the setting.
        kind: one of ``RANGES``.
        given: its ends as in the file.
        ends: the ends that the setting accepts; the others are reported already.
    """
    number = int if kind == "int_uniform" else (int, float)
    are_numbers = all(isinstance(end, number) and not isinstance(end, bool) for end in ends)
    if len(given) != 2 or not are_numbers:
        numbers = "whole numbers" if kind == "int_uniform" else "numbers"
        return [f"{path}: {kind} got {list(given)}; want two {numbers}"]
    problems = []
    if kind != "int_uniform" and any(isinstance(end, int) for end in ends):
        problems.append(
            f"{path}: {kind} got {list(given)} for a setting of whole numbers; want int_uniform"
        )
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
    """Return the accepted values, as converted by the setting, and the problems of the others."""
    accepted = []
    problems: dict[str, None] = {}
    for value in values:
        try:
            accepted.append(_accepted(path, value, base))
        except ConfigError as error:
            problems[str(error)] = None
    return tuple(accepted), list(problems)


def _accepted(path: str, value: Any, base: BaseConfig) -> Any:
    """Return the value as converted by its setting, valid in the base or in the defaults.

    Each trial checks whether its values fit each other: drawn values may be valid only in
    combination.
    """
    try:
        return value_at(override(base, path, quoted(value)), path)
    except ConfigError:
        with contextlib.suppress(ConfigError):
            return value_at(override(type(base).from_mapping({}), path, quoted(value)), path)
        raise
