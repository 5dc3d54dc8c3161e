"""Pairs of entities as an encoder that is trained no more embeds them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from raybio.core.errors import ConfigError
from raybio.encoders.tokenization import OffsetTokenizer
from raybio.methods.mtb_mccl.config import RelationEncoderConfig
from raybio.methods.mtb_mccl.documents.collate import DocumentReader
from raybio.methods.mtb_mccl.documents.input_lengths import document_lengths
from raybio.methods.mtb_mccl.documents.markers import Markers
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.encoder import RelationEncoder, build_relation_encoder, read_parts
from raybio.methods.mtb_mccl.export import SETTINGS
from raybio.methods.mtb_mccl.mccl.classifier import GoldPairs, embed_gold_pairs
from raybio.methods.mtb_mccl.mccl.labelled_pairs import LabelledPairs
from raybio.training.collective import SingleProcess

MAX_TOKENS_AT_ONCE = 16_384


class FrozenEncoder(NamedTuple):
    """An encoder of pairs.

    Attributes:
        model: in evaluation mode.
        max_document_tokens: of a document that is read.
    """

    model: RelationEncoder
    max_document_tokens: int

    def reader(self, store: DocumentStore) -> DocumentReader:
        """The documents of a store as the encoder reads them."""
        tokenizer = OffsetTokenizer.of(self.model.text.tokenizer)
        return DocumentReader(
            store, tokenizer, Markers(**self.model.markers), self.max_document_tokens
        )

    def known(
        self, asked: LabelledPairs, say: Callable[[str], None] = lambda text: None
    ) -> GoldPairs:
        """The pairs of a split that have their label, embedded."""
        say(f"embedding {asked.num_pairs:,} pairs of {len(asked.rows):,} {asked.split} documents")
        return embed_gold_pairs(
            self.model, self.reader(asked.store), asked, SingleProcess(), MAX_TOKENS_AT_ONCE
        )


def load_frozen(source: str) -> FrozenEncoder:
    """The export of a run of ``mtb_pretrain`` or ``relation_finetune``, or any text encoder, by folder or hub id.

    A pair is the plain chain of the states of both entities and their context where nothing has trained a projection.

    Raises:
        ConfigError: if the source cannot be found or reached, is no usable text encoder, or gives no attention.
    """
    config = _frozen_config(source)
    model = build_relation_encoder(config, seed=0).eval()
    return FrozenEncoder(
        model.to("cuda" if torch.cuda.is_available() else "cpu"), config.max_document_tokens
    )


def truncation_remarks(
    source: str, store: DocumentStore, row_N: np.ndarray | None = None
) -> list[str]:
    """Say how many documents ``row_N``, or all, ``load_frozen(source)`` does not read whole; empty if there are none.

    Raises:
        ConfigError: as ``load_frozen``.
    """
    remark = document_lengths(store, _frozen_config(source), row_N).remark
    return [remark] if remark else []


def _frozen_config(source: str) -> RelationEncoderConfig:
    config, settings = RelationEncoderConfig(source=source), Path(source).expanduser() / SETTINGS
    if settings.is_file():
        try:
            told = json.loads(settings.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"--model {source}: {SETTINGS} cannot be read ({error}); want it as exported"
            ) from None
        # Documents are read as in training: in windows as long as the folder says. Exports of mtb_pretrain did not
        # always tell where a document was cut.
        limit = told.get("max_document_tokens", config.max_document_tokens)
        config = config.model_copy(update={"max_length": "auto", "max_document_tokens": limit})
    if "projection.weight" not in read_parts(source):
        config = config.model_copy(update={"projection": "none"})
    return config
