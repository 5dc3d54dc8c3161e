"""Trained model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.torch import load_file

from raybio.core.errors import ConfigError
from raybio.methods.mtb_mccl.embed_pairs import EmbeddedPairs
from raybio.methods.mtb_mccl.encoder import read_parts
from raybio.methods.mtb_mccl.export import REFERENCE_SET, SETTINGS
from raybio.methods.mtb_mccl.mccl.classifier import (
    Classifier,
    GoldPairs,
)
from raybio.methods.mtb_mccl.mccl.config import (
    KnnSettings,
    RelationEvaluationConfig,
    RelationObjectiveConfig,
)
from raybio.methods.mtb_mccl.mccl.frozen_pairs import FrozenEncoder, load_frozen
from raybio.methods.mtb_mccl.mccl.objective import RelationHead


class RelationModel(NamedTuple):
    """An exported model, ready to classify.

    Attributes:
        frozen: the encoder.
        classifier: with the reference of labelled pairs.
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
    knn_candidates: tuple[KnnSettings, ...]
    knn_settings: KnnSettings | None
    candidate_types: frozenset[tuple[str, str]] | None
    is_directed: bool
    label_fraction: float
    label_seed: int


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
        rule = KnnSettings(**settings["knn_settings"]) if settings["knn_settings"] else None
        types, is_directed = settings["candidate_types"], bool(settings["is_directed"])
        objective = RelationObjectiveConfig.from_mapping(settings["objective"])
        evaluation = RelationEvaluationConfig.from_mapping(settings["evaluation"])
        reference = None if objective.kind == "ce" else load_file(path / REFERENCE_SET)
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
    if reference is not None:
        nothing = np.zeros(len(reference["label"]), dtype=np.int64)
        pairs = EmbeddedPairs(reference["embedding"].to(device), nothing, nothing, nothing)
        known = GoldPairs(pairs, reference["label"].numpy())
    classifier = Classifier(head.to(device), known, settings["is_multi_label"])
    return RelationModel(
        frozen,
        classifier,
        tuple(settings["relations"]),
        evaluation.knn_candidates,
        rule,
        None if types is None else frozenset((head, tail) for head, tail in types),
        is_directed,
        fraction,
        seed,
    )
