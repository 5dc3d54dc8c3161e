"""Exported text encoders, read by sentence_transformers, transformers and this package."""

import json
import re

import numpy as np
import pytest
import torch
import yaml
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModel,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    XLNetConfig,
    XLNetModel,
)

from raybio.core.digest import weights_digest
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.export import export_text_encoder
from raybio.encoders.text import build_text_encoder
from raybio.encoders.tokenization import TokenizerSource
from tests.encoders.tiny_text import (
    COUNT_BY_WORD,
    SENTENCES,
    embed,
    save_tiny,
    tiny_cased_tokenizer,
    tiny_model,
    tiny_tokenizer,
)
from tests.methods.sppt.proteins.test_export import run_without_raybio

CARD = {"name": "Tiny", "Data digest": "0123abcd", "Metrics": {"val/mrr": 0.25}}
KINDS = [("mean", False), ("mean", True), ("cls", False), ("cls", True)]
TEXTS = [text for text in SENTENCES if text]


def tiny_encoder(pooling="mean", normalize=False, max_length=12):
    config = TextEncoderConfig(
        num_layers=2,
        width=32,
        num_heads=4,
        ffn_width=48,
        max_length=32,
        pooling=pooling,
        normalize=normalize,
    )
    encoder = build_text_encoder(config, seed=0, count_by_word=COUNT_BY_WORD)
    encoder.max_tokens = max_length
    return encoder


@pytest.mark.nightly
def test_sentence_transformers_gives_the_same_embeddings_and_so_does_the_code_in_the_card(tmp_path):
    pytest.importorskip("sentence_transformers")
    encoders = [tiny_encoder(*kind) for kind in KINDS]
    code_by_folder, expected = {}, []
    for number, encoder in enumerate(encoders):
        folder = export_text_encoder(encoder, tmp_path / str(number), card=CARD)
        card = (folder / "README.md").read_text()
        with_library, without_library = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        code_by_folder[folder] = re.sub(r"\[\"Asthma.*\]", repr(TEXTS), with_library)
        other = export_text_encoder(encoder, tmp_path / f"{number}b", card=CARD)
        code_by_folder[other] = re.sub(r"\[\"Asthma.*\]", repr(TEXTS), without_library)
        expected += [embed(encoder, TEXTS)] * 2
    for embedding_RD, expected_RD in zip(
        run_without_raybio([*code_by_folder.items()], tmp_path), expected, strict=True
    ):
        np.testing.assert_allclose(embedding_RD, expected_RD, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("pooling", "normalize"), KINDS)
def test_an_export_is_a_source_for_the_next_run(pooling, normalize, tmp_path):
    encoder = tiny_encoder(pooling, normalize)
    encoder.learn_temperature(0.05)
    folder = export_text_encoder(encoder, tmp_path / "out", card=CARD)
    again = build_text_encoder(TextEncoderConfig(source=str(folder), max_length="auto"), seed=1)
    assert (again.pooling, again.is_normalized, again.max_tokens) == (pooling, normalize, 12)
    assert weights_digest(again.model.state_dict().items()) == weights_digest(
        encoder.model.state_dict().items()
    )
    assert again.log_temperature is None
    assert again.mask_head is None
    np.testing.assert_allclose(embed(again, TEXTS), embed(encoder, TEXTS), rtol=1e-5, atol=1e-6)
    longer = build_text_encoder(
        TextEncoderConfig(source=str(folder), pooling="cls", normalize=False), seed=1
    )
    assert (longer.pooling, longer.is_normalized, longer.max_tokens) == ("cls", False, 32)


@pytest.mark.parametrize("architecture", ["roberta", "mpnet", "electra"])
def test_other_architectures_survive_an_export(architecture, tmp_path):
    encoder = build_text_encoder(
        TextEncoderConfig(source=save_tiny(tmp_path / "raw", architecture)), seed=0
    )
    folder = export_text_encoder(encoder, tmp_path / "out", card=CARD)
    again = build_text_encoder(TextEncoderConfig(source=str(folder)), seed=1)
    np.testing.assert_allclose(
        embed(again, SENTENCES), embed(encoder, SENTENCES), rtol=1e-5, atol=1e-6
    )
    assert again.tokenizer.pad_token_id == encoder.tokenizer.pad_token_id


