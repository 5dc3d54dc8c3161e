"""Sources of encoders: folders."""

import logging

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from raybio.core.errors import ConfigError
from raybio.encoders.checkpoints import check_source
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.text import build_text_encoder
from tests.encoders.tiny_text import save_tiny


def test_a_folder_is_a_source_if_it_holds_a_configuration_and_safetensors(tmp_path):
    check_source("scratch", "main")
    check_source(save_tiny(tmp_path / "plain"), "main")
    save_tiny(tmp_path / "sentences" / "0_Transformer")
    check_source(str(tmp_path / "sentences"), "main")
    (tmp_path / "plain" / "config.json").unlink()
    with pytest.raises(
        ConfigError,
        match="there is no config.json in it. The folder must be one that save_pretrained",
    ):
        check_source(str(tmp_path / "plain"), "main")
    with pytest.raises(ConfigError, match="'./nowhere': no such folder"):
        check_source("./nowhere", "main")


def test_a_folder_with_only_a_pickle_is_refused_with_the_conversion_command(tmp_path):
    source = save_tiny(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(
        ConfigError, match=r"no \*\.safetensors in it.*raybio\.encoders\.bin_checkpoint"
    ):
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


def test_a_weight_of_another_shape_is_refused_with_both_shapes(tmp_path):
    source = save_tiny(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = "encoder.layer.0.output.dense.weight"
    weights[name] = weights[name][:, :-1].contiguous()
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ConfigError,
        match=rf"{name} has shape \(32, 47\) in the file, and config.json wants \(32, 48\)",
    ):
        build_text_encoder(TextEncoderConfig(source=source), seed=0)
