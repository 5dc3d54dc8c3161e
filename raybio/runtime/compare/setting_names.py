"""Names of settings and their values, which name the runs of a comparison."""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from raybio.core.config import flatten
from raybio.core.errors import ConfigError
from raybio.methods import method_named

REPETITIONS = ("seed", "plan.sentence_set", "data.fold")
"""Settings whose values are random draws: runs that differ in them are averaged."""

SHARED_DRAWS = tuple(path for path in REPETITIONS if path != "seed")
"""Settings whose draw affects all runs with the same value, whatever their seeds."""


STEPS_OF_EPOCHS = {
    "schedule.max_steps": "schedule.max_epochs",
    "schedule.evaluate_every_steps": "schedule.evaluate_every_epochs",
}
"""Number of steps -> the setting in epochs that overrides it."""


def present_settings(method: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return dotted path -> value of a recorded configuration; new settings have their defaults."""
    # Settings that were removed, or take other values now, are shown as they were.
    with contextlib.suppress(ConfigError):
        config = method_named(method).config.from_mapping(config).to_mapping()
    return flatten(config)


def without_draws(value_by_path: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without those in which repetitions differ.

    Steps that follow from epochs are dropped too: if each seed draws its own rows, the epochs of
    each have another number of steps.
    """
    # A run on all sets at once is not a draw of a set.
    return {
        path: value
        for path, value in value_by_path.items()
        if (path not in REPETITIONS or value == "all")
        and value_by_path.get(STEPS_OF_EPOCHS.get(path, "")) is None
    }


def shared_draw(value_by_path: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what a run shares with runs of other seeds: its sentence set or fold."""
    return tuple(value_by_path.get(path) for path in SHARED_DRAWS)


def label_of(value_by_path: Mapping[str, Any]) -> str:
    """Return a text such as ``kind = ce, seed = 1``; empty without settings."""
    names = short_names(value_by_path)
    return ", ".join(f"{names[path]} = {named(value)}" for path, value in value_by_path.items())


def shown(value: Any) -> str:
    """Return a value as users write it after ``=``, in canonical form such as 0, false or null."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def named(value: Any) -> str:
    """Return a value for folder names, as ``shown``; for a path, its end and four hex digits."""
    text = shown(value)
    if "/" not in text:
        return text
    parts = [part for part in PurePath(text).parts if part != "/" and not part.startswith(".")]
    parts = parts or ["model"]
    last = parts[-2] if parts[-1] == "export" and len(parts) > 1 else parts[-1]
    return f"{last}-{hashlib.sha256(text.encode()).hexdigest()[:4]}"


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Return the shortest unambiguous suffix of each dotted path."""
    ends_by_path = {}
    for path in paths:
        parts = path.split(".")
        ends_by_path[path] = [".".join(parts[start:]) for start in reversed(range(len(parts)))]
    count_by_end = Counter(end for ends in ends_by_path.values() for end in ends)
    return {
        path: next((end for end in ends if count_by_end[end] == 1), path)
        for path, ends in ends_by_path.items()
    }
