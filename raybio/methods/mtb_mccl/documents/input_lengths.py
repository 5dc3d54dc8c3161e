"""Count the documents that an encoder truncates."""

import numpy as np

from raybio.encoders.input_lengths import InputLengths, counted_rows, token_lengths
from raybio.encoders.text import text_reader
from raybio.encoders.tokenization import TokenizerSource
from raybio.methods.mtb_mccl.config import RelationEncoderConfig
from raybio.methods.mtb_mccl.documents.store import DocumentStore


def document_lengths(
    store: DocumentStore, encoder: RelationEncoderConfig, row_N: np.ndarray | None = None
) -> InputLengths:
    """Return the lengths of documents with markers, compared with the encoder's limits.

    Args:
        store: the documents.
        encoder: settings of the encoder; no weights are loaded.
        row_N: rows of the documents; None: all.
    """
    reader = text_reader(encoder, count_by_word=store.count_by_word)
    row_N = np.arange(store.num_rows) if row_N is None else row_N
    row_C = counted_rows(row_N)
    store.request(row_C)
    texts = [store.text(row) for row in row_C.tolist()]
    num_mentions_C = np.array([len(store.mentions(row)[0]) for row in row_C.tolist()], np.int64)
    return InputLengths.of(
        "documents",
        "tokens",
        token_lengths(texts, TokenizerSource.of(reader.tokenizer).tokenize) + 2 * num_mentions_C,
        encoder.max_document_tokens,
        setting="encoder.max_length",
        num_rows=len(row_N),
        setting_value=encoder.max_length if isinstance(encoder.max_length, int) else None,
        num_positions=reader.num_positions,
    )
