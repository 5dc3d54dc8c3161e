"""Compute node features once, and keep them in the store's folder with their sha256."""

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from raybio.core.digest import file_digest, weights_digest
from raybio.core.errors import RecordFormatError, StoreError
from raybio.core.files import locked, replacing
from raybio.core.records import read_recomputable, write_record
from raybio.methods.relation_graphs.encoder import WordEncoder
from raybio.methods.relation_graphs.encoders.embed_words import embed_words
from raybio.methods.relation_graphs.encoders.node_features import NodeFeatures, map_again
from raybio.methods.relation_graphs.encoders.word_reader import WordReader
from raybio.training.collective import SingleProcess

KIND = "word features"

_log = logging.getLogger(__name__)


def untrained_features(model: WordEncoder, reader: WordReader, *, max_tokens: int) -> NodeFeatures:
    """Return features of all words of the store by the given ``model``; computed once per store.

    A file that does not match its record is computed again.

    Raises:
        StoreError: if they cannot be written into the store's folder.
    """
    store = reader.store
    settings = model.model_config.to_dict()
    weights = model.body.state_dict()
    # Before training, dropout and adapters change nothing: runs that differ in them share a file.
    file_name = _name(_without_dropout(settings), _without_adapters(weights), reader)
    features = NodeFeatures(
        store.derived_path(f"{file_name}.npy"),
        store.indptr_N1,
        recorded_name=_name(settings, weights, reader),
    )
    if _is_whole(features.path):
        return features
    try:
        features.path.parent.mkdir(exist_ok=True)
        # Workers that start together wait for the one that computes.
        with locked(features.path.with_name("features.lock")):
            if not _is_whole(features.path):
                rows = np.arange(len(store.indptr_N1) - 1)
                word_WD = embed_words(model, reader, rows, SingleProcess(), max_tokens=max_tokens)
                with replacing(features.path) as file:
                    np.save(file, word_WD.cpu().numpy())
                content = {"sha256": file_digest(features.path)}
                write_record(_record_path(features.path), KIND, content)
        map_again()
    except OSError as error:
        raise StoreError(
            f"{features.path} cannot be written ({error}); the store's folder must be writable"
        ) from None
    return features


def _is_whole(path: Path) -> bool:
    """Return whether a file of features exists and is intact; warn if it is not."""
    try:
        record = read_recomputable(_record_path(path), KIND)
    except RecordFormatError as error:
        _log.warning("%s; the features are computed again", error)
        return False
    if record is None or not path.is_file():
        return False
    if file_digest(path) == record.get("sha256"):
        return True
    _log.warning("%s: damaged, not what was written; it is computed again", path)
    return False


def _record_path(path: Path) -> Path:
    return path.with_suffix(".json")


def _name(settings: Mapping[str, Any], weights: Mapping[str, Tensor], reader: WordReader) -> str:
    sizes = json.dumps(settings, sort_keys=True, default=str)
    text = f"{weights_digest(weights.items())} {sizes} {reader.digest} {reader.store.digest}"
    return f"features-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _without_dropout(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if "dropout" not in name}


def _without_adapters(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of the encoder itself, under their names without adapters."""
    return {
        name.replace(".base_layer", ""): weight
        for name, weight in weights.items()
        if ".lora_" not in name
    }
