"""Evaluation of a fine-tuning run: F1 of the validation and test pairs, and the export."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raybio.core.digest import weights_digest
from raybio.core.final_report import Stage, UnitScores
from raybio.core.interfaces import Collective, Encoder
from raybio.core.randomness import derive_seed
from raybio.encoders.transformer import seeded_weights
from raybio.evaluation.evaluator import Evaluator, ModelScores, chosen_on, exact_scores
from raybio.methods.mtb_mccl.documents.collate import DocumentReader
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.encoder import RelationEncoder, build_relation_encoder, read_parts
from raybio.methods.mtb_mccl.export import export_relation_encoder
from raybio.methods.mtb_mccl.mccl.classifier import (
    Classifier,
    GoldPairs,
    choose_knn_settings,
    embed_gold_pairs,
    predict_classes,
    score_most_frequent,
    score_predictions,
)
from raybio.methods.mtb_mccl.mccl.config import LINEAR, Config, KnnSettings
from raybio.methods.mtb_mccl.mccl.labeled_pairs import LabeledPairs, labeled_pairs
from raybio.methods.mtb_mccl.mccl.objective import RelationHead
from raybio.methods.mtb_mccl.mccl.rivals import (
    MAX_PAIRS,
    drawn_documents,
    read_words,
    relation_rivals,
)
from raybio.methods.mtb_mccl.mccl.scores import BOOTSTRAP_SEED, RelationScores
from raybio.ops.embedding_geometry import spread_metrics
from raybio.training.collective import SingleProcess

_log = logging.getLogger(__name__)


def initial_encoder(config: Config, store: DocumentStore) -> RelationEncoder:
    """Build encoder and head with their initial weights; "lazy" freezes all but the biases."""
    seed = derive_seed(config.seed, "weights")
    encoder = build_relation_encoder(config.encoder, seed=seed, count_by_word=store.count_by_word)
    with seeded_weights(derive_seed(config.seed, "head")):
        encoder.head = RelationHead(
            config.objective,
            len(store.relation_names),
            encoder.width,
            is_coarse=config.data.is_coarse,
        )
    if config.objective.kind == "lazy":
        for name, weight in encoder.named_parameters():
            weight.requires_grad_(name == "head.bias_C")
    return encoder


def head_of(encoder: RelationEncoder) -> RelationHead:
    """Return the encoder's relation head."""
    assert isinstance(encoder.head, RelationHead)
    return encoder.head


