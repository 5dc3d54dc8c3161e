"""Judging an exported relation model on documents of any store with the same relations."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.torch import load_file

from raybio.core.errors import ConfigError
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.embed_pairs import EmbeddedPairs
from raybio.methods.mtb_mccl.encoder import BANK, SETTINGS, read_parts
from raybio.methods.mtb_mccl.mccl.batches import LabelledPairs
from raybio.methods.mtb_mccl.mccl.classifier import (
    Classifier,
    KnownPairs,
    best_rule,
    judged,
    judged_constant,
    predicted_by,
)
from raybio.methods.mtb_mccl.mccl.config import (
    RelationEvaluationConfig,
    RelationObjectiveConfig,
    Rule,
)
from raybio.methods.mtb_mccl.mccl.frozen_pairs import FrozenEncoder, cuts_of, load_frozen
from raybio.methods.mtb_mccl.mccl.loss import RelationHead
from raybio.methods.mtb_mccl.mccl.scores import RelationScores, confusion_matrix
from raybio.store.store import open_store


class RelationModel(NamedTuple):
    """An exported model, ready to classify.

    Attributes:
        frozen: the encoder.
        classifier: with the bank of labelled pairs.
        relations: names of the classes, "NA" first.
        rules: those to choose from, where none is chosen yet.
        rule: the one that its run chose; None: it had no validation documents.
        candidate_types: (type of the head, type of the tail) of the pairs that it is for; None: all.
        is_directed: whether (head, tail) and (tail, head) are different pairs.
        label_fraction: share of the validation pairs that its run had labels of.
        label_seed: which of them.
    """

    frozen: FrozenEncoder
    classifier: Classifier
    relations: tuple[str, ...]
    rules: tuple[Rule, ...]
    rule: Rule | None
    candidate_types: frozenset[tuple[str, str]] | None
    is_directed: bool
    label_fraction: float
    label_seed: int


class Judged(NamedTuple):
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
    rule: Rule
    confusion_CC: np.ndarray | None
    chance: RelationScores
    cuts: list[str]


def load_relation_model(folder: str | Path) -> RelationModel:
    """Read what ``relation_finetune`` exported.

    Raises:
        ConfigError: if the folder is no such export.
    """
    path = Path(folder).expanduser()
    try:
        settings: Mapping[str, Any] = json.loads((path / SETTINGS).read_text(encoding="utf-8"))
        if settings["trained_by"] != "relation_finetune":
            raise ConfigError(
                f"it was trained by {settings['trained_by']} and knows no relation yet; for such a model there is "
                "`evaluate.py relation-probe`"
            )
        labels = settings["labels"]
        fraction, seed = float(labels["fraction"]), int(labels["seed"])
        rule = Rule(**settings["rule"]) if settings["rule"] else None
        types, is_directed = settings["candidate_types"], bool(settings["is_directed"])
        objective = RelationObjectiveConfig.from_mapping(settings["objective"])
        evaluation = RelationEvaluationConfig.from_mapping(settings["evaluation"])
        bank = None if objective.kind == "ce" else load_file(path / BANK)
    except KeyError as error:
        raise ConfigError(
            f"--model {folder}: {SETTINGS} says nothing of {error}; want an export of this version of relation_finetune"
        ) from None
    except (OSError, ValueError, TypeError, ConfigError) as error:
        raise ConfigError(
            f"--model {folder}: is no exported relation model ({error}); want the export/ of a run of relation_finetune"
        ) from None
    frozen, saved = load_frozen(str(path)), read_parts(str(path))
    device = next(frozen.model.parameters()).device
    num_classes, is_coarse = len(settings["relations"]), settings["is_coarse"]
    head = RelationHead(objective, num_classes, frozen.model.width, is_coarse=is_coarse)
    head.load_state_dict(
        {name.removeprefix("head."): w for name, w in saved.items() if name.startswith("head.")}
    )
    known = None
    if bank is not None:
        nothing = np.zeros(len(bank["label"]), dtype=np.int64)
        pairs = EmbeddedPairs(bank["embedding"].to(device), nothing, nothing, nothing)
        known = KnownPairs(pairs, bank["label"].numpy())
    classifier = Classifier(head.to(device), known, settings["is_multi_label"])
    return RelationModel(
        frozen,
        classifier,
        tuple(settings["relations"]),
        evaluation.rules,
        rule,
        None if types is None else frozenset((head, tail) for head, tail in types),
        is_directed,
        fraction,
        seed,
    )


def evaluate_relations(
    folder: str | Path,
    store_path: str | Path,
    split: str,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> Judged:
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
    for name in (split,) if model.rule else dict.fromkeys(("dev", split)):
        if not len(store.split_rows(name)):
            raise ConfigError(
                f"--store {store_path}: has no {name} documents; prepare it with --{name}"
            )

    def known(name: str) -> KnownPairs:
        given = (1.0, 0) if name == "test" else (model.label_fraction, model.label_seed)
        return model.frozen.known(LabelledPairs(store, name, *given), say)

    cuts = cuts_of(str(Path(folder).expanduser()), store, store.split_rows(split))
    for cut in cuts:
        say(cut)
    rule = model.rule or best_rule(model.classifier, known("dev"), model.rules)[0]
    asked = known(split)
    predicted_PC = predicted_by(model.classifier, rule, asked.pairs.embedding_PD)
    confusion_CC = None
    if not store.is_multi_label:
        gold_P, predicted_P = asked.label_PC.argmax(1), predicted_PC.argmax(1)
        confusion_CC = confusion_matrix(gold_P, predicted_P, len(model.relations))
    chance = judged_constant(asked, asked.label_PC.sum(axis=0))
    return Judged(model.relations, judged(asked, predicted_PC), rule, confusion_CC, chance, cuts)
