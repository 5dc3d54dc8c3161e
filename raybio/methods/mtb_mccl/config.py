"""Settings that MTB and MCCL share."""

from typing import Literal

from pydantic import Field

from raybio.encoders.config import TextEncoderConfig


class RelationEncoderConfig(TextEncoderConfig):
    """Which encoder reads documents, and how a pair is made of it."""

    max_length: int | Literal["auto"] = Field(
        default=512,
        description="tokens that are read at once, special ones included; longer documents are read in overlapping "
        "windows, up to max_document_tokens",
    )
    max_document_tokens: int = Field(
        1022,
        ge=8,
        description="tokens of a document, markers and special ones included; longer ones are cut",
    )
    projection: Literal["linear", "none"] = Field(
        "linear",
        description="how a pair is made of two entities and their context: a linear map, or their plain chain",
    )
