"""Judging an exported relation model on documents of any store with the same relations."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file

from raybio.data.document_collate import DocumentReader
from raybio.data.document_marks import Markers
from raybio.data.document_store import DocumentStore
from raybio.data.relation_pairs import LabelledPairs
from raybio.data.store import open_store
from raybio.encoders.relation import RelationEncoder, RelationEncoderConfig, build_relation_encoder, read_parts
from raybio.encoders.relation_export import BANK, SETTINGS
from raybio.encoders.tokens import OffsetTokenizer
from raybio.errors import ConfigError
from raybio.evaluation.relation_scores import RelationScores, confusion_matrix
from raybio.objectives.relation_labels import RelationHead, RelationObjectiveConfig
from raybio.systems.embedded_pairs import EmbeddedPairs
from raybio.systems.relation_classifier import Classifier, KnownPairs, best_neighbours, judged, known_pairs
from raybio.training.gather import SingleProcess

MAX_TOKENS_AT_ONCE = 16_384


class RelationModel(NamedTuple):
    """An exported model, ready to classify.

    Attributes:
        encoder: in evaluation mode.
        classifier: with the bank of labelled pairs.
        relations: names of the classes, "NA" first.
        neighbours: numbers of neighbours to choose from.
        max_document_tokens: of a document that is read.
    """

    encoder: RelationEncoder
    classifier: Classifier
    relations: tuple[str, ...]
    neighbours: tuple[int, ...]
    max_document_tokens: int


class Judged(NamedTuple):
    """What a model found in a split.

    Attributes:
        relations: names of the classes, "NA" first.
        scores: of the pairs of the split.
        neighbours: the number that was taken; 0: a linear classifier decided.
        confusion_CC: gold by predicted classes, of pairs with one label; None where there may be several.
    """

    relations: tuple[str, ...]
    scores: RelationScores
    neighbours: int
    confusion_CC: np.ndarray | None


def load_relation_model(folder: str | Path) -> RelationModel:
    """Read what ``relation_extraction`` exported.

    Raises:
        ConfigError: if the folder is no such export.
    """
    path = Path(folder).expanduser()
    try:
        settings: Mapping[str, Any] = json.loads((path / SETTINGS).read_text(encoding="utf-8"))
        objective = RelationObjectiveConfig.from_mapping(settings["objective"])
        bank = load_file(path / BANK)
    except (OSError, ValueError, ConfigError) as error:
        raise ConfigError(
            f"--model {folder}: is no exported relation model ({error}); want the export/ of a run of relation_finetune"
        ) from None
    config = RelationEncoderConfig(source=str(path), max_document_tokens=settings["max_document_tokens"])
    saved = read_parts(str(path))
    if "projection.weight" not in saved:
        config = config.model_copy(update={"projection": "none"})
    encoder = build_relation_encoder(config, seed=0).eval()
    num_classes, is_coarse = len(settings["relations"]), settings["is_coarse"]
    head = RelationHead(objective, num_classes, encoder.width, is_coarse=is_coarse)
    head.load_state_dict({name.removeprefix("head."): w for name, w in saved.items() if name.startswith("head.")})
    nothing = np.zeros(len(bank["label"]), dtype=np.int64)
    known = KnownPairs(EmbeddedPairs(bank["embedding"], nothing, nothing, nothing), bank["label"].numpy())
    by_neighbours = objective.kind != "ce"
    classifier = Classifier(head, known, settings["is_multi_label"], by_neighbours)
    lists = tuple(settings["relations"]), tuple(settings["neighbours"])
    return RelationModel(encoder, classifier, *lists, settings["max_document_tokens"])


def evaluate_relations(
    folder: str | Path, store_path: str | Path, split: str, *, say: Callable[[str], None] = lambda text: None
) -> Judged:
    """Judge an exported model on all pairs of a split; the number of neighbours is chosen on the validation documents.

    Raises:
        ConfigError: if the folder is no exported relation model, its relations are not the store's, or the store has no
            such split, or no validation documents to choose by.
        StoreError: if the store is missing, damaged or of another kind.
    """
    model, store = load_relation_model(folder), open_store(store_path, DocumentStore)
    if model.relations != store.relation_names:
        raise ConfigError(
            f"--model {folder} knows the relations {', '.join(model.relations[1:])}; --store {store_path} has "
            f"{', '.join(store.relation_names[1:])}. Want a store of the same relations"
        )
    for name in dict.fromkeys(("dev", split)):
        if not len(store.split_rows(name)):
            raise ConfigError(f"--store {store_path}: has no {name} documents; prepare it with --{name}")
    tokenizer = OffsetTokenizer.of(model.encoder.text.tokenizer)
    reader = DocumentReader(store, tokenizer, Markers(**model.encoder.markers), model.max_document_tokens)

    def known(name: str) -> tuple[KnownPairs, np.ndarray]:
        asked = LabelledPairs(store, name, 1.0, seed=0)
        say(f"embedding {asked.num_pairs:,} pairs of {len(asked.rows):,} {name} documents")
        return known_pairs(model.encoder, reader, asked, SingleProcess(), MAX_TOKENS_AT_ONCE), asked.rows

    k, scores = best_neighbours(model.classifier, *known("dev"), model.neighbours)
    if split == "dev":
        return Judged(model.relations, scores, k, None)
    asked, rows = known(split)
    with torch.no_grad():
        predicted_PC = model.classifier.predicted(model.classifier.scores(asked.pairs.embedding_PD, (k,))[k])
    confusion_CC = None
    if not store.is_multi_label:
        gold_P, predicted_P = asked.label_PC.argmax(1), predicted_PC.argmax(1)
        confusion_CC = confusion_matrix(gold_P, predicted_P, len(model.relations))
    return Judged(model.relations, judged(asked, predicted_PC, rows), k, confusion_CC)
