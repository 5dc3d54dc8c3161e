"""Evaluate."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from raybio.core.errors import ConfigError
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mccl.classifier import (
    GoldPairs,
    choose_knn_settings,
    predict_classes,
    score_most_frequent,
    score_predictions,
)
from raybio.methods.mtb_mccl.mccl.config import (
    KnnSettings,
)
from raybio.methods.mtb_mccl.mccl.frozen_pairs import truncation_remarks
from raybio.methods.mtb_mccl.mccl.labelled_pairs import LabelledPairs
from raybio.methods.mtb_mccl.mccl.scores import RelationScores, confusion_matrix
from raybio.methods.mtb_mccl.mccl.trained_model import load_relation_model
from raybio.store.store import open_store


class RelationEvaluation(NamedTuple):
    """What a model found in a split.

    Attributes:
        relations: names of the classes, "NA" first.
        scores: of the pairs of the split.
        rule: the one that was taken.
        confusion_CC: gold by predicted classes, of pairs with one label; None where there may be several.
        chance: scores of giving every pair the relation that is most frequent in the split.
        cuts: says which documents are not read whole.
    """

    relations: tuple[str, ...]
    scores: RelationScores
    knn_settings: KnnSettings
    confusion_CC: np.ndarray | None
    chance: RelationScores
    cuts: list[str]


def evaluate_relations(
    folder: str | Path,
    store_path: str | Path,
    split: str,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> RelationEvaluation:
    """Judge an exported model on documents that it was not trained on.

    Of the test documents all pairs are asked, of the validation documents those that the model's run had labels of. The
    rule is its run's own; without one, it is chosen on the validation documents.

    Args:
        folder: export of a run.
        store_path: documents with the same relations.
        split: "dev" or "test"; of the training pairs each would find itself.
        say: told what is being done.

    Raises:
        ConfigError: if the folder is no exported relation model, its relations are not the store's, or the store has no
            such split, or no validation documents where a rule has to be chosen by them.
        StoreError: if the store is missing, damaged or of another kind.
    """
    model, store = load_relation_model(folder), open_store(store_path, DocumentStore)
    if model.relations != store.relation_names:
        raise ConfigError(
            f"--model {folder} knows the relations {', '.join(model.relations[1:])}; --store {store_path} has "
            f"{', '.join(store.relation_names[1:])}. Want a store of the same relations"
        )
    for name in (split,) if model.knn_settings else dict.fromkeys(("dev", split)):
        if not len(store.split_rows(name)):
            raise ConfigError(
                f"--store {store_path}: has no {name} documents; prepare it with --{name}"
            )

    def known(name: str) -> GoldPairs:
        given = (1.0, 0) if name == "test" else (model.label_fraction, model.label_seed)
        return model.frozen.known(LabelledPairs(store, name, *given), say)

    cuts = truncation_remarks(str(Path(folder).expanduser()), store, store.split_rows(split))
    for cut in cuts:
        say(cut)
    rule = (
        model.knn_settings
        or choose_knn_settings(model.classifier, known("dev"), model.knn_candidates)[0]
    )
    asked = known(split)
    predicted_PC = predict_classes(model.classifier, rule, asked.pairs.embedding_PD)
    confusion_CC = None
    if not store.is_multi_label:
        gold_P, predicted_P = asked.label_PC.argmax(1), predicted_PC.argmax(1)
        confusion_CC = confusion_matrix(gold_P, predicted_P, len(model.relations))
    chance = score_most_frequent(asked, asked.label_PC.sum(axis=0))
    return RelationEvaluation(
        model.relations, score_predictions(asked, predicted_PC), rule, confusion_CC, chance, cuts
    )
