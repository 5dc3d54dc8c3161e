"""The head of masked language modeling that BERT, RoBERTa and ModernBERT share.

Shape letters: K tokens, D width, V vocabulary.
"""

import logging
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedModel
from transformers.activations import ACT2FN

from raybio.core.errors import ConfigError
from raybio.encoders.checkpoints import check_weights, load_pretrained, load_weights
from raybio.encoders.config import SCRATCH
from raybio.encoders.sources import fetch_file, source_folder
from raybio.encoders.transformer import seeded_weights

logger = logging.getLogger(__name__)

MASK_HEAD_FILE = "mask_head.safetensors"
"""File of an export with the head of masked language modeling, for further training."""

_BERT = {
    "dense.weight": "cls.predictions.transform.dense.weight",
    "dense.bias": "cls.predictions.transform.dense.bias",
    "norm.weight": "cls.predictions.transform.LayerNorm.weight",
    "norm.bias": "cls.predictions.transform.LayerNorm.bias",
    "bias": "cls.predictions.bias",
}

_ROBERTA = {
    "dense.weight": "lm_head.dense.weight",
    "dense.bias": "lm_head.dense.bias",
    "norm.weight": "lm_head.layer_norm.weight",
    "norm.bias": "lm_head.layer_norm.bias",
    "bias": "lm_head.bias",
}

_MODERNBERT = {
    "dense.weight": "head.dense.weight",
    "dense.bias": "head.dense.bias",
    "norm.weight": "head.norm.weight",
    "norm.bias": "head.norm.bias",
    "bias": "decoder.bias",
}
"""Published checkpoints lack the first two biases, which then start at 0."""

_NAMES = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "modernbert": _MODERNBERT,
}


_ACTIVATIONS = {"bert": "hidden_act", "modernbert": "classifier_activation"}
"""Type of a model -> the setting with its head's activation; other types use GELU."""


class MaskHead(nn.Module):
    """BERT's head of masked language modeling, with tied word embeddings (Devlin et al., 2019)."""

    def __init__(
        self, width: int, num_tokens: int, *, eps: float = 1e-12, activation: str = "gelu"
    ) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.activation = ACT2FN[activation]
        self.norm = nn.LayerNorm(width, eps=eps)
        self.bias = nn.Parameter(torch.zeros(num_tokens))

    def forward(self, hidden_KD: Tensor, embedding_VD: Tensor) -> Tensor:
        """Return logits (K, V)."""
        hidden_KD = self.norm(self.activation(self.dense(hidden_KD)))
        return nn.functional.linear(hidden_KD, embedding_VD, self.bias)

    def load_checkpoint_weights(self, weights: dict[str, Tensor]) -> None:
        """Load a checkpoint's weights; tokens added since then keep their bias of 0."""
        missing = len(self.bias) - len(weights["bias"])
        self.load_state_dict(weights | {"bias": nn.functional.pad(weights["bias"], (0, missing))})


def build_mask_head(
    model: PreTrainedModel,
    *,
    seed: int,
    weights: Callable[[], dict[str, Tensor] | None],
    source: str,
) -> MaskHead:
    """Return a head over a model's word embeddings, with a checkpoint's weights or random ones.

    Args:
        model: the transformer.
        seed: of random weights.
        weights: returns a checkpoint's weights, None if it has none.
        source: ``encoder.source``, for messages.

    Raises:
        ConfigError: as ``check_mask_head_width``.
    """
    check_mask_head_width(model, source)
    config = model.config
    eps = getattr(config, "layer_norm_eps", getattr(config, "norm_eps", 1e-12))
    activation = getattr(config, _ACTIVATIONS.get(config.model_type, ""), "gelu")
    with seeded_weights(seed):
        num_tokens = model.get_input_embeddings().num_embeddings
        head = MaskHead(config.hidden_size, num_tokens, eps=eps, activation=activation)
    saved = weights()
    if saved is not None:
        head.load_checkpoint_weights({name: saved[name] for name in head.state_dict()})
    return head


def check_mask_head_width(model: PreTrainedModel, source: str) -> None:
    """Refuse a model that can have no ``MaskHead``.

    Raises:
        ConfigError: if its word embeddings are of another width than its states.
    """
    embedding_width = model.get_input_embeddings().embedding_dim
    width = model.config.hidden_size
    if embedding_width != width:
        raise ConfigError(
            f"encoder.source {source!r}: its word embeddings have {embedding_width} numbers and "
            f"its states {width}, and a head of masked language modeling wants as many; take "
            "another model, such as BERT"
        )


def exported_mask_head(source: str, revision: str) -> Path | None:
    """Return the file with the head of an export in a folder or at the hub; None if it has none.

    Raises:
        ConfigError: if the source cannot be found or reached.
    """
    return None if source == SCRATCH else fetch_file(source, MASK_HEAD_FILE, revision)


def read_mask_head(source: str, revision: str) -> dict[str, Tensor] | None:
    """Return a checkpoint's weights for ``MaskHead``; None if it has none.

    If a source other than ``scratch`` has none, a warning says so.

    Raises:
        ConfigError: if the source cannot be found or reached.
    """
    names = _head_names(source, revision)
    if names is not None:
        model, missing = load_weights(AutoModelForMaskedLM, source, revision)
        if not set(missing) & set(names.values()):
            weights = model.state_dict()
            width = weights[names["norm.weight"]].shape[0]
            return {
                own: weights[theirs].clone() if theirs in weights else torch.zeros(width)
                for own, theirs in names.items()
            }
    if source != SCRATCH:
        logger.warning(
            "%s has no language-model head of a known kind; the head begins with random weights",
            source,
        )
    return None


def check_mask_head_weights(source: str, revision: str) -> None:
    """Refuse weights that ``read_mask_head`` would refuse; only the headers of files are read.

    Raises:
        ConfigError: if the source cannot be found or reached, or a weight has another shape than
            config.json says.
    """
    if _head_names(source, revision) is not None:
        check_weights(AutoModelForMaskedLM, source, revision)


def _head_names(source: str, revision: str) -> dict[str, str] | None:
    """Return the names of a head's weights in checkpoints of the source's type; None: unknown."""
    if source == SCRATCH:
        return None
    # A folder of sentence-transformers with its transformer one level down has no language model.
    folder = source_folder(source)
    if folder.is_dir() and not (folder / "config.json").is_file():
        return None
    return _NAMES.get(load_pretrained(AutoConfig, source, revision).model_type)
