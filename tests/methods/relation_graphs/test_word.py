"""Words of sentences, from pieces of words and from characters."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

from raybio.core.errors import ConfigError
from raybio.encoders.text import TextEncoder
from raybio.encoders.tokenization import word_pieces
from raybio.methods.relation_graphs.batches import WordBatch
from raybio.methods.relation_graphs.config import WordEncoderConfig
from raybio.methods.relation_graphs.encoder import WordEncoder, build_word_encoder, read_heads
from raybio.methods.relation_graphs.encoders.character_bert.model import save_character_bert
from raybio.methods.relation_graphs.export import export_word_encoder
from tests.encoders.tiny_text import SENTENCES, tiny_tokenizer
from tests.methods.relation_graphs.encoders.character_bert.tiny_characters import (
    random_character_bert,
)

COUNTS = {"aspirin": 9, "induced": 5, "severe": 4, "asthma": 7, "in": 9, "children": 3}
SIZES = {
    "num_layers": 3,
    "width": 16,
    "num_heads": 2,
    "ffn_width": 32,
    "max_length": 32,
    "dropout": 0.0,
}
WORDS = ("aspirin", "induced", "ASTHMA", "reinduced", "β2")


def scratch(**settings) -> tuple[WordEncoder, WordEncoderConfig]:
    config = WordEncoderConfig(**{"num_frozen_layers": 0} | SIZES | settings)
    return build_word_encoder(config, seed=0, count_by_word=COUNTS).eval(), config


def characters(
    folder: Path, num_layers: int = 3, **settings
) -> tuple[WordEncoder, WordEncoderConfig]:
    sizes = {
        "num_layers": num_layers,
        "width": 16,
        "ffn_width": 32,
        "max_tokens": 32,
        "filters": [[1, 4], [2, 4]],
    }
    save_character_bert(random_character_bert(seed=1, **sizes), folder)
    config = WordEncoderConfig(source=str(folder), num_frozen_layers=0, **settings)
    return build_word_encoder(config, seed=0).eval(), config


def batch_of(encoder: WordEncoder, config: WordEncoderConfig, sentences) -> WordBatch:
    """The batch that a reader makes, by loops."""
    known = encoder.word_tokens(WORDS, config)
    tokens, words, indptr, word_indptr = [], [], [0], [0]
    for sentence in sentences:
        tokens += known.prefix_ids
        words += [0] + [-1] * (len(known.prefix_ids) - 1)
        for place, word in enumerate(sentence, start=1):
            pieces = known.token_E[known.indptr_V1[word] : known.indptr_V1[word + 1]].tolist()
            tokens += pieces
            words += [place] + [-1 if known.first_only else place] * (len(pieces) - 1)
        tokens += known.suffix_ids
        words += [-1] * len(known.suffix_ids)
        indptr.append(len(tokens))
        word_indptr.append(word_indptr[-1] + len(sentence) + 1)
    arrays = {
        "token_T": tokens,
        "indptr_R1": indptr,
        "word_T": words,
        "word_indptr_R1": word_indptr,
    }
    return WordBatch.from_arrays(
        {name: np.array(one) for name, one in arrays.items()}
        | {"label_T": np.full(len(tokens), -100)}
    )


def embedded(encoder, config, sentences, rows=None):
    batch = batch_of(encoder, config, sentences)
    with torch.no_grad():
        return encoder(
            batch.pad(torch.tensor(rows or range(len(sentences))), encoder.pad_id)
        ).embedding_RD


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_a_word_is_the_mean_of_its_pieces_or_the_first(pooling):
    encoder, config = scratch(word_pooling=pooling)
    assert isinstance(encoder.body, TextEncoder)
    found = embedded(encoder, config, [[3, 0]])
    tokenizer = encoder.body.tokenizer
    encoding = tokenizer("reinduced aspirin", return_tensors="pt")
    with torch.no_grad():
        state_LD = encoder.body.model(**encoding).last_hidden_state[0]
    words = encoding.word_ids()
    assert words.count(0) > 1
    for number, word in enumerate((0, 1), start=1):
        places = [place for place, one in enumerate(words) if one == word][
            : 1 if pooling == "first" else None
        ]
        torch.testing.assert_close(found[number], state_LD[places].mean(0), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found[0], state_LD[0], atol=1e-6, rtol=1e-5)  # word 0 is [CLS]


@pytest.mark.parametrize("make", ["pieces", "characters"])
def test_a_word_depends_on_its_own_sentence_alone(tmp_path, make):
    encoder, config = scratch() if make == "pieces" else characters(tmp_path)
    together = embedded(encoder, config, [[0, 1, 2], [3, 4, 0, 1, 1, 1, 1, 2]])
    alone = embedded(encoder, config, [[0, 1, 2]])
    torch.testing.assert_close(together[:4], alone, atol=1e-5, rtol=1e-5)
    swapped = embedded(encoder, config, [[0, 1, 2], [3, 4, 0, 1, 1, 1, 1, 2]], rows=[1, 0])
    torch.testing.assert_close(swapped[-4:], alone, atol=1e-5, rtol=1e-5)


def test_characters_tell_words_apart_that_no_vocabulary_has(tmp_path):
    encoder, config = characters(tmp_path)
    found = embedded(encoder, config, [[3], [4]])
    assert not torch.allclose(found[1], found[3], atol=1e-4)
    assert found.shape == (4, 16)


@pytest.mark.parametrize("lower_case", [True, False])
def test_words_are_read_in_lower_case_if_requested(tmp_path, lower_case):
    encoder, config = characters(tmp_path, lower_case=lower_case)
    one = encoder.word_tokens(["ASTHMA"], config) and encoder.body.character_VC.clone()
    other = encoder.word_tokens(["asthma"], config) and encoder.body.character_VC
    assert torch.equal(one, other) == lower_case


@pytest.mark.parametrize("make", ["pieces", "characters"])
def test_the_first_layers_and_what_is_below_them_are_frozen(tmp_path, make):
    frozen = {"num_frozen_layers": 2}
    if make == "pieces":
        encoder, _ = scratch(**frozen)
    else:
        characters(tmp_path)
        encoder = build_word_encoder(WordEncoderConfig(source=str(tmp_path), **frozen), seed=0)
    trained = {
        name
        for name, weight in encoder.named_parameters()
        if weight.requires_grad and "pooler" not in name
    }
    assert trained and all(".layer.2." in name for name in trained)


def test_the_characters_part_has_lists_of_its_own_that_are_no_layers(tmp_path):
    """Two highways, and two layers."""
    sizes = {
        "num_layers": 2,
        "width": 16,
        "ffn_width": 32,
        "max_tokens": 32,
        "filters": [[1, 4], [2, 4]],
    }
    save_character_bert(random_character_bert(seed=1, **sizes), tmp_path)
    encoder = build_word_encoder(
        WordEncoderConfig(source=str(tmp_path), num_frozen_layers=1), seed=0
    )
    trained = {name for name, weight in encoder.named_parameters() if weight.requires_grad}
    assert trained and all(".layer.1." in name for name in trained)


def test_settings_that_a_character_bert_cannot_have_are_refused_and_the_others_obeyed(tmp_path):
    characters(tmp_path)
    config = {"source": str(tmp_path), "num_frozen_layers": 0}
    assert build_word_encoder(WordEncoderConfig(**config, max_length=8), seed=0).max_tokens == 8
    recomputing = build_word_encoder(
        WordEncoderConfig(**config, recompute_activations=True), seed=0
    )
    assert recomputing.body.model.is_gradient_checkpointing
    with pytest.raises(
        ConfigError, match="attention_dropout is 0, and CharacterBERT has one dropout"
    ):
        build_word_encoder(WordEncoderConfig(**config, attention_dropout=0.0), seed=0)


def test_the_spelling_of_words_is_distinguished_where_their_numbers_are_the_same(tmp_path):
    encoder, config = characters(tmp_path)
    raw = config.model_copy(update={"lower_case": False})
    one, other, again = (
        encoder.word_tokens(WORDS, settings).spelling for settings in (config, raw, config)
    )
    assert one == again != other


def test_freezing_all_layers_is_refused():
    with pytest.raises(ConfigError, match="num_frozen_layers is 3, and the encoder has 3 layers"):
        scratch(num_frozen_layers=3)


def tokenizer_of_bytes() -> PreTrainedTokenizerFast:
    """As RoBERTa's: a word's beginning is a blank."""
    trained = ByteLevelBPETokenizer(add_prefix_space=False)
    trained.train_from_iterator(SENTENCES, vocab_size=300, special_tokens=["<pad>", "<unk>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer, pad_token="<pad>", unk_token="<unk>"
    )


@pytest.mark.parametrize("make", [tiny_tokenizer, tokenizer_of_bytes])
def test_pieces_of_single_words_are_those_that_they_have_in_a_text(make):
    tokenizer, words = make(), ["cohort", "in", "population", "asthma"]
    token_E, indptr_V1 = word_pieces(tokenizer, words)
    inside = tokenizer(f"the {' '.join(words)}", add_special_tokens=False)["input_ids"]
    assert inside[-len(token_E) :] == token_E.tolist()
    assert indptr_V1[-1] == len(token_E) and (np.diff(indptr_V1) > 0).all()


def test_a_word_of_which_nothing_is_left_is_unknown():
    encoder, _ = scratch()
    token_E, indptr_V1 = word_pieces(encoder.body.tokenizer, ["\u200b", "asthma"])
    assert token_E[0] == encoder.body.tokenizer.unk_token_id and indptr_V1[1] == 1


@pytest.mark.parametrize("make", ["pieces", "characters"])
def test_an_export_is_the_same_encoder(tmp_path, make):
    encoder, config = scratch() if make == "pieces" else characters(tmp_path / "source")
    encoder.head = torch.nn.Linear(16, 16)
    export_word_encoder(
        encoder, tmp_path / "export", card={"name": "x"}, settings={"trained_by": "test"}
    )
    again = build_word_encoder(
        config.model_copy(update={"source": str(tmp_path / "export")}), seed=5
    ).eval()
    assert torch.equal(
        embedded(again, config, [[0, 1, 3, 4]]), embedded(encoder, config, [[0, 1, 3, 4]])
    )
    heads = read_heads(str(tmp_path / "export"))
    assert torch.equal(heads["head.weight"], encoder.head.weight)
