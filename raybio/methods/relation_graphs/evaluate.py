"""Evaluate."""

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
from raybio.methods.relation_graphs.encoder import (
    WordEncoder,
    build_word_encoder,
    read_heads,
)
from raybio.methods.relation_graphs.export import export_word_encoder
from raybio.methods.relation_graphs.folds import Fold
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

SHOWN_IN_TRAINING = ("ner_f1", "re_minus_f1", "re_f1")


def _encoder(config: Config, store: WordStore) -> WordEncoder:
    """Encoder and head as training begins with them."""
    encoder = build_word_encoder(
        config.encoder, seed=derive_seed(config.seed, "weights"), count_by_word=store.count_by_word
    )
    is_whole = config.model == "clgs"
    with seeded_weights(derive_seed(config.seed, "head")):
        graph = None
        if config.model != "clner":
            self_loop = None if is_whole else config.objective.self_loop
            graph = GraphEncoder(
                encoder.width, self_loop=self_loop, activation="tanh" if is_whole else "relu"
            )
        encoder.head = RelationGraphHead(
            graph,
            encoder.width,
            has_tags=config.model in ("clner", "joint"),
            projection_width=config.objective.projection_width if is_whole else None,
        )
    return encoder


def trained_encoder(config: Config, folder: Path, store: WordStore) -> WordEncoder:
    """Encoder and head as a run of this configuration exported them to ``folder``.

    Raises:
        ConfigError: if they cannot be loaded.
    """
    changed = {"source": str(folder), "num_layers_kept": None, "num_frozen_layers": 0}
    encoder = _encoder(
        config.model_copy(update={"encoder": config.encoder.model_copy(update=changed)}), store
    )
    saved = {name.removeprefix("head."): part for name, part in read_heads(str(folder)).items()}
    try:
        head_of(encoder).load_state_dict(saved)
    except RuntimeError as error:
        raise ConfigError(
            f"{folder}: its heads do not fit its settings ({error}); export it again"
        ) from None
    return encoder


def untrained_encoder(config: Config, store: WordStore) -> WordEncoder:
    """Encoder and head before training; words are in the space of tags as they are.

    Raises:
        ConfigError: if the encoder cannot be loaded.
    """
    encoder = _encoder(config, store)
    head_of(encoder).entity = None  # a map that nothing has trained
    return encoder


def head_of(encoder: WordEncoder) -> RelationGraphHead:
    """What is trained beside the encoder."""
    assert isinstance(encoder.head, RelationGraphHead)
    return encoder.head


@dataclass(frozen=True)
class EntityRelationEvaluator(Evaluator):
    """Entities and relations predicted in sentences that were held out."""

    config: Config
    collate: RelationGraphCollate
    objective: RelationGraphObjective
    fold: Fold

    def evaluate_during_training(
        self, model: Encoder, collective: Collective
    ) -> Mapping[str, float]:
        """Return ``val/*`` on the validation sentences, by the best number of neighbours."""
        validation = self._validation(model, self.fold.dev, collective)
        metrics = dict(validation.metrics())
        some = self.fold.dev[: self.config.evaluation.num_sentences_in_training]
        if len(some):
            bank, asked = (
                self._spaces(model, rows, collective) for rows in (self.fold.train, some)
            )
            found = predict_by_knn(bank, asked, self._store, self.config.evaluation)
            rule = found.best_settings(self.config.evaluation.first_settings)
            values = found.scores(rule).values
            metrics |= {name: values[name] for name in SHOWN_IN_TRAINING}
            metrics |= {
                "pair_neighbours": rule.pair_neighbours,
                "tag_neighbours": rule.tag_neighbours,
            }
        return {f"val/{name}": float(value) for name, value in metrics.items()} | validation.spread

    def initial_encoder(self) -> Encoder:
        """Return the encoder before training, without a tag head."""
        initial = untrained_encoder(self.config, self._store)
        # CharacterBERT learns the letters of all words.
        initial.word_tokens(self._store.words, self.config.encoder)
        return initial

    def score(self, model: Encoder, collective: Collective, stage: Stage) -> ModelScores:
        """Score the sentences of dev and test.

        Test sentences have the validation sentences too among their neighbours.
        """
        evaluation, store, fold = self.config.evaluation, self._store, self.fold
        has_dev = len(fold.dev) > 0 and not self.config.data.train_on_validation
        bank = self._spaces(model, np.union1d(fold.train, fold.dev), collective)
        test = self._spaces(model, fold.test, collective)
        rule = evaluation.first_settings
        results: dict[str, SentenceScores] = {}
        chance: dict[str, Any] = {}
        if has_dev:
            train = self._spaces(model, fold.train, collective)
            dev = self._spaces(model, fold.dev, collective)
            rule = choose_settings(train, dev, store, evaluation)
            results["dev"] = score_sentences(train, dev, store, evaluation, rule)
            chance["dev"] = most_frequent_scores(train.gold, dev.gold, store)
        results["test"] = score_sentences(bank, test, store, evaluation, rule)
        chance["test"] = most_frequent_scores(bank.gold, test.gold, store)
        validation = self._validation(model, fold.test, collective)
        return ModelScores(
            scores={split: result.intervals() for split, result in results.items()},
            chance=chance,
            spread=validation.spread,
            unit_scores={split: result.unit_scores() for split, result in results.items()},
            details={"rules": rule._asdict(), "graphs": validation.metrics()},
        )

    def export(self, encoder: WordEncoder, folder: Path, card: Mapping[str, Any]) -> Path:
        """The encoder with all that it takes to find relations and entities."""
        settings = {
            "trained_by": "relation_graphs",
            "config": self.config.to_mapping(),
            "store": self._store.digest,  # its folds are no other store's
        }
        return export_word_encoder(encoder, folder, card=card, settings=settings)

    @property
    def _store(self) -> WordStore:
        return self.collate.reader.store

    def _spaces(
        self, model: Encoder, rows: np.ndarray, collective: Collective
    ) -> EmbeddedSentences:
        assert isinstance(model, WordEncoder)
        words = embed_words(
            model, self.collate.reader, rows, collective, max_tokens=self._max_tokens
        )
        with torch.no_grad():
            tag_WD = head_of(model).tag_space(words.word_WD)
        return EmbeddedSentences(words.word_WD, tag_WD, read_gold(self._store, rows))

    def _validation(
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
