"""Search and scheduling of a sweep in Ray Tune's terms."""

import itertools
import json
import math
import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from ray.tune.schedulers import AsyncHyperBandScheduler, PopulationBasedTraining
from ray.tune.search import Searcher

from raybio.core.errors import ConfigError
from raybio.core.randomness import derive_seed
from raybio.core.search_space import Settings
from raybio.runtime.tune.plan import DRAWS_PER_TRIAL, distinct, new_study, optuna_settings, planned
from raybio.runtime.tune.run_trial import BEST_VALUE
from raybio.runtime.tune.trial import SweepSpec, Trial, has_ended

TRIAL = "trial"
"""The only key in Tune's configuration of a trial."""


def tune_config(
    spec: SweepSpec, earlier: Sequence[Trial], max_concurrent: int
) -> tuple[dict[str, Any], Any] | None:
    """Return Ray Tune's ``param_space`` and ``TuneConfig``; None if there is nothing to start.

    Args:
        spec: specification that the trials share.
        earlier: trials of an earlier start of the sweep, in order. They come first, and searches
            learn from their results.
        max_concurrent: number of trials that run at the same time.

    Raises:
        ConfigError: if no settings fit each other.
    """
    from ray.tune import TuneConfig

    space = spec.space
    trial_scheduler = scheduler(spec)
    if space.search.kind == "optuna":
        config = TuneConfig(
            search_alg=LearningSearch(spec, earlier),
            num_samples=max(len(earlier), space.budget.num_trials),
            scheduler=trial_scheduler,
            max_concurrent_trials=max_concurrent,
        )
        return {}, config
    first = [Trial(settings) for settings in planned(space, spec.check)]
    if space.scheduler.kind == "pbt":
        # Restore the population: a member that exploited another one keeps its slot.
        members = [*earlier, *first[len(earlier) :]]
        living = [trial for trial in members if not has_ended(spec.folder(trial))]
        return listed(living, max_concurrent, trial_scheduler) if living else None
    new = [trial for trial in first if trial not in earlier]
    return listed([*earlier, *new], max_concurrent, trial_scheduler)


def listed(
    trials: Sequence[Trial], max_concurrent: int, trial_scheduler: Any = None
) -> tuple[dict[str, Any], Any]:
    """Return Ray Tune's ``param_space`` and ``TuneConfig`` of a list of trials."""
    from ray.tune import TuneConfig, grid_search

    # One entry per trial, not per setting, since settings may depend on each other.
    param_space = {TRIAL: grid_search([asdict(trial) for trial in trials])}
    config = TuneConfig(
        num_samples=1, scheduler=trial_scheduler, max_concurrent_trials=max_concurrent
    )
    return param_space, config


def scheduler(spec: SweepSpec) -> Any:
    """Return the scheduler, which stops trials or lets them exploit others.

    ASHA and HyperBand compare trials by their best value so far, the others by their newest value.
    """
    from ray.tune.schedulers import FIFOScheduler, MedianStoppingRule

    space = spec.space
    budget = space.budget
    factor = space.scheduler.reduction_factor
    by_best = {"time_attr": "step", "metric": BEST_VALUE, "mode": space.mode}
    by_newest = by_best | {"metric": space.metric}
    if space.scheduler.kind == "asha":
        rungs = {"max_t": budget.max_steps, "grace_period": budget.grace_steps}
        return AsyncHyperBandScheduler(**by_best, **rungs, reduction_factor=factor)
    if space.scheduler.kind == "hyperband":
        return _HyperBand(budget.max_steps, budget.grace_steps, factor, **by_best)
    if space.scheduler.kind == "median":
        return MedianStoppingRule(
            **by_newest, grace_period=budget.grace_steps, min_samples_required=2
        )
    if space.scheduler.kind == "pbt":
        return _Population(
            budget.max_steps,
            **by_newest,
            perturbation_interval=budget.grace_steps,
            custom_explore_fn=_explore(spec),
            log_config=False,
        )
    return FIFOScheduler()


