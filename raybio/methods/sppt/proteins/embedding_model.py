"""Protein encoders in folders, for bulk embedding."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from transformers import AutoTokenizer

from raybio.core.batch import IGNORED_LABEL, TokenBatch
from raybio.core.errors import DataError
from raybio.core.interfaces import Encoder
from raybio.encoders.checkpoints import load_pretrained
from raybio.encoders.config import Pooling
from raybio.encoders.input_lengths import InputLengths
from raybio.encoders.sentence_folder import read_sentence_folder
from raybio.methods.sppt.config import DEFAULT_MAX_LENGTH
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import (
    ProteinEncoder,
    build_protein_encoder,
    max_tokens_of,
    vocabulary_of,
)
from raybio.methods.sppt.proteins.formats.fasta import read_fasta
from raybio.methods.sppt.proteins.formats.residues import LETTERS, PROTEIN_SCHEMA, clean
from raybio.methods.sppt.proteins.saved_settings import SETTINGS, read_protein_settings
from raybio.methods.sppt.proteins.tape_checkpoint import readable_source
from raybio.methods.sppt.proteins.tokenizer import vocabulary_of_tokenizer
from raybio.store.data_sets import is_table
from raybio.store.quarantine import Quarantine
from raybio.store.table_rows import read_input_rows
from raybio.training.embedding_model import EmbeddingModel, check_values, settled_pooling


class ProteinEmbeddingModel(EmbeddingModel):
    """A folder of a protein encoder; its embeddings are never normalized."""

    reads: ClassVar[Literal["proteins", "texts"]] = "proteins"
    row_noun: ClassVar[str] = "proteins"
    record_kinds: ClassVar[tuple[str, ...]] = ("protein",)
    unit: ClassVar[str] = "residues"

    def read_file(
        self, source: Path, quarantine: Quarantine, *, strip_stop: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns ``key`` and ``content`` (residue letters) of the good records."""
        for batch in _read_proteins(source, quarantine, strip_stop=strip_stop):
            content = batch.column("sequence").cast(pa.large_binary())
            yield pa.record_batch({"key": batch.column("key"), "content": content})

    def contents_of(self, values: Iterable[str]) -> list[bytes]:
        """Return sequences of residue letters in upper case."""
        contents = []
        for number, value in enumerate(check_values(values, "sequences")):
            sequence = "".join(value.split()).upper()
            strange = sorted(set(sequence) - set(LETTERS.decode()))
            if strange or not sequence:
                got = f"the letter {strange[0]!r}" if strange else "no letter"
                raise DataError(
                    f"input {number}: got {got} in {value!r:.60}, want a protein's residues, the "
                    "letters A to Z. Remove other symbols, such as the stop '*'"
                )
            contents.append(sequence.encode())
        return contents

    def load(self) -> ProteinEncoder:
        """Load the encoder, in evaluation mode."""
        return build_protein_encoder(self._config, seed=0).eval()

    def reader(self, encoder: Encoder, contents: list[bytes]) -> Callable[[np.ndarray], TokenBatch]:
        """Return a function from rows of ``contents`` (M,) to their tokens."""
        assert isinstance(encoder, ProteinEncoder)
        vocabulary = encoder.vocabulary
        length = min(self.max_tokens or encoder.max_tokens, encoder.max_tokens)
        num_residues = length - vocabulary.num_special_per_sequence

        def read(row_M: np.ndarray) -> TokenBatch:
            token_lists = [
                vocabulary.encode(contents[row][:num_residues]).astype(np.int64) for row in row_M
            ]
            token_T = torch.from_numpy(np.concatenate(token_lists))
            indptr_M1 = torch.from_numpy(np.cumsum([0, *map(len, token_lists)]))
            return TokenBatch(token_T, indptr_M1, torch.full_like(token_T, IGNORED_LABEL))

        return read

    def input_lengths(self, contents: Iterable[pa.ChunkedArray], num_contents: int) -> InputLengths:
        """Count the sequences that are longer than the encoder reads."""
        readable = max_tokens_of(self._config)
        max_tokens = min(self.max_tokens or readable, readable)
        limit = max_tokens - vocabulary_of(self._config).num_special_per_sequence
        length_N = np.concatenate([pc.binary_length(content).to_numpy() for content in contents])
        return InputLengths.of("sequences", "residues", length_N, limit, setting="input.max_length")

    def shown_tokens(self, encoder: Encoder, token_T: torch.Tensor) -> torch.Tensor:
        """Return which tokens are residues."""
        assert isinstance(encoder, ProteinEncoder)
        return encoder.is_residue(token_T)

    @property
    def _config(self) -> EncoderConfig:
        config = EncoderConfig(source=self.folder, pooling=self.pooling)
        if self.max_tokens is None:
            return config
        # An encoder with rotary positions has no limit of its own.
        return config.model_copy(update={"max_positions": max(8, self.max_tokens)})


def _read_proteins(
    source: Path, quarantine: Quarantine, *, strip_stop: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the good records of a FASTA file, or of a table with a column "sequence"."""
    if not is_table(source):
        yield from read_fasta(source, quarantine, strip_stop=strip_stop)
        return
    for rows in read_input_rows(source, "sequence"):
        sequences = ["".join(sequence.split()).encode() for sequence in rows.contents]
        columns = [
            pa.array(rows.keys, pa.string()),
            pa.array([""] * len(sequences), pa.string()),
            pa.array(sequences, pa.large_binary()),
            pa.array(rows.lines, pa.int64()),
        ]
        batch = pa.record_batch(columns, schema=PROTEIN_SCHEMA)
        yield clean(
            batch,
            quarantine,
            source.name,
            strip_stop=strip_stop,
            max_length=DEFAULT_MAX_LENGTH,
        )


def read_embedding_model(path: Path, pooling: Pooling | None) -> ProteinEmbeddingModel | None:
    """Read how the protein encoder in a folder embeds; None if the folder holds no protein encoder.

    Args:
        path: written by ``export_encoder``, ``save_pretrained`` or sentence_transformers.
        pooling: for a folder that does not state it.

    Raises:
        ConfigError: if the folder's files are malformed, it states no pooling and ``pooling`` is
            None, or it states another one.
    """
    if not (path / SETTINGS).is_file() and not _reads_residues(path):
        return None
    settings = read_protein_settings(path)
    stated = None if settings is None else settings.pooling
    max_tokens = None if settings is None else settings.max_tokens
    return ProteinEmbeddingModel(
        str(path),
        settled_pooling(path, stated, pooling),
        max_tokens=max_tokens or _tokenizer_limit(path),
        is_normalized=False,
    )


def _reads_residues(folder: Path) -> bool:
    head = read_sentence_folder(str(folder), "main", with_head=False)
    tokenizer = load_pretrained(
        AutoTokenizer,
        *readable_source(str(folder), "main"),
        subfolder=head.subfolder if head else "",
    )
    try:
        vocabulary = vocabulary_of_tokenizer(tokenizer)
    except ValueError:
        return False
    # The cased tokenizer of a text encoder has all capital letters too, but also words.
    return not any(len(token) > 1 and token.isalpha() for token in vocabulary.id_by_token)


def _tokenizer_limit(folder: Path) -> int | None:
    """Return the maximum tokens that the folder's tokenizer states; None if it states none."""
    source, revision = readable_source(str(folder), "main")
    length = load_pretrained(AutoTokenizer, source, revision).model_max_length
    # transformers has 1e30 where nothing is stated.
    return int(length) if length < 1e9 else None
