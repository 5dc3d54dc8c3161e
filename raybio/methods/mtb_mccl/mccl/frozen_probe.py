"""Classifiers on frozen pair embeddings (Zhou et al., 2023, Table 1).

Softmax and nearest centroid assume one cluster per relation, classwise kNN many. So their scores
show how many clusters relations have. F1 on the validation documents chooses the strength of the L2
penalty and the number of neighbors.

Shape letters: P pairs, B classes with a pair, C classes, NA first, D embedding width.
"""

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
from raybio.methods.mtb_mccl.mccl.frozen_encoder import load_frozen
from raybio.methods.mtb_mccl.mccl.labeled_pairs import LabeledPairs
from raybio.methods.mtb_mccl.mccl.objective import RelationHead
from raybio.methods.mtb_mccl.mccl.scores import RelationScores
from raybio.ops.linear_probe import fit_linear

L2 = (0.1, 0.01, 0.001, 0.0001)

KNN_SETTINGS = tuple(KnnSettings(k, 0.0) for k in (1, 3, 5, 10, 20))

_SPLITS = ("train", "dev", "test")


class FrozenProbeResult(NamedTuple):
    """Scores of a classifier.

    Attributes:
        name: name of the classifier.
        setting: the setting chosen on the validation pairs; empty if there is none.
        dev: scores on the validation pairs.
        test: scores on the test pairs.
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
) -> list[FrozenProbeResult]:
    """Fit three classifiers on the training pairs of a frozen encoder, and score all test pairs.

    The first result is chance: the most frequent relation of the training pairs for every pair.

    Args:
        model: an export, or any text encoder; see ``load_frozen``.
        store: training, validation and test documents.
        label_fraction: fraction of the training and validation pairs that keep their label, as in
            fine-tuning.
        seed: of that draw.
        say: called with progress messages.

    Raises:
        ConfigError: if the model cannot be loaded, or the store has no pairs in a split or no
            relation to learn from.
    """
    labeled_by_split = {
        split: LabeledPairs(store, split, 1.0 if split == "test" else label_fraction, seed)
        for split in _SPLITS
    }
    for split, labeled in labeled_by_split.items():
        if not labeled.num_pairs:
            raise ConfigError(
                f"--store {store.path}: has no {split} pairs; prepare it with documents for all "
                "splits"
            )
    frozen = load_frozen(model)
    train, dev, test = (frozen.embed_gold(labeled_by_split[split], say) for split in _SPLITS)
    if not train.label_PC[:, 1:].any():
        raise ConfigError(
            "no training pair with a relation is left; want a larger --label-fraction "
            f"({label_fraction})"
        )
    num_C = train.label_PC.sum(axis=0)
    most_frequent = store.relation_names[1 + int(num_C[1:].argmax())]
    chance = FrozenProbeResult(
        f"chance: every pair {most_frequent}",
        "",
        score_most_frequent(dev, num_C),
        score_most_frequent(test, num_C),
    )
    say("fitting softmax")
    softmax = {f"L2 {l2:g}": softmax_classifier(train, store.is_multi_label, l2) for l2 in L2}
    say("fitting nearest centroid")
    centroid = {"": centroid_classifier(train, store.is_multi_label)}
    say("fitting classwise kNN")
    knn = {"": Classifier(None, train, store.is_multi_label)}
    return [
        chance,
        _best("softmax", softmax, KNN_SETTINGS[:1], dev, test),
        _best("nearest centroid", centroid, KNN_SETTINGS[:1], dev, test),
        _best("classwise kNN", knn, KNN_SETTINGS, dev, test),
    ]


def softmax_classifier(train: GoldPairs, is_multi_label: bool, l2: float) -> Classifier:
    """Return the optimal linear classifier: by cross entropy, or by adaptive thresholding."""
    embedding_PD = train.pairs.embedding_PD
    label_PC = torch.from_numpy(train.label_PC).to(embedding_PD.device)
    row_loss = partial(adaptive_threshold, na_index=0) if is_multi_label else _cross_entropy
    weight_CD, bias_C = fit_linear(embedding_PD, label_PC, row_loss, l2=l2)
    head = RelationHead(RelationObjectiveConfig(kind="ce"), len(bias_C), embedding_PD.shape[1])
    head.load_state_dict({"classifier.weight": weight_CD, "classifier.bias": bias_C})
    return Classifier(head.to(embedding_PD.device), None, is_multi_label)


def centroid_classifier(train: GoldPairs, is_multi_label: bool) -> Classifier:
    """Return a classifier by the cosine to class centroids: kNN with one member per class."""
    label_PC = torch.from_numpy(train.label_PC).to(train.pairs.embedding_PD.device)
    centroid_CD = class_centroids(train.pairs.embedding_PD, label_PC)
    class_B = np.flatnonzero(train.label_PC.any(0))
    unknown_B = np.zeros(len(class_B), dtype=np.int64)
    label_BC = np.eye(train.label_PC.shape[1], dtype=bool)[class_B]
    centroids = EmbeddedPairs(centroid_CD[class_B], unknown_B, unknown_B, unknown_B)
    return Classifier(None, GoldPairs(centroids, label_BC), is_multi_label)


def _cross_entropy(logits_PC: Tensor, label_PC: Tensor) -> Tensor:
    return cross_entropy(logits_PC, label_PC.int().argmax(1), reduction="none")


class BestOnDev(NamedTuple):
    """The classifier with the best validation F1.

    Attributes:
        setting: name of its setting.
        classifier: the classifier.
        knn: settings by which it classifies.
        scores: scores on the validation pairs.
    """

    setting: str
    classifier: Classifier
    knn: KnnSettings
    scores: RelationScores


def best_on_dev(
    classifier_by_setting: Mapping[str, Classifier],
    knn_candidates: Sequence[KnnSettings],
    dev: GoldPairs,
) -> BestOnDev:
    """Return the classifier with the best validation F1, the first of equals."""
    candidates = [
        BestOnDev(setting, classifier, *choose_knn_settings(classifier, dev, knn_candidates))
        for setting, classifier in classifier_by_setting.items()
    ]
    return max(candidates, key=lambda candidate: candidate.scores.values["f1"])


def _best(
    name: str,
    classifier_by_setting: Mapping[str, Classifier],
    knn_candidates: Sequence[KnnSettings],
    dev: GoldPairs,
    test: GoldPairs,
) -> FrozenProbeResult:
    """Return the scores of the setting with the best validation F1."""
    best = best_on_dev(classifier_by_setting, knn_candidates, dev)
    predicted_PC = predict_classes(best.classifier, best.knn, test.pairs.embedding_PD)
    setting = best.setting
    if len(knn_candidates) > 1:
        setting = f"k = {best.knn.num_neighbors}"
    return FrozenProbeResult(name, setting, best.scores, score_predictions(test, predicted_PC))