def test_plain_transformers_loads_model_and_tokenizer(tmp_path):
    encoder = tiny_encoder()
    encoder.tokenizer(
        TEXTS, truncation=True, max_length=7
    )  # the length of the last call is no part of the tokenizer
    folder = export_text_encoder(encoder, tmp_path / "out", card=CARD)
    model = AutoModel.from_pretrained(folder, add_pooling_layer=False)
    assert weights_digest(model.state_dict().items()) == weights_digest(
        encoder.model.state_dict().items()
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (
        TokenizerSource.of(tokenizer).fingerprint
        == TokenizerSource.of(encoder.tokenizer).fingerprint
    )
    assert tokenizer.model_max_length == 12
    assert json.loads((folder / "tokenizer.json").read_text())["truncation"] is None


def test_an_export_of_xlnet_embeds_without_segments_elsewhere_too(tmp_path):
    plain = tiny_tokenizer()
    special = [(token, plain.convert_tokens_to_ids(token)) for token in ("[SEP]", "[CLS]")]
    backend = plain.backend_tokenizer
    backend.post_processor = TemplateProcessing("$A:0 [SEP]:0 [CLS]:2", special_tokens=special)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **plain.special_tokens_map,
    )
    sizes = {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48, "initializer_range": 0.5}
    XLNetModel(XLNetConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(tmp_path / "raw")
    tokenizer.save_pretrained(tmp_path / "raw")
    config = TextEncoderConfig(source=str(tmp_path / "raw"), max_length=32)
    encoder = build_text_encoder(config, seed=0)
    folder = export_text_encoder(encoder, tmp_path / "out", card=CARD)
    batch = AutoTokenizer.from_pretrained(folder)(TEXTS[:1], return_tensors="pt")
    with torch.no_grad():
        states = AutoModel.from_pretrained(folder)(**batch).last_hidden_state
    np.testing.assert_allclose(states.mean(1), embed(encoder, TEXTS[:1]), rtol=1e-4, atol=1e-5)


def test_texts_that_the_folder_lowercases_are_lowercased_after_the_export_too(tmp_path):
    cased = tiny_cased_tokenizer()
    tiny_model("bert", len(cased)).save_pretrained(tmp_path / "raw")
    cased.save_pretrained(tmp_path / "raw")
    model = {"path": "", "type": "sentence_transformers.models.Transformer"}
    pooling = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
    (tmp_path / "raw" / "modules.json").write_text(json.dumps([model, pooling]))
    (tmp_path / "raw" / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    encoder = build_text_encoder(TextEncoderConfig(source=str(tmp_path / "raw")), seed=0)
    assert (
        encoder.tokenizer.tokenize("ASTHMA") == cased.tokenize("asthma") != cased.tokenize("ASTHMA")
    )
    folder = export_text_encoder(encoder, tmp_path / "out", card=CARD)
    again = build_text_encoder(TextEncoderConfig(source=str(folder)), seed=0)
    assert (
        TokenizerSource.of(again.tokenizer).fingerprint
        == TokenizerSource.of(encoder.tokenizer).fingerprint
    )


def test_the_folder_holds_no_pickle_and_the_card_says_what_it_is(tmp_path):
    folder = export_text_encoder(tiny_encoder("cls", True), tmp_path / "out", card=CARD)
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "modules.json",
        "1_Pooling/config.json",
    } <= names
    assert not [name for name in names if not name.endswith((".json", ".safetensors", ".md"))]
    _, header, body = (folder / "README.md").read_text().split("---\n", 2)
    assert "sentence-transformers" in yaml.safe_load(header)["tags"]
    assert body.strip().startswith("# Tiny\n\nA BERT text encoder of 2 layers, width 32")
    assert "up to 12 tokens" in body
    assert "the first token's last state, scaled to length 1" in body
    assert "## Data digest\n\n0123abcd" in body


def test_a_failed_export_leaves_the_old_one(tmp_path):
    folder = export_text_encoder(tiny_encoder(), tmp_path / "out", card=CARD)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    with pytest.raises(yaml.representer.RepresenterError):
        export_text_encoder(tiny_encoder(), folder, card={"Metrics": {"bad": object()}})
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_head_of_masked_language_modeling_is_exported_and_resumed(tmp_path):
    encoder = tiny_encoder()
    encoder.add_mask_head(TextEncoderConfig(), seed=3)
    folder = export_text_encoder(encoder, tmp_path / "out", card=CARD)
    config = TextEncoderConfig(source=str(folder))
    again = build_text_encoder(config, seed=1)
    again.add_mask_head(config, seed=1)
    assert weights_digest(again.state_dict().items()) == weights_digest(
        encoder.state_dict().items()
    )
    AutoModel.from_pretrained(folder)  # others leave the head alone
