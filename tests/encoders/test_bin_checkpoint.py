"""Conversion of pickled checkpoints."""

import pickle

import pytest
import torch

from raybio.core.errors import ConfigError, DataError
from raybio.encoders.bin_checkpoint import convert_bin_checkpoint
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.text import build_text_encoder
from tests.encoders.tiny_text import tiny_model, tiny_tokenizer
from tests.script_process import run_script


@pytest.fixture
def published(tmp_path):
    """A tiny BERT as old repositories have it: a pickle, with TensorFlow's names of layer norms."""
    tokenizer = tiny_tokenizer()
    model = tiny_model("bert", len(tokenizer), tokenizer.pad_token_id)
    folder = tmp_path / "published"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in model.state_dict().items()
    }
    torch.save(old, folder / "pytorch_model.bin")
    return folder, model


def test_a_pickled_checkpoint_is_refused_with_the_command_that_converts_it_and_then_loads(
    published, tmp_path
):
    folder, model = published
    with pytest.raises(ConfigError, match=r"python -m raybio\.encoders\.bin_checkpoint"):
        build_text_encoder(TextEncoderConfig(source=str(folder), max_length=32), seed=0)
    done = run_script(
        "raybio.encoders.bin_checkpoint", tmp_path, str(folder), str(tmp_path / "out")
    )
    assert done.returncode == 0, done.stderr
    encoder = build_text_encoder(
        TextEncoderConfig(source=str(tmp_path / "out"), max_length=32), seed=0
    )
    loaded = encoder.model.state_dict()
    for name, tensor in model.state_dict().items():
        if "pooler" not in name:
            torch.testing.assert_close(loaded[name], tensor, rtol=0, atol=0)


def test_what_is_no_file_of_tensors_is_refused_and_nothing_is_written(published, tmp_path):
    folder, _ = published
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": print}))
    with pytest.raises(DataError, match="cannot be read as a file of tensors"):
        convert_bin_checkpoint(folder, tmp_path / "out")
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(DataError, match="holds no pytorch_model.bin"):
        convert_bin_checkpoint(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
