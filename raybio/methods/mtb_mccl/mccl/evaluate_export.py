"""Evaluate an exported relation model on documents of any store with the same relations."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from raybio.core.errors import ConfigError
from raybio.core.location import Location
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.frozen_encoder import truncation_remarks
from raybio.methods.mtb_mccl.mccl.classifier import (
    GoldPairs,
    choose_knn_settings,
    embed_with_frozen,
    predict_classes,
    score_most_frequent,
    score_predictions,
)
from raybio.methods.mtb_mccl.mccl.config import KnnSettings
from raybio.methods.mtb_mccl.mccl.labeled_pairs import labeled_pairs
from raybio.methods.mtb_mccl.mccl.scores import RelationScores, confusion_matrix
from raybio.methods.mtb_mccl.mccl.trained_model import RelationModel, load_relation_model
from raybio.store.store import open_store


class RelationEvaluation(NamedTuple):
    """Scores of a model on a split.

    Attributes:
        relations: names of the classes, "NA" first.
        scores: scores of the split's pairs.
        knn_settings: how pairs were classified.
        confusion_CC: number of pairs by gold and predicted class; None if a pair may have several.
        chance: scores of predicting the most frequent relation of ``chance_of`` for every pair.
        chance_of: the training pairs; the split, if neither model nor store has them.
        truncation: remarks on documents that are truncated.
    """

    relations: tuple[str, ...]
    scores: RelationScores
    knn_settings: KnnSettings
    confusion_CC: np.ndarray | None
    chance: RelationScores
    chance_of: str
    truncation: list[str]


def evaluate_relations(
    folder: str | Path,
    store_path: str | Location,
    split: str,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> RelationEvaluation:
    """Evaluate an exported model on documents that it was not trained on.

    All test pairs are evaluated, but only the validation pairs that had a label in the model's run.
    The kNN settings come from the run; if it chose none, validation documents choose them.

    Args:
        folder: export of a run.
        store_path: documents with the same relations.
        split: "dev" or "test"; a training pair would be its own nearest neighbor.
        say: called with progress messages.

    Raises:
        ConfigError: if the folder is no exported relation model, its relations are not the store's,
            or the store has no relation in that split, or in the validation documents where
            settings must be chosen.
        StoreError: if the store is missing, damaged or of another kind.
    """
    model = load_relation_model(folder)
    store = open_store(store_path, DocumentStore)
    if model.relations != store.relation_names:
        raise ConfigError(
            f"--model {folder} knows the relations {', '.join(model.relations[1:])}; --store "
            f"{store_path} has {', '.join(store.relation_names[1:])}. Want a store of the same "
            "relations"
        )
    needed_splits = (split,) if model.knn_settings else ("dev", split)
    labeled_by_split = {
        name: labeled_pairs(store, name, model.label_fraction, model.label_seed)
        for name in needed_splits
    }
    for name, labeled in labeled_by_split.items():
        if not len(store.split_rows(name)):
            raise ConfigError(
                f"--store {store_path}: has no {name} documents; prepare it with --{name}"
            )
        labeled.check()

    def gold_pairs(name: str) -> GoldPairs:
        return embed_with_frozen(model.frozen, labeled_by_split[name], say)

    truncation = truncation_remarks(str(Path(folder).expanduser()), store, store.split_rows(split))
    for remark in truncation:
        say(remark)
    knn = model.knn_settings
    if knn is None:
        knn, _ = choose_knn_settings(model.classifier, gold_pairs("dev"), model.knn_candidates)
    gold = gold_pairs(split)
    predicted_PC = predict_classes(model.classifier, knn, gold.pairs.embedding_PD)
    num_C = _training_counts(model, store)
    chance_of = "the training pairs"
    if num_C is None:
        num_C = gold.label_PC.sum(axis=0)
        chance_of = f"the {split} pairs (the training pairs are unknown)"
    confusion_CC = None
    if not store.is_multi_label:
        confusion_CC = confusion_matrix(
            gold.label_PC.argmax(1), predicted_PC.argmax(1), len(model.relations)
        )
    return RelationEvaluation(
        relations=model.relations,
        scores=score_predictions(gold, predicted_PC),
        knn_settings=knn,
        confusion_CC=confusion_CC,
        chance=score_most_frequent(gold, num_C),
        chance_of=chance_of,
        truncation=truncation,
    )


def _training_counts(model: RelationModel, store: DocumentStore) -> np.ndarray | None:
    """Return the number of training pairs of each class; None if they are unknown."""
    if model.classifier.reference is not None:
        return np.asarray(model.classifier.reference.label_PC.sum(axis=0))
    labeled = labeled_pairs(store, "train", model.label_fraction, model.label_seed)
    if not len(labeled.rows):
        return None
    return np.sum([labeled.labels(row).sum(axis=0) for row in labeled.rows.tolist()], axis=0)
