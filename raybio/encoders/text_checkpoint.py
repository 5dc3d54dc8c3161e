"""Trained text encoders from a folder or the hub: safetensors only, without foreign code."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer, normalizers
from torch import nn
from transformers import (
    MODEL_MAPPING,
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from raybio.core.errors import ConfigError
from raybio.encoders.checkpoints import (
    WeightsReader,
    check_complete,
    check_weights,
    load_pretrained,
    load_weights,
)
from raybio.encoders.sentence_folder import SentenceFolder, read_sentence_folder
from raybio.encoders.tokenization import TokenizerSource

_ATTENTION_DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout")

_DROPOUTS = (
    "hidden_dropout_prob",
    "dropout",
    "embedding_dropout",
    "mlp_dropout",
    *_ATTENTION_DROPOUTS,
)

_MIX_PADDING = ("convbert", "fnet", "mobilebert", "nystromformer", "yoso")
"""Types whose states depend on how far a text is padded."""


@dataclass(frozen=True)
class TextCheckpoint:
    """A trained text encoder before loading.

    Attributes:
        source: a folder or hub id.
        revision: of a hub id.
        head: the modules after the transformer; None for a plain checkpoint.
    """

    source: str
    revision: str
    head: SentenceFolder | None

    def load_tokenizer(self) -> PreTrainedTokenizerFast:
        """Return its fast tokenizer.

        Raises:
            ConfigError: if it cannot be found or reached, or is not a fast one.
        """
        tokenizer = load_pretrained(
            AutoTokenizer, self.source, self.revision, subfolder=self._subfolder
        )
        if not getattr(tokenizer, "is_fast", False):
            raise ConfigError(
                f"encoder.source {self.source!r}: its tokenizer is a {type(tokenizer).__name__}, "
                "want a fast one. Convert it with transformers and save it next to the weights: "
                "tokenizer.json is what is needed."
            )
        if self.head and self.head.lowercase:
            backend = tokenizer.backend_tokenizer
            then = [] if backend.normalizer is None else [backend.normalizer]
            backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *then])
        return tokenizer

    def load_model(
        self,
        *,
        dropout: float | None,
        attention_dropout: float | None = None,
        num_layers: int | None = None,
    ) -> PreTrainedModel:
        """Return its transformer in float32, without heads.

        Args:
            dropout: replaces its own; None: its own.
            attention_dropout: of attention only; None: as ``dropout``.
            num_layers: number of its first layers that are kept; None: all.

        Raises:
            ConfigError: if it cannot be found or reached, is no encoder, lacks weights, or has
                fewer layers.
        """
        config = self.load_config(num_layers, dropout=dropout, attention_dropout=attention_dropout)
        return self._read(load_weights, config)

    def check_model(
        self,
        *,
        dropout: float | None = None,
        attention_dropout: float | None = None,
        num_layers: int | None = None,
    ) -> PreTrainedModel:
        """Return the same as ``load_model``, but with zeros for weights; read only their headers.

        Raises:
            ConfigError: as ``load_model``.
        """
        config = self.load_config(num_layers, dropout=dropout, attention_dropout=attention_dropout)
        return self._read(check_weights, config)

    def _read(self, read: WeightsReader, config: PreTrainedConfig) -> PreTrainedModel:
        model_class = MODEL_MAPPING[type(config)]
        has_pooler = "add_pooling_layer" in inspect.signature(model_class.__init__).parameters
        # transformers takes the fused attention of torch by default, for architectures that support
        # it (MPNet does not).
        model, missing = read(
            AutoModel,
            self.source,
            self.revision,
            subfolder=self._subfolder,
            config=config,
            **({"add_pooling_layer": False} if has_pooler else {}),
        )
        check_complete(self.source, [name for name in missing if "pooler" not in name.split(".")])
        return model

    def load_config(
        self,
        num_layers: int | None = None,
        *,
        dropout: float | None = None,
        attention_dropout: float | None = None,
    ) -> PreTrainedConfig:
        """Return the settings of its transformer, changed as for ``load_model``; read no weights.

        Raises:
            ConfigError: if it cannot be found or reached, is no encoder, has fewer layers, or no
                such dropout.
        """
        config: PreTrainedConfig = load_pretrained(
            AutoConfig, self.source, self.revision, subfolder=self._subfolder
        )
        self._check_kind(config)
        if config.model_type == "big_bird":
            # With block-sparse attention, a model switches to full attention for good at the first
            # short text: embeddings would depend on what was embedded before.
            config.attention_type = "original_full"
        if num_layers is not None:
            self._cut(config, num_layers)
        if dropout is not None:
            self._set_dropout(config, "dropout", dropout, _DROPOUTS)
        if attention_dropout is not None:
            self._set_dropout(config, "attention_dropout", attention_dropout, _ATTENTION_DROPOUTS)
        return config

    @property
    def _subfolder(self) -> str:
        return self.head.subfolder if self.head else ""

    def _check_kind(self, config: PreTrainedConfig) -> None:
        is_known = type(config) in MODEL_MAPPING and inspect.isclass(MODEL_MAPPING[type(config)])
        has_text = hasattr(config, "hidden_size") and hasattr(config, "vocab_size")
        if config.is_encoder_decoder or not is_known or not has_text:
            raise ConfigError(
                f"encoder.source {self.source!r} is of type {config.model_type}; want a text "
                "encoder such as BERT, ELECTRA, RoBERTa, ModernBERT, MPNet or DistilBERT"
            )
        if config.model_type in _MIX_PADDING:
            raise ConfigError(
                f"encoder.source {self.source!r} is of type {config.model_type}, which makes the "
                "states of a text depend on its padding; want another text encoder, such as BERT"
            )

    def _cut(self, config: PreTrainedConfig, num_layers: int) -> None:
        available = getattr(config, "num_hidden_layers", None)
        if available is None or num_layers > available:
            raise ConfigError(
                f"encoder.num_layers_kept is {num_layers}, and encoder.source {self.source!r} of "
                f"type {config.model_type} has {available or 'no stated number of'} layers; want "
                "at most as many"
            )
        config.num_hidden_layers = num_layers
        if getattr(config, "layer_types", None):
            # As in ModernBERT; transformers writes no config.json whose numbers disagree.
            config.layer_types = config.layer_types[:num_layers]
        if isinstance(getattr(config, "attention_window", None), list):
            config.attention_window = config.attention_window[:num_layers]  # Longformer's

    def _set_dropout(
        self, config: PreTrainedConfig, setting: str, share: float, names: tuple[str, ...]
    ) -> None:
        known_names = [name for name in names if hasattr(config, name)]
        if not known_names:
            raise ConfigError(
                f"encoder.{setting} is {share}, and encoder.source {self.source!r} of type "
                f"{config.model_type} has no such dropout that we know. Set encoder.{setting}=null"
            )
        for name in known_names:
            setattr(config, name, share)


def read_checkpoint(source: str, revision: str, *, with_head: bool) -> TextCheckpoint:
    """Return a source without reading its weights.

    Args:
        source: a folder or hub id.
        revision: of a hub id.
        with_head: whether to read its pooling and normalization too.

    Raises:
        ConfigError: if it cannot be found or reached, or has modules that are not supported.
    """
    return TextCheckpoint(
        source, revision, read_sentence_folder(source, revision, with_head=with_head)
    )


def token_counts(source: str, texts: Sequence[str]) -> list[int]:
    """Return the number of tokens of each text by a model's own tokenizer, without special ones.

    Raises:
        ConfigError: if the tokenizer cannot be found or reached, or is not a fast one.
    """
    # A checkpoint's tokenizer may pad and cut; a ``TokenizerSource`` does neither.
    plain = TokenizerSource.of(read_checkpoint(source, "main", with_head=False).load_tokenizer())
    encoded = Tokenizer.from_str(plain.json).encode_batch_fast(
        list(texts), add_special_tokens=False
    )
    return [len(encoding.ids) for encoding in encoded]


def position_table(model: PreTrainedModel) -> nn.Embedding | None:
    """Return the embeddings of absolute positions; None for rotary or relative positions."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(module, nn.Embedding):
            return module
    return None
