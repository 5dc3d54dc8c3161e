"""A tiny CharacterBERT in its authors' format: a pickle, BERT's settings, their weight names."""

import json
from pathlib import Path

import torch
from torch import Tensor
from transformers import BertConfig

from raybio.encoders.transformer import seeded_weights
from raybio.methods.relation_graphs.encoders.character_bert.model import (
    CLS_ID,
    FIRST_WORD_ID,
    PAD_ID,
    SEP_ID,
    CharacterBert,
)

WIDTH, LAYERS, FFN, POSITIONS = 8, 3, 12, 16
CHARACTER_WIDTH, FILTERS, HIGHWAYS = 4, ((1, 3), (2, 4), (7, 5)), 2
CONFIG = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.2,
    "hidden_size": WIDTH,
    "initializer_range": 0.02,
    "intermediate_size": FFN,
    "max_position_embeddings": POSITIONS,
    "num_attention_heads": 2,
    "num_hidden_layers": LAYERS,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
# Theirs have none of these: the published sizes stand in their code.
TINY_CHARACTERS = {"character_embedding_dim": CHARACTER_WIDTH, "character_cnn_filters": FILTERS}
WORDS = ["aspirin", "induced", "β-blocker", "a", "fever", "induced-hepatotoxicity" * 3]


def tiny(**settings) -> CharacterBert:
    encoder = random_character_bert(**settings).eval()
    encoder.read_words(WORDS)
    return encoder


def random_character_bert(
    *,
    seed: int = 0,
    num_layers=2,
    width=8,
    ffn_width=12,
    max_tokens=16,
    filters=FILTERS,
    dropout=0.1,
) -> CharacterBert:
    config = BertConfig(
        vocab_size=1,
        num_hidden_layers=num_layers,
        hidden_size=width,
        num_attention_heads=2,
        intermediate_size=ffn_width,
        max_position_embeddings=max_tokens,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        attn_implementation="sdpa",
        character_embedding_dim=16,
        character_cnn_filters=filters,
        num_highway_layers=HIGHWAYS,
    )
    with seeded_weights(seed):
        return CharacterBert(config)


def sentences(*rows: list[int], length: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask of sentences given by the numbers of their words."""
    token_RL = torch.full((len(rows), length), PAD_ID)
    for place, row in enumerate(rows):
        ids = [CLS_ID, *(word + FIRST_WORD_ID for word in row), SEP_ID]
        token_RL[place, : len(ids)] = torch.tensor(ids)
    return token_RL, token_RL != PAD_ID


def published_shapes() -> dict[str, tuple[int, ...]]:
    """The authors' names, pooler included, and the shapes that go with this file's sizes."""
    words = "embeddings.word_embeddings"
    num_filters = sum(number for _, number in FILTERS)
    shapes: dict[str, tuple[int, ...]] = {
        f"{words}._char_embedding_weights": (263, CHARACTER_WIDTH)
    }
    for kind, (seen, number) in enumerate(FILTERS):
        shapes[f"{words}.char_conv_{kind}.weight"] = (number, CHARACTER_WIDTH, seen)
        shapes[f"{words}.char_conv_{kind}.bias"] = (number,)
    for layer in range(HIGHWAYS):
        shapes |= _linear(f"{words}._highways._layers.{layer}", num_filters, 2 * num_filters)
    shapes |= _linear(f"{words}._projection", num_filters, WIDTH)
    shapes["embeddings.position_embeddings.weight"] = (POSITIONS, WIDTH)
    shapes["embeddings.token_type_embeddings.weight"] = (2, WIDTH)
    shapes |= _norm("embeddings.LayerNorm")
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            shapes |= _linear(f"{name}.attention.self.{part}", WIDTH, WIDTH)
        shapes |= _linear(f"{name}.attention.output.dense", WIDTH, WIDTH) | _norm(
            f"{name}.attention.output.LayerNorm"
        )
        shapes |= _linear(f"{name}.intermediate.dense", WIDTH, FFN)
        shapes |= _linear(f"{name}.output.dense", FFN, WIDTH) | _norm(f"{name}.output.LayerNorm")
    return shapes | _linear("pooler.dense", WIDTH, WIDTH)


def published_tensors(prefix: str = "") -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        prefix + name: torch.randn(shape, generator=generator)
        for name, shape in published_shapes().items()
    }


def write_published(folder: Path, tensors: dict[str, Tensor], config: dict | None = None) -> Path:
    """``config.json`` and ``pytorch_model.bin``."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps(CONFIG | TINY_CHARACTERS if config is None else config)
    )
    torch.save(tensors, folder / "pytorch_model.bin")
    return folder


def write_hub(folder: Path, tensors: dict[str, Tensor], **settings: object) -> Path:
    """Write the files of helboukkouri/character-bert-medical: settings of its own type, two heads.

    Args:
        folder: where they go.
        tensors: the encoder's, whose names begin with ``character_bert.``
        settings: sizes that differ.
    """
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    sizes = {
        "architectures": ["CharacterBertForPreTraining"],
        "model_type": "character_bert",
        "character_embeddings_dim": CHARACTER_WIDTH,
        "cnn_activation": "relu",
        "cnn_filters": FILTERS,
        "num_highway_layers": HIGHWAYS,
        "max_word_length": 50,
        "mlm_vocab_size": len(words),
        "tie_word_embeddings": False,
    }
    config = CONFIG | sizes | settings
    del config["vocab_size"]
    head = "cls.predictions"
    shapes = _linear(f"{head}.transform.dense", WIDTH, WIDTH) | _norm(f"{head}.transform.LayerNorm")
    shapes |= _linear(f"{head}.decoder", WIDTH, len(words)) | {f"{head}.bias": (len(words),)}
    shapes |= _linear("cls.seq_relationship", WIDTH, 2)
    heads = {name: torch.zeros(shape) for name, shape in shapes.items()}
    positions = torch.arange(config["max_position_embeddings"])[None]
    heads["character_bert.embeddings.position_ids"] = positions
    write_published(folder, tensors | heads, config)
    (folder / "mlm_vocab.txt").write_text("\n".join(words))
    (folder / "vocab.txt").write_text("\n".join(words))
    (folder / "special_tokens_map.json").write_text('{"mask_token": "[MASK]"}')
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    return folder


def _linear(name: str, inner: int, outer: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outer, inner), f"{name}.bias": (outer,)}


def _norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}
