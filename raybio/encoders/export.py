"""A trained text encoder as a folder for ``sentence_transformers`` and ``transformers``."""

import copy
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from raybio.encoders.export_files import export_folder
from raybio.encoders.lora import merged
from raybio.encoders.mlm_head import MASK_HEAD_FILE
from raybio.encoders.model_card import model_card
from raybio.encoders.sentence_folder import write_sentence_files
from raybio.encoders.text import TextEncoder

_USAGE = """```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("."{library_options})
embedding = model.encode(["Asthma in early life.", "Hypersensitivity"])
```

Without sentence_transformers:

```python
import torch
from transformers import AutoModel, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModel.from_pretrained("."{options})
texts = ["Asthma in early life.", "Hypersensitivity"]
batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
with torch.no_grad():
    states = model(**batch).last_hidden_state
{pool}
```"""


_POOL = {
    "cls": "embedding = states[:, 0]",
    "mean": "token = batch.attention_mask[..., None]\n"
    "embedding = (states * token).sum(1) / token.sum(1)",
}


_NORMALIZE = "\nembedding = torch.nn.functional.normalize(embedding)"


def export_text_encoder(
    encoder: TextEncoder, directory: str | Path, *, card: Mapping[str, Any]
) -> Path:
    """Write weights, configuration, tokenizer and model card; replace an older export.

    The folder appears whole or not at all. ``SentenceTransformer(folder).encode`` returns the
    encoder's embeddings; ``AutoModel``, ``AutoTokenizer`` and ``encoder.source`` load the folder,
    the last with its pooling and normalization. LoRA adapters are merged into the weights. A
    learned temperature is not exported. A head of masked language modeling goes to a separate
    file, which ``encoder.source`` reads and other programs ignore.

    Args:
        encoder: the encoder; it is not changed.
        directory: the folder to write.
        card: sections of README.md by title, as values that YAML can hold; "name" is the heading.

    Returns:
        ``directory``.
    """
    model = merged(encoder.model)
    with export_folder(Path(directory)) as folder:
        model.save_pretrained(folder)
        plain_tokenizer(encoder).save_pretrained(folder)
        if encoder.mask_head is not None:
            head = {
                name: weight.detach().cpu().contiguous()
                for name, weight in encoder.mask_head.state_dict().items()
            }
            save_file(head, folder / MASK_HEAD_FILE)
        text = model_card(
            card,
            default_name="Text encoder",
            tags=["sentence-transformers", "sentence-similarity", "raybio"],
            facts=_facts(encoder, model),
            usage=_usage(encoder),
        )
        (folder / "README.md").write_text(text, encoding="utf-8")
        write_sentence_files(
            folder,
            width=encoder.width,
            pooling=encoder.pooling,
            max_tokens=encoder.max_tokens,
            is_normalized=encoder.is_normalized,
        )
    return Path(directory)


def _usage(encoder: TextEncoder) -> str:
    """Return code that computes the encoder's embeddings.

    Architectures with a pooler are loaded without it: the file does not have it, and transformers
    would warn.
    """
    has_pooler = "add_pooling_layer" in inspect.signature(type(encoder.model).__init__).parameters
    return _USAGE.format(
        library_options=', model_kwargs={"add_pooling_layer": False}' if has_pooler else "",
        options=", add_pooling_layer=False" if has_pooler else "",
        pool=_POOL[encoder.pooling] + (_NORMALIZE if encoder.is_normalized else ""),
    )


def plain_tokenizer(encoder: TextEncoder) -> PreTrainedTokenizerFast:
    """Return the tokenizer without an architecture's class, which could lose its lowercasing."""
    tokenizer = encoder.tokenizer
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.no_truncation()
    backend.no_padding()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=encoder.max_tokens,
        padding_side="right",
        truncation_side=tokenizer.truncation_side,
        # No segment ids, as in training: XLNet's tokenizer would add some, which change its states.
        model_input_names=["input_ids", "attention_mask"],
        **tokenizer.special_tokens_map,
    )


def _facts(encoder: TextEncoder, model: PreTrainedModel) -> str:
    config = model.config
    millions = sum(weight.numel() for weight in model.parameters()) / 1e6
    pooled = (
        "the first token's last state"
        if encoder.pooling == "cls"
        else "the mean of its tokens' last states"
    )
    return (
        f"A {config.model_type.upper()} text encoder of {config.num_hidden_layers} layers, width "
        f"{encoder.width} and {millions:.1f} M weights, trained with raybio. It reads up to "
        f"{encoder.max_tokens} tokens of a text, special ones included. The embedding is {pooled}, "
        f"{'scaled to length 1' if encoder.is_normalized else 'not scaled'}."
    )
