"""How many clusters has a relation? Classifiers on frozen embeddings of pairs tell (the paper's Table 1).

Softmax and nearest centroid take one cluster for a relation, classwise neighbours many. What each leaves open is chosen
by F1 on the validation documents. Shape letters: P pairs, C classes, "none" first, D width.

Classifiers on frozen embeddings of pairs, as plain JSON and as a table beside the paper's Table 1.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from raybio.core.errors import ConfigError
from raybio.core.markdown import markdown_table
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.embed_pairs import EmbeddedPairs
from raybio.methods.mtb_mccl.mccl.batches import LabelledPairs
from raybio.methods.mtb_mccl.mccl.classifier import (
    Classifier,
    KnownPairs,
    best_rule,
    judged,
    judged_constant,
    predicted_by,
)
from raybio.methods.mtb_mccl.mccl.classwise_knn import class_centroids
from raybio.methods.mtb_mccl.mccl.config import RelationObjectiveConfig, Rule
from raybio.methods.mtb_mccl.mccl.frozen_pairs import load_frozen
from raybio.methods.mtb_mccl.mccl.loss import RelationHead, adaptive_threshold
from raybio.methods.mtb_mccl.mccl.report import SEED
from raybio.methods.mtb_mccl.mccl.scores import RelationScores
from raybio.ops.linear_probe import fit_linear

L2 = (0.1, 0.01, 0.001, 0.0001)


NEIGHBOURS = tuple(Rule(k, 0.0) for k in (1, 3, 5, 10, 20))


_SPLITS = ("train", "dev", "test")


class Probed(NamedTuple):
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
        Probed(
            name, "", *(judged_constant(asked_of_split, num_C) for asked_of_split in (dev, test))
        )
    ]
    for name, fit in fits.items():
        say(f"fitting {name}")
        found.append(
            chosen(name, fit(), rules=NEIGHBOURS if name == "classwise kNN" else NEIGHBOURS[:1])
        )
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


PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "softmax": {"BioRED": 0.286, "Re-DocRED": 0.393},
    "nearest centroid": {"BioRED": 0.125, "Re-DocRED": 0.041},
    "classwise kNN": {"BioRED": 0.367, "Re-DocRED": 0.541},
}
"""Zhou et al., 2023, Table 1: F1 on the test documents, of their pre-trained encoder, by all training labels."""


def probe_data(probed: Sequence[Probed], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the table shows, as plain JSON; ``settings`` are those that the numbers depend on."""
    return {
        "settings": dict(settings),
        "classifiers": [
            {
                "name": one.name,
                "setting": one.setting,
                "dev": one.dev.values,
                # The same resamples for all, so that differences between rows are no luck of the draw.
                "test": {
                    name: interval._asdict()
                    for name, interval in one.test.intervals(np.random.default_rng(SEED)).items()
                },
            }
            for one in probed
        ],
        "published": {name: dict(row) for name, row in PUBLISHED.items()},
    }


def probe_markdown(data: Mapping[str, Any]) -> str:
    """One row a classifier: F1 with its 95 % interval over documents, and the published F1."""
    rows = []
    for one in data["classifiers"]:
        test = one["test"]
        published = data["published"].get(one["name"], {})
        f1 = test["f1"]
        rows.append(
            [
                one["name"],
                one["setting"],
                f"{one['dev']['f1']:.2%}",
                f"{f1['value']:.2%} [{f1['low']:.2%}, {f1['high']:.2%}]",
                *(f"{test[name]['value']:.2%}" for name in ("precision", "recall")),
                *(
                    f"{published[corpus]:.1%}" if published else ""
                    for corpus in ("BioRED", "Re-DocRED")
                ),
            ]
        )
    header = ["classifier", "chosen on dev", "dev F1", "test F1 [95 %]", "precision", "recall"]
    settings = ", ".join(f"{name}: {value}" for name, value in data["settings"].items())
    note = "Micro-averaged without NA; intervals over test documents. Published: the paper's Table 1, its own encoder."
    table = markdown_table([*header, "published BioRED", "published Re-DocRED"], rows, num_left=2)
    return "\n\n".join(["# Classifiers on frozen pairs", settings, table, note])
