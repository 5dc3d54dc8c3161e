"""A trained encoder as a folder that ``transformers`` and ``sentence_transformers`` load without raybio."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from raybio.encoders.model_card import model_card
from raybio.encoders.protein import ProteinEncoder
from raybio.encoders.sentence_folder import Pooling, read_sentence_folder, write_sentence_files
from raybio.encoders.tokenizer import build_tokenizer
from raybio.errors import ConfigError
from raybio.folders import whole_folder

SETTINGS = "protein.json"
"""How the encoder was used in training: sentence_transformers has no word for a mean over residues alone."""

_USAGE = """```python
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModelForMaskedLM.from_pretrained(".").base_model
{tokenize}
with torch.no_grad():
    states = model(**batch).last_hidden_state
{pool}
```"""

_TOKENIZE = 'batch = tokenizer(["MKTAYIAKQR", "MVLSPADK"], padding=True, truncation=True, return_tensors="pt"{options})'

_USAGE_BY_POOLING = {
    "cls": _USAGE.format(tokenize=_TOKENIZE.format(options=""), pool="embedding = states[:, 0]"),
    "mean": _USAGE.format(
        tokenize=_TOKENIZE.format(options=", return_special_tokens_mask=True")
        + "\nresidue = 1 - batch.pop('special_tokens_mask')[..., None]",
        pool="embedding = (states * residue).sum(1) / residue.sum(1)",
    ),
}


class ProteinSettings(NamedTuple):
    """How a protein encoder turns sequences into embeddings, which are not normalised.

    Attributes:
        pooling: "cls", or "mean" over residues.
        max_tokens: tokens of a sequence, special ones included; longer ones lose their end. None: not stated.
    """

    pooling: Pooling
    max_tokens: int | None


def read_protein_settings(folder: str | Path) -> ProteinSettings | None:
    """Read how a folder's protein encoder embeds; None if the folder does not say.

    Args:
        folder: written by ``export_encoder``, or by sentence_transformers.

    Raises:
        ConfigError: if the files are malformed, or ask for something that ``ProteinEncoder`` does not compute.
    """
    path = Path(folder) / SETTINGS
    if path.is_file():
        return _read_own(path)
    head = read_sentence_folder(str(folder), "main")
    if head is None or head.pooling is None:
        return None
    if head.pooling == "mean" or head.is_normalised:
        raise ConfigError(
            f"{folder}: modules.json wants the mean over all tokens, or embeddings of length 1. Protein embeddings "
            "are the first token's state or the mean over residues. Use a folder without modules.json and --pooling"
        )
    return ProteinSettings(head.pooling, head.max_tokens)


def _read_own(path: Path) -> ProteinSettings:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        settings = ProteinSettings(content["pooling"], content["max_tokens"])
        is_valid = settings.pooling in ("cls", "mean") and type(settings.max_tokens) is int and settings.max_tokens > 2
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); export the run again") from None
    if not is_valid or content.get("is_normalised", False) is not False:
        raise ConfigError(
            f"{path}: got {content}, want pooling cls or mean, max_tokens above 2 and is_normalised false; export the "
            "run again"
        )
    return settings


def export_encoder(
    encoder: ProteinEncoder, directory: str | Path, *, card: Mapping[str, Any], max_tokens: int | None = None
) -> Path:
    """Write weights (safetensors), configuration, tokenizer and model card; an older export is replaced.

    The folder appears whole or not at all. ``AutoModel``, ``AutoModelForMaskedLM`` and ``AutoTokenizer`` load it, and
    so does ``encoder.source``. With pooling "cls" ``SentenceTransformer`` does too; its mean pooling would count
    special tokens, so for pooling "mean" its files are left out. ``read_protein_settings`` reads pooling and length.

    Args:
        encoder: what to export; not changed.
        directory: the folder to write.
        card: sections of README.md by title, as values that YAML can hold, such as ``{"Data digest": "9f…",
            "Metrics": {"val/link_mrr": 0.26}, "Configuration": {…}}``. "name" is the heading.
        max_tokens: tokens of a sequence in training, special ones included; None: all that the encoder reads.

    Returns:
        ``directory``.
    """
    length = encoder.max_tokens if max_tokens is None else min(max_tokens, encoder.max_tokens)
    tokenizer = build_tokenizer(encoder.vocabulary, max_tokens=length)
    settings = ProteinSettings(encoder.pooling, length)._asdict() | {"is_normalised": False}
    with whole_folder(Path(directory)) as folder:
        encoder.model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "README.md").write_text(_model_card(encoder, card, length), encoding="utf-8")
        (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        if encoder.pooling == "cls":
            write_sentence_files(folder, width=encoder.width, pooling="cls", max_tokens=length)
    return Path(directory)


def _model_card(encoder: ProteinEncoder, card: Mapping[str, Any], max_tokens: int) -> str:
    return model_card(
        card,
        default_name="Protein encoder",
        tags=["protein", "raybio"] + (["sentence-transformers"] if encoder.pooling == "cls" else []),
        facts=_facts(encoder, max_tokens),
        usage=_USAGE_BY_POOLING[encoder.pooling],
    )


def _facts(encoder: ProteinEncoder, max_tokens: int) -> str:
    config = encoder.model.config
    millions = sum(weight.numel() for weight in encoder.parameters()) / 1e6
    pooled = "the first token's last state" if encoder.pooling == "cls" else "the mean of the residues' last states"
    return (
        f"A {config.model_type.upper()} protein encoder of {config.num_hidden_layers} layers, width {encoder.width} "
        f"and {millions:.1f} M weights, trained with raybio. It reads upper-case residue letters, up to "
        f"{max_tokens} tokens. A protein's embedding is {pooled}, not normalised."
    )
