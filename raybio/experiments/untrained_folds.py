"""Rows of a cross-validation's table that need no training, for each fold; Ray tasks.

Their scores depend on the store, the encoder and the settings of the evaluation. They lie next to
the sweeps, and all cross-validations with the same of these read them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raybio.core.config import override
from raybio.core.digest import modules_digest, weights_digest
from raybio.core.errors import ClusterError
from raybio.core.shared_scores import Identity, SharedScores
from raybio.methods.relation_graphs.config import Config
from raybio.methods.relation_graphs.fold_report import FIXED, UNTUNED
from raybio.methods.relation_graphs.fold_scores import chosen_and_fixed
from raybio.methods.relation_graphs.folds import read_fold
from raybio.methods.relation_graphs.rivals import lexical_rivals
from raybio.methods.relation_graphs.store import WordStore
from raybio.methods.relation_graphs.word_model import WordModel
from raybio.runtime.cluster.resources import TrialResources
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.options import FOLD
from raybio.runtime.run.untrained import shared_scores
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
        config: settings of a run of the fold.
        shared: the scores next to the sweeps.
        identity: everything that these scores depend on.
    """

    store: Path
    config: Config
    shared: SharedScores
    identity: Identity

    def __str__(self) -> str:
        """Return the line that is printed when it is done."""
        return f"evaluated rivals and the untuned encoder, fold {self.config.data.fold}"

    @property
    def is_done(self) -> bool:
        """Whether the scores are kept."""
        return self.shared.read(self.identity) is not None

    def known(self) -> RowScores:
        """Return the kept scores.

        Raises:
            ClusterError: if there are none.
        """
        scores: RowScores | None = self.shared.read(self.identity)
        if scores is None:
            raise ClusterError(
                f"{self.shared.path(self.identity)}: has no scores of rivals; want a folder that "
                "can be written. The same command computes them again"
            )
        return scores

    def keep(self, result: RowScores) -> None:
        """Write the scores."""
        self.shared.write(self.identity, json.dumps(result))

    def work(self, reserved: TrialResources) -> RowScores:
        """Evaluate.

        Raises:
            RaybioError: as the evaluation of the method.
        """
        store = open_store(self.store, WordStore)
        fold = read_fold(store, self.config.data)
        evaluation = self.config.evaluation
        has_dev = len(fold.dev) > 0
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
    initial = WordModel.before_training(config, store, "cpu")
    facts = {
        "initial_weights_sha256": weights_digest(initial.encoder.body.state_dict().items()),
        "initial_modules_sha256": modules_digest(initial.encoder.body),
    }
    data_digest = f"{store.digest} read as {initial.reader.digest}"
    path = store.path.absolute()
    evaluations = []
    for fold in folds:
        of_fold = override(config, FOLD, fold)
        # Words are embedded in float32, whatever the precision of training.
        shared = shared_scores("relation_graphs", data_digest, of_fold, folder, "fp32")
        ignored = frozenset(of_fold.to_mapping()) - SETTINGS
        identity = shared.identity(ignored, facts)
        evaluations.append(UntrainedEvaluation(path, of_fold, shared, identity))
    return evaluations
