"""A trial of a sweep: its settings, its folder and its status.

A trial's folder is named after its configuration, so that the same settings find it again.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raybio.core.config import fingerprint, override_all
from raybio.core.records import read_record
from raybio.core.search_space import SearchSpace, Settings, quoted
from raybio.methods import METHODS
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.goal import Goal
from raybio.training.settings import TrainingConfig

NOTE = "trial.json"
"""The trial's settings, and the seconds of training summed over its workers."""

ENDED = "ended.json"
"""The status with which the trial ended, written by the driver."""

FINISHED = "finished"
STOPPED = "stopped by the scheduler"
REPLACED = "went on as another"
"""A member of a population that exploited another one, and trains on under another name."""
FAILED = "failed"
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Trial:
    """Settings that Tune tries.

    Attributes:
        settings: dotted path -> value that replaces the base configuration's.
        branch: distinguishes trials of the same settings with different initial weights, as in
            population-based training; empty otherwise.
    """

    settings: Settings
    branch: str = ""


@dataclass(frozen=True)
class TrialSpec:
    """What every trial of a sweep shares, as plain values that can be pickled.

    Attributes:
        base: the configuration that settings are put on.
        space: the sweep's search space.
        store: path of the prepared store; empty: there is none yet, and settings are not checked
            against it.
        sweep: the sweep's folder.
        workers: training workers of each trial; 1: the trial's own process trains.
        cpus_per_worker: logical CPUs of each.
        gpus_per_worker: GPUs of each; a fraction lets trials share one.
        precision: ``fp32`` or ``bf16`` of trials with ``precision: auto``; ``auto`` until the
            driver has decided.
        setup: called in each training process first; tests inject faults with it.
    """

    base: TrainingConfig
    space: SearchSpace
    store: str
    sweep: str
    workers: int = 1
    cpus_per_worker: float = 1
    gpus_per_worker: float = 0
    precision: str = "auto"
    setup: Any = None

    @property
    def goal(self) -> Goal:
        """The metric by which trials are compared, and its direction."""
        return Goal(self.space.metric, self.space.mode)

    @property
    def stop(self) -> Path:
        """The file whose presence ends all trials."""
        return Path(self.sweep) / ".stop"

    @property
    def launch(self) -> dict[str, Any]:
        """The setup of trials that a bit-identical repetition needs."""
        return {
            "workers": self.workers,
            "threads_per_worker": self.threads,
            "use_gpu": self.gpus_per_worker > 0,
        }

    @property
    def threads(self) -> int:
        """Number of compute threads of a worker."""
        return max(1, int(self.cpus_per_worker))

    def config(self, settings: Settings) -> TrainingConfig:
        """Return the whole configuration of a trial.

        A trial trains for the sweep's budget. It is evaluated and saved at least as often as the
        scheduler may stop it.

        Raises:
            ConfigError: if the settings do not fit each other.
        """
        budget = self.space.budget
        schedule = self.base.schedule
        evaluate_every = min(
            schedule.evaluate_every_steps or budget.grace_steps, budget.grace_steps
        )
        changes: dict[str, Any] = {
            "schedule.max_steps": budget.max_steps,
            "schedule.evaluate_every_steps": evaluate_every,
            "schedule.checkpoint_every_steps": min(schedule.checkpoint_every_steps, evaluate_every),
        }
        for path, value in settings.items():
            changes[path] = quoted(value)
        return override_all(self.base, changes)

    def precision_of(self, config: TrainingConfig) -> str:
        """Return a trial's precision: its own setting, or that of the sweep for ``auto``."""
        return self.precision if config.precision == "auto" else config.precision

    def check(self, settings: Settings) -> None:
        """Refuse settings with which no trial could start.

        Raises:
            ConfigError: if they do not fit each other, or the store.
            StoreError: if the store is missing, damaged or of another kind.
        """
        config = self.config(settings)
        method = METHODS[self.space.method]
        if self.store:
            from raybio.store.store import open_store  # reads Arrow files: a dry run does without

            method.check(config, open_store(self.store, method.store))

    def folder(self, trial: Trial) -> RunFolder:
        """Return the folder of a trial."""
        name = f"trial-{fingerprint(self.config(trial.settings))[:10]}"
        if trial.branch:
            name += f"-{trial.branch}"
        return RunFolder(Path(self.sweep) / "trials", name)


def new_note(trial: Trial) -> dict[str, Any]:
    """Return the content of ``trial.json`` before the trial has trained."""
    return {"trial": asdict(trial), "worker_seconds": 0.0}


def has_ended(folder: RunFolder) -> bool:
    """Return whether the driver has recorded the end of the trial."""
    return (folder.path / ENDED).exists()


def status_of(folder: RunFolder) -> str:
    """Return the recorded status of a trial; ``interrupted`` if its end is not recorded."""
    return str((read_record(folder.path / ENDED, "trial end") or {}).get("status", INTERRUPTED))
