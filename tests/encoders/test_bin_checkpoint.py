"""Weights that are published as pickles: read safely, converted once, kept in the cache."""

import os
import pickle
import re
import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from raybio.core.cache import cache_folder
from raybio.core.errors import ConfigError
from raybio.encoders.bin_checkpoint import converted_weights
from raybio.encoders.checkpoints import check_source
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.text import build_text_encoder
from tests.encoders.published import bluebert, pickled_text


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))


def converted_files() -> list[Path]:
    return sorted(cache_folder().rglob("*.safetensors"))


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("architecture", ["bert", "roberta", "electra"])
def test_pickled_weights_are_converted_when_they_are_checked_and_load(
    architecture, in_parts, tmp_path
):
    published = pickled_text(tmp_path / "published", architecture, in_parts=in_parts)
    config = TextEncoderConfig(source=str(tmp_path / "published"), max_length=32)
    check_source(config.source, "main")
    files = converted_files()
    assert len(files) == (2 if in_parts else 1)
    times = [file.stat().st_mtime_ns for file in files]
    encoder = build_text_encoder(config, seed=0)
    assert converted_files() == files
    assert [file.stat().st_mtime_ns for file in files] == times, "converted once"
    loaded = encoder.model.state_dict()
    for name, tensor in loaded.items():
        if "pooler" not in name:
            wanted = published[f"{architecture}.{name}"]
            torch.testing.assert_close(tensor, wanted, rtol=0, atol=0)


def test_other_weights_in_the_same_folder_are_converted_again(tmp_path):
    source = tmp_path / "published"
    pickled_text(source, "bert")
    first = converted_weights(str(source), "main")
    tensors = torch.load(source / "pytorch_model.bin", weights_only=True)
    torch.save({name: tensor + 1 for name, tensor in tensors.items()}, source / "pytorch_model.bin")
    assert converted_weights(str(source), "main") != first


def test_transposed_views_as_converters_from_tensorflow_leave_them_are_converted(tmp_path):
    source = tmp_path / "published"
    published = pickled_text(source, "bert")
    views = {
        name: tensor.t().contiguous().t() if tensor.ndim == 2 else tensor
        for name, tensor in published.items()
    }
    torch.save(views, source / "pytorch_model.bin")
    encoder = build_text_encoder(TextEncoderConfig(source=str(source), max_length=32), seed=0)
    weight = encoder.model.state_dict()["encoder.layer.0.attention.self.query.weight"]
    torch.testing.assert_close(
        weight, published["bert.encoder.layer.0.attention.self.query.weight"], rtol=0, atol=0
    )


@pytest.mark.nightly
def test_several_processes_convert_once(tmp_path):
    source = tmp_path / "published"
    pickled_text(source, "bert")
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        folders = set(pool.map(converted_weights, [str(source)] * 3, ["main"] * 3))
    assert len(folders) == 1
    assert len(converted_files()) == 1
    visible = [path for path in folders.pop().parent.iterdir() if not path.name.startswith(".")]
    assert len(visible) == 1


class Evil:
    def __init__(self, canary: Path):
        self.canary = str(canary)

    def __reduce__(self):
        return os.mkdir, (self.canary,)


def test_a_pickle_that_runs_code_is_refused_and_its_code_not_run(tmp_path):
    source = tmp_path / "published"
    pickled_text(source, "bert")
    canary = tmp_path / "canary"
    torch.save({"a": Evil(canary)}, source / "pytorch_model.bin", pickle_module=pickle)
    with pytest.raises(ConfigError, match=r"more than tensors, and .* run code \(\w+\.mkdir\)"):
        check_source(str(source), "main")
    assert not canary.exists()
    assert not converted_files()


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n"])
def test_damaged_weights_are_refused_and_nothing_is_written(content, tmp_path):
    source = tmp_path / "published"
    pickled_text(source, "bert")
    (source / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(
        ConfigError, match=r"pytorch_model\.bin cannot be read as a file of tensors"
    ):
        check_source(str(source), "main")
    torch.save([torch.zeros(2)], source / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="holds list, want a mapping of names to tensors"):
        check_source(str(source), "main")
    assert not converted_files()


def test_a_damaged_cache_is_named_and_made_again_when_it_is_removed(tmp_path):
    source = tmp_path / "published"
    pickled_text(source, "bert")
    check_source(str(source), "main")
    (converted,) = converted_files()
    converted.write_bytes(converted.read_bytes()[:-1])
    remedy = f"model.safetensors is damaged; remove {converted.parent}, and the weights of the"
    with pytest.raises(ConfigError, match=re.escape(remedy)) as refused:
        check_source(str(source), "main")
    assert "fetch it again" not in str(refused.value)
    shutil.rmtree(converted.parent)
    check_source(str(source), "main")


def test_a_cache_that_cannot_be_written_is_refused_with_its_setting(tmp_path, monkeypatch):
    source = tmp_path / "published"
    pickled_text(source, "bert")
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"cannot be written .*set RAYBIO_CACHE"):
        check_source(str(source), "main")


def test_a_head_is_kept_of_settings_that_do_not_name_their_type(tmp_path):
    source = tmp_path / "published"
    bluebert(source)
    config = TextEncoderConfig(source=str(source), max_length=32)
    encoder = build_text_encoder(config, seed=0)
    encoder.add_mask_head(config, seed=0)
    published = torch.load(source / "pytorch_model.bin", weights_only=True)
    wanted = published["cls.predictions.transform.dense.weight"]
    torch.testing.assert_close(encoder.mask_head.dense.weight, wanted, rtol=0, atol=0)
