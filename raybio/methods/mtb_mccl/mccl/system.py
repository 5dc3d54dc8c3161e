"""MCCL: fine-tune an encoder of entity pairs on few labelled pairs, and classify others by their neighbours.

Zhou, Zhang, Naumann, Chen, Poon: "Continual Contrastive Finetuning Improves Low-Resource Relation Extraction" (ACL
2023). Contrastive pre-training (``mtb_pretrain``) is continued with a contrastive loss that lets a class have many
centers; the nearest labelled pairs of each class decide. Beside it what it is compared with: cross entropy with a
linear classifier, supervised contrastive learning, and no training at all ("lazy").

Reproduced: the losses with proxies and learned class biases, adaptive thresholding for several labels, classwise
nearest neighbours with their number chosen on validation data, labels as few as 1 %, and training that knows all
relations as one class ("coarse-to-fine", without biases). The authors published no code; candidate pairs of BioRED are
those of its eight pairs of types, "lazy" takes the plain chain of states where nothing has trained the projection.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raybio.core.errors import ConfigError
from raybio.core.final_report import Stage
from raybio.core.interfaces import Collective, Encoder, System
from raybio.core.randomness import derive_seed
from raybio.encoders.config import SCRATCH
from raybio.encoders.input_lengths import InputLengths
from raybio.encoders.text import check_text_encoder
from raybio.encoders.tokenization import OffsetTokenizer
from raybio.encoders.transformer import seeded_weights
from raybio.evaluation.evaluator import Evaluator, ModelScores, exact_scores
from raybio.methods.mtb_mccl.batches import LabelledDocumentBatch
from raybio.methods.mtb_mccl.documents.collate import DocumentReader
from raybio.methods.mtb_mccl.documents.demo import default_documents
from raybio.methods.mtb_mccl.documents.input_lengths import document_lengths
from raybio.methods.mtb_mccl.documents.markers import Markers
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
from raybio.methods.mtb_mccl.mccl.collate import RelationCollate
from raybio.methods.mtb_mccl.mccl.config import LINEAR, Config, KnnSettings
from raybio.methods.mtb_mccl.mccl.labelled_pairs import LabelledPairs
from raybio.methods.mtb_mccl.mccl.objective import RelationHead, RelationObjective
from raybio.methods.mtb_mccl.mccl.scores import BOOTSTRAP_SEED, RelationScores
from raybio.ops.spread import spread_metrics
from raybio.store.store import open_store
from raybio.training.collective import SingleProcess

STORE = DocumentStore
"""The class of the stores that it trains on."""


def prepare_demo(directory: str | Path) -> Path:
    """The embedded default corpus as a prepared store inside ``directory``; made on the first call."""
    return default_documents(directory).path


def check(config: Config, store: DocumentStore) -> None:
    """Refuse what can be known to fail before anything starts.

    Raises:
        ConfigError: if the encoder's source does not fit, or the store has nothing to learn from or to judge by.
    """
    check_text_encoder(config.encoder)
    if len(store.relation_names) < 2:
        raise ConfigError(
            f"{store.path}: its training documents have no relation; want some to learn from"
        )
    if config.schedule.evaluate_every_steps and not len(store.split_rows("dev")):
        raise ConfigError(
            f"{store.path}: has no validation documents, by which the number of neighbours is chosen. Prepare it with "
            "--dev or --dev-share, or train with schedule.evaluate_every_steps=0"
        )


def input_lengths(config: Config, store: DocumentStore) -> list[InputLengths]:
    """Count the documents that are longer than what is read of them."""
    return [document_lengths(store, config.encoder)]


def build(config: Config, store_path: str | Path) -> System:
    """Wire relation extraction over a prepared store of documents.

    Raises:
        StoreError: if the store is missing, damaged or of another kind.
        ConfigError: if the encoder cannot be loaded, or no training pair keeps its label.
    """
    store = open_store(store_path, DocumentStore)
    encoder = _encoder(config, store)
    tokenizer = OffsetTokenizer.of(encoder.text.tokenizer)
    reader = DocumentReader(
        store, tokenizer, Markers(**encoder.markers), config.encoder.max_document_tokens
    )
    evaluator = RelationEvaluator(config, reader)
    is_coarse = config.data.is_coarse
    collate = RelationCollate(
        reader, evaluator.labelled("train"), config.plan, config.seed, is_coarse
    )
    has_dev = len(store.split_rows("dev")) > 0
    return System(
        name="relation_finetune",
        model=encoder,
        # That a pair has some relation or none is one label, however many it has.
        objective=RelationObjective(
            config.objective, _head_of(encoder), store.is_multi_label and not is_coarse
        ),
        batch_type=LabelledDocumentBatch,
        collate=collate,
        steps_per_epoch=collate.steps_per_epoch,
        evaluate=evaluator.evaluate_during_training if has_dev else None,
        final_evaluate=evaluator.final_report if has_dev else None,
        export=lambda folder, card: evaluator.export(encoder, folder, card),
        data_digest=f"{store.digest} read as {tokenizer.fingerprint}",
        is_pretrained=config.encoder.source != SCRATCH,
        is_supervised=True,
    )


def _encoder(config: Config, store: DocumentStore) -> RelationEncoder:
    """Encoder and head as training begins with them."""
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


def _head_of(encoder: RelationEncoder) -> RelationHead:
    assert isinstance(encoder.head, RelationHead)
    return encoder.head


@dataclass(frozen=True)
class RelationEvaluator(Evaluator):
    """Relations predicted in documents that were held out."""

    config: Config
    reader: DocumentReader

    def labelled(self, split: str) -> LabelledPairs:
        """The pairs of a split that have their label; all of the test pairs."""
        fraction = 1.0 if split == "test" else self.config.data.label_fraction
        return LabelledPairs(self.reader.store, split, fraction, self.config.seed)

    def evaluate_during_training(
        self, model: Encoder, collective: Collective
    ) -> Mapping[str, float]:
        """Return ``val/*`` on the validation pairs, by the settings that are best on them."""
        classifier = self._classifier(model, collective, trained=True)
        dev = self._embedded(model, "dev", collective)
        rule, scores = self._chosen(classifier, dev)
        metrics = {f"val/{name}": value for name, value in scores.values.items()}
        if rule != LINEAR:
            metrics |= {f"val/{name}": float(value) for name, value in rule._asdict().items()}
        return metrics | spread_metrics(dev.pairs.embedding_PD)

    def initial_encoder(self) -> Encoder:
        """Return the encoder before training, without its projection if nothing has trained that either."""
        has_projection = "projection.weight" in read_parts(self.config.encoder.source)
        changed = {} if has_projection else {"projection": "none"}
        encoder = self.config.encoder.model_copy(update=changed)
        return _encoder(self.config.model_copy(update={"encoder": encoder}), self.reader.store)

    def score(self, model: Encoder, collective: Collective, stage: Stage) -> ModelScores:
        """Score the pairs of dev and test, by the settings that are best on dev."""
        classifier = self._classifier(model, collective, trained=stage == "trained")
        dev = self._embedded(model, "dev", collective)
        rule, found = self._chosen(classifier, dev)
        results = {"dev": found}
        chance = {"dev": self._chance(dev)}
        if len(self.reader.store.split_rows("test")):
            test = self._embedded(model, "test", collective)
            predicted = predict_classes(classifier, rule, test.pairs.embedding_PD)
            results["test"] = score_predictions(test, predicted)
            chance["test"] = self._chance(test)
        by_relation = {split: self._by_relation(result) for split, result in results.items()}
        return ModelScores(
            scores={split: self._intervals(result) for split, result in results.items()},
            chance=chance,
            spread=spread_metrics(dev.pairs.embedding_PD),
            unit_scores={split: result.unit_scores() for split, result in results.items()},
            details={"rules": rule._asdict(), "relations": by_relation},
        )

    def _chance(self, asked: GoldPairs) -> dict[str, dict[str, float]]:
        """Return the scores of giving every pair the relation that is most frequent among the training pairs."""
        labelled = self.labelled("train")
        num_C = np.sum([labelled.labels(row).sum(axis=0) for row in labelled.rows.tolist()], axis=0)
        return exact_scores(score_most_frequent(asked, num_C).values)

    def export(self, encoder: RelationEncoder, folder: Path, card: Mapping[str, Any]) -> Path:
        """The encoder with all that it takes to classify pairs."""
        store, rule = self.reader.store, None
        classifier = self._classifier(encoder, SingleProcess(), trained=True)
        if len(store.split_rows("dev")):
            rule, _ = self._chosen(classifier, self._embedded(encoder, "dev", SingleProcess()))
        names, types = store.entity_types, sorted(store.type_pairs)
        settings = {
            "trained_by": "relation_finetune",
            "objective": self.config.objective.to_mapping(),
            "is_coarse": self.config.data.is_coarse,
            "relations": list(store.relation_names),
            "is_multi_label": store.is_multi_label,
            "is_directed": store.is_directed,
            "evaluation": self.config.evaluation.to_mapping(),
            "knn_settings": rule and rule._asdict(),
            "candidate_types": None
            if store.is_directed
            else [[names[head], names[tail]] for head, tail in types],
            # Which validation pairs had a label: whoever judges again asks the same.
            "labels": {"fraction": self.config.data.label_fraction, "seed": self.config.seed},
            "max_document_tokens": self.config.encoder.max_document_tokens,
        }
        reference = classifier.reference and {
            "embedding": classifier.reference.pairs.embedding_PD,
            "label": torch.from_numpy(classifier.reference.label_PC),
        }
        return export_relation_encoder(
            encoder, folder, card=card, settings=settings, reference=reference
        )

    def _classifier(self, model: Encoder, collective: Collective, *, trained: bool) -> Classifier:
        assert isinstance(model, RelationEncoder)
        head, is_multi_label = (
            _head_of(model) if trained else None,
            self.reader.store.is_multi_label,
        )
        if trained and self.config.objective.kind == "ce":
            return Classifier(head, None, is_multi_label)
        # Each worker embeds, and keeps, every so many of the documents.
        max_tokens, part = (
            self.config.memory.max_tokens_per_micro_batch,
            slice(collective.rank, None, collective.world),
        )
        reference = embed_gold_pairs(
            model, self.reader, self.labelled("train"), SingleProcess(), max_tokens, part=part
        )
        return Classifier(head, reference, is_multi_label, collective)

    def _embedded(self, model: Encoder, split: str, collective: Collective) -> GoldPairs:
        assert isinstance(model, RelationEncoder)
        max_tokens = self.config.memory.max_tokens_per_micro_batch
        return embed_gold_pairs(model, self.reader, self.labelled(split), collective, max_tokens)

    def _chosen(self, classifier: Classifier, dev: GoldPairs) -> tuple[KnnSettings, RelationScores]:
        return choose_knn_settings(classifier, dev, self.config.evaluation.knn_candidates)

    def _intervals(self, scores: RelationScores) -> dict[str, Any]:
        rng = np.random.default_rng(BOOTSTRAP_SEED)  # as jobs/evaluate.py draws them
        return {name: interval._asdict() for name, interval in scores.intervals(rng).items()}

    def _by_relation(self, scores: RelationScores) -> dict[str, dict[str, float]]:
        told = scores.by_relation()
        return {
            name: {measure: round(float(values[number]), 6) for measure, values in told.items()}
            for number, name in enumerate(self.reader.store.relation_names)
            if number and told["gold"][number] + told["found"][number]
        }
