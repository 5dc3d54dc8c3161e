"""What a trial of a sweep is, where it lies, and how it ended.

A trial's folder is named after its configuration, so the same settings find what they left.
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
"""What the driver told the trial, and how long its workers have trained, added up over them."""


ENDED = "ended.json"
"""What the driver knows: how the trial ended."""


FINISHED, STOPPED, REPLACED, FAILED = (
    "finished",
    "stopped by the scheduler",
    "went on as another",
    "failed",
)


INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Trial:
    """What Tune is told to try.

    Attributes:
        settings: what it changes.
        branch: what tells trials of the same settings apart that begin with other weights; usually empty.
    """

    settings: Settings
    branch: str = ""


@dataclass(frozen=True)
class TrialSpec:
    """What every trial of a sweep shares; plain values, so that it travels.

    Attributes:
        base: the configuration that settings are put on.
        space: the sweep's search space.
        store: path of the prepared store; empty: there is none yet, and nothing is looked at in it.
        sweep: the sweep's folder.
        workers: training workers of each trial; 1: the trial's own process trains.
        cpus_per_worker: logical CPUs of each.
        gpus_per_worker: GPUs of each; a fraction lets trials share one.
        precision: ``fp32`` or ``bf16`` of trials with ``precision: auto``; ``auto`` until the driver has decided.
        setup: called in each training process first; tests plant their faults with it.
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
        """What trials are compared by."""
        return Goal(self.space.metric, self.space.mode)

    @property
    def stop(self) -> Path:
        """The file by which the driver ends all trials."""
        return Path(self.sweep) / ".stop"

    @property
    def launch(self) -> dict[str, Any]:
        """How trials are trained: what it takes to train one again to the bit."""
        return {
            "workers": self.workers,
            "threads_per_worker": self.threads,
            "use_gpu": self.gpus_per_worker > 0,
        }

    @property
    def threads(self) -> int:
        """Threads that a worker computes with."""
        return max(1, int(self.cpus_per_worker))

    def config(self, settings: Settings) -> TrainingConfig:
        """The whole configuration of a trial.

        It trains for the sweep's budget, and is evaluated and saved at least as often as trials may be stopped.

        Raises:
            ConfigError: if the settings do not fit each other.
        """
        budget, schedule = self.space.budget, self.base.schedule
        every = min(schedule.evaluate_every_steps or budget.grace_steps, budget.grace_steps)
        saved = min(schedule.checkpoint_every_steps, every)
        steps = {
            "max_steps": budget.max_steps,
            "evaluate_every_steps": every,
            "checkpoint_every_steps": saved,
        }
        given = {f"schedule.{name}": value for name, value in steps.items()}
        return override_all(
            self.base, given | {path: quoted(value) for path, value in settings.items()}
        )

    def precision_of(self, config: TrainingConfig) -> str:
        """Return a trial's precision: its own setting, or that of the sweep for ``auto``."""
        return self.precision if config.precision == "auto" else config.precision

    def check(self, settings: Settings) -> None:
        """Refuse settings with which no trial could start.

        Raises:
            ConfigError: if they do not fit each other, or the store.
            StoreError: if the store is missing, damaged or of another kind.
        """
        config, entry = self.config(settings), METHODS[self.space.method]
        if self.store:
            from raybio.store.store import open_store  # reads Arrow files: a dry run does without

            entry.check(config, open_store(self.store, entry.store))

    def folder(self, trial: Trial) -> RunFolder:
        """Where a trial lies."""
        name = f"trial-{fingerprint(self.config(trial.settings))[:10]}"
        return RunFolder(
            Path(self.sweep) / "trials", f"{name}-{trial.branch}" if trial.branch else name
        )


def new_note(trial: Trial) -> dict[str, Any]:
    """Return what a trial's ``trial.json`` holds before it has trained."""
    return {"trial": asdict(trial), "worker_seconds": 0.0}


def has_ended(folder: RunFolder) -> bool:
    """Whether the driver has noted how the trial ended."""
    return (folder.path / ENDED).exists()


def status_of(folder: RunFolder) -> str:
    """How a trial ended, as the driver noted; interrupted, if it did not."""
    return str((read_record(folder.path / ENDED, "trial end") or {}).get("status", INTERRUPTED))
