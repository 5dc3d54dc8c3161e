"""Rows of a cross-validation's table that need no training, for each fold; Ray tasks.

Their scores depend on the store, the encoder and the settings of the evaluation. They are kept next
to the sweeps, where all cross-validations that share these three read them. Each cross-validation
keeps its own copy, from which its table is made.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raybio.core.config import override
from raybio.core.digest import modules_digest, weights_digest
from raybio.core.final_report import nan_for_null
from raybio.core.location import Location
from raybio.core.records import read_recomputable, write_record
from raybio.core.shared_scores import Identity, SharedScores
from raybio.methods.relation_graphs.annotations.folds import read_fold
from raybio.methods.relation_graphs.config import Config
from raybio.methods.relation_graphs.encoders.word_model import WordModel
from raybio.methods.relation_graphs.evaluation.fold_report import FIXED, UNTUNED
from raybio.methods.relation_graphs.evaluation.fold_scores import chosen_and_fixed
from raybio.methods.relation_graphs.rivals import lexical_rivals
from raybio.methods.relation_graphs.store import WordStore
from raybio.runtime.cluster.resources import TrialResources
from raybio.runtime.run.encoder_source import pin_on_worker
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.options import FOLD
from raybio.runtime.run.shared_scores import shared_scores
from raybio.store.store import open_store
from raybio.training.settings import TrainingConfig

SETTINGS = frozenset({"encoder", "data", "evaluation", "seed"})
"""Sections of a configuration that the scores depend on."""

RowScores = dict[str, dict[str, float]]
"""Row -> measure -> score, 0 to 1."""


@dataclass(frozen=True)
class UntrainedEvaluation:
    """Rivals and the encoder before training on a fold: a ``Task`` that keeps its scores.

    Attributes:
        store: path of the prepared sentences.
        data_digest: digest of this store.
        config: settings of a run of the fold.
        sweep: folder of the sweep, as the driver sees it.
        encoder: what the sweep recorded of the encoder's weights, whose commit is loaded.
        shared: the scores next to the sweeps.
        identity: everything that these scores depend on; None where the sweep has its copy.
    """

    store: Location
    data_digest: str
    config: Config
    sweep: RunFolder
    encoder: dict[str, str] | None
    shared: SharedScores
    identity: Identity | None

    def __str__(self) -> str:
        """Return the line that is printed when it is done."""
        return f"evaluated rivals and the untuned encoder, fold {self.config.data.fold}"

    @property
    def is_done(self) -> bool:
        """Whether the scores are kept."""
        return self.known() is not None

    @property
    def path(self) -> Path:
        """File of the sweep's own copy."""
        return copy_of_fold(self.sweep, self.config.data.fold)

    def known(self) -> RowScores | None:
        """Return the kept scores; None if there are none."""
        own = read_recomputable(self.path, "fold scores")
        if own is not None:
            rows: RowScores = nan_for_null(own["rows"])
            return rows
        if self.identity is None:
            return None
        shared: RowScores | None = self.shared.read(self.identity)
        if shared is not None:
            self._write_copy(shared)
        return shared

    def keep(self, result: RowScores) -> None:
        """Write the scores."""
        self._write_copy(result)
        if self.identity is not None:
            self.shared.write(self.identity, json.dumps(result))

    def _write_copy(self, rows: RowScores) -> None:
        self.path.parent.mkdir(exist_ok=True)
        write_record(self.path, "fold scores", {"rows": rows})

    def work(self, reserved: TrialResources) -> RowScores:
        """Evaluate.

        Raises:
            RaybioError: as the evaluation of the method.
        """
        pin_on_worker(self.encoder)
        store = open_store(self.store, WordStore, digest=self.data_digest)
        fold = read_fold(store, self.config.data)
        evaluation = self.config.evaluation
        has_dev = len(fold.dev) > 0 and not self.config.data.train_on_validation
        rows = {}
        if evaluation.rivals:
            rivals = lexical_rivals(store, fold, evaluation, has_dev=has_dev, has_dev_scores=False)
            rows = {name: results["test"].values for name, results in rivals}
        device = "cuda" if reserved.gpus_per_worker else "cpu"
        model = WordModel.before_training(self.config, store, device)
        chosen, fixed = chosen_and_fixed(model, model, fold, evaluation, has_dev=has_dev)
        rows[UNTUNED] = chosen.values
        if fixed is not None:
            rows[UNTUNED + FIXED] = fixed.values
        return rows


def untrained_evaluations(
    folder: RunFolder, store: WordStore, config: TrainingConfig, folds: Sequence[int]
) -> list[UntrainedEvaluation]:
    """Return the evaluation of each fold.

    Args:
        folder: folder of the sweep.
        store: the prepared sentences.
        config: settings of the sweep.
        folds: numbers of the folds.

    Raises:
        ConfigError: if the encoder cannot be loaded.
    """
    assert isinstance(config, Config)
    shared_digest = ""
    facts: dict[str, str] = {}
    if not all(copy_of_fold(folder, fold).is_file() for fold in folds):
        initial = WordModel.before_training(config, store, "cpu")
        facts = {
            "initial_weights_sha256": weights_digest(initial.encoder.body.state_dict().items()),
            "initial_modules_sha256": modules_digest(initial.encoder.body),
        }
        shared_digest = f"{store.digest} read as {initial.reader.digest}"
    evaluations = []
    for fold in folds:
        fold_config = override(config, FOLD, fold)
        # Words are embedded in float32, whatever the precision of training.
        shared = shared_scores("relation_graphs", shared_digest, fold_config, folder, "fp32")
        identity = None
        if facts:
            ignored = frozenset(fold_config.to_mapping()) - SETTINGS
            identity = shared.identity(ignored, facts)
        evaluations.append(
            UntrainedEvaluation(
                store=store.location,
                data_digest=store.digest,
                config=fold_config,
                sweep=folder,
                encoder=folder.encoder,
                shared=shared,
                identity=identity,
            )
        )
    return evaluations


def copy_of_fold(sweep: RunFolder, fold: int) -> Path:
    """Return the file in which a sweep keeps the scores of a fold's rows without training."""
    return sweep.path / "folds" / f"untrained-{fold}.json"
