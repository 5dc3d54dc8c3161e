"""Encoder settings that MTB and MCCL share, and their paper."""

from typing import Literal

from pydantic import Field

from raybio.encoders.config import TextEncoderConfig

CITATION = (
    "Zhou, Zhang, Naumann, Chen, Poon. *Continual Contrastive Finetuning Improves Low-Resource "
    "Relation Extraction.* ACL 2023. Preprint: arXiv:2212.10823."
)


class RelationEncoderConfig(TextEncoderConfig):
    """The encoder of documents, and how it builds the embedding of an entity pair."""

    max_length: int | Literal["auto"] = Field(
        default=512,
        description="tokens per window, special tokens included; longer documents are read in "
        "overlapping windows, up to max_document_tokens",
    )
    max_document_tokens: int = Field(
        1022,
        ge=8,
        description="tokens per document, markers and special tokens included; longer documents "
        "are truncated",
    )
    projection: Literal["linear", "none"] = Field(
        "linear",
        description="embedding of a pair: a linear map of both entities and their context, or "
        "their concatenation",
    )
