"""Sources of encoders: folders."""

import json
import logging
import re
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from raybio.core.errors import ConfigError
from raybio.encoders.checkpoints import check_source, check_weights
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.text import build_text_encoder, check_text_encoder
from tests.encoders.published import pickle_weights
from tests.encoders.tiny_text import save_tiny


def test_a_folder_is_a_source_if_it_holds_a_configuration_and_safetensors(tmp_path):
    check_source("scratch", "main")
    check_source(save_tiny(tmp_path / "plain"), "main")
    save_tiny(tmp_path / "sentences" / "0_Transformer")
    modules = [{"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]
    (tmp_path / "sentences" / "modules.json").write_text(json.dumps(modules))
    check_source(str(tmp_path / "sentences"), "main")
    (tmp_path / "plain" / "config.json").unlink()
    with pytest.raises(
        ConfigError,
        match="there is no config.json in it. The folder must be one that save_pretrained",
    ):
        check_source(str(tmp_path / "plain"), "main")
    for source in ("./nowhere", "no*where", "no where", "a/b/c"):
        with pytest.raises(ConfigError, match=f"'{re.escape(source)}': no such folder"):
            check_source(source, "main")


def test_a_folder_without_weights_or_with_damaged_ones_is_refused(tmp_path):
    source = save_tiny(tmp_path)
    weights = tmp_path / "model.safetensors"
    (tmp_path / "mask_head.safetensors").write_bytes(weights.read_bytes())  # no encoder
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(ConfigError, match=r"model\.safetensors is damaged; fetch it again"):
        check_source(source, "main")
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(ConfigError, match=r"model\.safetensors is damaged"):
        check_source(source, "main")
    weights.unlink()
    with pytest.raises(ConfigError, match=r"no weights: no model\.safetensors and no pytorch_mod"):
        check_source(source, "main")


def test_a_skipped_head_is_not_logged(tmp_path):
    source = save_tiny(tmp_path, "roberta")  # with a language-model head, as published
    records = []
    handler, log = logging.Handler(), logging.getLogger("transformers.modeling_utils")
    handler.emit = records.append
    log.addHandler(handler)
    try:
        build_text_encoder(TextEncoderConfig(source=source), seed=0)
        assert records == []
        AutoModel.from_pretrained(source)
        assert "LOAD REPORT" in records[0].getMessage()
    finally:
        log.removeHandler(handler)


@pytest.mark.parametrize("is_pickle", [False, True])
def test_a_weight_of_another_shape_or_none_is_refused_when_it_is_checked(tmp_path, is_pickle):
    source = save_tiny(tmp_path)
    config = TextEncoderConfig(source=source, max_length=32)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    name = "encoder.layer.0.output.dense.weight"

    def write(tensors):
        if is_pickle:
            pickle_weights(tmp_path, tensors)
        else:
            save_file(tensors, path, metadata={"format": "pt"})

    write(weights)
    drawn = torch.get_rng_state()
    check_text_encoder(config)
    write(weights | {name: weights[name][:, :-1].contiguous()})
    other_shape = rf"{name} has shape \(32, 47\) in the file, and config.json wants \(32, 48\)"
    for refuse in (check_text_encoder, partial(build_text_encoder, seed=0)):
        with pytest.raises(ConfigError, match=other_shape):
            refuse(config)
    write({other: tensor for other, tensor in weights.items() if other != name})
    for refuse in (check_text_encoder, partial(build_text_encoder, seed=0)):
        with pytest.raises(ConfigError, match=f"1 encoder weights are not in the file, .*{name}"):
            refuse(config)
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_head_of_another_shape_is_refused_when_it_is_checked(tmp_path):
    source = save_tiny(tmp_path, "roberta")  # with a language-model head, as published
    config = TextEncoderConfig(source=source, max_length=32)
    check_text_encoder(config, needs_mask_head=True)
    weights = load_file(tmp_path / "model.safetensors")
    weights["lm_head.dense.bias"] = torch.zeros(3)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    check_text_encoder(config)
    with pytest.raises(ConfigError, match=r"lm_head.dense.bias has shape \(3,\) in the file"):
        check_text_encoder(config, needs_mask_head=True)


def test_a_model_of_any_size_is_checked_without_memory_for_its_weights(tmp_path):
    model, missing = check_weights(AutoModel, save_tiny(tmp_path), "main")
    assert missing == []
    assert sum(weight.numel() for weight in model.parameters()) > 10_000
    for weight in model.parameters():
        assert weight.untyped_storage().nbytes() == weight.element_size()
