"""Encoder with a task head, its initial weights, and the reader of rows as its tokens.

Shape letters: R sequences, K tokens, L padded length, D width, C classes (1 for a number).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from raybio.core.batch import PackedTokens, Tokens
from raybio.core.interfaces import Encoded, Encoder
from raybio.core.randomness import derive_seed
from raybio.encoders.config import ClsTextEncoderConfig
from raybio.encoders.text import TextEncoder, build_text_encoder
from raybio.encoders.tokenization import TokenizerSource
from raybio.methods.sppt.collate import ReadRows
from raybio.methods.sppt.downstream.config import TASKS, Config, HeadKind
from raybio.methods.sppt.downstream.heads import build_head, resolve_head
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.methods.sppt.proteins.collate import ProteinRows, TokenTable
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import ProteinEncoder, build_protein_encoder
from raybio.methods.sppt.text_encoder import TextRows, read_lengths, tokenize_rows
from raybio.ops.similarity import at_least_fp32

SHARED_SETTINGS = (
    "source",
    "revision",
    "num_layers",
    "width",
    "num_heads",
    "ffn_width",
    "recompute_activations",
    "lora",
    "dropout",
    "pooling",
)
"""Settings of a ``TaskEncoderConfig`` that text and protein encoders have too."""


class TaskModel(Encoder):
    """An encoder with a task head.

    If the task has a class or a number a sequence, ``embedding_RD`` is the input of ``head``. If it
    has a class a token, ``hidden_RLD`` holds the scores of the classes.

    Attributes:
        encoder: the encoder.
        head: maps embeddings to scores; for tokens a head of ``heads`` that takes a mask.
        on_tokens: whether every token has a class.
    """

    def __init__(
        self, encoder: Encoder, head: nn.Module, *, on_tokens: bool, dropout: float
    ) -> None:
        """Wrap an encoder."""
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.on_tokens = on_tokens
        self.width = encoder.width
        self.pad_id = encoder.pad_id
        self.dropout = nn.Dropout(dropout)

    def why_padded(self) -> str:
        """Return why the encoder reads padded tokens only; empty if it reads packed ones, too."""
        return self.encoder.why_padded()

    def forward(self, tokens: Tokens) -> Encoded:
        """Return states, or scores of tokens (C each), and embeddings (R, D)."""
        encoded: Encoded = self.encoder(tokens)
        if not self.on_tokens:
            return Encoded(encoded.hidden_RLD, self.dropout(encoded.embedding_RD))
        hidden = self.dropout(at_least_fp32(encoded.hidden_RLD))
        if isinstance(tokens, PackedTokens):
            # A head may look at neighbors, which end with the sequence.
            scores_SLC = self.head(tokens.to_rectangle(hidden), tokens.mask_SL)
            return Encoded(tokens.from_rectangle(scores_SLC), encoded.embedding_RD)
        return Encoded(self.head(hidden, tokens.mask_RL), encoded.embedding_RD)

    def token_logits(self, hidden_KD: Tensor) -> Tensor:
        """Return the argument: ``forward`` has computed the scores (K, C) of tokens."""
        return hidden_KD


def initial_task_model(config: Config, store: TaskStore) -> TaskModel:
    """Return encoder and head at the start of training.

    Raises:
        ConfigError: if the encoder cannot be loaded, or the head does not fit the task.
    """
    task = TASKS[store.task]
    seed = derive_seed(config.seed, "weights")
    encoder: Encoder
    if task.on_texts:
        encoder = build_text_encoder(
            text_config(config), seed=seed, count_by_word=store.count_by_word
        )
        dropout = config.encoder.dropout or 0.0
    else:
        encoder = build_protein_encoder(protein_config(config), seed=seed)
        _freeze_language_model_head(encoder)
        dropout = 0.0  # TAPE has no dropout before its heads
    on_tokens = task.labels == "residues"
    head = build_head(
        head_kind(config, store),
        encoder.width,
        max(1, len(store.class_names)),
        on_tokens=on_tokens,
        seed=derive_seed(config.seed, "head"),
    )
    return TaskModel(encoder, head, on_tokens=on_tokens, dropout=dropout).train()


def head_kind(config: Config, store: TaskStore) -> HeadKind:
    """Return the kind of head for the task.

    Raises:
        ConfigError: if the configured head does not fit the task.
    """
    task = TASKS[store.task]
    return resolve_head(
        config.encoder.head, on_tokens=task.labels == "residues", on_texts=task.on_texts
    )


def text_config(config: Config) -> ClsTextEncoderConfig:
    """Return the settings of the text encoder."""
    settings = config.encoder.to_mapping()
    sizes = {
        "max_length": settings["max_length"],
        "vocabulary_size": settings["vocabulary_size"],
        "normalize": False,
    }
    return ClsTextEncoderConfig.from_mapping(_shared(settings) | sizes)


def protein_config(config: Config) -> EncoderConfig:
    """Return the settings of the protein encoder."""
    settings = config.encoder.to_mapping()
    sizes = {"max_positions": settings["max_length"]}
    return EncoderConfig.from_mapping(_shared(settings) | sizes)


def _shared(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in SHARED_SETTINGS}


def _freeze_language_model_head(encoder: ProteinEncoder) -> None:
    """Freeze the weights outside the transformer, so that no optimizer state is kept for them.

    Word embeddings that the head is tied to belong to the transformer and stay trainable.
    """
    used = {id(weight) for weight in encoder.model.base_model.parameters()}
    for weight in encoder.model.parameters():
        if id(weight) not in used:
            weight.requires_grad_(False)


def row_reader(config: Config, store: TaskStore, model: TaskModel) -> tuple[ReadRows, str]:
    """Return the reader of rows as tokens, and the fingerprint of its vocabulary."""
    encoder = model.encoder
    if isinstance(encoder, ProteinEncoder):
        max_tokens = min(config.encoder.max_length, encoder.max_tokens)
        rows = ProteinRows(store, TokenTable.of(encoder.vocabulary), max_tokens)
        return rows, encoder.vocabulary.fingerprint
    assert isinstance(encoder, TextEncoder)
    source = TokenizerSource.of(encoder.tokenizer)
    tokenize = partial(source.tokenize, max_length=encoder.max_tokens)
    # Nothing is masked, so no mask token and no ordinary tokens are needed.
    texts = TextRows(
        partial(tokenize_rows, store, tokenize),
        partial(read_lengths, store, encoder.max_tokens),
        -1,
        source.special_ids,
        np.empty(0, np.int64),
    )
    return texts, source.fingerprint
