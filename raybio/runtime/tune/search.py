"""Which settings a sweep's trials try, in Ray Tune's terms; and which trials it stops."""

import itertools
import json
import math
import random
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

import numpy as np
from ray.tune.schedulers import AsyncHyperBandScheduler, PopulationBasedTraining
from ray.tune.search import Searcher

from raybio.core.errors import ConfigError
from raybio.core.randomness import derive_seed
from raybio.core.search_space import Settings
from raybio.runtime.tune.plan import DRAWS_PER_TRIAL, distinct, new_study, optuna_settings, planned
from raybio.runtime.tune.run_trial import OBJECTIVE
from raybio.runtime.tune.trial import Trial, TrialSpec, has_ended


def tune_config(
    spec: TrialSpec, earlier: Sequence[Trial], at_once: int
) -> tuple[dict[str, Any], Any] | None:
    """Ray Tune's ``param_space`` and ``TuneConfig``; None if there is nothing to start.

    Args:
        spec: what the trials share.
        earlier: trials of an earlier start of the sweep, in order; they come first, and their results are learned from.
        at_once: how many trials run at the same time.

    Raises:
        ConfigError: if no settings fit each other.
    """
    from ray.tune import TuneConfig

    rule, space = scheduler(spec), spec.space
    if space.search.kind == "optuna":
        search = {
            "search_alg": LearningSearch(spec, earlier),
            "num_samples": max(len(earlier), space.budget.num_trials),
        }
        return {}, TuneConfig(**search, scheduler=rule, max_concurrent_trials=at_once)
    first = [Trial(one) for one in planned(space, spec.check)]
    if space.scheduler.kind == "pbt":
        # The population as it stood. Members begin in order, and an heir takes the place of whom it replaces.
        members = [*earlier, *first[len(earlier) :]]
        living = [trial for trial in members if not has_ended(spec.folder(trial))]
        return listed(living, at_once, rule) if living else None
    return listed([*earlier, *(trial for trial in first if trial not in earlier)], at_once, rule)


def listed(trials: Sequence[Trial], at_once: int, rule: Any = None) -> tuple[dict[str, Any], Any]:
    """``tune_config`` of a list of trials."""
    from ray.tune import TuneConfig, grid_search

    # One entry a trial, and not one a setting: settings may depend on each other.
    param_space = {TRIAL: grid_search([asdict(trial) for trial in trials])}
    return param_space, TuneConfig(num_samples=1, scheduler=rule, max_concurrent_trials=at_once)


TRIAL = "trial"
"""The one entry of Tune's configuration of a trial."""


def scheduler(spec: TrialSpec) -> Any:
    """The rule by which trials are stopped or go on from others.

    It looks at the best value so far where that is all that counts of a trial, and at the value now otherwise.
    """
    from ray.tune.schedulers import FIFOScheduler, MedianStoppingRule

    space, budget, factor = spec.space, spec.space.budget, spec.space.scheduler.reduction_factor
    best = {"time_attr": "step", "metric": OBJECTIVE, "mode": space.mode}
    now = best | {"metric": space.metric}
    if space.scheduler.kind == "asha":
        rungs = {"max_t": budget.max_steps, "grace_period": budget.grace_steps}
        return AsyncHyperBandScheduler(**best, **rungs, reduction_factor=factor)
    if space.scheduler.kind == "hyperband":
        return _HyperBand(budget.max_steps, budget.grace_steps, factor, **best)
    if space.scheduler.kind == "median":
        return MedianStoppingRule(**now, grace_period=budget.grace_steps, min_samples_required=2)
    if space.scheduler.kind == "pbt":
        rng = random.Random(space.search.seed)

        def explore(config: dict[str, Any]) -> dict[str, Any]:
            donor = config[TRIAL]["settings"]
            near = (space.explored(donor, rng) for _ in itertools.count())
            # Where nothing near fits, the heir goes on as its donor does.
            (settings,) = distinct(
                itertools.chain(islice(near, DRAWS_PER_TRIAL - 1), [donor]), 1, spec.check
            )
            # A name of its own: two trials may come to the same settings with different weights.
            return config | {TRIAL: asdict(Trial(settings, branch=uuid.uuid4().hex[:6]))}

        return _Population(
            budget.max_steps,
            **now,
            perturbation_interval=budget.grace_steps,
            custom_explore_fn=explore,
            log_config=False,
        )
    return FIFOScheduler()


