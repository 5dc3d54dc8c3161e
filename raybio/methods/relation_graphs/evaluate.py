"""Evaluation of a run: entities and relations of validation and test sentences, and the export."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raybio.core.errors import ConfigError
from raybio.core.final_report import Stage
from raybio.core.interfaces import Collective, Encoder
from raybio.core.randomness import derive_seed
from raybio.encoders.transformer import seeded_weights
from raybio.evaluation.evaluator import Evaluator, ModelScores
from raybio.methods.relation_graphs.collate import RelationGraphCollate
from raybio.methods.relation_graphs.config import Config
from raybio.methods.relation_graphs.embed_words import embed_words
from raybio.methods.relation_graphs.encoder import WordEncoder, build_word_encoder, read_heads
from raybio.methods.relation_graphs.export import export_word_encoder
from raybio.methods.relation_graphs.folds import FoldRows
from raybio.methods.relation_graphs.gold import EmbeddedSentences, read_gold
from raybio.methods.relation_graphs.graph_accuracy import GraphValidation, validate_graphs
from raybio.methods.relation_graphs.graph_encoder import GraphEncoder
from raybio.methods.relation_graphs.knn import predict_by_knn
from raybio.methods.relation_graphs.objective import RelationGraphHead, RelationGraphObjective
from raybio.methods.relation_graphs.sentence_scores import (
    SentenceScores,
    choose_settings,
    most_frequent_scores,
    score_sentences,
)
from raybio.methods.relation_graphs.store import WordStore

LOGGED_SCORES = ("ner_f1", "re_minus_f1", "re_f1")
"""Scores that are logged during training."""


def encoder_before_training(config: Config, store: WordStore) -> WordEncoder:
    """Build encoder and head with their initial weights.

    Raises:
        ConfigError: if the encoder cannot be loaded.
    """
    encoder = build_word_encoder(
        config.encoder, seed=derive_seed(config.seed, "weights"), count_by_word=store.count_by_word
    )
    is_whole = config.model == "clgs"
    with seeded_weights(derive_seed(config.seed, "head")):
        graph = None
        if config.model != "clner":
            graph = GraphEncoder(
                encoder.width,
                self_loop=None if is_whole else config.objective.self_loop,
                activation="tanh" if is_whole else "relu",
            )
        encoder.head = RelationGraphHead(
            graph,
            encoder.width,
            has_tags=config.model in ("clner", "joint"),
            projection_width=config.objective.projection_width if is_whole else None,
        )
    return encoder


def untrained_encoder(config: Config, store: WordStore) -> WordEncoder:
    """Build the encoder before training, without the untrained tag head.

    Raises:
        ConfigError: if the encoder cannot be loaded.
    """
    encoder = encoder_before_training(config, store)
    head_of(encoder).entity = None
    return encoder


def trained_encoder(config: Config, folder: Path, store: WordStore) -> WordEncoder:
    """Load encoder and head that a run with this configuration exported to ``folder``.

    Raises:
        ConfigError: if they cannot be loaded.
    """
    changes = {"source": str(folder), "num_layers_kept": None, "num_frozen_layers": 0}
    encoder_config = config.encoder.model_copy(update=changes)
    encoder = encoder_before_training(config.model_copy(update={"encoder": encoder_config}), store)
    saved = {name.removeprefix("head."): part for name, part in read_heads(str(folder)).items()}
    try:
        head_of(encoder).load_state_dict(saved)
    except RuntimeError as error:
        raise ConfigError(
            f"{folder}: its heads do not fit its settings ({error}); export it again"
        ) from None
    return encoder


def head_of(encoder: WordEncoder) -> RelationGraphHead:
    """Return the encoder's head."""
    assert isinstance(encoder.head, RelationGraphHead)
    return encoder.head


