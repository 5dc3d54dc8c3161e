"""Embed the words of stored sentences, without gradient.

Shape letters: S sentences, W words of all of them, D embedding width.
"""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from raybio.core.interfaces import Collective
from raybio.methods.relation_graphs.batches import WordBatch
from raybio.methods.relation_graphs.encoder import WordEncoder
from raybio.methods.relation_graphs.word_reader import WordReader
from raybio.training.embed import embed_rows


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
    model: WordEncoder,
    reader: WordReader,
    rows: np.ndarray,
    collective: Collective,
    *,
    max_tokens: int,
) -> EmbeddedWords:
    """Embed the words of sentences, without gradient, divided over the workers."""

    def read(some: np.ndarray) -> WordBatch:
        return WordBatch.from_arrays(reader.arrays(some.tolist()))

    embedded_WD = embed_rows(model, read, rows, collective, max_tokens=max_tokens)
    pointers = reader.word_pointers(rows.tolist())
    is_word_W = np.ones(len(embedded_WD), dtype=bool)
    is_word_W[pointers[:-1]] = False  # word 0 of a sentence is no word
    return EmbeddedWords(embedded_WD[is_word_W], pointers - np.arange(len(pointers)), rows)
