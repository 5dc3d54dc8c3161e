import json
from typing import get_type_hints

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from raybio.core.batch import IGNORED_LABEL, PaddedTokens, TokenBatch
from raybio.core.digest import weights_digest
from raybio.core.errors import ConfigError, DataError
from raybio.core.fields import fields
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import (
    ProteinEncoder,
    build_protein_encoder,
    vocabulary_of,
)
from raybio.methods.sppt.proteins.tokenizer import build_tokenizer
from raybio.methods.sppt.proteins.vocabulary import ESM, STANDARD_RESIDUES, TAPE

TINY = {"num_layers": 2, "width": 32, "num_heads": 4, "ffn_width": 48, "max_positions": 64}
BOTH = pytest.mark.parametrize("name", ["tape", "esm"])


def tiny(name: str = "tape", **settings) -> EncoderConfig:
    return EncoderConfig(vocabulary=name, **TINY | settings)


def random_proteins(count: int, seed: int = 3, longest: int = 50) -> list[str]:
    rng = np.random.default_rng(seed)
    return [
        "".join(rng.choice(list(STANDARD_RESIDUES), rng.integers(1, longest))) for _ in range(count)
    ]


def tokens_of(
    encoder: ProteinEncoder, sequences: list[str], *, length: int | None = None, mask_every: int = 0
):
    rows = [encoder.vocabulary.encode(sequence) for sequence in sequences]
    for row in rows:
        if mask_every:
            row[2::mask_every] = encoder.vocabulary.mask_id
    length = length or max(map(len, rows))
    token_RL = np.full((len(rows), length), encoder.pad_id)
    for number, row in enumerate(rows):
        token_RL[number, : len(row)] = row
    mask_RL = np.arange(length) < np.array([len(row) for row in rows])[:, None]
    labels = torch.full(token_RL.shape, IGNORED_LABEL)
    return PaddedTokens(torch.from_numpy(token_RL), torch.from_numpy(mask_RL), labels)


def save(encoder: ProteinEncoder, folder) -> str:
    encoder.model.save_pretrained(folder)
    build_tokenizer(encoder.vocabulary, max_tokens=encoder.max_tokens).save_pretrained(folder)
    return str(folder)


@BOTH
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("mask_every", [0, 3])
def test_an_embedding_does_not_depend_on_batch_mates_or_padding(name, pooling, mask_every):
    encoder = build_protein_encoder(tiny(name, pooling=pooling), seed=0)
    sequences = random_proteins(6)
    together = encoder(tokens_of(encoder, sequences, length=64, mask_every=mask_every))
    for number, sequence in enumerate(sequences):
        alone = encoder(tokens_of(encoder, [sequence], mask_every=mask_every))
        torch.testing.assert_close(
            together.embedding_RD[number], alone.embedding_RD[0], rtol=1e-5, atol=1e-5
        )
        num_tokens = alone.hidden_RLD.shape[1]
        torch.testing.assert_close(
            together.hidden_RLD[number, :num_tokens], alone.hidden_RLD[0], rtol=1e-5, atol=1e-5
        )


def test_masked_tokens_of_one_sequence_do_not_rescale_another_one_through_esms_token_dropout():
    encoder = build_protein_encoder(tiny("esm"), seed=0)
    assert encoder.model.config.token_dropout
    clean = tokens_of(encoder, ["MKLVA", "ACDEF"])
    token_RL = clean.token_RL.clone()
    token_RL[1, 1:6] = ESM.mask_id
    masked = PaddedTokens(token_RL, clean.mask_RL, clean.label_RL)
    one, other = encoder(clean).embedding_RD, encoder(masked).embedding_RD
    torch.testing.assert_close(one[0], other[0], rtol=1e-6, atol=1e-6)
    assert (one[1] - other[1]).abs().max() > 1e-3


@BOTH
def test_cls_embedding_is_the_first_tokens_last_state(name):
    encoder = build_protein_encoder(tiny(name), seed=0)
    encoded = encoder(tokens_of(encoder, random_proteins(3)))
    assert encoded.embedding_RD.equal(encoded.hidden_RLD[:, 0])
    assert encoder.width == encoded.embedding_RD.shape[1] == 32


