"""Text encoders in folders, for bulk embedding."""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa

from raybio.core.batch import TokenBatch
from raybio.core.interfaces import Encoder
from raybio.encoders.config import Pooling, TextEncoderConfig
from raybio.encoders.input_lengths import MAX_COUNTED_TEXTS, InputLengths, token_lengths
from raybio.encoders.sentence_folder import read_sentence_folder
from raybio.encoders.text import TextEncoder, TextReader, build_text_encoder, text_reader
from raybio.encoders.tokenization import TokenizerSource, read_texts
from raybio.store.quarantine import Quarantine
from raybio.store.text_lines import read_text_lines
from raybio.training.embedding_model import EmbeddingModel, check_values, settled_pooling


class TextEmbeddingModel(EmbeddingModel):
    """A text encoder in a folder."""

    reads: ClassVar[Literal["proteins", "texts"]] = "texts"
    row_noun: ClassVar[str] = "texts"
    record_kinds: ClassVar[tuple[str, ...]] = ("text",)
    unit: ClassVar[str] = "tokens"

    def read_file(
        self, source: Path, quarantine: Quarantine, *, strip_stop: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns ``key`` and ``content`` (UTF-8) of the good texts of a file."""
        for batch in read_text_lines(source, quarantine):
            content = batch.column("text").cast(pa.large_binary())
            yield pa.record_batch({"key": batch.column("key"), "content": content})

    def contents_of(self, values: Iterable[str]) -> list[bytes]:
        """Return texts in UTF-8."""
        return [text.encode() for text in check_values(values, "texts")]

    def load(self) -> TextEncoder:
        """Load the encoder, in evaluation mode."""
        return build_text_encoder(self._config, seed=0).eval()

    def reader(self, encoder: Encoder, contents: list[bytes]) -> Callable[[np.ndarray], TokenBatch]:
        """Return a function from rows of ``contents`` (M,) to their tokens."""
        assert isinstance(encoder, TextEncoder)
        length = min(self.max_tokens or encoder.max_tokens, encoder.max_tokens)
        source = TokenizerSource.of(encoder.tokenizer)
        tokenize = partial(source.tokenize, max_length=length)

        def read(row_M: np.ndarray) -> TokenBatch:
            return read_texts([contents[row].decode() for row in row_M], tokenize)

        return read

    def input_lengths(self, contents: Iterable[pa.ChunkedArray], num_contents: int) -> InputLengths:
        """Count the texts that are truncated; for many texts, from an evenly spaced sample."""
        reader = self._text_reader
        tokenize = TokenizerSource.of(reader.tokenizer).tokenize
        max_counted = max(1, MAX_COUNTED_TEXTS // num_contents)
        num_rows = 0
        lengths = []
        for content in contents:
            num_rows += len(content)
            step = max(1, -(-len(content) // max_counted))
            sample = content.take(np.arange(0, len(content), step))
            texts = [text.decode() for text in sample.to_pylist()]
            lengths.append(token_lengths(texts, tokenize))
        return InputLengths.of(
            "texts",
            "tokens",
            np.concatenate(lengths),
            reader.max_tokens,
            setting="encoder.max_length",
            num_rows=num_rows,
        )

    @cached_property
    def _text_reader(self) -> TextReader:
        return text_reader(self._config, count_by_word={})

    @property
    def _config(self) -> TextEncoderConfig:
        return TextEncoderConfig(
            source=self.folder,
            pooling=self.pooling,
            normalize=self.is_normalized,
            max_length=self.max_tokens or "auto",
        )


def read_text_embedding_model(path: Path, pooling: Pooling | None) -> TextEmbeddingModel:
    """Read how the text encoder in a folder embeds.

    Args:
        path: written by ``export_text_encoder``, ``save_pretrained`` or sentence_transformers.
        pooling: for a folder that does not state it.

    Raises:
        ConfigError: if the folder's files are malformed, it states no pooling and ``pooling`` is
            None, or it states another one.
    """
    head = read_sentence_folder(str(path), "main")
    if head is None:
        return TextEmbeddingModel(
            str(path), settled_pooling(path, None, pooling), max_tokens=None, is_normalized=False
        )
    return TextEmbeddingModel(
        str(path),
        settled_pooling(path, head.pooling, pooling),
        max_tokens=head.max_tokens,
        is_normalized=head.is_normalized,
    )