def _explore(spec: SweepSpec) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that perturbs the settings that a member of a population takes over."""
    rng = random.Random(spec.space.search.seed)

    def explore(config: dict[str, Any]) -> dict[str, Any]:
        donor = Trial(**config[TRIAL])
        perturbed = (spec.space.explored(donor.settings, rng) for _ in range(DRAWS_PER_TRIAL - 1))
        # If no perturbation fits, train on with the donor's settings.
        (settings,) = distinct(itertools.chain(perturbed, [donor.settings]), 1, spec.check)
        # Use a new branch: two trials may reach the same settings with different weights.
        branch = uuid.uuid4().hex[:6]
        successor = Trial(settings, branch=branch, donor=spec.folder(donor).path.name)
        return config | {TRIAL: asdict(successor)}

    return explore


class _HyperBand(AsyncHyperBandScheduler):
    """Asynchronous HyperBand (Li et al., 2020): each bracket waits longer before it stops trials.

    Tune's synchronous HyperBand compares trials of a bracket only when all have begun. If few run
    at a time, it would compare each with itself and stop none.
    """

    def __init__(self, max_steps: int, grace_steps: int, factor: float, **arguments: Any) -> None:
        num_brackets = 1 + math.floor(math.log(max_steps / grace_steps, factor) + 1e-9)
        rungs = {"max_t": max_steps, "grace_period": grace_steps, "reduction_factor": factor}
        super().__init__(**arguments, **rungs, brackets=num_brackets)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Choose the bracket by the trial's settings, so that it is the same after a resume."""
        super().on_trial_add(tune_controller, trial)
        # Use Tune's probabilities, but not its global random numbers.
        num_rungs = [len(bracket._rungs) for bracket in self._brackets]
        share = np.exp(np.subtract(num_rungs, max(num_rungs)))
        given = trial.config[TRIAL]
        identity = {"settings": given["settings"], "branch": given["branch"]}
        key = json.dumps(identity, sort_keys=True)
        rng = np.random.default_rng(derive_seed("bracket", key))
        chosen = rng.choice(len(share), p=share / share.sum())
        self._trial_info[trial.trial_id] = self._brackets[chosen]


class _Population(PopulationBasedTraining):
    """Population-based training in which members at the last step are not exploited.

    Nothing would be left to train.
    """

    def __init__(self, max_steps: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._max_steps = max_steps

    def _exploit(self, tune_controller: Any, trial: Any, trial_to_clone: Any) -> None:
        if self._trial_state[trial_to_clone].last_train_time < self._max_steps:
            super()._exploit(tune_controller, trial, trial_to_clone)


class LearningSearch(Searcher):
    """Optuna's tree-structured Parzen estimator without repeated settings.

    Ray's own adapter may give the same settings twice.
    """

    def __init__(self, spec: SweepSpec, earlier: Sequence[Trial]) -> None:
        """Create a study.

        Args:
            spec: specification that the trials share.
            earlier: trials that come first, in order.
        """
        super().__init__(metric=BEST_VALUE, mode=spec.space.mode)
        self._spec = spec
        self._study = new_study(spec.space)
        self._open: dict[str, tuple[Trial, Any]] = {}
        self._given: list[Settings] = []
        for trial in earlier:
            self._study.enqueue_trial(trial.settings)

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """Return new settings that fit each other, or ``FINISHED``.

        The search is finished when ``DRAWS_PER_TRIAL`` draws were repetitions and no combination is
        left.
        """
        from optuna.trial import TrialState

        for _ in range(DRAWS_PER_TRIAL):
            draw = self._study.ask()
            settings = optuna_settings(self._spec.space, draw)
            if self._is_new(settings):
                return self._opened(trial_id, settings, draw)
            self._study.tell(draw, state=TrialState.FAIL)
        # The estimator repeats the best combinations again and again.
        left = self._left()
        if left is None:
            return Searcher.FINISHED
        self._study.enqueue_trial(left)
        draw = self._study.ask()
        return self._opened(trial_id, optuna_settings(self._spec.space, draw), draw)

    def _is_new(self, settings: Settings) -> bool:
        return settings not in self._given and _fits(self._spec, settings)

    def _opened(self, trial_id: str, settings: Settings, draw: Any) -> dict[str, Any]:
        trial = Trial(settings)
        self._given.append(settings)
        self._open[trial_id] = trial, draw
        return {TRIAL: asdict(trial)}

    def _left(self) -> Settings | None:
        """Return a combination of choices that was not tried, preferably a random one."""
        space = self._spec.space
        if not space.has_choices_only:
            return None
        random_ones = itertools.islice(space.drawn(), DRAWS_PER_TRIAL)
        candidates = itertools.chain(random_ones, space.combinations())
        return next(filter(self._is_new, candidates), None)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Learn from the trial's result, unless it failed."""
        from optuna.trial import TrialState

        if trial_id not in self._open:
            return
        trial, draw = self._open.pop(trial_id)
        value = (result or {}).get(BEST_VALUE)
        if error or value is None or self._spec.folder(trial).failure.exists():
            self._study.tell(draw, state=TrialState.FAIL)
        else:
            self._study.tell(draw, value)

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: a sweep resumes from its trials' folders."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing; see ``save``."""


def _fits(spec: SweepSpec, settings: Settings) -> bool:
    try:
        spec.check(settings)
    except ConfigError:
        return False
    return True