@BOTH
def test_mean_embedding_is_the_mean_over_residues_without_special_tokens(name):
    encoder = build_protein_encoder(tiny(name, pooling="mean"), seed=0)
    sequences = random_proteins(4)
    encoded = encoder(tokens_of(encoder, sequences))
    for number, sequence in enumerate(sequences):
        states = [encoded.hidden_RLD[number, 1 + position] for position in range(len(sequence))]
        torch.testing.assert_close(
            encoded.embedding_RD[number], sum(states) / len(states), rtol=1e-5, atol=1e-6
        )


@BOTH
def test_logits_are_those_of_the_language_model_head(name):
    encoder = build_protein_encoder(tiny(name), seed=0).eval()
    tokens = tokens_of(encoder, random_proteins(3))
    expected = encoder.model(input_ids=tokens.token_RL, attention_mask=tokens.mask_RL.long()).logits
    hidden_KD = encoder(tokens).hidden_RLD[tokens.mask_RL]
    torch.testing.assert_close(
        encoder.token_logits(hidden_KD), expected[tokens.mask_RL], rtol=1e-5, atol=1e-5
    )
    assert expected.shape[-1] == encoder.vocabulary.size


@BOTH
def test_weights_depend_on_the_seed_only_and_global_generators_are_unchanged(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = build_protein_encoder(tiny(name), seed=5)
    assert torch.get_rng_state().equal(before)
    torch.manual_seed(2)
    same, other = (
        build_protein_encoder(tiny(name), seed=5),
        build_protein_encoder(tiny(name), seed=6),
    )
    digests = [weights_digest(encoder.state_dict().items()) for encoder in (one, same, other)]
    assert digests[0] == digests[1] != digests[2]


@BOTH
def test_every_trainable_weight_gets_a_gradient_from_embedding_and_language_model(name):
    encoder = build_protein_encoder(tiny(name), seed=0)
    encoded = encoder(tokens_of(encoder, random_proteins(3), mask_every=4))
    (
        encoded.embedding_RD.square().sum()
        + encoder.token_logits(encoded.hidden_RLD[0]).square().sum()
    ).backward()
    trainable = {
        weight_name: weight
        for weight_name, weight in encoder.named_parameters()
        if weight.requires_grad
    }
    assert [weight_name for weight_name, weight in trainable.items() if weight.grad is None] == []
    frozen = [
        weight_name
        for weight_name, weight in encoder.named_parameters()
        if not weight.requires_grad
    ]
    assert all("contact_head" in weight_name for weight_name in frozen)


def test_input_and_output_embeddings_are_one_weight():
    encoder = build_protein_encoder(tiny(), seed=0)
    assert (
        encoder.model.get_input_embeddings().weight is encoder.model.get_output_embeddings().weight
    )


@BOTH
def test_recomputing_activations_changes_no_gradient(name):
    gradients = []
    for recompute in (False, True):
        encoder = build_protein_encoder(tiny(name, recompute_activations=recompute), seed=0)
        encoder(tokens_of(encoder, random_proteins(3))).embedding_RD.square().sum().backward()
        gradients.append(
            [weight.grad for weight in encoder.parameters() if weight.grad is not None]
        )
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-6, atol=1e-6)
    assert len(gradients[0]) > 10


@BOTH
def test_embeddings_are_float32_under_autocast(name):
    encoder = build_protein_encoder(tiny(name), seed=0)
    with torch.autocast("cpu", torch.bfloat16):
        assert encoder(tokens_of(encoder, ["MKL"])).embedding_RD.dtype == torch.float32


@BOTH
def test_dropout_is_off_by_default_and_on_when_requested(name):
    for dropout in (0.0, 0.3):
        encoder = build_protein_encoder(tiny(name, dropout=dropout), seed=0)
        tokens = tokens_of(encoder, ["MKLAVV"])
        assert encoder(tokens).embedding_RD.equal(encoder(tokens).embedding_RD) is (dropout == 0.0)