class _HyperBand(AsyncHyperBandScheduler):
    """HyperBand, asynchronous (Li et al., 2020): brackets that spare trials for longer and longer before they stop any.

    Tune's own with barriers wants all trials of a bracket begun before the first is judged, and where no more than a
    few may run at a time, it judges each alone and stops nobody.
    """

    def __init__(self, max_steps: int, grace_steps: int, factor: float, **arguments: Any) -> None:
        num_brackets = 1 + math.floor(math.log(max_steps / grace_steps, factor) + 1e-9)
        rungs = {"max_t": max_steps, "grace_period": grace_steps, "reduction_factor": factor}
        super().__init__(**arguments, **rungs, brackets=num_brackets)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Its settings alone say which bracket a trial is in: a sweep that goes on decides as it did before."""
        super().on_trial_add(tune_controller, trial)
        num_rungs = [len(bracket._rungs) for bracket in self._brackets]
        share = np.exp(
            np.subtract(num_rungs, max(num_rungs))
        )  # Tune's own, but for its global random numbers
        rng = np.random.default_rng(
            derive_seed("bracket", json.dumps(trial.config[TRIAL], sort_keys=True))
        )
        self._trial_info[trial.trial_id] = self._brackets[
            rng.choice(len(share), p=share / share.sum())
        ]


class _Population(PopulationBasedTraining):
    """Nobody goes on from a member that has come to the last step: nothing would be left to train."""

    def __init__(self, max_steps: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._max_steps = max_steps

    def _exploit(self, tune_controller: Any, trial: Any, trial_to_clone: Any) -> None:
        if self._trial_state[trial_to_clone].last_train_time < self._max_steps:
            super()._exploit(tune_controller, trial, trial_to_clone)


class LearningSearch(Searcher):
    """Optuna's tree-structured Parzen estimator, which never gives the same settings twice (Ray's own adapter does)."""

    def __init__(self, spec: TrialSpec, earlier: Sequence[Trial]) -> None:
        """Begin a study.

        Args:
            spec: what the trials share.
            earlier: trials that come first, in order.
        """
        super().__init__(metric=OBJECTIVE, mode=spec.space.mode)
        self._order, self._study = spec, new_study(spec.space)
        self._asked: dict[str, tuple[Trial, Any]] = {}
        self._given: list[Settings] = []
        for trial in earlier:
            self._study.enqueue_trial(trial.settings)

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """Settings that fit each other and were not given yet; none, if many draws bring nothing new."""
        from optuna.trial import TrialState

        for _ in range(DRAWS_PER_TRIAL):
            asked = self._study.ask()
            settings = optuna_settings(self._order.space, asked)
            if settings not in self._given and _fits(self._order, settings):
                trial = Trial(settings)
                self._given.append(settings)
                self._asked[trial_id] = trial, asked
                return {TRIAL: asdict(trial)}
            self._study.tell(asked, state=TrialState.FAIL)
        return Searcher.FINISHED

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Learn what came of it; of a trial that failed, nothing."""
        from optuna.trial import TrialState

        if trial_id not in self._asked:
            return
        trial, asked = self._asked.pop(trial_id)
        value = (result or {}).get(OBJECTIVE)
        if error or value is None or self._order.folder(trial).failure.exists():
            self._study.tell(asked, state=TrialState.FAIL)
        else:
            self._study.tell(asked, value)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: a sweep goes on from its trials' folders."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing; see ``save``."""


def _fits(spec: TrialSpec, settings: Settings) -> bool:
    try:
        spec.check(settings)
    except ConfigError:
        return False
    return True
