"""Probe."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from raybio.core.errors import ConfigError
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.embed_pairs import EmbeddedPairs
from raybio.methods.mtb_mccl.mccl.adaptive_threshold import adaptive_threshold
from raybio.methods.mtb_mccl.mccl.classifier import (
    Classifier,
    GoldPairs,
    choose_knn_settings,
    predict_classes,
    score_most_frequent,
    score_predictions,
)
from raybio.methods.mtb_mccl.mccl.classwise_knn import class_centroids
from raybio.methods.mtb_mccl.mccl.config import KnnSettings, RelationObjectiveConfig
from raybio.methods.mtb_mccl.mccl.frozen_pairs import load_frozen
from raybio.methods.mtb_mccl.mccl.labelled_pairs import LabelledPairs
from raybio.methods.mtb_mccl.mccl.objective import RelationHead
from raybio.methods.mtb_mccl.mccl.scores import RelationScores
from raybio.ops.linear_probe import fit_linear

L2 = (0.1, 0.01, 0.001, 0.0001)


KNN_SETTINGS = tuple(KnnSettings(k, 0.0) for k in (1, 3, 5, 10, 20))


_SPLITS = ("train", "dev", "test")


class ProbeResult(NamedTuple):
    """A classifier and what it finds.

    Attributes:
        name: of the classifier.
        setting: what validation pairs chose; empty if there was nothing to choose.
        dev: scores of the validation pairs.
        test: scores of the test pairs.
    """

    name: str
    setting: str
    dev: RelationScores
    test: RelationScores


def probe_relations(
    model: str,
    store: DocumentStore,
    *,
    label_fraction: float = 1.0,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> list[ProbeResult]:
    """Fit three classifiers on the training pairs of a frozen encoder and judge them on all test pairs.

    The first row is chance: every pair has the most frequent relation of the training pairs.

    Args:
        model: an export of ours, or any text encoder: see ``load_frozen``.
        store: with training, validation and test documents.
        label_fraction: share of the training and validation pairs that keep their label, as in fine-tuning.
        seed: which of them.
        say: called with what is being done.

    Raises:
        ConfigError: if the model cannot be loaded, or the store has no pairs or no relation to learn from.
    """
    asked = {
        split: LabelledPairs(store, split, 1.0 if split == "test" else label_fraction, seed)
        for split in _SPLITS
    }
    for split, labelled in asked.items():
        if not labelled.num_pairs:
            raise ConfigError(
                f"--store {store.path}: has no {split} pairs; prepare it with documents for all splits"
            )
    frozen = load_frozen(model)
    train, dev, test = (frozen.known(asked[split], say) for split in _SPLITS)
    if not train.label_PC[:, 1:].any():
        raise ConfigError(
            f"no training pair with a relation is left; want a larger --label-fraction ({label_fraction})"
        )
    fits: Mapping[str, Callable[[], Mapping[str, Classifier]]] = {
        "softmax": lambda: {
            f"L2 {l2:g}": softmax_classifier(train, store.is_multi_label, l2) for l2 in L2
        },
        "nearest centroid": lambda: {"": centroid_classifier(train, store.is_multi_label)},
        "classwise kNN": lambda: {"": Classifier(None, train, store.is_multi_label)},
    }
    chosen = partial(_chosen, dev=dev, test=test)
    num_C = train.label_PC.sum(axis=0)
    name = f"chance: every pair {store.relation_names[1 + int(num_C[1:].argmax())]}"
    found = [
        ProbeResult(
            name,
            "",
            *(score_most_frequent(asked_of_split, num_C) for asked_of_split in (dev, test)),
        )
    ]
    for name, fit in fits.items():
        say(f"fitting {name}")
        found.append(
            chosen(name, fit(), rules=KNN_SETTINGS if name == "classwise kNN" else KNN_SETTINGS[:1])
        )
    return found


def softmax_classifier(train: GoldPairs, is_multi_label: bool, l2: float) -> Classifier:
    """A linear classifier at its optimum: of the cross entropy, or of adaptive thresholding for several labels."""
    embedding_PD, label_PC = train.pairs.embedding_PD, torch.from_numpy(train.label_PC)
    label_PC = label_PC.to(embedding_PD.device)
    row_loss = partial(adaptive_threshold, na_index=0) if is_multi_label else _cross_entropy
    weight_CD, bias_C = fit_linear(embedding_PD, label_PC, row_loss, l2=l2)
    head = RelationHead(RelationObjectiveConfig(kind="ce"), len(bias_C), embedding_PD.shape[1])
    head.load_state_dict({"classifier.weight": weight_CD, "classifier.bias": bias_C})
    return Classifier(head.to(embedding_PD.device), None, is_multi_label)


def centroid_classifier(train: GoldPairs, is_multi_label: bool) -> Classifier:
    """The cosine to a class' centroid decides: its neighbour, where centroids are all that is known."""
    label_PC = torch.from_numpy(train.label_PC).to(train.pairs.embedding_PD.device)
    centroid_CD = class_centroids(train.pairs.embedding_PD, label_PC)
    there = np.flatnonzero(train.label_PC.any(0))
    nothing = np.zeros(len(there), dtype=np.int64)
    label_CC = np.eye(train.label_PC.shape[1], dtype=bool)[there]
    reference = GoldPairs(EmbeddedPairs(centroid_CD[there], nothing, nothing, nothing), label_CC)
    return Classifier(None, reference, is_multi_label)


def _cross_entropy(logits_PC: Tensor, label_PC: Tensor) -> Tensor:
    return cross_entropy(logits_PC, label_PC.int().argmax(1), reduction="none")


def _chosen(
    name: str,
    candidates: Mapping[str, Classifier],
    *,
    rules: Sequence[KnnSettings],
    dev: GoldPairs,
    test: GoldPairs,
) -> ProbeResult:
    """The candidate with the best F1 on validation pairs, the first of equals, and what it finds in test pairs."""
    by_setting = {
        setting: choose_knn_settings(one, dev, rules) for setting, one in candidates.items()
    }
    setting = max(by_setting, key=lambda one: by_setting[one][1].values["f1"])
    (rule, dev_scores), classifier = by_setting[setting], candidates[setting]
    predicted_PC = predict_classes(classifier, rule, test.pairs.embedding_PD)
    told = f"k = {rule.num_neighbors}" if len(rules) > 1 else setting
    return ProbeResult(name, told, dev_scores, score_predictions(test, predicted_PC))