@dataclass(frozen=True)
class RelationEvaluator(Evaluator):
    """Classifies the pairs of validation and test documents.

    Attributes:
        config: settings of the run.
        reader: reads documents for the encoder.
        knn_by_weights: kNN settings that the final evaluation chose, by the digest of the model.
    """

    config: Config
    reader: DocumentReader
    knn_by_weights: dict[str, KnnSettings] = field(default_factory=dict)

    def labeled(self, split: str) -> LabeledPairs:
        """Return the labeled pairs of a split; all pairs of the test split."""
        return labeled_pairs(
            self.reader.store, split, self.config.data.label_fraction, self.config.seed
        )

    @cached_property
    def sampled_dev(self) -> LabeledPairs:
        """The labeled validation pairs of evaluations during training."""
        return self.labeled("dev").sampled(self.config.evaluation.max_documents)

    def evaluate_during_training(
        self, model: Encoder, collective: Collective
    ) -> Mapping[str, float]:
        """Return ``val/*`` on sampled validation documents, with the best kNN settings."""
        classifier = self._classifier(model, collective, is_trained=True)
        dev = self._embed_gold(model, self.sampled_dev, collective)
        knn, scores = self._choose(classifier, dev)
        metrics = {f"val/{name}": value for name, value in scores.values.items()}
        if knn != LINEAR:
            metrics |= {f"val/{name}": float(value) for name, value in knn._asdict().items()}
        return metrics | spread_metrics(dev.pairs.embedding_PD)

    def initial_encoder(self) -> Encoder:
        """Return the encoder before training, for the paper's "Lazy".

        Without a trained projection, the embedding of a pair is a concatenation.
        """
        config = self.config
        source = config.encoder.source
        if "projection.weight" not in read_parts(source, config.encoder.revision):
            encoder = config.encoder.model_copy(update={"projection": "none"})
            config = config.model_copy(update={"encoder": encoder})
        return initial_encoder(config, self.reader.store)

    def rivals(self, device: Any, collective: Collective) -> Iterator[tuple[Stage, ModelScores]]:
        """Score rivals that need no training of an encoder, unless the settings exclude them."""
        if not self.config.evaluation.rivals:
            return
        encoder = self.initial_encoder().to(device)
        splits = ["train", "dev"]
        if len(self.reader.store.split_rows("test")):
            splits.append("test")
        gold = {}
        words = {}
        for split in splits:
            labeled = self.labeled(split)
            part = drawn_documents(labeled) if split == "train" else np.arange(len(labeled.rows))
            _log.info("rivals: embedding %s %s documents", f"{len(part):,}", split)
            gold[split] = self._embed_gold(encoder, labeled, collective, part)
            words[split] = read_words(self.reader, labeled, part)
        del encoder  # free its memory before the classifiers are fitted
        for rival in relation_rivals(gold, words, self.reader.store.is_multi_label):
            yield (
                rival.name,
                ModelScores(
                    scores={split: _intervals(scores) for split, scores in rival.scores.items()},
                    chance={split: self._chance(gold[split]) for split in rival.scores},
                    unit_scores=self._unit_scores(rival.scores),
                    details={"rivals": dict(rival.settings)},
                ),
            )

    def remarks(self) -> Sequence[str]:
        """Return the numbers of documents that chose a step or that rivals learn from."""
        remarks = []
        num_dev = len(self.labeled("dev").evaluated_rows)
        num_sampled = len(self.sampled_dev.evaluated_rows)
        if self.config.schedule.best_metric and num_sampled < num_dev:
            setting = "evaluation.max_documents"
            remarks.append(chosen_on(num_sampled, num_dev, "validation documents", setting))
        train = self.labeled("train")
        num_fitted = len(drawn_documents(train))
        if self.config.evaluation.rivals and num_fitted < len(train.rows):
            remarks.append(
                f"rivals without training of an encoder learn from {num_fitted:,} of "
                f"{len(train.rows):,} training documents, which have at most {MAX_PAIRS:,} pairs"
            )
        return remarks

    def score(self, model: Encoder, collective: Collective, stage: Stage) -> ModelScores:
        """Score the pairs of dev and test, with the kNN settings that are best on dev."""
        classifier = self._classifier(model, collective, is_trained=stage == "trained")
        _log.info("%s: embedding dev documents", stage)
        dev = self._embed_gold(model, self.labeled("dev"), collective)
        knn, dev_scores = self._choose(classifier, dev)
        if stage == "trained" and collective.rank == 0:
            self.knn_by_weights[weights_digest(model.state_dict().items())] = knn
        results = {"dev": dev_scores}
        chance = {"dev": self._chance(dev)}
        if len(self.reader.store.split_rows("test")):
            _log.info("%s: embedding test documents", stage)
            test = self._embed_gold(model, self.labeled("test"), collective)
            predicted_PC = predict_classes(classifier, knn, test.pairs.embedding_PD)
            results["test"] = score_predictions(test, predicted_PC)
            chance["test"] = self._chance(test)
        by_relation = {split: self._by_relation(result) for split, result in results.items()}
        return ModelScores(
            scores={split: _intervals(result) for split, result in results.items()},
            chance=chance,
            spread=spread_metrics(dev.pairs.embedding_PD),
            unit_scores=self._unit_scores(results),
            details={"knn_settings": knn._asdict(), "relations": by_relation},
        )

    def _unit_scores(self, results: Mapping[str, RelationScores]) -> dict[str, UnitScores]:
        """Return the scores of each split's documents, under their rows in the store."""
        return {
            split: result.unit_scores().named(self.labeled(split).evaluated_rows)
            for split, result in results.items()
        }

    def export(self, encoder: RelationEncoder, folder: Path, card: Mapping[str, Any]) -> Path:
        """Export the encoder with everything that is needed to classify pairs."""
        store = self.reader.store
        classifier = self._classifier(encoder, SingleProcess(), is_trained=True)
        knn = self._exported_knn(encoder, classifier)
        names = store.entity_types
        candidate_types = [[names[head], names[tail]] for head, tail in sorted(store.type_pairs)]
        settings = {
            "trained_by": "relation_finetune",
            "objective": self.config.objective.to_mapping(),
            "is_coarse": self.config.data.is_coarse,
            "relations": list(store.relation_names),
            "is_multi_label": store.is_multi_label,
            "is_directed": store.is_directed,
            "evaluation": self.config.evaluation.to_mapping(),
            "knn_settings": knn and knn._asdict(),
            "candidate_types": None if store.is_directed else candidate_types,
            # Later evaluations score the same validation pairs.
            "labels": {"fraction": self.config.data.label_fraction, "seed": self.config.seed},
            "max_document_tokens": self.config.encoder.max_document_tokens,
        }
        reference = None
        if classifier.reference is not None:
            reference = {
                "embedding": classifier.reference.pairs.embedding_PD,
                "label": torch.from_numpy(classifier.reference.label_PC),
            }
        return export_relation_encoder(
            encoder, folder, card=card, settings=settings, reference=reference
        )

    def _exported_knn(self, encoder: RelationEncoder, classifier: Classifier) -> KnnSettings | None:
        """Return the settings by which an export classifies pairs; None: nothing chooses them.

        They are those of the run's table, if its final evaluation was of the same weights.
        """
        distinct = classifier.distinct_settings(self.config.evaluation.knn_candidates)
        if len(distinct) == 1:
            return distinct[0]
        if not len(self.reader.store.split_rows("dev")):
            return None
        knn = self.knn_by_weights.get(weights_digest(encoder.state_dict().items()))
        if knn is None:
            dev = self._embed_gold(encoder, self.labeled("dev"), SingleProcess())
            knn, _ = self._choose(classifier, dev)
        return knn

    def _classifier(
        self, model: Encoder, collective: Collective, *, is_trained: bool
    ) -> Classifier:
        assert isinstance(model, RelationEncoder)
        head = head_of(model) if is_trained else None
        is_multi_label = self.reader.store.is_multi_label
        if is_trained and self.config.objective.kind == "ce":
            return Classifier(head, None, is_multi_label)
        # Each worker embeds and keeps its part of the documents.
        reference = embed_gold_pairs(
            model,
            self.reader,
            self.labeled("train"),
            SingleProcess(),
            self.config.memory.max_tokens_per_micro_batch,
            part=slice(collective.rank, None, collective.world),
        )
        return Classifier(head, reference, is_multi_label, collective)

    def _embed_gold(
        self,
        model: Encoder,
        labeled: LabeledPairs,
        collective: Collective,
        part: slice | np.ndarray = slice(None),
    ) -> GoldPairs:
        assert isinstance(model, RelationEncoder)
        max_tokens = self.config.memory.max_tokens_per_micro_batch
        return embed_gold_pairs(model, self.reader, labeled, collective, max_tokens, part=part)

    def _choose(self, classifier: Classifier, dev: GoldPairs) -> tuple[KnnSettings, RelationScores]:
        return choose_knn_settings(classifier, dev, self.config.evaluation.knn_candidates)

    def _chance(self, gold: GoldPairs) -> dict[str, dict[str, float]]:
        """Return the scores of predicting the most frequent relation of the training pairs."""
        num_C = self.labeled("train").class_counts()
        return exact_scores(score_most_frequent(gold, num_C).values)

    def _by_relation(self, scores: RelationScores) -> dict[str, dict[str, float]]:
        """Return the rounded scores of each relation that occurs or is predicted."""
        by_relation = scores.by_relation()
        occurs_R = by_relation["gold"] + by_relation["predicted"] > 0
        return {
            name: {
                measure: round(float(value_R[number]), 6)
                for measure, value_R in by_relation.items()
            }
            for number, name in enumerate(self.reader.store.relation_names)
            if number and occurs_R[number]
        }


def _intervals(scores: RelationScores) -> dict[str, Any]:
    # The same seed as in ``raybio evaluate``, which then reports the same intervals.
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    return {name: interval._asdict() for name, interval in scores.intervals(rng).items()}
