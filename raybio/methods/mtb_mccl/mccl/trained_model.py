"""Load an exported relation model: encoder, classifier and the settings chosen in its run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from raybio.core.errors import NoHeadError
from raybio.core.records import export_record
from raybio.methods.mtb_mccl.embed_pairs import EmbeddedPairs
from raybio.methods.mtb_mccl.encoder import read_parts
from raybio.methods.mtb_mccl.export import REFERENCE_SET, SETTINGS
from raybio.methods.mtb_mccl.frozen_encoder import FrozenEncoder, load_frozen
from raybio.methods.mtb_mccl.mccl.classifier import Classifier, GoldPairs
from raybio.methods.mtb_mccl.mccl.config import (
    KnnSettings,
    RelationEvaluationConfig,
    RelationObjectiveConfig,
)
from raybio.methods.mtb_mccl.mccl.objective import RelationHead


class RelationModel(NamedTuple):
    """An exported model, ready to classify.

    Attributes:
        frozen: the encoder.
        classifier: the classifier, with its reference set.
        relations: names of the classes, "NA" first.
        knn_candidates: settings to choose from if none were chosen.
        knn_settings: the settings that its run chose; None: it had no validation documents.
        candidate_types: (head type, tail type) of the pairs it was trained on; None: all.
        is_directed: whether (head, tail) and (tail, head) are different pairs.
        label_fraction: fraction of the validation pairs that had a label in its run.
        label_seed: seed of that draw.
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


def read_relation_settings(folder: str | Path) -> dict[str, Any]:
    """Return the settings by which an export of ``relation_finetune`` classifies, as plain JSON.

    Raises:
        NoHeadError: if the folder is an export of another method.
        ConfigError: if the folder is no export, or a damaged one.
    """
    path = Path(folder).expanduser() / SETTINGS
    with export_record(path, "export settings", "relation_finetune") as settings:
        trained_by = settings["trained_by"]
    if trained_by != "relation_finetune":
        raise NoHeadError(
            f"{folder}: was trained by {trained_by} and knows no relation yet; want the export/ of "
            "a run of relation_finetune, or `raybio evaluate relation-probe`"
        )
    return settings


def load_relation_model(folder: str | Path) -> RelationModel:
    """Load an export of ``relation_finetune``.

    Raises:
        ConfigError: if the folder is no such export.
    """
    path = Path(folder).expanduser()
    read_relation_settings(folder)
    with export_record(path / SETTINGS, "export settings", "relation_finetune") as settings:
        labels = settings["labels"]
        fraction = float(labels["fraction"])
        seed = int(labels["seed"])
        knn = KnnSettings(**settings["knn_settings"]) if settings["knn_settings"] else None
        types = settings["candidate_types"]
        is_directed = bool(settings["is_directed"])
        objective = RelationObjectiveConfig.from_mapping(settings["objective"])
        evaluation = RelationEvaluationConfig.from_mapping(settings["evaluation"])
        reference = None if objective.kind == "ce" else load_file(path / REFERENCE_SET)
    frozen = load_frozen(str(path))
    return RelationModel(
        frozen=frozen,
        classifier=_classifier(path, frozen, settings, objective, reference),
        relations=tuple(settings["relations"]),
        knn_candidates=evaluation.knn_candidates,
        knn_settings=knn,
        candidate_types=None if types is None else frozenset((head, tail) for head, tail in types),
        is_directed=is_directed,
        label_fraction=fraction,
        label_seed=seed,
    )


def _classifier(
    path: Path,
    frozen: FrozenEncoder,
    settings: Mapping[str, Any],
    objective: RelationObjectiveConfig,
    reference: Mapping[str, Tensor] | None,
) -> Classifier:
    device: torch.device = next(frozen.model.parameters()).device
    head = RelationHead(
        objective,
        len(settings["relations"]),
        frozen.model.width,
        is_coarse=settings["is_coarse"],
    )
    head.load_state_dict(
        {
            name.removeprefix("head."): weight
            for name, weight in read_parts(str(path)).items()
            if name.startswith("head.")
        }
    )
    gold = None
    if reference is not None:
        # The export does not say which documents the pairs come from, and kNN does not need it.
        unknown_B = np.zeros(len(reference["label"]), dtype=np.int64)
        pairs = EmbeddedPairs(reference["embedding"].to(device), unknown_B, unknown_B, unknown_B)
        gold = GoldPairs(pairs, reference["label"].numpy())
    return Classifier(head.to(device), gold, settings["is_multi_label"])
