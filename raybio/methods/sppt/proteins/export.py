"""A trained encoder as a folder that ``transformers`` and ``sentence_transformers`` load."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, T5EncoderModel

from raybio.core.records import write_record
from raybio.encoders.export_files import export_folder
from raybio.encoders.lora import merged
from raybio.encoders.model_card import model_card
from raybio.encoders.sentence_folder import write_sentence_files
from raybio.methods.sppt.proteins.encoder import ProteinEncoder
from raybio.methods.sppt.proteins.saved_settings import SETTINGS, ProteinSettings
from raybio.methods.sppt.proteins.tokenizer import build_tokenizer
from raybio.methods.sppt.proteins.vocabulary import Vocabulary

_USAGE = """```python
import torch
from transformers import {model_class}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = {model_class}.from_pretrained("."){part}
{tokenize}
with torch.no_grad():
    states = model(**batch).last_hidden_state
{pool}
```"""

_TOKENIZE = """sequences = ["MKTAYIAKQR", "MVLSPADK"]
batch = tokenizer(sequences, padding=True, truncation=True, return_tensors="pt"{options})"""

_TOKENIZE_AND_POOL = {
    "cls": (_TOKENIZE.format(options=""), "embedding = states[:, 0]"),
    "mean": (
        _TOKENIZE.format(options=", return_special_tokens_mask=True")
        + "\nresidue = 1 - batch.pop('special_tokens_mask')[..., None]",
        "embedding = (states * residue).sum(1) / residue.sum(1)",
    ),
}


def export_encoder(
    encoder: ProteinEncoder,
    directory: str | Path,
    *,
    card: Mapping[str, Any],
    max_tokens: int | None = None,
) -> Path:
    """Write weights (safetensors), configuration, tokenizer and model card.

    The folder appears whole or not at all, and replaces an older export. ``AutoModel``,
    ``AutoModelForMaskedLM`` (``T5EncoderModel`` instead of both for a T5), ``AutoTokenizer``,
    ``SentenceTransformer`` and ``encoder.source`` load it. ``read_protein_settings`` reads pooling
    and length. Adapters of LoRA are merged into the weights.

    Args:
        encoder: the encoder, which is not changed.
        directory: the folder to write.
        card: sections of README.md by title, as values that YAML can hold, such as ``{"Data
            digest": "9f…", "Metrics": {"val/link_mrr": 0.26}, "Configuration": {…}}``. "name" is
            the heading.
        max_tokens: tokens of a sequence in training, special ones included; None: all that the
            encoder reads.

    Returns:
        ``directory``.
    """
    model = merged(encoder.model)
    length = encoder.max_tokens if max_tokens is None else min(max_tokens, encoder.max_tokens)
    tokenizer = build_tokenizer(encoder.vocabulary, max_tokens=length)
    settings = ProteinSettings(encoder.pooling, length)._asdict() | {"is_normalized": False}
    with export_folder(Path(directory)) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        text = _model_card(encoder, model, card, length)
        (folder / "README.md").write_text(text, encoding="utf-8")
        write_record(folder / SETTINGS, "export settings", settings)
        is_mean = encoder.pooling == "mean"
        write_sentence_files(
            folder,
            width=encoder.width,
            pooling=encoder.pooling,
            max_tokens=length,
            # Its mean counts special tokens unless their weight is 0.
            weight_by_token=_weight_by_token(encoder.vocabulary) if is_mean else None,
        )
    return Path(directory)


def _weight_by_token(vocabulary: Vocabulary) -> dict[str, float]:
    """Return 0 for the first and the last special token and 1 for all others, in order of id."""
    token_by_id = {token_id: token for token, token_id in vocabulary.id_by_token.items()}
    edges = (vocabulary.cls_id, vocabulary.eos_id)
    return {
        token_by_id.get(token_id, f"<id {token_id}>"): 0.0 if token_id in edges else 1.0
        for token_id in range(vocabulary.size)
    }


def _model_card(
    encoder: ProteinEncoder, model: PreTrainedModel, card: Mapping[str, Any], max_tokens: int
) -> str:
    return model_card(
        card,
        default_name="Protein encoder",
        tags=["protein", "raybio", "sentence-transformers"],
        facts=_facts(encoder, model, max_tokens),
        usage=_usage(encoder),
    )


def _usage(encoder: ProteinEncoder) -> str:
    tokenize, pool = _TOKENIZE_AND_POOL[encoder.pooling]
    is_t5 = isinstance(encoder.model, T5EncoderModel)
    return _USAGE.format(
        model_class="T5EncoderModel" if is_t5 else "AutoModelForMaskedLM",
        part="" if is_t5 else ".base_model",
        tokenize=tokenize,
        pool=pool,
    )


def _facts(encoder: ProteinEncoder, model: PreTrainedModel, max_tokens: int) -> str:
    config = model.config
    millions = sum(weight.numel() for weight in model.parameters()) / 1e6
    pooled = "the first token's last state"
    if encoder.pooling == "mean":
        pooled = "the mean of the residues' last states"
    return (
        f"A {config.model_type.upper()} protein encoder of {config.num_hidden_layers} layers, "
        f"width {encoder.width} and {millions:.1f} M weights, trained with raybio. It reads "
        f"upper-case residue letters, up to {max_tokens} tokens. A protein's embedding is "
        f"{pooled}, not normalized."
    )
