"""How many clusters has a relation? Classifiers on frozen embeddings of pairs tell (the paper's Table 1).

Softmax and nearest centroid take one cluster for a relation, classwise neighbours many. What each leaves open is chosen
by F1 on the validation documents. Shape letters: P pairs, C classes, "none" first, D width.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from raybio.data.document_store import DocumentStore
from raybio.data.relation_pairs import LabelledPairs
from raybio.errors import ConfigError
from raybio.evaluation.relation_probe_report import Probed
from raybio.functional.linear import fit_linear
from raybio.functional.neighbours import class_centroids
from raybio.functional.threshold import adaptive_threshold
from raybio.objectives.relation_labels import RelationHead, RelationObjectiveConfig
from raybio.systems.embedded_pairs import EmbeddedPairs
from raybio.systems.frozen_pairs import load_frozen
from raybio.systems.relation_classifier import (
    Classifier,
    KnownPairs,
    Rule,
    best_rule,
    judged,
    judged_constant,
    predicted_by,
)

L2 = (0.1, 0.01, 0.001, 0.0001)
NEIGHBOURS = tuple(Rule(k, 0.0) for k in (1, 3, 5, 10, 20))

_SPLITS = ("train", "dev", "test")


def probe_relations(
    model: str,
    store: DocumentStore,
    *,
    label_fraction: float = 1.0,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> list[Probed]:
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
    asked = {split: LabelledPairs(store, split, 1.0 if split == "test" else label_fraction, seed) for split in _SPLITS}
    for split, labelled in asked.items():
        if not labelled.num_pairs:
            raise ConfigError(f"--store {store.path}: has no {split} pairs; prepare it with documents for all splits")
    frozen = load_frozen(model)
    train, dev, test = (frozen.known(asked[split], say) for split in _SPLITS)
    if not train.label_PC[:, 1:].any():
        raise ConfigError(
            f"no training pair with a relation is left; want a larger --label-fraction ({label_fraction})"
        )
    fits: Mapping[str, Callable[[], Mapping[str, Classifier]]] = {
        "softmax": lambda: {f"L2 {l2:g}": softmax_classifier(train, store.is_multi_label, l2) for l2 in L2},
        "nearest centroid": lambda: {"": centroid_classifier(train, store.is_multi_label)},
        "classwise kNN": lambda: {"": Classifier(None, train, store.is_multi_label)},
    }
    chosen = partial(_chosen, dev=dev, test=test)
    num_C = train.label_PC.sum(axis=0)
    name = f"chance: every pair {store.relation_names[1 + int(num_C[1:].argmax())]}"
    found = [Probed(name, "", *(judged_constant(asked_of_split, num_C) for asked_of_split in (dev, test)))]
    for name, fit in fits.items():
        say(f"fitting {name}")
        found.append(chosen(name, fit(), rules=NEIGHBOURS if name == "classwise kNN" else NEIGHBOURS[:1]))
    return found


def softmax_classifier(train: KnownPairs, is_multi_label: bool, l2: float) -> Classifier:
    """A linear classifier at its optimum: of the cross entropy, or of adaptive thresholding for several labels."""
    embedding_PD, label_PC = train.pairs.embedding_PD, torch.from_numpy(train.label_PC)
    label_PC = label_PC.to(embedding_PD.device)
    row_loss = partial(adaptive_threshold, na_index=0) if is_multi_label else _cross_entropy
    weight_CD, bias_C = fit_linear(embedding_PD, label_PC, row_loss, l2=l2)
    head = RelationHead(RelationObjectiveConfig(kind="ce"), len(bias_C), embedding_PD.shape[1])
    head.load_state_dict({"classifier.weight": weight_CD, "classifier.bias": bias_C})
    return Classifier(head.to(embedding_PD.device), None, is_multi_label)


def centroid_classifier(train: KnownPairs, is_multi_label: bool) -> Classifier:
    """The cosine to a class' centroid decides: its neighbour, where centroids are all that is known."""
    label_PC = torch.from_numpy(train.label_PC).to(train.pairs.embedding_PD.device)
    centroid_CD = class_centroids(train.pairs.embedding_PD, label_PC)
    there = np.flatnonzero(train.label_PC.any(0))
    nothing = np.zeros(len(there), dtype=np.int64)
    label_CC = np.eye(train.label_PC.shape[1], dtype=bool)[there]
    bank = KnownPairs(EmbeddedPairs(centroid_CD[there], nothing, nothing, nothing), label_CC)
    return Classifier(None, bank, is_multi_label)


def _cross_entropy(logits_PC: Tensor, label_PC: Tensor) -> Tensor:
    return cross_entropy(logits_PC, label_PC.int().argmax(1), reduction="none")


def _chosen(
    name: str,
    candidates: Mapping[str, Classifier],
    *,
    rules: Sequence[Rule],
    dev: KnownPairs,
    test: KnownPairs,
) -> Probed:
    """The candidate with the best F1 on validation pairs, the first of equals, and what it finds in test pairs."""
    by_setting = {setting: best_rule(one, dev, rules) for setting, one in candidates.items()}
    setting = max(by_setting, key=lambda one: by_setting[one][1].values["f1"])
    (rule, dev_scores), classifier = by_setting[setting], candidates[setting]
    predicted_PC = predicted_by(classifier, rule, test.pairs.embedding_PD)
    told = f"k = {rule.neighbours}" if len(rules) > 1 else setting
    return Probed(name, told, dev_scores, judged(test, predicted_PC))
