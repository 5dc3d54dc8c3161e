import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from raybio.core.errors import ConfigError
from raybio.encoders.bin_checkpoint import convert_weights
from raybio.methods.relation_graphs.encoders.character_bert.checkpoint import is_character_bert
from raybio.methods.relation_graphs.encoders.character_bert.model import (
    build_character_bert,
    check_character_bert,
    save_character_bert,
)
from tests.encoders.tiny_text import save_tiny
from tests.methods.relation_graphs.encoders.character_bert.tiny_characters import (
    CONFIG,
    FILTERS,
    LAYERS,
    POSITIONS,
    TINY_CHARACTERS,
    WORDS,
    published_tensors,
    sentences,
    tiny,
    write_published,
)
from tests.paths import SHARED_DATA

PUBLISHED = SHARED_DATA


@pytest.fixture
def converted(tmp_path) -> Path:
    write_published(tmp_path / "published", published_tensors())
    convert_weights(str(tmp_path / "published"), "main", tmp_path / "converted")
    return tmp_path / "converted"


def rewrite(folder: Path, *, config: dict | None = None, tensors: dict | None = None) -> str:
    """Change settings of a converted folder, or add weights and (None) take some away."""
    if config is not None:
        said = json.loads((folder / "config.json").read_text()) | config
        (folder / "config.json").write_text(
            json.dumps({key: value for key, value in said.items() if value is not None})
        )
    if tensors is not None:
        there = load_file(folder / "model.safetensors") | tensors
        save_file(
            {key: value for key, value in there.items() if value is not None},
            folder / "model.safetensors",
        )
    return str(folder)


def test_the_authors_folder_is_known_by_the_names_of_its_weights_and_loads(tmp_path):
    published = published_tensors()
    folder = str(write_published(tmp_path / "published", published))
    # Its settings are BERT's, so that it may be taken for one.
    assert is_character_bert(str(write_published(tmp_path / "silent", published, CONFIG)))
    assert is_character_bert(folder)
    loaded = build_character_bert(folder)
    assert loaded.training
    wanted = {name: tensor for name, tensor in published.items() if not name.startswith("pooler")}
    assert loaded.model.state_dict().keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(loaded.model.state_dict()[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize("prefix", ["bert.", "character_bert."])
def test_the_encoder_is_found_among_heads(converted, tmp_path, prefix):
    heads = {
        "cls.seq_relationship.weight": torch.zeros(2, 8),
        "classifier.weight": torch.zeros(2, 8),
        f"{prefix}embeddings.position_ids": torch.arange(POSITIONS)[None],
    }
    write_published(tmp_path / "heads", published_tensors(prefix) | heads)
    one, other = (
        build_character_bert(str(folder)).state_dict() for folder in (tmp_path / "heads", converted)
    )
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_settings_of_later_folders_are_read_under_their_older_names(converted):
    old = {"character_embedding_dim": None, "character_embeddings_dim": 4}
    old |= {"character_cnn_filters": None, "cnn_filters": [list(kind) for kind in FILTERS]}
    source = rewrite(
        converted,
        config=old | {"max_word_length": 50, "cnn_activation": "relu", "mlm_vocab_size": 9},
    )
    assert build_character_bert(source).config.character_cnn_filters == [
        [1, 3],
        [2, 4],
        [7, 5],
    ]


def test_what_is_saved_loads_again_bit_for_bit(tmp_path):
    encoder = tiny(dropout=0.25)
    folder = save_character_bert(encoder, tmp_path / "saved")
    assert json.loads((folder / "config.json").read_text())["model_type"] == "character_bert"
    assert load_file(folder / "model.safetensors").keys() == encoder.model.state_dict().keys()
    again = build_character_bert(str(folder)).eval()
    again.read_words(WORDS)
    batch = sentences([0, 1, 4], [5, 2])
    with torch.no_grad():
        torch.testing.assert_close(again(*batch), encoder(*batch), rtol=0, atol=0)
    assert again.config.hidden_dropout_prob == again.config.attention_probs_dropout_prob == 0.25
    assert (
        save_character_bert(again, tmp_path / "twice").joinpath("config.json").read_text()
        == (folder / "config.json").read_text()
    )


def test_a_cut_encoder_gives_the_states_of_that_layer_and_is_saved_as_what_it_is(
    converted, tmp_path
):
    whole = build_character_bert(str(converted)).eval()
    cut = build_character_bert(str(converted), num_layers_kept=2).eval()
    for encoder in (whole, cut):
        encoder.read_words(WORDS)
    token_RL, mask_RL = sentences([0, 1, 4], [5, 2])
    with torch.no_grad():
        states = whole.model(
            inputs_embeds=whole.embed_words(token_RL),
            attention_mask=mask_RL.long(),
            output_hidden_states=True,
        ).hidden_states
        torch.testing.assert_close(cut(token_RL, mask_RL), states[2], rtol=0, atol=0)
    assert len(states) == LAYERS + 1
    saved = build_character_bert(str(save_character_bert(cut, tmp_path / "cut")))
    assert saved.config.num_hidden_layers == 2 == len(saved.model.encoder.layer)
    with pytest.raises(ConfigError, match="num_layers_kept is 4, .* has 3 layers"):
        build_character_bert(str(converted), num_layers_kept=4)


def test_dropout_is_the_checkpoints_own_or_what_is_requested(converted):
    batch = sentences([0, 1, 4])
    check_character_bert(str(converted), num_layers_kept=1)
    for queries, wanted in ((None, {0.1, 0.2}), (0.0, {0.0}), (0.5, {0.5})):
        encoder = build_character_bert(str(converted), dropout=queries)
        encoder.read_words(WORDS)
        shares = {module.p for module in encoder.modules() if isinstance(module, torch.nn.Dropout)}
        shares |= {layer.attention.self.dropout.p for layer in encoder.model.encoder.layer}
        assert shares == wanted
        with torch.no_grad():
            assert torch.equal(encoder(*batch), encoder(*batch)) == (queries == 0.0)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"encoder.layer.1.output.dense.bias": None},
            "1 weights are missing: encoder.layer.1.output.dense.bias",
        ),
        (
            {"encoder.layer.3.output.dense.bias": torch.zeros(8)},
            "left over: encoder.layer.3.output.dense.bias",
        ),
        (
            {"embeddings.word_embeddings.char_conv_3.bias": torch.zeros(2)},
            "left over: .*char_conv_3.bias",
        ),
        (
            {"embeddings.word_embeddings._projection.bias": torch.zeros(9)},
            r"_projection.bias has shape \(9,\), .*\(8,\)",
        ),
        (
            {"embeddings.word_embeddings._char_embedding_weights": None},
            "missing: .*_char_embedding_weights",
        ),
    ],
)
def test_weights_that_are_missing_left_over_or_of_another_shape_are_named(
    converted, tensors, message
):
    source = rewrite(converted, tensors=tensors)
    with pytest.raises(ConfigError, match=message):
        check_character_bert(source)
    with pytest.raises(ConfigError, match=message):
        build_character_bert(source)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_size": None}, "has no hidden_size"),
        ({"hidden_size": "eight"}, "cannot be used|make no CharacterBERT"),
        ({"num_attention_heads": 3}, "make no CharacterBERT"),
        ({"character_cnn_filters": [[1]]}, "make no CharacterBERT"),
        ({"character_cnn_filters": None}, "not the CharacterBERT of its config.json"),
        ({"max_word_length": 30}, "says max_word_length 30; this CharacterBERT has 50"),
        ({"cnn_activation": "tanh"}, "says cnn_activation 'tanh'"),
    ],
)
def test_settings_that_are_missing_wrong_or_not_ours_are_refused(converted, config, message):
    with pytest.raises(ConfigError, match=message):
        build_character_bert(rewrite(converted, config=config))


