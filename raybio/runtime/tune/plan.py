"""Plan of a sweep: the settings that it tries. It needs no Ray, so a dry run takes a second."""

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, islice
from typing import Any, Literal

from raybio.core.errors import ConfigError
from raybio.core.search_space import Distribution, SearchSpace, Settings
from raybio.runtime.tune.trial import SweepSpec, Trial, has_ended, status_of

Check = Callable[[Settings], Any]
"""Function that raises ConfigError for settings that do not fit each other."""


DRAWS_PER_TRIAL = 100
"""Number of draws for one trial after which a space of few choices counts as exhausted."""


def planned(space: SearchSpace, check: Check) -> list[Settings]:
    """Return the settings of all trials of a grid or random search.

    For Optuna, return the settings that it would try without learning from results.

    Args:
        space: the search space.
        check: refuses settings that do not fit each other; they are drawn again.

    Raises:
        ConfigError: for settings of a grid that do not fit each other, or if no draw fits.
    """
    if space.search.kind == "grid":
        grid = space.grid()
        for settings in grid:
            check(settings)
        return grid
    drawn = space.drawn() if space.search.kind == "random" else _drawn_by_optuna(space)
    return distinct(drawn, space.budget.num_trials, check)


def numbered(spec: SweepSpec, trials: Iterable[Settings]) -> list[str]:
    """Return a line of each trial's settings, with its status if it has ended."""
    lines = []
    for number, settings in enumerate(trials, start=1):
        text = ", ".join(f"{path}={value}" for path, value in settings.items())
        folder = spec.folder(Trial(settings))
        if has_ended(folder):
            text += f": {status_of(folder)}"
        lines.append(f"{number:4}  {text}")
    return lines


def distinct(drawn: Iterable[Settings], num: int, check: Check) -> list[Settings]:
    """Return the first ``num`` different settings that pass ``check``.

    Return fewer if many draws are only repetitions.

    Raises:
        ConfigError: if none passes.
    """
    accepted: list[Settings] = []
    refused: ConfigError | None = None
    for settings in islice(drawn, DRAWS_PER_TRIAL * num):
        if len(accepted) == num:
            break
        if settings in accepted:
            continue
        try:
            check(settings)
            accepted.append(settings)
        except ConfigError as error:
            refused = error
    if refused is not None and not accepted:
        raise refused
    return accepted


def new_study(space: SearchSpace) -> Any:
    """Return an Optuna study with the tree-structured Parzen estimator, seeded by the space."""
    import optuna  # takes a third of a second, and grids and random searches do not need it

    optuna.logging.set_verbosity(logging.WARNING)
    direction: Literal["maximize", "minimize"] = "maximize" if space.mode == "max" else "minimize"
    sampler = optuna.samplers.TPESampler(seed=space.search.seed)
    return optuna.create_study(direction=direction, sampler=sampler)


def optuna_settings(space: SearchSpace, trial: Any) -> Settings:
    """Return the settings that a trial of an Optuna study suggests."""
    return space.settings(lambda path, distribution: _suggest(trial, path, distribution))


def _drawn_by_optuna(space: SearchSpace) -> Iterator[Settings]:
    study = new_study(space)
    draws = (optuna_settings(space, study.ask()) for _ in count())
    if not space.has_choices_only:
        return draws
    # With few combinations, draws repeat, and each takes longer than the one before.
    return chain(islice(draws, 2 * space.budget.num_trials), space.combinations())


def _suggest(trial: Any, path: str, distribution: Distribution) -> Any:
    if distribution.kind == "choice":
        return trial.suggest_categorical(path, list(distribution.values))
    low, high = distribution.values
    if distribution.kind == "int_uniform":
        return trial.suggest_int(path, low, high)
    return trial.suggest_float(path, low, high, log=distribution.kind == "log_uniform")
