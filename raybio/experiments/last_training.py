"""The last training of a cross-validation: on the validation sentences as well.

By then, validation sentences have chosen all settings. Each model of each fold is trained again
from the beginning, for the number of epochs that was best without these sentences, and keeps its
last weights (Theodoropoulos et al. 2021). With these sentences, an epoch has more steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raybio.core.config import override_all
from raybio.core.records import read_recomputable, write_record
from raybio.methods.relation_graphs.annotations.folds import FoldRows
from raybio.runtime.cluster.resources import TrialResources
from raybio.runtime.run.encoder_source import encoder_record, pin_encoder
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.notices import warnings_to
from raybio.runtime.run.open_run import compare_versions, versions_with_this_start
from raybio.runtime.run.spec import LeaseKey, RunSpec, WorkerSpec
from raybio.training.settings import COMPLETE, TrainingConfig


@dataclass(frozen=True)
class LastTraining:
    """One training of one model on one fold: a ``Task`` that is a run in a folder of its own.

    Attributes:
        run: the run, with the sweep's precision and MLflow run; ``export/`` is the model.
        lease: the driver's lease of the sweep, if it is in a bucket.
        relay: the way to the driver, if the sweep is in a bucket; see ``runtime/spool``.
        start: name of this start, if the sweep is in a bucket.
    """

    run: RunSpec
    lease: LeaseKey | None = None
    relay: Any = None
    start: str = ""

    def __str__(self) -> str:
        """Return the line that is printed when it is done."""
        steps = self.run.config.schedule.max_steps
        return f"trained {self.run.name} on validation sentences too, {steps:,} steps"

    @property
    def folder(self) -> RunFolder:
        """The folder of the run."""
        return self.run.folder

    @property
    def is_done(self) -> bool:
        """Whether the training reached its end."""
        outcome = read_recomputable(self.folder.outcome, "outcome") or {}
        return outcome.get("status") in COMPLETE

    def open(self, data_digest: str) -> None:
        """Make the folder, or check that the folder is of this training.

        Args:
            data_digest: of the store that the fold was trained on; the worker refuses another one.

        Raises:
            CheckpointError: if it holds another run.
            ClusterError: if it cannot be made.
            OtherVersionsError: if the run is strict, and other versions have trained it in part.
        """
        assert self.run.precision is not None
        self.folder.make()
        self.folder.open(self.run.method, self.run.config, self.run.store, data_digest, ())
        self.folder.record_precision(self.run.precision)
        pin_encoder(self.folder)
        self.folder.record_encoder(encoder_record(self.run.config))
        if not self.is_done:
            self._record_versions()

    def _record_versions(self) -> None:
        for change in compare_versions(self.folder, is_strict=self.run.is_strict):
            print(f"warning: {self.folder.path}: trained by other versions: {change}", flush=True)
        launch = {
            "versions": versions_with_this_start(self.folder),
            "is_strict": self.run.is_strict,
        }
        write_record(self.folder.launch, "launch", launch)

    def work(self, reserved: TrialResources) -> None:
        """Train, or resume from the newest checkpoint; warnings go to the notices of the run.

        Raises:
            RaybioError: as any training.
        """
        from raybio.runtime.run.task_worker import train_here
        from raybio.runtime.spool.relay import worker_copy

        threads = max(1, int(reserved.cpus_per_worker))
        spec = WorkerSpec(
            run=self.run, threads=threads, start=self.start, relay=self.relay, lease=self.lease
        )
        with worker_copy(spec, rank=0) as copy:
            folder = copy.spec.run.folder
            reports = train_here(
                copy.spec,
                device="cuda" if reserved.gpus_per_worker else "cpu",
                stop=folder.stop,
                remote=copy.remote,
                # Models are evaluated in pairs, later: evaluating each takes longer than its
                # training.
                is_evaluated=False,
            )
            with warnings_to(folder.notices):
                for _ in reports:
                    pass

    def keep(self, result: None) -> None:
        """Report the run to MLflow; its folder is the result."""
        from raybio.runtime.tracking.tracker import Tracker

        assert self.run.tracking is not None
        Tracker(
            self.folder,
            self.run.tracking,
            self.run.method,
            self.run.config.to_mapping(),
            self.folder.data_digest,
            self.run.parent_run_id,
        ).catch_up()


def num_last_steps(best_step: int, fold: FoldRows) -> int:
    """Return the steps of a last training: the epochs of the best step, over more sentences.

    Args:
        best_step: the best step of the training before.
        fold: sentences of that training.
    """
    return round(best_step * len(fold.train_and_dev) / len(fold.train))


def last_config(
    config: TrainingConfig, num_steps: int, knn_settings: Mapping[str, float]
) -> TrainingConfig:
    """Return the configuration of a last training.

    Args:
        config: configuration of the training before.
        num_steps: steps of the last training; see ``num_last_steps``.
        knn_settings: number of neighbors of pairs and tags, and weight of the linear probe, chosen
            on validation sentences.

    Raises:
        ConfigError: if the settings do not fit each other.
    """
    changes: dict[str, Any] = {
        "data.train_on_validation": True,
        "schedule.max_steps": num_steps,
        "schedule.evaluate_every_steps": 0,
        "schedule.early_stopping_metric": None,
        "schedule.keep_best": None,
        "evaluation.num_pair_neighbors": [knn_settings["num_pair_neighbors"]],
        "evaluation.num_tag_neighbors": [knn_settings["num_tag_neighbors"]],
        "evaluation.probe_positive_weights": [knn_settings["probe_positive_weight"]],
    }
    return override_all(config, changes)