@dataclass(frozen=True)
class EntityRelationEvaluator(Evaluator):
    """Predicts entities and relations of held-out sentences.

    Attributes:
        config: settings of the run.
        collate: builds the batches of the validation loss.
        objective: the loss.
        fold: rows of the splits.
    """

    config: Config
    collate: RelationGraphCollate
    objective: RelationGraphObjective
    fold: FoldRows

    def evaluate_during_training(
        self, model: Encoder, collective: Collective
    ) -> Mapping[str, float]:
        """Return ``val/*`` on the validation sentences, with the best numbers of neighbors."""
        validation = self._validate_graphs(model, self.fold.dev, collective)
        metrics = dict(validation.metrics())
        rows = self.fold.dev[: self.config.evaluation.num_sentences_in_training]
        if len(rows):
            reference = self._embed(model, self.fold.train, collective)
            queries = self._embed(model, rows, collective)
            predictions = predict_by_knn(reference, queries, self._store, self.config.evaluation)
            settings = predictions.best_settings(self.config.evaluation.first_settings)
            values = predictions.scores(settings).values
            metrics |= {name: values[name] for name in LOGGED_SCORES}
            metrics["num_pair_neighbors"] = settings.num_pair_neighbors
            metrics["num_tag_neighbors"] = settings.num_tag_neighbors
        return {f"val/{name}": float(value) for name, value in metrics.items()} | validation.spread

    def initial_encoder(self) -> Encoder:
        """Return the encoder before training, without a tag head."""
        initial = untrained_encoder(self.config, self._store)
        # CharacterBERT must be given the characters of all words.
        initial.word_tokens(self._store.words, self.config.encoder)
        return initial

    def score(self, model: Encoder, collective: Collective, stage: Stage) -> ModelScores:
        """Score the sentences of dev and test.

        The reference set of test sentences includes the validation sentences.
        """
        evaluation = self.config.evaluation
        store = self._store
        fold = self.fold
        has_dev = len(fold.dev) > 0 and not self.config.data.train_on_validation
        reference = self._embed(model, np.union1d(fold.train, fold.dev), collective)
        test = self._embed(model, fold.test, collective)
        settings = evaluation.first_settings
        results: dict[str, SentenceScores] = {}
        chance: dict[str, Any] = {}
        if has_dev:
            train = self._embed(model, fold.train, collective)
            dev = self._embed(model, fold.dev, collective)
            settings = choose_settings(train, dev, store, evaluation)
            results["dev"] = score_sentences(train, dev, store, evaluation, settings)
            chance["dev"] = most_frequent_scores(train.gold, dev.gold, store)
        results["test"] = score_sentences(reference, test, store, evaluation, settings)
        chance["test"] = most_frequent_scores(reference.gold, test.gold, store)
        validation = self._validate_graphs(model, fold.test, collective)
        return ModelScores(
            scores={split: result.intervals() for split, result in results.items()},
            chance=chance,
            spread=validation.spread,
            unit_scores={split: result.unit_scores() for split, result in results.items()},
            details={"knn_settings": settings._asdict(), "graphs": validation.metrics()},
        )

    def export(self, encoder: WordEncoder, folder: Path, card: Mapping[str, Any]) -> Path:
        """Export the encoder with everything that is needed to find entities and relations."""
        settings = {
            "trained_by": "relation_graphs",
            "config": self.config.to_mapping(),
            "store": self._store.digest,  # folds are those of this store
        }
        return export_word_encoder(encoder, folder, card=card, settings=settings)

    @property
    def _store(self) -> WordStore:
        return self.collate.reader.store

    def _embed(self, model: Encoder, rows: np.ndarray, collective: Collective) -> EmbeddedSentences:
        assert isinstance(model, WordEncoder)
        words = embed_words(
            model, self.collate.reader, rows, collective, max_tokens=self._max_tokens
        )
        with torch.no_grad():
            tag_WD = head_of(model).tag_space(words.word_WD)
        return EmbeddedSentences(words.word_WD, tag_WD, read_gold(self._store, rows))

    def _validate_graphs(
        self, model: Encoder, rows: np.ndarray, collective: Collective
    ) -> GraphValidation:
        assert isinstance(model, WordEncoder)
        objective = replace(self.objective, head=head_of(model))
        return validate_graphs(
            model, objective, self.collate, rows, collective, max_tokens=self._max_tokens
        )

    @property
    def _max_tokens(self) -> int:
        return self.config.memory.max_tokens_per_micro_batch
