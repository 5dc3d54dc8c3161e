"""The last training of a cross-validation: on the validation sentences as well, when all has been chosen by them.

Each model of each fold is trained from its beginning, for the steps that were best without those sentences, and keeps
its last weights (Theodoropoulos et al., 2021).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raybio.core.config import override_all
from raybio.core.records import read_recomputable
from raybio.runtime.cluster.resources import TrialResources
from raybio.runtime.run.folder import COMPLETE, RunFolder
from raybio.runtime.run.notices import warnings_to
from raybio.store.store import open_store
from raybio.training.settings import TrainingConfig


@dataclass(frozen=True)
class LastTraining:
    """One training of one model on one fold: a run in a folder of its own.

    Attributes:
        method: its name in ``METHODS``.
        config: of the training.
        precision: ``fp32`` or ``bf16``, that of the sweep.
        store: path of the prepared store.
        folder: of the run; ``export/`` is the model.
        tracking: MLflow tracking URI.
        parent_run_id: the MLflow run that it belongs to; None if MLflow could not be reached.
    """

    method: str
    config: TrainingConfig
    precision: str
    store: Path
    folder: RunFolder
    tracking: str
    parent_run_id: str | None

    def __str__(self) -> str:
        """What is told of it."""
        return f"trained {self.folder.name} on validation sentences too, {self.config.schedule.max_steps:,} steps"

    @property
    def is_done(self) -> bool:
        """Whether it came to its end."""
        return (read_recomputable(self.folder.outcome, "outcome") or {}).get("status") in COMPLETE

    def open(self) -> None:
        """Make its folder, or look whether the folder is of this training.

        Raises:
            CheckpointError: if it holds another run.
            ClusterError: if it cannot be made.
        """
        self.folder.make()
        self.folder.open(self.method, self.config, self.store, open_store(self.store).digest, ())
        self.folder.record_precision(self.precision)

    def work(self, place: TrialResources) -> None:
        """Train, or go on from the newest checkpoint; warnings go into the notices of the run.

        Raises:
            RaybioError: as any training.
        """
        # Only now: these import torch and transformers, which takes seconds.
        import torch

        from raybio.methods import METHODS
        from raybio.runtime.run.worker import walk_alone

        torch.set_num_threads(max(1, int(place.cpus_per_worker)))
        # Models are judged in pairs, afterwards: judging each here would take longer than the training.
        system = replace(METHODS[self.method].build(self.config, self.store), final_evaluate=None)
        device = "cuda" if place.gpus_per_worker else "cpu"
        reports = walk_alone(
            system,
            self.config,
            self.folder,
            device=device,
            precision=self.precision,
            stop=self.folder.stop,
            goal=None,
        )
        with warnings_to(self.folder.notices):
            for _ in reports:
                pass

    def keep(self, found: None) -> None:
        """Tell MLflow of the run, which its folder keeps."""
        # Only now: this imports MLflow, which takes seconds.
        from raybio.runtime.tracking.tracker import Tracker

        config, digest = self.config.to_mapping(), open_store(self.store).digest
        Tracker(
            self.folder, self.tracking, self.method, config, digest, self.parent_run_id
        ).catch_up()


def last_config(
    config: TrainingConfig, num_steps: int, rule: Mapping[str, float]
) -> TrainingConfig:
    """The configuration of a last training.

    Args:
        config: of the training that came before.
        num_steps: its best step.
        rule: how its neighbours vote, as was chosen by validation sentences.

    Raises:
        ConfigError: if the settings do not fit each other.
    """
    changes: dict[str, Any] = {
        "data.train_on_validation": True,
        "schedule.max_steps": num_steps,
        "schedule.evaluate_every_steps": 0,
        "schedule.early_stopping_metric": None,
        "evaluation.pair_neighbours": [rule["pair_neighbours"]],
        "evaluation.tag_neighbours": [rule["tag_neighbours"]],
        "evaluation.probe_positive_weights": [rule["probe_positive_weight"]],
    }
    return override_all(config, changes)
