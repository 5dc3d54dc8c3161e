"""Encoders that are no longer trained: our exports, or any text encoder."""

from typing import NamedTuple

import numpy as np

from raybio.core.errors import ConfigError, RecordError
from raybio.core.records import read_record
from raybio.encoders.config import SCRATCH
from raybio.encoders.sources import fetch_file
from raybio.encoders.tokenization import OffsetTokenizer
from raybio.methods.mtb_mccl.config import RelationEncoderConfig
from raybio.methods.mtb_mccl.documents.collate import DocumentReader
from raybio.methods.mtb_mccl.documents.input_lengths import document_lengths
from raybio.methods.mtb_mccl.documents.markers import Markers
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.encoder import RelationEncoder, build_relation_encoder, read_parts
from raybio.methods.mtb_mccl.export import SETTINGS
from raybio.training.precision import default_device


class FrozenEncoder(NamedTuple):
    """An encoder of entity pairs.

    Attributes:
        model: the encoder in evaluation mode.
        max_document_tokens: longer documents are truncated.
    """

    model: RelationEncoder
    max_document_tokens: int

    def reader(self, store: DocumentStore) -> DocumentReader:
        """Return a reader of the store's documents for this encoder."""
        tokenizer = OffsetTokenizer.of(self.model.text.tokenizer)
        markers = Markers(**self.model.markers)
        return DocumentReader(store, tokenizer, markers, self.max_document_tokens)


def load_frozen(source: str) -> FrozenEncoder:
    """Load an export of ``mtb_pretrain`` or ``relation_finetune``, or any text encoder.

    Without a trained projection, the embedding of a pair is the concatenation of both entities and
    their context.

    Args:
        source: folder or hub id.

    Raises:
        ConfigError: if the source cannot be found or reached, is no usable text encoder, or does
            not return its attention.
    """
    config = frozen_config(source)
    model = build_relation_encoder(config, seed=0).eval()
    device = default_device()
    return FrozenEncoder(model.to(device), config.max_document_tokens)


def truncation_remarks(
    source: str, store: DocumentStore, row_N: np.ndarray | None = None
) -> list[str]:
    """Return a remark on the documents that ``load_frozen(source)`` truncates; empty if none.

    Args:
        source: folder or hub id.
        store: the documents.
        row_N: rows of the documents; None: all.

    Raises:
        ConfigError: as ``load_frozen``.
    """
    remark = document_lengths(store, frozen_config(source), row_N).remark
    return [remark] if remark else []


def frozen_config(source: str) -> RelationEncoderConfig:
    """Return the settings by which ``load_frozen`` loads an encoder.

    Args:
        source: folder or hub id.

    Raises:
        ConfigError: if the source cannot be found or reached, or its records are damaged.
    """
    config = RelationEncoderConfig(source=source)
    path = None if source == SCRATCH else fetch_file(source, SETTINGS, config.revision)
    try:
        settings = None if path is None else read_record(path, "export settings")
    except RecordError as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(
            f"--model {source}: {SETTINGS} cannot be read ({error}); want it as exported"
        ) from None
    if settings is not None:
        # Read documents as in training: the window length is that of the folder.
        limit = settings.get("max_document_tokens", config.max_document_tokens)
        config = config.model_copy(update={"max_length": "auto", "max_document_tokens": limit})
    if "projection.weight" not in read_parts(source, config.revision):
        config = config.model_copy(update={"projection": "none"})
    return config
