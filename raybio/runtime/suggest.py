"""Which settings a sweep's trials try, as Ray Tune's search algorithms; and which trials it stops."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    TrialScheduler,
)
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch

from raybio.runtime.trial import OBJECTIVE
from raybio.search_space import Distribution, SearchSpace, Settings


def planned(space: SearchSpace) -> list[Settings]:
    """All trials of a grid or of a random search; what Optuna would begin with, before it has learned anything."""
    if space.search.kind == "grid":
        return space.grid()
    if space.search.kind == "random":
        return distinct(space.drawn(), space.budget.num_trials)
    return distinct(_asked(space), space.budget.num_trials)


def distinct(settings: Iterable[Settings], num: int) -> list[Settings]:
    """The first ``num`` different ones; fewer, if many draws bring nothing new."""
    found: list[Settings] = []
    for one in islice(settings, 100 * num):
        if one not in found:
            found.append(one)
        if len(found) == num:
            break
    return found


def searcher(space: SearchSpace, earlier: Sequence[Settings]) -> Searcher:
    """The search algorithm.

    Args:
        space: what may be drawn.
        earlier: trials of an earlier start of the sweep, in order; they come first, and their results are learned from.
    """
    if space.search.kind == "optuna":
        return _optuna(space, earlier)
    return Listed(distinct([*earlier, *planned(space)], max(len(earlier), len(planned(space)))))


class Listed(Searcher):
    """Gives trials the settings of a list, one after the other."""

    def __init__(self, settings: Sequence[Settings]) -> None:
        """Take the list."""
        super().__init__(metric=OBJECTIVE, mode="max")
        self._left = list(settings)

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """The next settings."""
        return self._left.pop(0) if self._left else Searcher.FINISHED

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Nothing is learned."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing: a sweep goes on from its trials' folders."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing; see ``save``."""


def scheduler(space: SearchSpace) -> TrialScheduler:
    """The rule by which trials are stopped; it looks at the best value so far."""
    budget, mode = space.budget, space.mode
    watched = {"time_attr": "step", "metric": OBJECTIVE, "mode": mode}
    if space.scheduler.kind == "asha":
        rungs = {"max_t": budget.max_steps, "grace_period": budget.grace_steps}
        return AsyncHyperBandScheduler(**watched, **rungs, reduction_factor=space.scheduler.reduction_factor)
    if space.scheduler.kind == "hyperband":
        factor = space.scheduler.reduction_factor
        return HyperBandScheduler(**watched, max_t=budget.max_steps, reduction_factor=factor)
    if space.scheduler.kind == "median":
        return MedianStoppingRule(**watched, grace_period=budget.grace_steps, min_samples_required=2)
    return FIFOScheduler()


def _optuna(space: SearchSpace, earlier: Sequence[Settings]) -> OptunaSearch:
    def settings(trial: Any) -> None:
        space.settings(lambda path, distribution: _suggest(trial, path, distribution))

    return OptunaSearch(
        space=settings, metric=OBJECTIVE, mode=space.mode, points_to_evaluate=list(earlier), seed=space.search.seed
    )


def _asked(space: SearchSpace) -> Iterator[Settings]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=space.search.seed))
    while True:
        trial = study.ask()
        yield space.settings(lambda path, distribution, trial=trial: _suggest(trial, path, distribution))


def _suggest(trial: Any, path: str, distribution: Distribution) -> Any:
    if distribution.kind == "choice":
        return trial.suggest_categorical(path, list(distribution.values))
    low, high = distribution.values
    if distribution.kind == "int_uniform":
        return trial.suggest_int(path, low, high)
    return trial.suggest_float(path, low, high, log=distribution.kind == "log_uniform")
