"""Embeddings of the words of stored sentences, and those of an encoder that is not trained, kept beside the store.

W words of some sentences, D width.
"""

import fcntl
import hashlib
import json
from typing import NamedTuple

import numpy as np
from torch import Tensor

from raybio.data.relation_graph_collate import NodeFeatures
from raybio.data.word_collate import WordReader
from raybio.encoders.word import WordEncoder
from raybio.errors import StoreError
from raybio.functional.digest import weights_digest
from raybio.protocols import Collective
from raybio.training.encode import embed_rows
from raybio.training.gather import SingleProcess
from raybio.word_batches import WordBatch


class EmbeddedWords(NamedTuple):
    """Words, sentence by sentence.

    Attributes:
        word_WD: float32, on the model's device.
        indptr_S1: words of each sentence.
        rows: sentences of the store.
    """

    word_WD: Tensor
    indptr_S1: np.ndarray
    rows: np.ndarray


def embed_words(
    model: WordEncoder, reader: WordReader, rows: np.ndarray, collective: Collective, *, max_tokens: int
) -> EmbeddedWords:
    """Embed the words of sentences, without gradient, divided over the workers."""

    def read(some: np.ndarray) -> WordBatch:
        return WordBatch.from_arrays(reader.arrays(some.tolist()))

    embedded_WD = embed_rows(model, read, rows, collective, max_tokens=max_tokens)
    pointers = reader.word_pointers(rows.tolist())
    is_word_W = np.ones(len(embedded_WD), dtype=bool)
    is_word_W[pointers[:-1]] = False  # word 0 of a sentence is no word
    return EmbeddedWords(embedded_WD[is_word_W], pointers - np.arange(len(pointers)), rows)


def untrained_features(model: WordEncoder, reader: WordReader, *, max_tokens: int) -> NodeFeatures:
    """What ``model``, as it is now, says of all words of the store: computed once, and kept in the store's folder.

    Raises:
        StoreError: if they cannot be written there.
    """
    store = reader.store
    sizes = json.dumps(model.model_config.to_dict(), sort_keys=True, default=str)
    name = f"{weights_digest(model.body.state_dict().items())} {sizes} {reader.digest} {store.digest}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    features = NodeFeatures(store.path / f"features-{digest}.npy", store.indptr_N1)
    if features.path.is_file():
        return features
    try:
        with (store.path / ".features.lock").open("w") as lock:
            # Workers that start together wait for the one that computes.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not features.path.is_file():
                rows = np.arange(len(store.indptr_N1) - 1)
                words = embed_words(model, reader, rows, SingleProcess(), max_tokens=max_tokens)
                temporary = features.path.with_name(f".{features.path.name}")
                with temporary.open("wb") as file:
                    np.save(file, words.word_WD.cpu().numpy())
                temporary.replace(features.path)
    except OSError as error:
        raise StoreError(f"{features.path} cannot be written ({error}); the store's folder must be writable") from None
    return features
