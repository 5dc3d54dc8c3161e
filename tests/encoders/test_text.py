"""Text encoders over tiny checkpoints of several architectures."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BigBirdConfig,
    BigBirdModel,
    ConvBertConfig,
    FNetConfig,
    LongformerConfig,
    LongformerModel,
    MobileBertConfig,
    NystromformerConfig,
    XLNetConfig,
    XLNetModel,
    YosoConfig,
)

from raybio.core.batch import PaddedTokens
from raybio.core.config import override_all
from raybio.core.digest import weights_digest
from raybio.core.errors import ConfigError, DataError
from raybio.core.fields import fields
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.export import export_text_encoder
from raybio.encoders.sources import fetch_file
from raybio.encoders.text import build_text_encoder, check_text_encoder
from raybio.encoders.text_checkpoint import read_checkpoint
from tests.encoders.published import bluebert, clinicalbert
from tests.encoders.tiny_text import (
    ARCHITECTURES,
    COUNT_BY_WORD,
    MAX_POSITIONS,
    SENTENCES,
    embed,
    padded,
    save_tiny,
    save_with_head,
    tiny_tokenizer,
)
from tests.minilm import WHY_NOT, minilm_folder

TINY = {"num_layers": 2, "width": 32, "num_heads": 4, "ffn_width": 48, "max_length": 40}
ALL = pytest.mark.parametrize("architecture", ARCHITECTURES)


def scratch(**settings):
    return build_text_encoder(
        TextEncoderConfig(**TINY | settings), seed=0, count_by_word=COUNT_BY_WORD
    )


def loaded(folder, architecture="bert", **settings):
    return build_text_encoder(
        TextEncoderConfig(source=save_tiny(folder, architecture), **settings), seed=0
    )


@ALL
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_an_embedding_does_not_depend_on_batch_mates_or_padding(architecture, pooling, tmp_path):
    encoder = loaded(tmp_path, architecture, pooling=pooling).eval()
    together = encoder(padded(encoder, SENTENCES))
    for number, text in enumerate(SENTENCES):
        alone = encoder(padded(encoder, [text]))
        torch.testing.assert_close(
            together.embedding_RD[number], alone.embedding_RD[0], rtol=1e-5, atol=1e-5
        )
        num_tokens = int(padded(encoder, [text]).mask_RL.sum())
        torch.testing.assert_close(
            together.hidden_RLD[number, :num_tokens],
            alone.hidden_RLD[0, :num_tokens],
            rtol=1e-5,
            atol=1e-5,
        )


@ALL
def test_states_are_those_of_the_model_without_padding(architecture, tmp_path):
    encoder = loaded(tmp_path, architecture).eval()
    model = AutoModel.from_pretrained(tmp_path).eval()
    batch = encoder.tokenizer(SENTENCES[0], return_tensors="pt")
    expected = model(input_ids=batch["input_ids"]).last_hidden_state[0]
    hidden_LD = encoder(padded(encoder, SENTENCES)).hidden_RLD[0, : len(expected)]
    torch.testing.assert_close(hidden_LD, expected, rtol=1e-5, atol=1e-5)
    assert encoder.width == 32


@ALL
def test_the_first_layers_return_the_states_between_the_layers(architecture, tmp_path):
    encoder = loaded(tmp_path, architecture, num_layers_kept=1).eval()
    model = AutoModel.from_pretrained(tmp_path).eval()
    batch = encoder.tokenizer(SENTENCES[0], return_tensors="pt")
    expected = model(input_ids=batch["input_ids"], output_hidden_states=True).hidden_states[1][0]
    if architecture == "modernbert":  # layers add to a sum that is normalized once, at the end
        expected = model.final_norm(expected)
    hidden_LD = encoder(padded(encoder, SENTENCES)).hidden_RLD[0, : len(expected)]
    torch.testing.assert_close(hidden_LD, expected, rtol=1e-5, atol=1e-5)
    assert encoder.model.config.num_hidden_layers == 1
    export_text_encoder(encoder, tmp_path / "export", card={})
    again = build_text_encoder(TextEncoderConfig(source=str(tmp_path / "export")), seed=1).eval()
    hidden_RLD = encoder(padded(encoder, SENTENCES)).hidden_RLD
    assert torch.equal(again(padded(again, SENTENCES)).hidden_RLD, hidden_RLD)


def test_more_layers_than_there_are_cannot_be_kept_and_scratch_keeps_none(tmp_path):
    with pytest.raises(
        ConfigError, match="num_layers_kept is 3, and .* has 2 layers; want at most as many"
    ):
        loaded(tmp_path, num_layers_kept=3)
    with pytest.raises(ConfigError, match="with source 'scratch' num_layers says how many"):
        override_all(TextEncoderConfig(), {"num_layers_kept": 2})


@ALL
def test_a_text_may_fill_all_positions_and_no_more(architecture, tmp_path):
    encoder = loaded(tmp_path, architecture, max_length=1000).eval()
    assert encoder.max_tokens == MAX_POSITIONS
    full = padded(encoder, [SENTENCES[-1] * 4])
    assert full.mask_RL.all()
    assert full.token_RL.shape == (1, MAX_POSITIONS)
    assert encoder(full).embedding_RD.isfinite().all()
    one_more = torch.ones(1, MAX_POSITIONS + 1, dtype=torch.bool)
    with pytest.raises(
        DataError,
        match=f"has {MAX_POSITIONS + 1} tokens.*reads {MAX_POSITIONS}.*encoder.max_length",
    ):
        encoder(PaddedTokens(torch.full((1, MAX_POSITIONS + 1), 5), one_more, one_more.long()))


@ALL
def test_padding_beyond_the_positions_changes_nothing(architecture, tmp_path):
    encoder = loaded(tmp_path, architecture).eval()
    tokens = padded(encoder, SENTENCES[:2])
    more = 2 * MAX_POSITIONS - tokens.token_RL.shape[1]
    wide = PaddedTokens(
        torch.nn.functional.pad(tokens.token_RL, (0, more), value=encoder.pad_id),
        torch.nn.functional.pad(tokens.mask_RL, (0, more)),
        torch.nn.functional.pad(tokens.label_RL, (0, more)),
    )
    encoded = encoder(wide)
    assert encoded.hidden_RLD.shape == (2, 2 * MAX_POSITIONS, 32)
    torch.testing.assert_close(
        encoded.embedding_RD, encoder(tokens).embedding_RD, rtol=1e-5, atol=1e-5
    )


def test_bigbird_embeds_a_long_text_the_same_after_a_short_one(tmp_path):
    """Block-sparse attention would change to full attention at the first short text."""
    tokenizer = tiny_tokenizer()
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sparse = BigBirdConfig(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        intermediate_size=48,
        max_position_embeddings=MAX_POSITIONS,
        block_size=4,
        num_random_blocks=1,
        attention_type="block_sparse",
        **sizes,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BigBirdModel(sparse).save_pretrained(tmp_path / "raw")
    tokenizer.save_pretrained(tmp_path / "raw")
    encoder = build_text_encoder(TextEncoderConfig(source=str(tmp_path / "raw")), seed=0)
    long = max(SENTENCES, key=len)
    assert int(padded(encoder, [long]).mask_RL.sum()) > 7 * sparse.block_size
    first = embed(encoder, [long])
    embed(encoder, SENTENCES[1:2])
    assert (embed(encoder, [long]) == first).all()
    folder = export_text_encoder(encoder, tmp_path / "out", card={})
    exported = AutoModel.from_pretrained(folder)
    assert exported.config.attention_type == "original_full"


def test_a_longformer_with_a_window_for_each_layer_is_cut(tmp_path):
    tokenizer = tiny_tokenizer()
    config = LongformerConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=MAX_POSITIONS + 1,
        pad_token_id=tokenizer.pad_token_id,
        attention_window=[4, 8],
    )
    LongformerModel(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    settings = TextEncoderConfig(source=str(tmp_path), num_layers_kept=1)
    check_text_encoder(settings)
    encoder = build_text_encoder(settings, seed=0)
    assert encoder.model.config.attention_window == [4]
    assert embed(encoder, SENTENCES).shape == (len(SENTENCES), 32)


@pytest.mark.parametrize(
    "kind", [ConvBertConfig, FNetConfig, MobileBertConfig, NystromformerConfig, YosoConfig]
)
def test_architectures_whose_states_depend_on_padding_are_refused(kind, tmp_path):
    kind().save_pretrained(tmp_path)
    checkpoint = read_checkpoint(str(tmp_path), "main", with_head=False)
    with pytest.raises(ConfigError, match=f"{kind.model_type}, which makes .* on its padding"):
        checkpoint.load_config()


def test_mean_pooling_counts_special_tokens_and_cls_takes_the_first():
    for pooling in ("mean", "cls"):
        encoder = scratch(pooling=pooling).eval()
        tokens = padded(encoder, SENTENCES)
        encoded = encoder(tokens)
        for number, mask_L in enumerate(tokens.mask_RL):
            state_TD = encoded.hidden_RLD[number, mask_L]
            expected = state_TD.mean(0) if pooling == "mean" else state_TD[0]
            torch.testing.assert_close(encoded.embedding_RD[number], expected, rtol=1e-5, atol=1e-6)


def test_a_normalized_embedding_has_length_one_and_the_direction_of_the_other():
    plain, unit = (embed(scratch(normalize=normalize), SENTENCES) for normalize in ("auto", True))
    length = (plain**2).sum(1, keepdims=True) ** 0.5
    torch.testing.assert_close(
        torch.from_numpy(plain / length), torch.from_numpy(unit), rtol=1e-5, atol=1e-6
    )


def test_embeddings_of_a_half_precision_model_are_float32():
    encoder = scratch().to(torch.bfloat16)
    encoded = encoder(padded(encoder, SENTENCES))
    assert encoded.hidden_RLD.dtype == torch.bfloat16
    assert encoded.embedding_RD.dtype == torch.float32


def test_every_trainable_parameter_gets_a_gradient(tmp_path):
    for encoder in (scratch(), loaded(tmp_path, "electra"), scratch(recompute_activations=True)):
        encoder(padded(encoder, SENTENCES)).embedding_RD.sum().backward()
        trained = [
            (name, weight) for name, weight in encoder.named_parameters() if weight.requires_grad
        ]
        assert [name for name, weight in trained if weight.grad is None] == []


def test_weights_depend_on_the_seed_only_and_global_generators_are_unchanged():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = scratch()
    assert torch.get_rng_state().equal(before)
    torch.manual_seed(2)
    assert weights_digest(one.state_dict().items()) == weights_digest(
        scratch().state_dict().items()
    )
    other = build_text_encoder(TextEncoderConfig(**TINY), seed=1, count_by_word=COUNT_BY_WORD)
    assert weights_digest(one.state_dict().items()) != weights_digest(other.state_dict().items())


def test_dropout_is_the_checkpoints_own_unless_it_is_set(tmp_path):
    for architecture in ("bert", "distilbert"):
        folder = tmp_path / architecture
        rates = {
            dropout: {
                m.p
                for m in loaded(folder, architecture, dropout=dropout).modules()
                if hasattr(m, "p")
            }
            for dropout in (None, 0.0)
        }
        assert rates == {None: {0.1}, 0.0: {0.0}}


@pytest.mark.parametrize("architecture", ["bert", "distilbert"])
def test_attention_may_have_another_dropout(tmp_path, architecture):
    encoders = [
        loaded(tmp_path / architecture, architecture, attention_dropout=0.0),
        scratch(attention_dropout=0.0),
    ]
    for encoder in encoders:
        config = encoder.model.config
        rates = [
            getattr(config, "attention_probs_dropout_prob", None),
            getattr(config, "attention_dropout", None),
        ]
        assert 0.0 in rates and set(rates) <= {0.0, None}
        assert {m.p for m in encoder.modules() if isinstance(m, torch.nn.Dropout)} >= {0.1}


def test_a_learned_temperature_is_a_parameter_of_checkpoints():
    encoder = scratch()
    assert "log_temperature" not in encoder.state_dict()
    encoder.learn_temperature(0.05)
    assert float(encoder.state_dict()["log_temperature"].exp()) == pytest.approx(0.05)
    assert encoder.log_temperature.requires_grad
    with pytest.raises(ValueError, match="initial temperature is 0, want a number > 0"):
        encoder.learn_temperature(0)


def test_there_is_no_language_model_head():
    with pytest.raises(NotImplementedError, match="no language-model head"):
        scratch().token_logits(torch.zeros(1, 32))


def test_max_length_is_a_setting_or_what_the_tokenizer_says(tmp_path):
    assert scratch(max_length="auto").max_tokens == 512
    assert scratch().max_tokens == 40
    assert loaded(tmp_path).max_tokens == MAX_POSITIONS


def test_a_length_that_no_source_states_must_be_set(tmp_path):
    endless = tiny_tokenizer(max_tokens=int(1e30))
    sizes = {"d_model": 32, "n_layer": 1, "n_head": 4, "d_inner": 48}
    XLNetModel(XLNetConfig(vocab_size=len(endless), **sizes)).save_pretrained(tmp_path)
    endless.save_pretrained(tmp_path)
    config = TextEncoderConfig(source=str(tmp_path), max_length="auto")
    with pytest.raises(
        ConfigError, match="neither encoder.source .* nor its tokenizer states a length"
    ):
        build_text_encoder(config, seed=0)
    assert build_text_encoder(override_all(config, {"max_length": "77"}), seed=0).max_tokens == 77


def test_the_configuration_reads_words_and_numbers_from_the_command_line():
    config = override_all(
        TextEncoderConfig(), {"max_length": "auto", "normalize": "true", "pooling": "cls"}
    )
    assert (config.max_length, config.normalize, config.pooling) == ("auto", True, "cls")
    config = override_all(config, {"max_length": "256", "normalize": "auto"})
    assert (config.max_length, config.normalize) == (256, "auto")
    assert all(field.meaning for field in fields(TextEncoderConfig))
    for wrong in (
        {"max_length": "2"},
        {"max_length": "all"},
        {"width": "30"},
        {"normalize": "maybe"},
    ):
        with pytest.raises(ConfigError):
            override_all(TextEncoderConfig(), wrong)


def test_scratch_needs_the_words_of_a_corpus():
    with pytest.raises(
        ConfigError, match="'scratch' has no vocabulary of its own; want the words of a corpus"
    ):
        build_text_encoder(TextEncoderConfig(**TINY), seed=0)


def test_a_checkpoint_without_some_of_its_weights_is_refused(tmp_path):
    source = save_tiny(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ConfigError, match="1 encoder weights are not in the file, such as encoder.layer.1.output"
    ):
        build_text_encoder(TextEncoderConfig(source=source), seed=0)


def test_pickled_weights_are_not_read(tmp_path):
    source = save_tiny(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="cannot be loaded.*model.safetensors"):
        build_text_encoder(TextEncoderConfig(source=source), seed=0)


def test_a_lack_of_memory_is_not_said_to_be_the_fault_of_the_source(tmp_path, monkeypatch):
    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    source = save_tiny(tmp_path)
    monkeypatch.setattr("transformers.AutoModel.from_pretrained", no_memory)
    with pytest.raises(MemoryError):
        build_text_encoder(TextEncoderConfig(source=source), seed=0)


def test_a_tokenizer_that_does_not_belong_to_the_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"tokenizer has \d+ tokens and its model only \d+"):
        save_tiny(tmp_path)
        tiny_tokenizer(size=80)  # the letters alone fit
        larger = tiny_tokenizer()
        larger.add_tokens([f"gene{number}" for number in range(300)])
        larger.save_pretrained(tmp_path)
        build_text_encoder(TextEncoderConfig(source=str(tmp_path)), seed=0)
    source = save_tiny(tmp_path / "roberta", "roberta")
    shifted = AutoTokenizer.from_pretrained(source)
    shifted.pad_token = "[SEP]"
    shifted.save_pretrained(source)
    with pytest.raises(ConfigError, match="pads with id 3 and its model takes 0 for padding"):
        build_text_encoder(TextEncoderConfig(source=source), seed=0)


@pytest.mark.parametrize("source", ["./nowhere", "/nowhere/at/all", "a/b/c"])
def test_a_missing_folder_is_named(source):
    with pytest.raises(ConfigError, match=f"encoder.source '{source}': no such folder"):
        build_text_encoder(TextEncoderConfig(source=source), seed=0)
    with pytest.raises(ConfigError, match="no such folder"):
        fetch_file(source, "modules.json", "main")


@pytest.mark.skipif(minilm_folder() is None, reason=WHY_NOT)
def test_embeddings_of_minilm_are_those_of_sentence_transformers():
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = str(minilm_folder())
    encoder = build_text_encoder(TextEncoderConfig(source=folder, max_length="auto"), seed=0)
    assert (encoder.pooling, encoder.is_normalized, encoder.max_tokens, encoder.width) == (
        "mean",
        True,
        256,
        384,
    )
    texts = [*SENTENCES, SENTENCES[0] * 30]
    expected = sentence_transformers.SentenceTransformer(folder, device="cpu").encode(texts)
    torch.testing.assert_close(
        torch.from_numpy(embed(encoder, texts)), torch.from_numpy(expected), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("architecture", ["bert", "roberta", "modernbert"])
def test_a_language_model_keeps_its_own_head(architecture, tmp_path):
    assert_equal_logits(save_with_head(tmp_path, architecture))


def assert_equal_logits(source):
    config = TextEncoderConfig(source=source)
    encoder = build_text_encoder(config, seed=0).eval()
    encoder.add_mask_head(config, seed=0)
    tokens = padded(encoder, SENTENCES[:1])
    logits_KV = encoder.token_logits(encoder(tokens).hidden_RLD[0])
    whole = AutoModelForMaskedLM.from_pretrained(source).eval()
    expected = whole(input_ids=tokens.token_RL, attention_mask=tokens.mask_RL.long()).logits[0]
    torch.testing.assert_close(logits_KV, expected, rtol=1e-4, atol=1e-5)


def test_a_head_has_the_activation_of_its_checkpoint(tmp_path):
    source = save_tiny(tmp_path)
    BertForMaskedLM(BertConfig.from_pretrained(source, hidden_act="relu")).save_pretrained(source)
    assert_equal_logits(source)


def test_a_random_head_depends_on_the_seed_and_is_logged(tmp_path, caplog):
    heads = []
    for seed in (0, 0, 1):
        encoder = loaded(tmp_path)
        encoder.add_mask_head(TextEncoderConfig(source=str(tmp_path)), seed=seed)
        heads.append(encoder.mask_head.dense.weight)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert "begins with random weights" in caplog.text


def test_letters_are_tokens_of_a_vocabulary_of_characters():
    encoder = scratch(vocabulary="characters")
    ids = encoder.tokenizer("Gene a§")["input_ids"]
    assert encoder.tokenizer.convert_ids_to_tokens(ids) == [
        "[CLS]",
        "g",
        "e",
        "n",
        "e",
        " ",
        "a",
        "[UNK]",
    ]


def pieces_of(folder, text="Aspirin Café"):
    tokenizer = read_checkpoint(str(folder), "main", with_head=False).load_tokenizer()
    return tokenizer.tokenize(text)


def test_a_cased_vocabulary_keeps_case_where_no_file_says_otherwise(tmp_path, caplog):
    folder = tmp_path / "published"
    clinicalbert(folder)
    assert AutoTokenizer.from_pretrained(folder).tokenize("Aspirin Café") == ["aspirin", "cafe"]
    assert pieces_of(folder) == ["Aspirin", "Café"]
    assert "do_lower_case" in caplog.text
    encoder = build_text_encoder(TextEncoderConfig(source=str(folder), max_length=8), seed=0)
    assert encoder.tokenizer.tokenize("Aspirin") == ["Aspirin"]

    (folder / "tokenizer_config.json").write_text('{"model_max_length": 64}')
    assert pieces_of(folder) == ["Aspirin", "Café"]


@pytest.mark.parametrize("file", ["tokenizer_config.json", "tokenizer.json"])
def test_a_tokenizer_whose_files_say_that_it_lowercases_does(tmp_path, caplog, file):
    folder = tmp_path / "published"
    clinicalbert(folder)
    if file == "tokenizer.json":
        AutoTokenizer.from_pretrained(folder).backend_tokenizer.save(str(folder / file))
    else:
        (folder / file).write_text('{"do_lower_case": true}')
    assert pieces_of(folder) == ["aspirin", "cafe"]
    assert not caplog.text


def test_an_uncased_vocabulary_lowercases_where_no_file_says_otherwise(tmp_path, caplog):
    folder = tmp_path / "published"
    bluebert(folder)
    assert pieces_of(folder, "Asthma") == ["asthma"]
    assert not caplog.text
