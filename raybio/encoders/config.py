"""Settings of the transformers that methods share."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from raybio.core.config import BaseConfig
from raybio.core.location import is_uri, location

Pooling = Literal["mean", "cls"]

SCRATCH = "scratch"
"""The source of an encoder with random weights."""


class LoraConfig(BaseConfig):
    """Low-rank adapters of linear layers (LoRA, Hu et al., 2022)."""

    rank: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="train adapters of this rank and the heads, and freeze the encoder's own "
        "weights; exports are merged into plain weights; wants peft (pip install 'raybio[lora]'); "
        "null: no adapters, all weights are trained",
    )
    alpha: float | None = Field(
        default=None, gt=0, description="adapters are scaled by alpha / rank; null: twice the rank"
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="of the adapters' inputs")
    targets: Literal["all"] | tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default="all",
        min_length=1,
        description="linear layers with adapters: all of the transformer, or names or ends of "
        "names such as [query, value]",
    )

    @model_validator(mode="after")
    def _rank_is_given(self) -> Self:
        is_given = self.alpha is not None or self.dropout > 0 or self.targets != "all"
        if self.rank is None and is_given:
            raise ValueError(
                "alpha, dropout and targets are settings of adapters, and rank is null; want a "
                "rank, such as 8"
            )
        return self

    @property
    def scaled_alpha(self) -> float:
        """The value of ``alpha``, its default included; 0 without adapters."""
        return 2.0 * (self.rank or 0) if self.alpha is None else self.alpha


class TransformerConfig(BaseConfig):
    """The transformer to train; sizes and vocabulary apply to scratch, a checkpoint has its own."""

    source: str = Field(
        default=SCRATCH,
        min_length=1,
        description="'scratch' for random weights, a local folder written by save_pretrained or "
        "sentence-transformers, such a folder or a finished run in a bucket (s3://BUCKET/PATH), or "
        "a hub id such as facebook/esm2_t12_35M_UR50D (proteins: BERT, "
        "ESM, ESM C or T5) or sentence-transformers/all-MiniLM-L6-v2 (texts); pickled weights are "
        "converted, and no code that comes along is run",
    )
    revision: str = Field(
        default="main", description="branch, tag or commit of a hub id; a commit pins the weights"
    )
    num_layers: int = Field(
        default=12, ge=1, le=200, description="scratch only: transformer layers"
    )
    width: int = Field(
        default=768, ge=2, le=16384, description="scratch only: numbers in a hidden state"
    )
    num_heads: int = Field(
        default=12, ge=1, le=256, description="scratch only: attention heads; must divide width"
    )
    ffn_width: int = Field(
        default=3072, ge=1, le=65536, description="scratch only: width inside the feed-forward part"
    )
    recompute_activations: bool = Field(
        default=False,
        description="forget activations in the forward pass and compute them again: less memory, "
        "slower",
    )
    lora: LoraConfig = LoraConfig()

    @field_validator("source")
    @classmethod
    def _is_supported(cls, source: str) -> str:
        return str(location(source, "encoder.source")) if is_uri(source) else source

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.num_heads:
            raise ValueError(
                f"width {self.width} is not a multiple of num_heads {self.num_heads}; change one "
                "of them"
            )
        return self

    def scratch_sizes(
        self, *, dropout: float, attention_dropout: float | None = None
    ) -> dict[str, Any]:
        """Return the sizes of a model from scratch under the names of BERT's and ESM's settings."""
        if attention_dropout is None:
            attention_dropout = dropout
        return {
            "hidden_size": self.width,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "intermediate_size": self.ffn_width,
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": attention_dropout,
            "attn_implementation": "sdpa",
        }


MAX_LENGTH = 1_048_576


class TextEncoderConfig(TransformerConfig):
    """The text encoder to train; sizes and vocabulary apply to scratch only."""

    default_pooling: ClassVar[Pooling] = "mean"
    """Pooling for ``pooling: auto`` if the source states none."""

    pooling: Literal["auto", "mean", "cls"] = Field(
        default="auto",
        description="a text's embedding: the mean over its tokens, special ones included, or the "
        "first token's state; auto: what a sentence-transformers folder, such as an export, says, "
        "else what the method's paper has (mean for BioSTransformers, cls for SPPT and "
        "Contrastive-Probe)",
    )
    normalize: bool | Literal["auto"] = Field(
        default="auto",
        description="scale embeddings to length 1; auto: what a sentence-transformers folder says, "
        "else false",
    )
    max_length: int | Literal["auto"] = Field(
        default=128,
        description="tokens of a text, special ones included, at most what the model has positions "
        "for; longer texts "
        "are cut; auto: what a sentence-transformers folder or the tokenizer says",
    )
    dropout: float | None = Field(
        default=None,
        ge=0.0,
        lt=1.0,
        description="of states and attention; null: the checkpoint's own, 0.1 for scratch",
    )
    attention_dropout: float | None = Field(
        default=None,
        ge=0.0,
        lt=1.0,
        description="of attention only; null: as dropout. The fused attention of CPUs supports "
        "none: 0 saves half of a step over texts of 500 tokens",
    )
    num_layers_kept: int | None = Field(
        default=None,
        ge=1,
        description="number of the checkpoint's first layers that are kept; null: all of them",
    )
    vocabulary: Literal["words", "characters"] = Field(
        default="words",
        description="scratch only: what a token is, a frequent word or a piece of one, or a letter "
        "(lower-cased)",
    )
    vocabulary_size: int = Field(
        default=30_522,
        ge=8,
        le=2_000_000,
        description="scratch only: most tokens of the vocabulary made from the corpus",
    )

    @model_validator(mode="after")
    def _length_fits(self) -> Self:
        if self.max_length != "auto" and not 3 <= self.max_length <= MAX_LENGTH:
            raise ValueError(
                f"max_length {self.max_length} is out of range; want auto or 3 to {MAX_LENGTH} "
                "tokens"
            )
        if self.num_layers_kept is not None and self.source == SCRATCH:
            raise ValueError(
                "num_layers_kept is for checkpoints; with source 'scratch' num_layers says how many"
            )
        return self


class ClsTextEncoderConfig(TextEncoderConfig):
    """The text encoder of methods whose paper takes the first token's state."""

    default_pooling: ClassVar[Pooling] = "cls"
