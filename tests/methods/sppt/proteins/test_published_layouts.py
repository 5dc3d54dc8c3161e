"""Protein encoders in the layouts that their authors publish."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, T5EncoderModel

from raybio.core.errors import ConfigError
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import (
    build_protein_encoder,
    check_protein_encoder,
    max_tokens_of,
    vocabulary_of,
)
from raybio.methods.sppt.proteins.export import export_encoder
from tests.methods.sppt.proteins.published_proteins import DROPOUT, LAYOUTS, PROTT5_LETTERS
from tests.methods.sppt.proteins.test_encoder import random_proteins, tokens_of

EVERY_LAYOUT = pytest.mark.parametrize("layout", sorted(LAYOUTS))
T5 = pytest.mark.parametrize("layout", ["ankh", "prott5"])


@pytest.fixture
def published(layout, tmp_path):
    weights = LAYOUTS[layout](tmp_path / layout)
    return str(tmp_path / layout), weights


@EVERY_LAYOUT
def test_the_published_weights_are_loaded_and_embed_a_sequence_alone_as_in_a_batch(published):
    source, weights = published
    config = EncoderConfig(source=source, max_positions=64, dropout=0.0)
    check_protein_encoder(config)
    encoder = build_protein_encoder(config, seed=1)
    own = encoder.model.state_dict()
    assert [
        name
        for name, tensor in own.items()
        if "contact_head" not in name and not torch.equal(tensor, weights[name])
    ] == []
    assert encoder.max_tokens == max_tokens_of(config) == 64
    sequences = random_proteins(5)
    together = encoder(tokens_of(encoder, sequences, length=64))
    for number, sequence in enumerate(sequences):
        alone = encoder(tokens_of(encoder, [sequence]))
        torch.testing.assert_close(
            together.embedding_RD[number], alone.embedding_RD[0], rtol=1e-5, atol=1e-5
        )


@EVERY_LAYOUT
@pytest.mark.parametrize(
    ("names", "change", "message"),
    [
        (
            ("num_hidden_layers", "num_layers"),
            1,
            "weights are not in the file|contact_head.* has shape",
        ),
        (("intermediate_size", "d_ff"), 8, "has shape .* in the file, and config.json wants"),
    ],
)
def test_weights_that_are_not_those_of_the_settings_are_refused_when_they_are_checked(
    published, names, change, message
):
    source, _ = published
    path = Path(source) / "config.json"
    settings = json.loads(path.read_text())
    for name in settings.keys() & set(names):
        settings[name] += change
    path.write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=message):
        check_protein_encoder(EncoderConfig(source=source, max_positions=64))


@EVERY_LAYOUT
def test_a_checkpoint_keeps_its_dropout_and_a_setting_changes_it(layout, published):
    source, _ = published
    share = 0.0 if layout in ("ankh", "esm2", "esmc") else DROPOUT
    for setting, is_repeatable in ((None, share == 0.0), (0.0, True), (0.5, False)):
        encoder = build_protein_encoder(EncoderConfig(source=source, dropout=setting), seed=0)
        tokens = tokens_of(encoder, ["MKLAVV" * 5])
        one, other = encoder(tokens).embedding_RD, encoder(tokens).embedding_RD
        assert one.equal(other) is is_repeatable, (layout, setting)


@EVERY_LAYOUT
def test_an_export_is_the_same_encoder(published, tmp_path):
    source, _ = published
    encoder = build_protein_encoder(EncoderConfig(source=source, dropout=0.0), seed=0).eval()
    folder = export_encoder(encoder, tmp_path / "export", card={}, max_tokens=60)
    config = EncoderConfig(source=str(folder))
    assert vocabulary_of(config).fingerprint == encoder.vocabulary.fingerprint
    again = build_protein_encoder(config, seed=1).eval()
    assert again.pooling == encoder.pooling
    tokens = tokens_of(encoder, ["MKTAYIAKQRXBZUOJ", "MK"])
    assert again(tokens).embedding_RD.equal(encoder(tokens).embedding_RD)


def test_prottrans_read_rare_residues_as_x(tmp_path):
    for name in ("prott5", "protbert"):
        LAYOUTS[name](tmp_path / name)
        vocabulary = vocabulary_of(EncoderConfig(source=str(tmp_path / name)))
        assert vocabulary.encode("UZOB").tolist() == vocabulary.encode("XXXX").tolist()
        assert len(set(vocabulary.encode("ACDEFGHIKLMNPQRSTVWYX").tolist())) == 21 + (
            vocabulary.num_special_per_sequence
        )


def test_prott5_reads_what_its_own_tokenizer_reads_between_spaces(tmp_path):
    LAYOUTS["prott5"](tmp_path / "prott5")
    vocabulary = vocabulary_of(EncoderConfig(source=str(tmp_path / "prott5")))
    own = AutoTokenizer.from_pretrained(tmp_path / "prott5")
    sequence = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAX"
    assert vocabulary.encode(sequence).tolist() == own(" ".join(sequence))["input_ids"]
    assert vocabulary.encode("AL").tolist() == [3, 4, 1]


def test_ankh_reads_its_letters_and_the_end(tmp_path):
    LAYOUTS["ankh"](tmp_path / "ankh")
    vocabulary = vocabulary_of(EncoderConfig(source=str(tmp_path / "ankh")))
    expected = [3 + PROTT5_LETTERS.index(letter) for letter in "MKUZ"]
    assert vocabulary.encode("MKUZJ").tolist() == [*expected, vocabulary.unk_id, 1]


@T5
def test_a_t5_embeds_the_mean_of_its_encoders_residue_states(published):
    source, weights = published
    encoder = build_protein_encoder(EncoderConfig(source=source), seed=0).eval()
    assert encoder.pooling == "mean"
    ids = torch.from_numpy(np.atleast_2d(encoder.vocabulary.encode("MKTAY"))).long()
    reference = T5EncoderModel(encoder.model.config).eval()
    reference.load_state_dict(weights, strict=False)
    with torch.no_grad():
        state_LD = reference(input_ids=ids).last_hidden_state[0]
        found = encoder(tokens_of(encoder, ["MKTAY"])).embedding_RD[0]
    torch.testing.assert_close(found, state_LD[:5].mean(0), rtol=1e-5, atol=1e-5)


@T5
def test_a_t5_has_no_first_token_and_no_language_model(published):
    source, _ = published
    with pytest.raises(ConfigError, match="puts no token before a sequence, as all T5; want mean"):
        check_protein_encoder(EncoderConfig(source=source, pooling="cls"))
    encoder = build_protein_encoder(EncoderConfig(source=source), seed=0)
    with pytest.raises(NotImplementedError, match="no language-model head"):
        encoder.token_logits(torch.zeros(1, encoder.width))