def test_damaged_files_and_places_that_are_not_there_are_refused(converted, tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        build_character_bert(str(tmp_path / "nowhere"))
    (converted / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ConfigError, match="model.safetensors is damaged"):
        build_character_bert(str(converted))
    (converted / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        is_character_bert(str(converted))


def test_a_character_bert_is_reported_by_its_settings_or_the_names_of_its_weights(
    converted, tmp_path
):
    assert is_character_bert(str(converted))
    assert not is_character_bert("scratch")
    assert not is_character_bert(save_tiny(tmp_path / "bert"))
    named = (
        CONFIG | TINY_CHARACTERS | {"model_type": "bert", "architectures": ["CharacterBertModel"]}
    )
    assert is_character_bert(str(write_published(tmp_path / "named", {}, named)))
    assert is_character_bert(
        str(write_published(tmp_path / "typed", {}, CONFIG | {"model_type": "character_bert"}))
    )
    with pytest.raises(ConfigError, match=r"embeddings\.word_embeddings\.weight"):
        build_character_bert(str(tmp_path / "bert"))


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("general_character_bert", [-0.065009, 0.282772, -0.292036, -0.156121, 0.16317]),
        ("medical_character_bert", [-0.263793, 0.168549, -0.124364, -0.129445, 0.003586]),
    ],
)
def test_the_published_weights_give_the_numbers_that_their_authors_test(name, first):
    if not (PUBLISHED / name / "pytorch_model.bin").is_file():
        pytest.skip(f"../shared/data/{name} is not there")
    encoder = build_character_bert(str(PUBLISHED / name)).eval()
    encoder.read_words(["hello", "world", "!"])
    with torch.no_grad():
        found = encoder(*sentences([0, 1, 2], length=5))[0, 0, :5]
    torch.testing.assert_close(found, torch.tensor(first), rtol=0, atol=1e-5)
