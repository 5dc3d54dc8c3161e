"""Compute node features once, and keep them in the store's folder."""

import hashlib
import json

import numpy as np

from raybio.core.digest import weights_digest
from raybio.core.errors import StoreError
from raybio.core.files import locked, replacing
from raybio.methods.relation_graphs.encoder import WordEncoder
from raybio.methods.relation_graphs.encoders.embed_words import embed_words
from raybio.methods.relation_graphs.encoders.node_features import NodeFeatures
from raybio.methods.relation_graphs.encoders.word_reader import WordReader
from raybio.training.collective import SingleProcess


def untrained_features(model: WordEncoder, reader: WordReader, *, max_tokens: int) -> NodeFeatures:
    """Return features of all words of the store by ``model`` as it is; computed once per store.

    Raises:
        StoreError: if they cannot be written there.
    """
    store = reader.store
    sizes = json.dumps(model.model_config.to_dict(), sort_keys=True, default=str)
    name = (
        f"{weights_digest(model.body.state_dict().items())} {sizes} {reader.digest} {store.digest}"
    )
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    features = NodeFeatures(store.derived_path(f"features-{digest}.npy"), store.indptr_N1)
    if features.path.is_file():
        return features
    try:
        features.path.parent.mkdir(exist_ok=True)
        # Workers that start together wait for the one that computes.
        with locked(features.path.with_name("features.lock")):
            if not features.path.is_file():
                rows = np.arange(len(store.indptr_N1) - 1)
                word_WD = embed_words(model, reader, rows, SingleProcess(), max_tokens=max_tokens)
                with replacing(features.path) as file:
                    np.save(file, word_WD.cpu().numpy())
    except OSError as error:
        raise StoreError(
            f"{features.path} cannot be written ({error}); the store's folder must be writable"
        ) from None
    return features
