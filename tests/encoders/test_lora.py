"""Settings of adapters, and what is refused before any weights are read."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModel, GPT2Config

from raybio.core.digest import weights_digest
from raybio.core.errors import ConfigError
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.lora import check_adapters, merged, source_weights
from raybio.encoders.text import build_text_encoder, check_text_encoder
from tests.encoders.tiny_text import SENTENCES, embed, save_tiny


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("bert"))


def settings(source: str, **lora: object) -> TextEncoderConfig:
    return TextEncoderConfig.from_mapping({"source": source, "max_length": 32, "lora": lora})


def adapters(config: TextEncoderConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    model = build_text_encoder(config, seed=seed).model
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"rank": 0}, "lora.rank: got 0, want a whole number >= 1, <= 4096 or null"),
        ({"rank": 8, "alpha": 0}, "lora.alpha: got 0"),
        ({"rank": 8, "dropout": 1}, "lora.dropout: got 1"),
        ({"rank": 8, "targets": []}, "lora.targets: got \\[\\]"),
        ({"rank": 8, "targets": [""]}, "lora.targets: got \\[''\\]"),
        ({"alpha": 8}, "and rank is null; want a rank"),
        ({"targets": ["query"]}, "and rank is null; want a rank"),
        ({"rang": 8}, "'lora.rang' is not a setting. Did you mean 'lora.rank'"),
    ],
)
def test_settings_out_of_range_are_refused(lora: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings("./anywhere", **lora)


def test_random_weights_are_not_frozen_below_adapters() -> None:
    """Not by the settings alone: a file may have adapters, and --init the source."""
    config = settings("scratch", rank=8)
    with pytest.raises(ConfigError, match="lora.rank is 8 and encoder.source 'scratch'"):
        check_text_encoder(config)
    with pytest.raises(ConfigError, match="lora.rank is 8 and encoder.source 'scratch'"):
        build_text_encoder(config, seed=0, count_by_word={"word": 1})


def test_targets_are_names_of_linear_layers_and_others_are_refused_without_weights(
    source: str,
) -> None:
    pytest.importorskip("peft")
    queries = adapters(settings(source, rank=2, targets=["query", "layer.1.output.dense"]))
    layers = {name.partition(".lora_")[0] for name in queries}
    assert layers == {
        "encoder.layer.0.attention.self.query",
        "encoder.layer.1.attention.self.query",
        "encoder.layer.1.output.dense",
    }
    assert all(2 in weight.shape for weight in queries.values())
    with pytest.raises(
        ConfigError, match="is called 'q_proj'; want all, or some of dense, key, query, value$"
    ):
        check_text_encoder(settings(source, rank=2, targets=["query", "q_proj"]))


def test_a_model_without_linear_layers_is_refused() -> None:
    sizes = GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=9)
    with pytest.raises(ConfigError, match="is a GPT2Model without linear layers"):
        check_adapters(AutoModel.from_config(sizes), settings("./gpt2", rank=2))


def test_a_machine_without_peft_is_refused_before_the_source_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raybio.encoders.lora.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"not installed here; pip install 'raybio\[lora\]'"):
        check_text_encoder(settings("./nowhere", rank=8))
    with pytest.raises(ConfigError, match="encoder.source './nowhere': no such folder"):
        check_text_encoder(settings("./nowhere"))


def test_random_weights_of_adapters_depend_on_the_seed_alone(source: str) -> None:
    pytest.importorskip("peft")
    config = settings(source, rank=2)
    before = torch.get_rng_state()
    first = weights_digest(adapters(config, seed=1).items())
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert weights_digest(adapters(config, seed=1).items()) == first
    assert weights_digest(adapters(config, seed=2).items()) != first


def test_adapters_are_scaled_by_alpha_over_rank(source: str) -> None:
    """Twice the default alpha adds twice as much to the weights."""
    pytest.importorskip("peft")
    added = {}
    for alpha in (None, 8):
        encoder = build_text_encoder(settings(source, rank=2, alpha=alpha), seed=0)
        plain = dict(merged(encoder.model).named_parameters())
        key = "encoder.layer.1.output.dense"
        layer = encoder.model.get_submodule(key)
        with torch.no_grad():
            layer.lora_B["default"].weight.fill_(0.5)
        product_DF = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
        changed = dict(merged(encoder.model).named_parameters())
        added[alpha] = changed[f"{key}.weight"] - plain[f"{key}.weight"]
        scale = 2.0 if alpha is None else 4.0
        torch.testing.assert_close(added[alpha], scale * product_DF, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(added[8], 2 * added[None], rtol=1e-5, atol=1e-6)


def test_a_model_without_adapters_is_its_own_plain_model(source: str, tmp_path: Path) -> None:
    encoder = build_text_encoder(settings(source), seed=0)
    assert merged(encoder.model) is encoder.model
    assert source_weights(encoder) == {}
    assert embed(encoder, SENTENCES).shape == (len(SENTENCES), 32)
