"""Text encoders that others trained, from a folder or the hub: safetensors only, no foreign code."""

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
from raybio.encoders.checkpoints import check_complete, load_pretrained, load_weights
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


@dataclass(frozen=True)
class TextCheckpoint:
    """A source of a text encoder.

    Attributes:
        source: a folder or hub id.
        revision: of a hub id.
        head: what follows the transformer, None for a plain checkpoint.
    """

    source: str
    revision: str
    head: SentenceFolder | None

    def load_tokenizer(self) -> PreTrainedTokenizerFast:
        """Its fast tokenizer.

        Raises:
            ConfigError: if it cannot be found or reached, or is not a fast one.
        """
        tokenizer = load_pretrained(
            AutoTokenizer, self.source, self.revision, subfolder=self._subfolder
        )
        if not getattr(tokenizer, "is_fast", False):
            raise ConfigError(
                f"encoder.source {self.source!r}: its tokenizer is a {type(tokenizer).__name__}, "
                "want a fast one. Convert it with transformers and save it beside the weights: "
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
        """Its transformer in float32, without heads.

        Args:
            dropout: in place of its own; None: its own.
            attention_dropout: of attention alone; None: as ``dropout`` says.
            num_layers: how many of its layers are kept, from the first on; None: all.

        Raises:
            ConfigError: if it cannot be found or reached, is no encoder, lacks weights, or has
                fewer layers.
        """
        config = self.load_config(num_layers, dropout=dropout, attention_dropout=attention_dropout)
        model_class = MODEL_MAPPING[type(config)]
        has_pooler = "add_pooling_layer" in inspect.signature(model_class.__init__).parameters
        # The fused attention of torch is what transformers takes by itself, for architectures that
        # can (MPNet cannot).
        model, missing = load_weights(
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
        """Return the settings of its transformer with those of ``load_model`` put in; no weights are read.

        Raises:
            ConfigError: if it cannot be found or reached, is no encoder, has fewer layers, or no
                such dropout.
        """
        config: PreTrainedConfig = load_pretrained(
            AutoConfig, self.source, self.revision, subfolder=self._subfolder
        )
        self._check_kind(config)
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
                "encoder such as BERT, ELECTRA, RoBERTa, MPNet or DistilBERT"
            )

    def _cut(self, config: PreTrainedConfig, num_layers: int) -> None:
        has = getattr(config, "num_hidden_layers", None)
        if has is None or num_layers > has:
            raise ConfigError(
                f"encoder.num_layers_kept is {num_layers}, and encoder.source {self.source!r} of "
                f"type {config.model_type} has {has or 'no stated number of'} layers; want at most "
                "as many"
            )
        config.num_hidden_layers = num_layers

    def _set_dropout(
        self, config: PreTrainedConfig, setting: str, share: float, names: tuple[str, ...]
    ) -> None:
        found = [name for name in names if hasattr(config, name)]
        if not found:
            raise ConfigError(
                f"encoder.{setting} is {share}, and encoder.source {self.source!r} of type "
                f"{config.model_type} has no such dropout that we know. Set encoder.{setting}=null"
            )
        for name in found:
            setattr(config, name, share)


def read_checkpoint(source: str, revision: str, *, with_head: bool) -> TextCheckpoint:
    """What ``source`` is, without its weights; ``with_head``: pooling and normalisation are to be its own.

    Raises:
        ConfigError: if it cannot be found or reached, or holds modules that cannot be honoured.
    """
    return TextCheckpoint(
        source, revision, read_sentence_folder(source, revision, with_head=with_head)
    )


def token_counts(source: str, texts: Sequence[str]) -> list[int]:
    """Tokens of each text by a model's own tokenizer, special ones left out.

    Raises:
        ConfigError: if the tokenizer cannot be found or reached, or is not a fast one.
    """
    # A checkpoint's tokenizer may pad and cut; its source does neither.
    plain = TokenizerSource.of(read_checkpoint(source, "main", with_head=False).load_tokenizer())
    encoded = Tokenizer.from_str(plain.json).encode_batch_fast(
        list(texts), add_special_tokens=False
    )
    return [len(one.ids) for one in encoded]


def position_table(model: PreTrainedModel) -> nn.Embedding | None:
    """The embeddings of absolute positions, None for a model with rotary or relative ones."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(module, nn.Embedding):
            return module
    return None
