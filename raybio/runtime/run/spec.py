"""The specification of a training run: configuration, paths and compute settings."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from raybio.core.location import BucketPath, Location
from raybio.methods import METHODS
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.goal import Goal
from raybio.training.settings import Device, TrainingConfig

DEVICES: dict[Device, bool | None] = {"auto": None, "cpu": False, "gpu": True}
"""Value of ``--device`` -> whether workers train on GPUs; None: if there is one for each worker."""


@dataclass(frozen=True, kw_only=True)
class Compute:
    """The workers of a run, and the share of the machine that each one gets.

    Attributes:
        workers: training workers; None: 1, or as the run began.
        cpus_per_worker: logical CPUs that each worker reserves; None: chosen by availability.
        gpus_per_worker: GPUs of each worker of a trial; a fraction lets trials share one GPU;
            None: 1 if there are GPUs. Other runs have one GPU per worker, or none.
        threads_per_worker: threads that each worker computes with; None: as many as its CPUs.
        device: ``auto`` takes GPUs if there is one for each worker.
    """

    workers: int | None = None
    cpus_per_worker: float | None = None
    gpus_per_worker: float | None = None
    threads_per_worker: int | None = None
    device: Device = "auto"

    @property
    def num_workers(self) -> int:
        """Number of training workers; 0 is kept, and refused later."""
        return 1 if self.workers is None else self.workers

    @property
    def use_gpu(self) -> bool | None:
        """Whether workers train on GPUs; None: if there is one for each worker."""
        return DEVICES[self.device]

    @property
    def gpus_of_trial(self) -> float | None:
        """GPUs of each worker of a trial: the given number, else as ``device`` implies."""
        if self.gpus_per_worker is None and self.use_gpu is not None:
            return float(self.use_gpu)
        return self.gpus_per_worker

    def to_record(self) -> dict[str, Any]:
        """Return the settings that the next start of the run repeats, for bit-identical results."""
        return {
            "workers": self.num_workers,
            "cpus_per_worker": self.cpus_per_worker,
            "threads_per_worker": self.threads_per_worker,
            "use_gpu": self.use_gpu,
        }

    def or_recorded(self, record: dict[str, Any]) -> Self:
        """Return the given values, completed by those of an earlier start.

        Recorded threads are used only if neither workers nor CPUs are given.
        """
        is_given = self.workers is not None or self.cpus_per_worker is not None
        threads = None if is_given else record.get("threads_per_worker")
        workers = record.get("workers", 1) if self.workers is None else self.workers
        cpus = self.cpus_per_worker
        if cpus is None:
            cpus = record.get("cpus_per_worker")
        device = self.device
        if device == "auto" and record.get("use_gpu") is not None:
            device = "gpu" if record["use_gpu"] else "cpu"
        return type(self)(
            workers=workers,
            cpus_per_worker=cpus,
            gpus_per_worker=self.gpus_per_worker,
            threads_per_worker=threads,
            device=device,
        )

    def __str__(self) -> str:
        """Describe workers, threads and device in a few words."""
        words = f"{self.num_workers} worker" + ("s" if self.num_workers > 1 else "")
        if self.threads_per_worker:
            words += f" × {self.threads_per_worker} threads"
        if self.device != "auto":
            words += f" on {self.device.upper()}s"
        return words


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """A run, complete and checked: from the command line down to the training loop.

    Attributes:
        method: key in ``METHODS``.
        config: the method's whole configuration.
        store: path of the prepared store.
        name: name of the run; a start with the same name resumes it.
        runs: folder of all runs. Driver and workers see it under one path; of runs in a bucket,
            it is this process' own copy.
        bucket: path of all runs in a bucket; None: they are in a local folder.
        tracking: MLflow tracking URI; None: ``mlflow.db`` next to ``runs``.
        compute: workers, CPUs, GPUs, threads and device.
        precision: ``fp32``, ``tf32`` or ``bf16``, decided once for all runs of a command; None: not
            yet.
        explicit: dotted paths of settings that the user gave one by one. Where one cannot be
            honoured, that is an error; a default is adapted instead.
        accepts_long_run: the run may take more than a day on CPUs, by this start or an earlier one.
        is_strict: it is not resumed by other versions or on other hardware.
        recipe: name of the recipe of its initial settings; None: no recipe.
        parent_run_id: MLflow run that a trial or a compared run belongs to.
        verbose: show Ray's own logs.
        setup: called as ``setup(rank, folder of the run)`` in each worker before anything else;
            tests cause faults with it.
    """

    method: str
    config: TrainingConfig
    store: Location
    name: str
    runs: Path
    bucket: BucketPath | None = None
    tracking: str | None = None
    compute: Compute = Compute()
    precision: str | None = None
    explicit: frozenset[str] = frozenset()
    accepts_long_run: bool = False
    is_strict: bool = False
    recipe: str | None = None
    parent_run_id: str | None = None
    verbose: bool = False
    setup: Callable[[int, Path], None] | None = None

    @property
    def folder(self) -> RunFolder:
        """The folder of the run.

        Raises:
            ConfigError: for a name that is not a plain word.
        """
        return RunFolder(self.runs, self.name)

    def in_steps(self) -> Self:
        """Return the run with epochs converted to steps, see ``ScheduleConfig.in_steps``.

        Raises:
            StoreError: if the schedule has epochs, and the store is missing, damaged or of another
                kind.
        """
        if not self.config.schedule.has_epochs:
            return self
        from raybio.store.store import open_store  # reads Arrow files: steps need none

        method = METHODS[self.method]
        config = method.in_steps(self.config, open_store(self.store, method.store))
        return replace(self, config=config)


class LeaseKey(NamedTuple):
    """The lease under which the workers of a driver write to a bucket.

    Attributes:
        path: the folder in the bucket that the driver holds: that of the run or of its sweep.
        id: id of the driver.
    """

    path: BucketPath
    id: str


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """A start of a run, as the driver sends it to every worker.

    Attributes:
        run: the run, with absolute paths and a decided precision.
        threads: threads to compute with; None: the CPUs of the machine divided by its workers.
        start: name of this start, from ``RunFolder.begin_start``.
        goal: the metric of a sweep, if the run is one of its trials.
        relay: the relay to the driver, if the run is in a bucket; see ``runtime/spool``.
        lease: the driver's lease, if the run is in a bucket.
    """

    run: RunSpec
    threads: int | None
    start: str
    goal: Goal | None = None
    relay: Any = None
    lease: LeaseKey | None = None
