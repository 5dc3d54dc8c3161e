"""Evaluation of a run: entities and relations of held-out sentences."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from raybio.core.digest import weights_digest
from raybio.core.final_report import Stage
from raybio.core.interfaces import Collective, Encoder
from raybio.evaluation.evaluator import (
    TRAINING_SETTINGS,
    Evaluator,
    ModelScores,
    chosen_on,
    exact_scores,
)
from raybio.methods.relation_graphs.annotations.folds import FoldRows
from raybio.methods.relation_graphs.annotations.gold import EmbeddedSentences
from raybio.methods.relation_graphs.classifiers.knn import predict_by_knn
from raybio.methods.relation_graphs.classifiers.reference_words import ReferenceWords, WordLabels
from raybio.methods.relation_graphs.collate import RelationGraphCollate
from raybio.methods.relation_graphs.config import Config, WordKnnSettings
from raybio.methods.relation_graphs.encoder import WordEncoder
from raybio.methods.relation_graphs.encoders.word_model import WordModel, head_of, untrained_encoder
from raybio.methods.relation_graphs.evaluation.fold_scores import (
    embed_sentences,
    evaluate_fold,
    part_of,
)
from raybio.methods.relation_graphs.evaluation.graph_accuracy import (
    GraphValidation,
    validate_graphs,
)
from raybio.methods.relation_graphs.evaluation.sentence_scores import (
    SentenceScores,
    VectorScores,
    chance_scores,
)
from raybio.methods.relation_graphs.export import export_word_encoder
from raybio.methods.relation_graphs.objective import RelationGraphObjective
from raybio.methods.relation_graphs.rivals import fold_rivals
from raybio.methods.relation_graphs.store import WordStore
from raybio.training.collective import SingleProcess

LOGGED_SCORES = ("ner_f1", "re_minus_f1", "re_f1")
"""Scores that are logged during training."""


@dataclass(frozen=True)
class EntityRelationEvaluator(Evaluator):
    """Predicts entities and relations of held-out sentences.

    Attributes:
        config: settings of the run.
        collate: builds the batches of the validation loss.
        objective: the loss.
        fold: rows of the splits.
        knn_by_weights: kNN settings that the final evaluation chose, by the digest of the model.
    """

    # Graph accuracy and loss are part of the scores, so they depend on the objective.
    training_settings = TRAINING_SETTINGS - {"objective"}

    config: Config
    collate: RelationGraphCollate
    objective: RelationGraphObjective
    fold: FoldRows
    knn_by_weights: dict[str, WordKnnSettings] = field(default_factory=dict)

    @property
    def has_dev(self) -> bool:
        """Whether there are validation sentences that are not trained on."""
        return len(self.fold.dev) > 0 and not self.config.data.train_on_validation

    def evaluate_during_training(
        self, model: Encoder, collective: Collective
    ) -> Mapping[str, float]:
        """Return ``val/*`` on the validation sentences, with the best numbers of neighbors."""
        validation = self.validate_graphs(model, self.fold.dev, collective)
        metrics = dict(validation.metrics())
        rows = self.fold.dev[: self.config.evaluation.num_sentences_in_training]
        if len(rows):
            words = self._word_model(model, collective)
            reference = embed_sentences(words, words, self.fold.train)
            queries = embed_sentences(words, words, rows)
            predictions = predict_by_knn(reference, queries, self._store, self.config.evaluation)
            settings = predictions.best_settings(self.config.evaluation.first_settings)
            values = predictions.scores(settings).values
            for name in LOGGED_SCORES:
                metrics[name] = values[name]
            metrics["num_pair_neighbors"] = settings.num_pair_neighbors
            metrics["num_tag_neighbors"] = settings.num_tag_neighbors
        return {f"val/{name}": float(value) for name, value in metrics.items()} | validation.spread

    def initial_encoder(self) -> Encoder:
        """Return the encoder before training, without a tag head."""
        initial = untrained_encoder(self.config, self._store)
        # This gives CharacterBERT the characters of all words.
        initial.word_tokens(self._store.words, self.config.encoder)
        return initial

    def rivals(self, device: Any, collective: Collective) -> Iterator[tuple[Stage, ModelScores]]:
        """Score rivals that need no training of an encoder, unless the settings exclude them."""
        if not self.config.evaluation.rivals:
            return
        initial = self._word_model(self.initial_encoder().to(device), collective)
        rivals = fold_rivals(
            self._store,
            self.fold,
            self.config.evaluation,
            initial,
            has_dev=self.has_dev,
            has_dev_scores=self.has_dev,
        )
        for name, results in rivals:
            yield name, self._scores_of(results)

    def score(self, model: Encoder, collective: Collective, stage: Stage) -> ModelScores:
        """Score the sentences of dev and test."""
        words = self._word_model(model, collective)
        results = evaluate_fold(
            words, words, self.fold, self.config.evaluation, has_dev_scores=self.has_dev
        )
        if stage == "trained" and collective.rank == 0:
            digest = weights_digest(model.state_dict().items())
            self.knn_by_weights[digest] = results["test"].settings
        validation = self.validate_graphs(model, self.fold.test, collective)
        scores = self._scores_of(results)
        return replace(
            scores,
            spread=validation.spread,
            details={**scores.details, "graphs": validation.metrics()},
        )

    def remarks(self) -> Sequence[str]:
        """Return a remark on how many sentences chose the step of the weights, if not all."""
        metric = self.config.schedule.best_metric or ""
        num_sentences = self.config.evaluation.num_sentences_in_training
        num_dev = len(self.fold.dev)
        # The loss and the accuracy of graphs are computed on all sentences.
        if metric.removeprefix("val/") not in LOGGED_SCORES or num_sentences is None:
            return ()
        if num_sentences >= num_dev:
            return ()
        setting = "evaluation.num_sentences_in_training"
        return [chosen_on(num_sentences, num_dev, "validation sentences", setting)]

    def _scores_of(self, results: Mapping[str, SentenceScores]) -> ModelScores:
        on_test = results["test"]
        row_by_split = {"dev": self.fold.dev, "test": self.fold.test}
        details = {}
        if isinstance(on_test, VectorScores):
            details["knn_settings"] = on_test.settings._asdict()
        return ModelScores(
            scores={split: result.intervals() for split, result in results.items()},
            chance={
                split: exact_scores(
                    chance_scores(
                        self._store,
                        self.fold,
                        split,
                        spert_overlaps=self.config.evaluation.spert_overlaps,
                    )
                )
                for split in results
            },
            unit_scores={
                split: result.unit_scores().named(row_by_split[split])
                for split, result in results.items()
            },
            details=details,
        )

    def validate_graphs(
        self, model: Encoder, rows: np.ndarray, collective: Collective
    ) -> GraphValidation:
        """Compute loss and graph accuracy of a model on held-out sentences."""
        assert isinstance(model, WordEncoder)
        return validate_graphs(
            model,
            replace(self.objective, head=head_of(model)),
            self.collate,
            rows,
            collective,
            max_tokens=self.config.memory.max_tokens_per_micro_batch,
        )

    def export(self, encoder: WordEncoder, folder: Path, card: Mapping[str, Any]) -> Path:
        """Export the encoder with everything that is needed to find entities and relations."""
        settings = {
            "trained_by": "relation_graphs",
            "config": self.config.to_mapping(),
            "store": self._store.digest,  # folds are those of this store
        }
        return export_word_encoder(
            encoder, folder, card=card, settings=settings, reference=self._reference(encoder)
        )

    def _reference(self, encoder: WordEncoder) -> ReferenceWords:
        """Return the words that vote on words of test sentences, as in ``score``."""
        words = self._word_model(encoder, SingleProcess())
        known = embed_sentences(words, words, self.fold.train_and_dev)
        settings = self.knn_by_weights.get(weights_digest(encoder.state_dict().items()))
        if settings is None:
            settings = self._choose(known)
        return ReferenceWords(
            word_WD=known.pair_WD,
            indptr_S1=known.gold.indptr_S1,
            tag_W=known.gold.tag_W,
            pairs=known.gold.pairs,
            labels=WordLabels(
                self._store.entity_types,
                self._store.relation_names,
                settings.num_pair_neighbors,
                settings.num_tag_neighbors,
            ),
        )

    def _choose(self, known: EmbeddedSentences) -> WordKnnSettings:
        """Return the numbers of neighbors that are best on the validation sentences.

        Args:
            known: all training and validation sentences.
        """
        config = self.config.evaluation
        if not (config.has_choice and self.has_dev):
            return config.first_settings
        rows = self.fold.train_and_dev
        train = part_of(known, rows, self.fold.train, self._store)
        dev = part_of(known, rows, self.fold.dev, self._store)
        predictions = predict_by_knn(train, dev, self._store, config)
        return predictions.best_settings(config.first_settings)

    @property
    def _store(self) -> WordStore:
        return self.collate.reader.store

    def _word_model(self, model: Encoder, collective: Collective) -> WordModel:
        assert isinstance(model, WordEncoder)
        return WordModel(self.config, model, self.collate.reader, collective)
