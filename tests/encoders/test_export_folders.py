"""All kinds of exported folders: who may read their files, and the code in their cards."""

import logging
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from raybio.core.errors import ConfigError
from raybio.core.records import record_text, write_record
from raybio.encoders.checkpoints import check_source
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.export import export_text_encoder
from raybio.encoders.export_files import EXPORT_FILES, check_export_files
from raybio.encoders.text import TextEncoder, build_text_encoder
from raybio.methods.mtb_mccl.config import RelationEncoderConfig
from raybio.methods.mtb_mccl.encoder import build_relation_encoder
from raybio.methods.mtb_mccl.export import export_relation_encoder
from raybio.methods.relation_graphs.config import WordEncoderConfig
from raybio.methods.relation_graphs.encoder import build_word_encoder
from raybio.methods.relation_graphs.export import export_word_encoder
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import build_protein_encoder
from raybio.methods.sppt.proteins.export import export_encoder
from tests.encoders.tiny_text import COUNT_BY_WORD, save_tiny
from tests.methods.relation_graphs.test_word import characters
from tests.whole_runs import flip_a_byte

SIZES = {"num_layers": 1, "width": 16, "num_heads": 2, "ffn_width": 32}


def protein(folder: Path, vocabulary: str, pooling: str) -> None:
    config = EncoderConfig(vocabulary=vocabulary, pooling=pooling, max_positions=48, **SIZES)
    export_encoder(build_protein_encoder(config, seed=0), folder, card={})


def text(folder: Path, source: str = "scratch", **settings: object) -> None:
    if source != "scratch":
        source = save_tiny(folder.with_name("source"), source)
    config = TextEncoderConfig(source=source, max_length=32, **SIZES, **settings)
    encoder: TextEncoder = build_text_encoder(config, seed=0, count_by_word=COUNT_BY_WORD)
    if source == "scratch":
        encoder.add_mask_head(config, seed=0)
    export_text_encoder(encoder, folder, card={})


def relation(folder: Path) -> None:
    config = RelationEncoderConfig(source="scratch", max_length=32, **SIZES)
    encoder = build_relation_encoder(config, seed=0, count_by_word=COUNT_BY_WORD)
    reference = {"pair_PD": torch.zeros(3, 16)}
    export_relation_encoder(
        encoder, folder, card={}, settings={"relations": ["a"]}, reference=reference
    )


def words(folder: Path) -> None:
    config = WordEncoderConfig(source="scratch", max_length=32, num_frozen_layers=0, **SIZES)
    encoder = build_word_encoder(config, seed=0, count_by_word=COUNT_BY_WORD)
    encoder.head = torch.nn.Linear(16, 16)
    export_word_encoder(encoder, folder, card={}, settings={})


def words_of_characters(folder: Path) -> None:
    encoder, _ = characters(folder.with_name("source"))
    encoder.head = torch.nn.Linear(16, 16)
    export_word_encoder(encoder, folder, card={}, settings={})


EXPORTS: dict[str, Callable[[Path], None]] = {
    "protein cls": lambda folder: protein(folder, "tape", "cls"),
    "protein mean": lambda folder: protein(folder, "tape", "mean"),
    "esm": lambda folder: protein(folder, "esm", "mean"),
    "text cls": lambda folder: text(folder, pooling="cls"),
    "text mean": lambda folder: text(folder, pooling="mean", normalize=True),
    "roberta": lambda folder: text(folder, "roberta"),
    "electra": lambda folder: text(folder, "electra"),
    "mpnet": lambda folder: text(folder, "mpnet"),
    "distilbert": lambda folder: text(folder, "distilbert"),
    "relation": relation,
    "words": words,
    "words of characters": words_of_characters,
}


@pytest.mark.parametrize("umask", [0o022, 0o077])
@pytest.mark.parametrize(
    "kind", ["protein cls", "text mean", "relation", "words", "words of characters"]
)
def test_all_files_of_an_export_have_the_mode_that_the_umask_gives(
    kind: str, umask: int, tmp_path: Path
) -> None:
    before = os.umask(umask)
    try:
        EXPORTS[kind](tmp_path / "export")
    finally:
        os.umask(before)
    modes = {
        str(path.relative_to(tmp_path)): (
            stat.S_IMODE(path.stat().st_mode),
            0o777 if path.is_dir() else 0o666,
        )
        for path in [tmp_path / "export", *(tmp_path / "export").rglob("*")]
    }
    assert any(name.endswith(".safetensors") for name in modes)
    assert {
        name: oct(mode) for name, (mode, whole) in modes.items() if mode != whole & ~umask
    } == {}


@pytest.mark.parametrize("kind", ["protein mean", "text mean", "words of characters"])
def test_damaged_or_missing_weights_of_an_export_are_refused(kind: str, tmp_path: Path) -> None:
    export = tmp_path / "export"
    EXPORTS[kind](export)
    check_source(str(export), "main")
    for path in sorted(export.glob("*.safetensors")):
        content = path.read_bytes()
        flip_a_byte(path)
        for _ in range(2):
            with pytest.raises(ConfigError, match=f"{path.name}: sha256 is .* damaged or changed"):
                check_source(str(export), "main")
        path.unlink()
        with pytest.raises(ConfigError, match=f"{path.name}: there is no such file"):
            check_source(str(export), "main")
        path.write_bytes(content)
        check_source(str(export), "main")


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"format": "export files", "version": 99}', '{"a": NaN}']
    + [record_text("export files", each) for each in ({}, {"sha256": [1]}, {"sha256": {"a": 1}})],
)
def test_damaged_digests_of_an_export_are_refused_and_without_any_it_is_read(
    content: str, tmp_path: Path
) -> None:
    export = tmp_path / "export"
    (export / "a").mkdir(parents=True)
    check_export_files(export)
    (export / EXPORT_FILES).write_text(content)
    with pytest.raises(ConfigError, match=EXPORT_FILES):
        check_export_files(export)


def test_digests_of_files_outside_of_an_export_are_not_compared(tmp_path: Path) -> None:
    (tmp_path / "secret.safetensors").write_text("secret")
    (tmp_path / "export").mkdir()
    name = "../secret.safetensors"
    write_record(tmp_path / "export" / EXPORT_FILES, "export files", {"sha256": {name: "0"}})
    with pytest.raises(ConfigError, match="there is no such file"):
        check_export_files(tmp_path / "export")


@pytest.mark.parametrize("kind", [kind for kind in EXPORTS if kind != "words of characters"])
def test_the_code_in_the_card_loads_every_weight_and_transformers_reports_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sentence_transformers")
    EXPORTS[kind](tmp_path / "export")
    monkeypatch.chdir(tmp_path / "export")
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        for code in re.findall(r"```python\n(.*?)```", Path("README.md").read_text(), re.DOTALL):
            names: dict[str, torch.Tensor] = {}
            exec(code, names)
            assert len(names["embedding"]) == 2
    finally:
        logger.removeHandler(handler)
    assert "embedding" in names  # there was code
    assert messages == []