def test_padding_may_stick_out_of_the_position_table_but_residues_may_not():
    encoder = build_protein_encoder(tiny(max_positions=20), seed=0)
    rows = [TAPE.encode("A" * 19), TAPE.encode("MKL")]
    indptr = torch.tensor([0, 20, 24])
    batch = TokenBatch(
        torch.from_numpy(np.concatenate(rows)).long(), indptr, torch.full((24,), IGNORED_LABEL)
    )
    tokens = batch.pad(torch.tensor([0, 1]), TAPE.pad_id)
    assert tokens.token_RL.shape == (2, 24)
    encoded = encoder(tokens)
    assert encoded.hidden_RLD.shape == (2, 24, 32)
    short = encoder(tokens_of(encoder, ["MKL"]))
    torch.testing.assert_close(encoded.embedding_RD[1], short.embedding_RD[0], rtol=1e-5, atol=1e-5)
    with pytest.raises(
        DataError, match=r"21 tokens.*has 20 positions.*Crop sequences to 19 residues"
    ):
        encoder(tokens_of(encoder, ["A" * 20]))


@BOTH
def test_a_saved_folder_gives_the_same_encoder_with_its_own_vocabulary_and_sizes(name, tmp_path):
    encoder = build_protein_encoder(tiny(name), seed=0)
    folder = save(encoder, tmp_path / "a folder é")
    config = EncoderConfig(
        source=folder, vocabulary="esm" if name == "tape" else "tape", max_positions=80
    )
    loaded = build_protein_encoder(config, seed=1)
    assert vocabulary_of(config) is loaded.vocabulary is encoder.vocabulary
    assert loaded.max_tokens == (64 if name == "tape" else 80), "rotary positions have no table"
    assert weights_digest(loaded.state_dict().items()) == weights_digest(
        encoder.state_dict().items()
    )
    tokens = tokens_of(encoder, random_proteins(2))
    assert loaded(tokens).embedding_RD.equal(encoder(tokens).embedding_RD)
    assert loaded.training


def test_an_esm_with_a_position_table_counts_its_offset(tmp_path):
    encoder = build_protein_encoder(tiny("esm"), seed=0)
    encoder.model.config.position_embedding_type = "absolute"
    model = type(encoder.model)(encoder.model.config)
    loaded = build_protein_encoder(EncoderConfig(source=save_model(model, ESM, tmp_path)), seed=0)
    assert loaded.max_tokens == 62
    assert loaded(tokens_of(loaded, ["A" * 60])).hidden_RLD.shape[1] == 62
    with pytest.raises(DataError):
        loaded(tokens_of(loaded, ["A" * 61]))


def save_model(model, vocabulary, folder) -> str:
    model.save_pretrained(folder)
    build_tokenizer(vocabulary, max_tokens=62).save_pretrained(folder)
    return str(folder)


def test_the_tensor_names_of_the_published_esm2_files_are_understood(tmp_path):
    encoder = build_protein_encoder(tiny("esm"), seed=0)
    folder = save(encoder, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["esm.embeddings.position_ids"] = torch.arange(64)[None]
    tensors["esm.embeddings.position_embeddings.weight"] = torch.zeros(64, 32)
    for layer in range(2):
        name = f"esm.encoder.layer.{layer}.attention.self.rotary_embeddings.inv_freq"
        tensors[name] = encoder.model.esm.rotary_embeddings.inv_freq.clone()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = build_protein_encoder(EncoderConfig(source=folder), seed=1)
    assert weights_digest(loaded.state_dict().items()) == weights_digest(
        encoder.state_dict().items()
    )


def test_missing_and_unusable_sources_are_config_errors_that_say_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(
        ConfigError,
        match=r"'./nowhere': no such folder. Give an existing one, 'scratch' or a hub id",
    ):
        build_protein_encoder(EncoderConfig(source="./nowhere"), seed=0)
    with pytest.raises(ConfigError, match="must be one that save_pretrained writes"):
        build_protein_encoder(EncoderConfig(source=str(tmp_path)), seed=0)
    folder = save(build_protein_encoder(tiny(), seed=0), tmp_path / "good")
    description = json.loads((tmp_path / "good" / "config.json").read_text())
    (tmp_path / "good" / "config.json").write_text(json.dumps(description | {"model_type": "gpt2"}))
    with pytest.raises(ConfigError, match="is of type gpt2; want BERT, ESM"):
        build_protein_encoder(EncoderConfig(source=folder), seed=0)


def test_a_checkpoint_that_lacks_layers_is_refused(tmp_path):
    folder = save(build_protein_encoder(tiny(), seed=0), tmp_path)
    description = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(description | {"num_hidden_layers": 3}))
    with pytest.raises(
        ConfigError, match=r"16 encoder weights are not in the file, such as bert.encoder.layer.2"
    ):
        build_protein_encoder(EncoderConfig(source=folder), seed=0)


