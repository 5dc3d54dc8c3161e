"""Pooling and length of a protein encoder, as its folder states them."""

from pathlib import Path
from typing import Any, NamedTuple

from raybio.core.errors import ConfigError
from raybio.core.records import export_record
from raybio.encoders.config import Pooling
from raybio.encoders.sentence_folder import read_sentence_folder
from raybio.encoders.sources import fetch_file

SETTINGS = "protein.json"
"""File of an export with its pooling and length.

Files of sentence_transformers state the mean over residues as weights of tokens.
"""


class ProteinSettings(NamedTuple):
    """Pooling and length of a protein encoder. Its embeddings are not normalized.

    Attributes:
        pooling: "cls", or "mean" over residues.
        max_tokens: tokens of a sequence, special ones included; longer ones are cut at their end.
            None: not stated.
    """

    pooling: Pooling
    max_tokens: int | None


def read_protein_settings(folder: str | Path, revision: str = "main") -> ProteinSettings | None:
    """Read how a folder's protein encoder embeds; None if the folder does not state it.

    Args:
        folder: written by ``export_encoder``, or by sentence_transformers; or a hub id.
        revision: of a hub id.

    Raises:
        ConfigError: if the files are malformed, or state something that ``ProteinEncoder`` does
            not compute.
    """
    path = fetch_file(str(folder), SETTINGS, revision)
    if path is not None:
        with export_record(path, "export settings", "sppt_protein") as content:
            return _own_settings(content)
    head = read_sentence_folder(str(folder), revision)
    if head is None or head.pooling is None:
        return None
    if head.pooling == "mean" or head.is_normalized:
        raise ConfigError(
            f"{folder}: modules.json wants the mean over all tokens, or embeddings of length 1. "
            "Protein embeddings are the first token's state or the mean over residues. Use a "
            "folder without modules.json and --pooling"
        )
    return ProteinSettings(head.pooling, head.max_tokens)


def _own_settings(content: dict[str, Any]) -> ProteinSettings:
    settings = ProteinSettings(content["pooling"], content["max_tokens"])
    is_valid = (
        settings.pooling in ("cls", "mean")
        and type(settings.max_tokens) is int
        and settings.max_tokens > 2
    )
    if not is_valid or content.get("is_normalized", False) is not False:
        raise ConfigError(
            f"got {content}, want pooling cls or mean, max_tokens above 2 and is_normalized false"
        )
    return settings
