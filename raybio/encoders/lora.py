"""Low-rank adapters in a transformer (LoRA, Hu et al., 2022), by peft.

A linear layer W x becomes W x + (alpha / rank) B A x. B begins with zeros, so that the encoder
begins as its checkpoint. A, B and the heads are trained; W and all other weights of the transformer
stay as they are.
"""

import copy
import importlib.util
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedModel

from raybio.core.errors import ConfigError
from raybio.encoders.config import SCRATCH, TransformerConfig
from raybio.encoders.transformer import seeded_weights

M = TypeVar("M", bound=nn.Module)

UNUSED = ("pooler", "contact_head")
"""Parts of published transformers that no embedding depends on."""

_FROM_SOURCE = "is_from_source"
"""Attribute that marks frozen parameters, which stay equal to those of ``encoder.source``."""


def check_lora(config: TransformerConfig) -> None:
    """Refuse adapters on random weights, and where peft is not installed.

    Raises:
        ConfigError: it says what to do.
    """
    if config.lora.rank is None:
        return
    if config.source == SCRATCH:
        raise ConfigError(
            f"encoder.lora.rank is {config.lora.rank} and encoder.source 'scratch': random weights "
            "would stay frozen below the adapters; want the source of a trained encoder (--init), "
            "or encoder.lora.rank=null"
        )
    if importlib.util.find_spec("peft") is None:
        raise ConfigError(
            f"encoder.lora.rank is {config.lora.rank}, and peft, which makes adapters, is not "
            "installed here; pip install 'raybio[lora]', or set encoder.lora.rank=null"
        )


def check_adapters(model: PreTrainedModel, config: TransformerConfig) -> None:
    """Refuse targets that name no layer of a model, whatever its weights.

    Raises:
        ConfigError: it lists the layers there are.
    """
    if config.lora.rank is not None:
        _targets(model.base_model, config)


def add_adapters(model: PreTrainedModel, config: TransformerConfig, *, seed: int) -> None:
    """Give a model the adapters of ``config.lora`` and freeze its other weights, in place.

    A head of masked language modeling stays trainable, except for word embeddings that it shares.

    Args:
        model: a transformer, or one with such a head.
        config: settings of the encoder; without a rank, nothing happens.
        seed: of the random weights of A; torch's global generators stay unchanged.

    Raises:
        ConfigError: as ``check_lora``, or if a target names no layer.
    """
    lora = config.lora
    if lora.rank is None:
        return
    check_lora(config)
    # Imported here: it is an optional extra.
    import peft

    transformer: PreTrainedModel = model.base_model
    adapters = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.scaled_alpha,
        lora_dropout=lora.dropout,
        target_modules=_targets(transformer, config),
    )
    with seeded_weights(seed):
        # Inject in place, without peft's wrapper, so that names of other weights do not change.
        peft.inject_adapter_in_model(adapters, transformer)
    for parameter in transformer.parameters():
        if not parameter.requires_grad:
            setattr(parameter, _FROM_SOURCE, True)


def source_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the frozen weights below adapters by name; empty for a model without adapters.

    Training does not change them: they stay equal to the weights of ``encoder.source``.
    """
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if hasattr(parameter, _FROM_SOURCE) and not parameter.requires_grad
    }


def merged(module: M) -> M:
    """Return a copy of a module with plain weights W + (alpha / rank) B A in place of adapters.

    A module without adapters is returned itself.
    """
    names = [name for name, part in module.named_modules() if hasattr(part, "lora_A")]
    if not names:
        return module
    plain = copy.deepcopy(module)
    for name in names:
        layer: Any = plain.get_submodule(name)
        layer.merge()
        plain.set_submodule(name, layer.get_base_layer())
    for part in plain.modules():
        # peft leaves its settings here, and transformers would look for adapters.
        if hasattr(part, "peft_config"):
            del part.peft_config
    return plain


def _targets(transformer: PreTrainedModel, config: TransformerConfig) -> list[str]:
    """Return the full names of the layers that get adapters.

    Raises:
        ConfigError: if a target names none.
    """
    embeddings = set(transformer.get_input_embeddings().modules())
    linear = [
        name
        for name, module in transformer.named_modules()
        if isinstance(module, nn.Linear)
        and module not in embeddings
        and not set(UNUSED) & set(name.split("."))
    ]
    kinds = sorted({name.rpartition(".")[2] for name in linear})
    targets = config.lora.targets
    if not linear:
        raise ConfigError(
            f"encoder.lora.rank is {config.lora.rank}, and encoder.source {config.source!r} is a "
            f"{type(transformer).__name__} without linear layers, which adapters belong to; set "
            "encoder.lora.rank=null"
        )
    if targets == "all":
        return linear
    chosen = set()
    for target in targets:
        named = {name for name in linear if f".{name}".endswith(f".{target}")}
        if not named:
            raise ConfigError(
                f"encoder.lora.targets: no linear layer of encoder.source {config.source!r} is "
                f"called {target!r}; want all, or some of {', '.join(kinds)}"
            )
        chosen |= named
    return sorted(chosen)