def test_a_checkpoint_without_language_model_head_gets_one_from_the_seed(tmp_path, caplog):
    encoder = build_protein_encoder(tiny(), seed=0)
    encoder.model.bert.save_pretrained(tmp_path)
    build_tokenizer(TAPE, max_tokens=64).save_pretrained(tmp_path)
    one, two = (
        build_protein_encoder(EncoderConfig(source=str(tmp_path)), seed=9) for _ in range(2)
    )
    assert "no language-model head" in caplog.text
    assert weights_digest(one.state_dict().items()) == weights_digest(two.state_dict().items())


def test_pickled_weights_give_the_same_encoder(tmp_path):
    encoder = build_protein_encoder(tiny(), seed=0)
    folder = save(encoder, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(encoder.model.state_dict(), tmp_path / "pytorch_model.bin")
    loaded = build_protein_encoder(EncoderConfig(source=folder), seed=1)
    assert weights_digest(loaded.state_dict().items()) == weights_digest(
        encoder.state_dict().items()
    )


def test_code_that_a_checkpoint_brings_is_not_run(tmp_path):
    folder = save(build_protein_encoder(tiny(), seed=0), tmp_path / "evil")
    canary = tmp_path / "canary"
    (tmp_path / "evil" / "evil.py").write_text(
        f"open({str(canary)!r}, 'w')\nclass C:\n    pass\nM = C\n"
    )
    description = json.loads((tmp_path / "evil" / "config.json").read_text())
    description |= {
        "model_type": "evil",
        "auto_map": {"AutoConfig": "evil.C", "AutoModelForMaskedLM": "evil.M"},
    }
    (tmp_path / "evil" / "config.json").write_text(json.dumps(description))
    with pytest.raises(ConfigError):
        build_protein_encoder(EncoderConfig(source=folder), seed=0)
    assert not canary.exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 30, "num_heads": 4}, "width 30 is not a multiple of num_heads 4"),
        (
            {"vocabulary": "esm", "width": 12, "num_heads": 4},
            "rotary positions .* want an even number",
        ),
        ({"dropout": 1.0}, "want a number >= 0.0, < 1.0"),
        ({"num_layers": 0}, "want a whole number >= 1"),
    ],
)
def test_settings_that_fit_no_transformer_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        EncoderConfig.from_mapping(settings)


def test_every_setting_is_explained():
    assert all(field.meaning for field in fields(EncoderConfig))
    settings = {field.path.split(".")[0] for field in fields(EncoderConfig)}
    assert set(get_type_hints(EncoderConfig)) >= settings


def test_the_defaults_are_bert_base():
    config = EncoderConfig()
    assert (config.num_layers, config.width, config.num_heads, config.ffn_width) == (
        12,
        768,
        12,
        3072,
    )
    assert EncoderConfig.from_mapping(config.to_mapping()) == config


def test_a_saved_folder_has_a_tokenizer_for_anyone(tmp_path):
    folder = save(build_protein_encoder(tiny("esm"), seed=0), tmp_path)
    assert AutoTokenizer.from_pretrained(folder)("MKJ")["input_ids"] == ESM.encode("MKJ").tolist()
