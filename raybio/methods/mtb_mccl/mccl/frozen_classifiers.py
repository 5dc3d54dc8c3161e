"""Classifiers of frozen pair embeddings, and the choice of their setting on the validation pairs.

Shape letters: P pairs, B classes with a pair, C classes, NA first, D embedding width.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from raybio.methods.mtb_mccl.embed_pairs import EmbeddedPairs
from raybio.methods.mtb_mccl.mccl.adaptive_threshold import adaptive_threshold
from raybio.methods.mtb_mccl.mccl.classifier import Classifier, GoldPairs, choose_knn_settings
from raybio.methods.mtb_mccl.mccl.classwise_knn import class_centroids
from raybio.methods.mtb_mccl.mccl.config import KnnSettings, RelationObjectiveConfig
from raybio.methods.mtb_mccl.mccl.objective import RelationHead
from raybio.methods.mtb_mccl.mccl.scores import RelationScores
from raybio.ops.linear_probe import fit_linear

L2 = (0.1, 0.01, 0.001, 0.0001)
"""Candidate strengths of the penalty of linear classifiers."""


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
