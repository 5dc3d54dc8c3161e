"""Which settings a sweep's trials try, in Ray Tune's terms; and which trials it stops."""

import logging
import random
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any, Literal

from ray.tune.search import Searcher

from raybio.runtime.sweeps.trial import OBJECTIVE, Trial
from raybio.search_space import Distribution, SearchSpace, Settings

DRAWS_PER_TRIAL = 100
"""How often a new one is drawn before a space of few choices counts as exhausted."""


def planned(space: SearchSpace) -> list[Settings]:
    """All trials of a grid or of a random search; what Optuna would try if it never learned anything."""
    if space.search.kind == "grid":
        return space.grid()
    return distinct(space.drawn() if space.search.kind == "random" else _asked(space), space.budget.num_trials)


def distinct(settings: Iterable[Settings], num: int) -> list[Settings]:
    """The first ``num`` different ones; fewer, if many draws bring nothing new."""
    found: list[Settings] = []
    for one in islice(settings, DRAWS_PER_TRIAL * num):
        if len(found) == num:
            break
        if one not in found:
            found.append(one)
    return found


def tune_config(space: SearchSpace, earlier: Sequence[Trial], at_once: int) -> tuple[dict[str, Any], Any]:
    """Ray Tune's ``param_space`` and ``TuneConfig``.

    Args:
        space: what may be drawn.
        earlier: trials of an earlier start of the sweep, in order; they come first, and their results are learned from.
        at_once: how many trials run at the same time.
    """
    from ray.tune import TuneConfig

    rule = scheduler(space)
    if space.search.kind == "optuna":
        search = {
            "search_alg": LearningSearch(space, earlier),
            "num_samples": max(len(earlier), space.budget.num_trials),
        }
        return {}, TuneConfig(**search, scheduler=rule, max_concurrent_trials=at_once)
    if space.scheduler.kind == "pbt" and earlier:
        return listed(earlier, at_once, rule)  # the population as it stood
    return listed([*earlier, *(Trial(one) for one in planned(space) if Trial(one) not in earlier)], at_once, rule)


def listed(trials: Sequence[Trial], at_once: int, rule: Any = None) -> tuple[dict[str, Any], Any]:
    """``tune_config`` of a list of trials."""
    from ray.tune import TuneConfig, grid_search

    # One entry a trial, and not one a setting: settings may depend on each other.
    param_space = {TRIAL: grid_search([asdict(trial) for trial in trials])}
    return param_space, TuneConfig(num_samples=1, scheduler=rule, max_concurrent_trials=at_once)


TRIAL = "trial"
"""The one entry of Tune's configuration of a trial."""


def scheduler(space: SearchSpace) -> Any:
    """The rule by which trials are stopped or go on from others.

    It looks at the best value so far where that is all that counts of a trial, and at the value now otherwise.
    """
    from ray.tune.schedulers import (
        AsyncHyperBandScheduler,
        FIFOScheduler,
        HyperBandScheduler,
        MedianStoppingRule,
        PopulationBasedTraining,
    )

    budget, factor = space.budget, space.scheduler.reduction_factor
    best = {"time_attr": "step", "metric": OBJECTIVE, "mode": space.mode}
    now = best | {"metric": space.metric}
    if space.scheduler.kind == "asha":
        rungs = {"max_t": budget.max_steps, "grace_period": budget.grace_steps}
        return AsyncHyperBandScheduler(**best, **rungs, reduction_factor=factor)
    if space.scheduler.kind == "hyperband":
        return HyperBandScheduler(**best, max_t=budget.max_steps, reduction_factor=factor)
    if space.scheduler.kind == "median":
        return MedianStoppingRule(**now, grace_period=budget.grace_steps, min_samples_required=2)
    if space.scheduler.kind == "pbt":
        rng = random.Random(space.search.seed)

        def explore(config: dict[str, Any]) -> dict[str, Any]:
            settings = space.explored(config[TRIAL]["settings"], rng)
            # A name of its own: two trials may come to the same settings with different weights.
            return config | {TRIAL: asdict(Trial(settings, branch=uuid.uuid4().hex[:6]))}

        return PopulationBasedTraining(
            **now, perturbation_interval=budget.grace_steps, custom_explore_fn=explore, log_config=False
        )
    return FIFOScheduler()


class LearningSearch(Searcher):
    """Optuna's tree-structured Parzen estimator, which never gives the same settings twice (Ray's own adapter does)."""

    def __init__(self, space: SearchSpace, earlier: Sequence[Trial]) -> None:
        """Begin a study.

        Args:
            space: what may be drawn.
            earlier: trials that come first, in order.
        """
        super().__init__(metric=OBJECTIVE, mode=space.mode)
        self._space, self._study = space, _study(space)
        self._asked: dict[str, Any] = {}
        self._given: list[Settings] = []
        for trial in earlier:
            self._study.enqueue_trial(trial.settings)

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """Settings that were not given yet; none, if many draws bring nothing new."""
        from optuna.trial import TrialState

        for _ in range(DRAWS_PER_TRIAL):
            asked = self._study.ask()
            settings = _settings(self._space, asked)
            if settings not in self._given:
                self._given.append(settings)
                self._asked[trial_id] = asked
                return {TRIAL: asdict(Trial(settings))}
            self._study.tell(asked, state=TrialState.FAIL)
        return Searcher.FINISHED

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Learn what came of it; of a trial that failed, nothing."""
        from optuna.trial import TrialState

        value, asked = (result or {}).get(OBJECTIVE), self._asked.pop(trial_id, None)
        if asked is not None:
            self._study.tell(asked, value, state=TrialState.FAIL if value is None else TrialState.COMPLETE)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: a sweep goes on from its trials' folders."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing; see ``save``."""


def _study(space: SearchSpace) -> Any:
    import optuna

    optuna.logging.set_verbosity(logging.WARNING)
    direction: Literal["maximize", "minimize"] = "maximize" if space.mode == "max" else "minimize"
    return optuna.create_study(direction=direction, sampler=optuna.samplers.TPESampler(seed=space.search.seed))


def _asked(space: SearchSpace) -> Iterator[Settings]:
    study = _study(space)
    while True:
        yield _settings(space, study.ask())


def _settings(space: SearchSpace, asked: Any) -> Settings:
    return space.settings(lambda path, distribution: _suggest(asked, path, distribution))


def _suggest(trial: Any, path: str, distribution: Distribution) -> Any:
    if distribution.kind == "choice":
        return trial.suggest_categorical(path, list(distribution.values))
    low, high = distribution.values
    if distribution.kind == "int_uniform":
        return trial.suggest_int(path, low, high)
    return trial.suggest_float(path, low, high, log=distribution.kind == "log_uniform")
