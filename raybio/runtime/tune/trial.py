"""A trial of a sweep: its settings, its folder and its status.

A trial's folder is named after its configuration, so that the same settings find it again.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from raybio.core.config import name_digits, override_all, present_paths
from raybio.core.errors import RecordError
from raybio.core.location import BucketPath
from raybio.core.records import FORMATS, fields_of, read_record
from raybio.core.search_space import SearchSpace, Settings, format_value, quoted
from raybio.methods import METHODS
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.goal import Goal
from raybio.runtime.run.spec import LeaseKey, RunSpec, WorkerSpec
from raybio.training.settings import TrainingConfig

TRIAL_RECORD = "trial.json"
"""File with the trial's settings, and the seconds of training summed over its workers."""

TRIALS = "trials.json"
"""File with the sweep's trials in the order of their start, from which a resumed sweep begins."""

ENDED = "ended.json"
"""File with the final status of the trial, written by the driver."""

FINISHED = "finished"
STOPPED = "stopped by the scheduler"
REPLACED = "continued as another trial"
"""Status of a population's member that exploited another one and continues under a new name."""
FAILED = "failed"
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Trial:
    """Settings that Tune tries.

    Attributes:
        settings: dotted path -> value that replaces the base configuration's.
        branch: distinguishes trials of the same settings with different initial weights, as in
            population-based training; empty otherwise.
        donor: folder name of the trial with whose weights a branch begins.
    """

    settings: Settings
    branch: str = ""
    donor: str = ""


def settings_text(settings: Settings) -> str:
    """Return a trial's settings as text, such as "peak_lr 0.001, seed 1"."""
    return ", ".join(
        f"{path.rsplit('.', 1)[-1]} {format_value(value)}" for path, value in settings.items()
    )


@dataclass(frozen=True, kw_only=True)
class SweepSpec:
    """The specification of a sweep, which its driver sends to all trials.

    Attributes:
        space: the search space.
        run: base configuration, store, name and folder of the sweep, and compute of a trial.
            ``runs`` is the folder of all sweeps. ``precision`` is that of trials with
            ``precision: auto``, None until the driver has decided it.
        options: options of this start that the next start repeats, by name.
        checks_store: whether settings are checked against the store; False if there is none yet.
        data_digest: digest of the store that the sweep began with; "" before it is opened.
        encoder: the sweep's record of its encoder's weights; None: no record.
        start: name of this start, for a sweep in a bucket.
        relay: the relay from its trials to the driver; see ``runtime/spool``.
        lease: the driver's lease of the sweep.
    """

    space: SearchSpace
    run: RunSpec
    options: Mapping[str, Any] = field(default_factory=dict)
    checks_store: bool = True
    data_digest: str = ""
    encoder: dict[str, str] | None = None
    start: str = ""
    relay: Any = None
    lease: LeaseKey | None = None

    @property
    def path(self) -> Path:
        """The sweep's folder."""
        return self.run.folder.path

    @property
    def goal(self) -> Goal:
        """The metric that trials are compared by."""
        return Goal(self.space.metric, self.space.mode)

    @property
    def stop(self) -> Path:
        """The stop file by which the driver ends all trials."""
        return self.path / ".stop"

    @property
    def launch(self) -> dict[str, Any]:
        """The launch record of a trial, with the compute settings of a bit-identical training."""
        return {
            "workers": self.run.compute.num_workers,
            "threads_per_worker": self.threads,
            "use_gpu": bool(self.run.compute.gpus_per_worker),
        }

    @property
    def threads(self) -> int:
        """Threads that a worker computes with."""
        return max(1, int(self.run.compute.cpus_per_worker or 1))

    def config(self, settings: Settings) -> TrainingConfig:
        """Return the whole configuration of a trial.

        It trains for the sweep's budget of steps, whatever the epochs of the base configuration.
        It is evaluated and saved at least as often as trials may be stopped.

        Raises:
            ConfigError: if the settings do not fit each other.
        """
        budget = self.space.budget
        schedule = self.run.config.schedule
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
        return override_all(self.run.config, changes)

    def precision_of(self, config: TrainingConfig) -> str:
        """Return a trial's precision: its own setting, or that of the sweep for ``auto``."""
        if config.precision == "auto":
            return self.run.precision or "auto"
        return config.precision

    def bucket_of(self, folder: RunFolder) -> BucketPath | None:
        """Return the folder of a trial in the bucket; None: the sweep is in a local folder."""
        if self.run.bucket is None:
            return None
        return self.run.bucket / self.run.name / "trials" / folder.name

    def worker_spec(self, trial: Trial) -> WorkerSpec:
        """Return a trial as the run that its workers train.

        Raises:
            ConfigError: if the settings do not fit each other.
        """
        folder = self.folder(trial)
        config = self.config(trial.settings)
        bucket = self.bucket_of(folder)
        run = replace(
            self.run,
            config=config,
            name=folder.name,
            runs=folder.path.parent,
            bucket=None if bucket is None else bucket.parent,
            precision=self.precision_of(config),
        )
        return WorkerSpec(
            run=run,
            threads=self.threads,
            start=self.start,
            goal=self.goal,
            relay=self.relay,
            lease=self.lease,
        )

    def check(self, settings: Settings) -> None:
        """Refuse settings with which no trial could start.

        Raises:
            ConfigError: if they do not fit each other, or the store.
            StoreError: if the store is missing, damaged or of another kind.
        """
        config = self.config(settings)
        if self.checks_store:
            from raybio.store.store import open_store  # reads Arrow files: a dry run does without

            entry = METHODS[self.space.method]
            # With the digest, a copy is used without a request, so an unavailable bucket ends no
            # sweep.
            store = open_store(self.run.store, entry.store, digest=self.data_digest)
            entry.check(config, store)

    def folder(self, trial: Trial) -> RunFolder:
        """Return the folder of a trial, named after its configuration."""
        name = f"trial-{name_digits(self.config(trial.settings))[:10]}"
        if trial.branch:
            name += f"-{trial.branch}"
        return RunFolder(self.path / "trials", name)


def earlier_trials(spec: SweepSpec) -> list[Trial]:
    """Return the trials of the sweep's earlier starts in order; for a population, its members."""
    path = spec.path / TRIALS
    content = read_record(path, "trials") or {"trials": []}
    trials = content.get("trials")
    if not isinstance(trials, list):
        raise RecordError(f"{path}: lacks trials. {FORMATS['trials'].if_lost}")
    return [recorded_trial(spec, fields, path) for fields in trials]


def recorded_trial(spec: SweepSpec, fields: object, path: Path) -> Trial:
    """Return a trial from the fields in a record, with the present names of its settings.

    Raises:
        RecordError: if the record lacks some.
    """
    trial = Trial(**fields_of(Trial, fields, path))
    return replace(trial, settings=present_paths(type(spec.run.config), trial.settings))


def first_trials(spec: SweepSpec) -> list[Trial]:
    """Return the earlier trials without those that repeat others with another seed."""
    return [trial for trial in earlier_trials(spec) if set(trial.settings) <= spec.space.paths]


def new_trial_record(trial: Trial) -> dict[str, Any]:
    """Return the content of ``trial.json`` before the trial has trained."""
    return {"trial": asdict(trial), "worker_seconds": 0.0}


def has_ended(folder: RunFolder) -> bool:
    """Return whether the driver has recorded the end of the trial."""
    return (folder.path / ENDED).exists()


def status_of(folder: RunFolder) -> str:
    """Return the recorded status of a trial; ``interrupted`` if no end is recorded."""
    end = read_record(folder.path / ENDED, "trial end") or {}
    return str(end.get("status", INTERRUPTED))
