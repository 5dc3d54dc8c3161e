"""``encoder.pooling`` follows the source, a setting wins, and a contradiction is warned about."""

import json
import logging
from pathlib import Path

import pytest

from raybio.core.errors import ConfigError
from raybio.core.records import write_record
from raybio.encoders.config import ClsTextEncoderConfig, TextEncoderConfig
from raybio.encoders.sentence_folder import write_sentence_files
from raybio.encoders.text import TextEncoder, build_text_encoder
from raybio.encoders.transformer import resolve_pooling
from raybio.methods import METHODS
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import build_protein_encoder
from raybio.methods.sppt.proteins.export import export_encoder
from raybio.methods.sppt.proteins.saved_settings import SETTINGS
from tests.encoders.tiny_text import save_tiny

SIZES = {"num_layers": 1, "width": 32, "num_heads": 2, "ffn_width": 32, "max_positions": 32}


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


def folder_that_says(pooling: str, folder: Path) -> str:
    source = save_tiny(folder)
    write_sentence_files(folder, width=32, pooling=pooling, max_tokens=50)
    return source


@pytest.mark.parametrize("setting", ["auto", "mean", "cls"])
@pytest.mark.parametrize("stated", [None, "mean", "cls"])
@pytest.mark.parametrize("default", ["mean", "cls"])
def test_a_setting_comes_before_the_source_and_the_source_before_the_default(
    setting, stated, default
) -> None:
    expected = setting if setting != "auto" else stated or default
    assert resolve_pooling(setting, source="x", stated=stated, default=default) == expected


@pytest.mark.parametrize("stated", ["mean", "cls"])
@pytest.mark.parametrize("config", [TextEncoderConfig, ClsTextEncoderConfig])
def test_text_encoders_pool_as_their_source_says(
    stated: str, config, tmp_path: Path, caplog
) -> None:
    source = folder_that_says(stated, tmp_path)
    assert build_text_encoder(config(source=source), seed=0).pooling == stated
    assert build_text_encoder(config(source=source, pooling=stated), seed=0).pooling == stated
    assert warned(caplog) == []


def test_sources_without_a_pooling_use_that_of_the_paper(tmp_path: Path) -> None:
    plain = save_tiny(tmp_path)
    assert build_text_encoder(TextEncoderConfig(source=plain), seed=0).pooling == "mean"
    assert build_text_encoder(ClsTextEncoderConfig(source=plain), seed=0).pooling == "cls"
    assert build_protein_encoder(EncoderConfig(**SIZES), seed=0).pooling == "cls"


def test_a_setting_that_contradicts_the_source_wins_with_one_warning(
    tmp_path: Path, caplog
) -> None:
    source = folder_that_says("mean", tmp_path)
    config = ClsTextEncoderConfig(source=source, pooling="cls", normalize=False)
    for _ in range(2):  # a run builds its encoder again for its final evaluation
        assert build_text_encoder(config, seed=0).pooling == "cls"
    (only,) = warned(caplog)
    assert only.startswith(
        f"encoder.pooling is cls, and encoder.source {source!r} was trained with mean"
    )


def test_a_setting_takes_the_transformer_of_a_folder_that_pools_in_another_way(
    tmp_path: Path, caplog
) -> None:
    source = folder_that_says("mean", tmp_path)
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "max"}))
    config = ClsTextEncoderConfig(source=source, pooling="cls", normalize=False)
    assert build_text_encoder(config, seed=0).pooling == "cls"
    assert warned(caplog) == []
    with pytest.raises(ConfigError, match="its Pooling is max"):
        build_text_encoder(ClsTextEncoderConfig(source=source, normalize=False), seed=0)


@pytest.mark.parametrize(
    "name", ["contrastive_probe", "sppt_mag", "biostransformers", "sppt_synthetic"]
)
def test_methods_on_texts_follow_an_export_by_default(name: str, tmp_path: Path) -> None:
    config = METHODS[name].config().encoder
    for stated in ("mean", "cls"):
        source = folder_that_says(stated, tmp_path / stated)
        encoder = build_text_encoder(
            config.model_copy(update={"source": source, "max_length": 50}), seed=0
        )
        assert isinstance(encoder, TextEncoder) and encoder.pooling == stated


def test_protein_encoders_follow_their_export(tmp_path: Path, caplog) -> None:
    encoder = build_protein_encoder(EncoderConfig(**SIZES), seed=0)
    source = str(export_encoder(encoder, tmp_path / "export", card={"name": "tiny"}))
    assert build_protein_encoder(EncoderConfig(source=source), seed=0).pooling == "cls"
    assert (
        build_protein_encoder(EncoderConfig(source=source, pooling="mean"), seed=0).pooling
        == "mean"
    )
    (only,) = warned(caplog)
    assert "was trained with cls" in only
    path = tmp_path / "export" / SETTINGS
    write_record(path, "export settings", {"pooling": "mean", "max_tokens": 32})
    assert build_protein_encoder(EncoderConfig(source=source), seed=0).pooling == "mean"
    write_record(path, "export settings", {"pooling": "max", "max_tokens": 32})
    with pytest.raises(ConfigError, match="want pooling cls or mean"):
        build_protein_encoder(EncoderConfig(source=source), seed=0)
