"""How much of its rows a system reads, counted in the driver before training; see ``data.input_lengths``."""

from collections.abc import Callable, Sequence

import numpy as np

from raybio.data.document_store import DocumentStore
from raybio.data.input_lengths import WHOLE, InputLengths, counted_rows, token_lengths, with_alike
from raybio.data.protein_rows import HasResidues
from raybio.encoders.protein import EncoderConfig, max_tokens_of, vocabulary_of
from raybio.encoders.relation import RelationEncoderConfig
from raybio.encoders.text import TextReader, text_reader
from raybio.encoders.tokens import TokenizerSource
from raybio.errors import ConfigError

ReadTexts = Callable[[np.ndarray], Sequence[str]]
"""Rows -> their texts."""


def no_input_lengths(config: object, store: object) -> list[InputLengths]:
    """Return nothing: for systems that refuse rows that are too long."""
    return []


def protein_lengths(
    store: HasResidues, encoder: EncoderConfig, wanted: int, setting: str, *, crop: str = "front"
) -> InputLengths:
    """Count the sequences that are longer than what the encoder reads; no weights are loaded.

    Args:
        store: the sequences.
        encoder: which encoder reads them.
        wanted: most tokens of a sequence, by the settings.
        setting: dotted path of the setting that says so.
        crop: which part of a longer sequence is read; "random" and "ends" are windows by design.
    """
    readable = max_tokens_of(encoder)
    return InputLengths.of(
        "sequences",
        "residues",
        np.diff(store.indptr_N1),
        min(wanted, readable) - vocabulary_of(encoder).num_special_per_sequence,
        setting=setting,
        wanted=wanted,
        readable=readable,
        is_window=crop in ("random", "ends"),
    )


def with_alike_proteins(lengths: InputLengths, store: HasResidues) -> InputLengths:
    """Add how many distinct sequences begin like another one, as far as they are read."""
    if not lengths.num_cut:
        return lengths
    content, bounds = store.residue_T.tobytes(), store.indptr_N1.tolist()
    wholes = (content[start:end] for start, end in zip(bounds, bounds[1:], strict=False))
    return with_alike(lengths, ((whole, whole[: lengths.limit]) for whole in wholes))


def text_lengths(
    what: str,
    texts: ReadTexts,
    row_N: np.ndarray,
    reader: TextReader,
    *,
    wanted: int | str,
    limit: int | None = None,
) -> InputLengths:
    """Count the texts that are longer than what the encoder reads, all of them or an even sample.

    Args:
        what: what the texts are called.
        texts: reads some of them.
        row_N: the rows that the system reads.
        reader: how the encoder reads.
        wanted: value of ``encoder.max_length``.
        limit: most tokens of a text, if the system reads fewer than the encoder could.
    """
    row_C = counted_rows(row_N)
    return InputLengths.of(
        what,
        "tokens",
        token_lengths(texts(row_C), TokenizerSource.of(reader.tokenizer).tokenise),
        min(limit or reader.max_tokens, reader.max_tokens),
        setting="encoder.max_length",
        num_rows=len(row_N),
        wanted=wanted if isinstance(wanted, int) else None,
        readable=reader.readable,
    )


def with_alike_texts(lengths: InputLengths, texts: ReadTexts, row_N: np.ndarray, reader: TextReader) -> InputLengths:
    """Add how many distinct texts are the same tokens as another one, as far as they are read."""
    if not lengths.num_cut:
        return lengths
    read_texts = texts(counted_rows(row_N))
    tokenise = TokenizerSource.of(reader.tokenizer).tokenise
    # By their tokens, not their letters: texts that differ in case alone may have been equal before the cut.
    wholes, parts = (_rows_of_tokens(*tokenise(read_texts, most)) for most in (WHOLE, lengths.limit))
    return with_alike(lengths, zip(wholes, parts, strict=True))


def _rows_of_tokens(token_T: np.ndarray, indptr_N1: np.ndarray) -> list[bytes]:
    return [token_T[start:end].tobytes() for start, end in zip(indptr_N1[:-1], indptr_N1[1:], strict=True)]


def document_lengths(
    store: DocumentStore, encoder: RelationEncoderConfig, row_N: np.ndarray | None = None
) -> InputLengths:
    """Count the documents, with markers around their mentions, that are longer than what is read in windows.

    Args:
        store: the documents.
        encoder: what reads them; no weights are loaded.
        row_N: which of them are read; None: all.
    """
    reader = text_reader(encoder, count_by_word=store.count_by_word)
    row_N = np.arange(store.num_rows) if row_N is None else row_N
    row_C = counted_rows(row_N)
    texts = [store.text(row) for row in row_C.tolist()]
    num_mentions_C = np.array([len(store.mentions(row)[0]) for row in row_C.tolist()], np.int64)
    return InputLengths.of(
        "documents",
        "tokens",
        token_lengths(texts, TokenizerSource.of(reader.tokenizer).tokenise) + 2 * num_mentions_C,
        encoder.max_document_tokens,
        setting="encoder.max_length",
        num_rows=len(row_N),
        wanted=encoder.max_length if isinstance(encoder.max_length, int) else None,
        readable=reader.readable,
    )


def check_rows_differ(lengths: InputLengths) -> None:
    """Refuse a cut after which most rows are the same inputs as others: nothing can be learned from them.

    Raises:
        ConfigError: if more than half of the distinct rows are equal to another one.
    """
    if 2 * lengths.num_alike > lengths.num_distinct:
        raise ConfigError(
            f"{lengths.setting} is {lengths.wanted}: {lengths.what} are cut at {lengths.limit:,} of "
            f"{lengths.longest:,} {lengths.unit}, and then {lengths.num_alike:,} of {lengths.num_distinct:,} different "
            f"ones are equal to another; want inputs that differ. Raise {lengths.setting}, choose an encoder with more "
            "positions, or crop the rows to where they differ"
        )
