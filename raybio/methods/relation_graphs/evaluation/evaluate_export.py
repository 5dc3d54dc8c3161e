"""Evaluate exported models: relations by one model, entities by the same or another one.

The models are loaded from disk and go through the evaluation of a run.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from raybio.core.config import override
from raybio.core.errors import ConfigError
from raybio.core.location import Location
from raybio.methods.relation_graphs.annotations.folds import FoldRows, read_fold
from raybio.methods.relation_graphs.config import KnnConfig
from raybio.methods.relation_graphs.encoders.word_model import (
    WordModel,
    head_of,
    initial_encoder,
    read_export_config,
)
from raybio.methods.relation_graphs.evaluation.fold_scores import chosen_and_fixed, evaluate_fold
from raybio.methods.relation_graphs.evaluation.graph_accuracy import GraphValidation
from raybio.methods.relation_graphs.evaluation.sentence_scores import (
    SentenceScores,
    VectorScores,
    chance_scores,
)
from raybio.methods.relation_graphs.rivals import fold_rivals
from raybio.methods.relation_graphs.store import WordStore
from raybio.methods.relation_graphs.system import build_evaluator
from raybio.store.store import open_store
from raybio.training.collective import SingleProcess


def evaluate_exports(
    relations: str | Path,
    entities: str | Path,
    store_path: str | Location,
    *,
    is_untrained: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> VectorScores:
    """Score the test sentences of the models' fold: pairs by one model, tags by the other.

    Candidates of the settings are those of the models' runs.

    Args:
        relations: export of a run; may be the same as ``entities``.
        entities: export of a run with a tag head (CLNER, joint).
        store_path: prepared sentences.
        is_untrained: evaluate the initial encoder of the first run instead of both models.
        say: called with progress messages.

    Raises:
        ConfigError: if a folder is no export, the models were trained on different folds or on
            another store, or the second one has no tag head.
        StoreError: if the store is missing, damaged or of another kind.
    """
    models = _Models.load(relations, entities, store_path)
    if models.evaluation.has_choice:
        models.check_unseen(relations, entities)
    if is_untrained:
        models = models.untrained()
    results = evaluate_fold(
        models.pair_model,
        models.tag_model,
        models.fold,
        models.evaluation,
        has_dev_scores=False,
        say=say,
    )
    return results["test"]


def evaluate_exports_twice(
    relations: str | Path,
    entities: str | Path,
    store_path: str | Location,
    device: str | None = None,
) -> tuple[VectorScores, VectorScores | None]:
    """Score the test sentences with chosen and with fixed settings; see ``chosen_and_fixed``.

    Raises:
        ConfigError: as ``evaluate_exports``.
        StoreError: as ``evaluate_exports``.
    """
    models = _Models.load(relations, entities, store_path, device)
    if models.has_dev:
        models.check_unseen(relations, entities)
    return chosen_and_fixed(
        models.pair_model,
        models.tag_model,
        models.fold,
        models.evaluation,
        has_dev=models.has_dev,
    )


@dataclass(frozen=True)
class _Models:
    """Two models of one fold.

    Attributes:
        pair_model: predicts relations.
        tag_model: predicts entities; may be the same model.
        fold: rows of the splits.
        evaluation: settings of the evaluation, with the candidates of both runs.
    """

    pair_model: WordModel
    tag_model: WordModel
    fold: FoldRows
    evaluation: KnnConfig

    @classmethod
    def load(
        cls,
        relations: str | Path,
        entities: str | Path,
        store_path: str | Location,
        device: str | None = None,
    ) -> Self:
        """Load and check them; arguments and errors as ``evaluate_exports``."""
        store = open_store(store_path, WordStore)
        pair_model = WordModel.load(relations, store, device)
        tag_model = pair_model
        if entities != relations:
            tag_model = WordModel.load(entities, store, device)
        if head_of(tag_model.encoder).entity is None:
            raise ConfigError(
                f"{entities}: model={tag_model.config.model} has no tag head; want clner or joint"
            )
        if pair_model.config.data.fold != tag_model.config.data.fold:
            raise ConfigError(
                f"{relations} was trained on fold {pair_model.config.data.fold} and {entities} on "
                f"fold {tag_model.config.data.fold}: one of them knows test sentences of the "
                "other. Want two of one fold"
            )
        evaluation = pair_model.config.evaluation.model_copy(
            update={"num_tag_neighbors": tag_model.config.evaluation.num_tag_neighbors}
        )
        return cls(pair_model, tag_model, read_fold(store, pair_model.config.data), evaluation)

    def untrained(self) -> Self:
        """Return the first model before its run, in place of both."""
        untrained = self.pair_model.untrained()
        return replace(self, pair_model=untrained, tag_model=untrained)

    @property
    def has_dev(self) -> bool:
        """Whether there are validation sentences that neither model was trained on."""
        configs = (self.pair_model.config, self.tag_model.config)
        is_trained_on_dev = any(config.data.train_on_validation for config in configs)
        return len(self.fold.dev) > 0 and not is_trained_on_dev

    def check_unseen(self, relations: str | Path, entities: str | Path) -> None:
        """Check that neither model was trained on the validation sentences that choose settings."""
        for name, model in ((relations, self.pair_model), (entities, self.tag_model)):
            train = read_fold(model.store, model.config.data).train
            num_known = len(np.intersect1d(train, self.fold.dev))
            if num_known:
                raise ConfigError(
                    f"{name} was trained on {num_known:,} of the {len(self.fold.dev):,} validation "
                    "sentences that choose the numbers of neighbors; want two runs of one "
                    "data.validation_share, or one number each"
                )


def rivals_of_fold(folder: str | Path, store_path: str | Location) -> dict[str, SentenceScores]:
    """Score the rivals on the test sentences of a model's fold, by name.

    These are the rivals in the table of its run: none if ``evaluation.rivals`` was false.

    Raises:
        ConfigError: if the folder is no such export, its run had another store, or the source of
            its encoder no longer exists.
        StoreError: if the store is missing, damaged or of another kind.
    """
    store = open_store(store_path, WordStore)
    initial = WordModel.load(folder, store).untrained()
    config = initial.config
    if not config.evaluation.rivals:
        return {}
    fold = read_fold(store, config.data)
    has_dev = len(fold.dev) > 0 and not config.data.train_on_validation
    rivals = fold_rivals(
        store, fold, config.evaluation, initial, has_dev=has_dev, has_dev_scores=False
    )
    return {name: results["test"] for name, results in rivals}


def chance_of_fold(folder: str | Path, store: WordStore) -> dict[str, float]:
    """Return the scores of the most frequent labels on the test sentences of a model's fold.

    Raises:
        ConfigError: if the folder is no such export, or its run had another store.
    """
    config = read_export_config(folder, store)
    fold = read_fold(store, config.data)
    return chance_scores(store, fold, "test", spert_overlaps=config.evaluation.spert_overlaps)


def validate_graphs_of_export(
    folder: str | Path,
    store_path: str | Location,
    device: str | None = None,
    num_negatives: int | None = None,
) -> GraphValidation:
    """Validate by graphs: return how often the true graph is nearest, on the fold's test sentences.

    With CLGS there is one graph per sentence, with CLDR one per related pair. False graphs are
    drawn from the run's seed.

    Args:
        folder: export of a run.
        store_path: prepared sentences.
        device: where the model runs; None: on a GPU if there is one.
        num_negatives: maximum number of false graphs per true one; None: as in training.

    Returns:
        The result on sentences with true and false graphs; ``accuracy_S`` is empty if no test
        sentence has both.

    Raises:
        ConfigError: if the folder is no export, its model has no graphs, or the source of its
            initial encoder no longer exists.
        StoreError: if the store is missing, damaged or of another kind.
    """
    store = open_store(store_path, WordStore)
    model = WordModel.load(folder, store, device)
    config = model.config
    if head_of(model.encoder).graph is None:
        raise ConfigError(
            f"{folder}: is a {config.model}, which has no graphs; want cldr, clgs or joint"
        )
    if num_negatives is not None:
        config = override(config, "graphs.num_negatives", num_negatives)
    # The features of graph nodes come from the encoder before training.
    evaluator = build_evaluator(config, store, initial_encoder(config, store))
    return evaluator.validate_graphs(model.encoder, evaluator.fold.test, SingleProcess())
