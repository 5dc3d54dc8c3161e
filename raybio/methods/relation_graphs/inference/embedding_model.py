"""Bulk embedding of the words of new sentences, by an exported model."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from raybio.core.interfaces import Encoder
from raybio.methods.relation_graphs.encoder import WordEncoder
from raybio.methods.relation_graphs.encoders.embed_words import embed_words
from raybio.methods.relation_graphs.encoders.word_model import read_export_settings, trained_encoder
from raybio.methods.relation_graphs.encoders.word_reader import WordReader
from raybio.methods.relation_graphs.formats import SENTENCE
from raybio.methods.relation_graphs.inference.new_sentences import NewSentence
from raybio.methods.relation_graphs.inference.predict import (
    good_sentences,
    sentence_blocks,
    sentence_length,
    stored_sentences,
)
from raybio.store.quarantine import Quarantine
from raybio.training.collective import SingleProcess
from raybio.training.embed import check_embeddings
from raybio.training.embedding_model import MAX_TOKENS_AT_ONCE, InputEmbedder, embedding_column


@dataclass(frozen=True)
class WordEmbedder(InputEmbedder):
    """An export of ``relation_graphs``; sentences that are too long are skipped, not cut."""

    reads: ClassVar[str] = "sentences"
    row_noun: ClassVar[str] = "words"
    record_kinds: ClassVar[tuple[str, ...]] = (SENTENCE, "text")

    def read_file(
        self, source: Path, quarantine: Quarantine, *, strip_stop: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns ``key`` and ``content`` (words as JSON) of the good sentences of a file.

        Args:
            source: as ``read_sentences`` takes it.
            quarantine: collects the sentences that are skipped.
            strip_stop: ignored.
        """
        config, _ = read_export_settings(self.folder)
        length = sentence_length(config, Path(self.folder))
        for block in sentence_blocks(good_sentences([source], length, quarantine)):
            contents = [json.dumps(sentence.words).encode() for sentence in block]
            keys = pa.array([sentence.key for sentence in block], pa.string())
            yield pa.record_batch({"key": keys, "content": pa.array(contents, pa.large_binary())})

    def load(self) -> WordEncoder:
        """Load the encoder, in evaluation mode."""
        config, _ = read_export_settings(self.folder)
        return trained_encoder(config, Path(self.folder)).eval()

    def truncation_remark(self, contents: Iterable[pa.ChunkedArray], num_contents: int) -> str:
        """Return "": nothing is cut."""
        return ""

    def embed_table(
        self, encoder: Encoder, keys: pa.ChunkedArray, contents: list[bytes], dtype: np.dtype
    ) -> pa.Table:
        """Return columns ``key``, ``word`` (number, from 0), ``text`` and ``embedding``."""
        assert isinstance(encoder, WordEncoder)
        config, _ = read_export_settings(self.folder)
        sentences = [
            NewSentence.of_words(key, json.loads(content), number)
            for number, (key, content) in enumerate(
                zip(keys.to_pylist(), contents, strict=True), start=1
            )
        ]
        with stored_sentences(sentences) as store:
            tokens = encoder.word_tokens(store.words, config.encoder)
            reader = WordReader(store, tokens, encoder.max_tokens)
            rows = np.arange(store.num_rows)
            word_WD = embed_words(
                encoder, reader, rows, SingleProcess(), max_tokens=MAX_TOKENS_AT_ONCE
            )
        check_embeddings(word_WD, self.folder)
        counts = [len(sentence.words) for sentence in sentences]
        return pa.table(
            {
                "key": keys.take(pa.array(np.repeat(rows, counts))),
                "word": np.concatenate([np.arange(count) for count in counts]),
                "text": [word for sentence in sentences for word in sentence.words],
                "embedding": embedding_column(word_WD.cpu().numpy(), dtype),
            }
        )

    def __str__(self) -> str:
        """Describe in a line what is done with an input."""
        return f"{self.folder} (sentences): each word in its context"


def read_embedder(folder: Path) -> WordEmbedder:
    """Read an export of ``relation_graphs``, without its weights.

    Raises:
        ConfigError: if its records are damaged.
    """
    read_export_settings(folder)
    return WordEmbedder(str(folder))
