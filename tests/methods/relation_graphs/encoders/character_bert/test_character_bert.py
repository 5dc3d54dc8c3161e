from itertools import pairwise

import pytest
import torch

from raybio.core.errors import DataError
from raybio.methods.relation_graphs.encoders.character_bert.characters import word_characters
from raybio.methods.relation_graphs.encoders.character_bert.model import (
    CLS_ID,
    FIRST_WORD_ID,
    MASK_ID,
    PAD_ID,
    SEP_ID,
    build_character_bert,
    save_character_bert,
)
from tests.methods.relation_graphs.encoders.character_bert.tiny_characters import (
    WORDS,
    sentences,
    tiny,
)


def test_states_begin_with_word_position_and_type_normalized():
    encoder = tiny()
    token_RL, mask_RL = sentences([0, 1, 4], [2])
    seen = []
    encoder.model.encoder.layer[0].register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0])
    )
    with torch.no_grad():
        encoder(token_RL, mask_RL)
        parts = encoder.model.embeddings
        letters = word_characters(["[PAD]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
        word_VD = parts.word_embeddings(torch.from_numpy(letters).int())
        position_LD, type_D = (
            parts.position_embeddings.weight[:8],
            parts.token_type_embeddings.weight[0],
        )
        wanted = parts.LayerNorm(word_VD[token_RL] + position_LD + type_D)
    torch.testing.assert_close(seen[0], wanted, rtol=1e-5, atol=1e-5)


def test_computing_distinct_words_once_gives_the_states_and_gradients_of_all_tokens():
    encoder = tiny(dropout=0.0).train()
    token_RL, mask_RL = sentences([0, 1, 4, 1], [1, 1], [5, 2])
    weight_RLD = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(1))

    def gradients(states: torch.Tensor) -> list[torch.Tensor]:
        return list(
            torch.autograd.grad(
                (states * weight_RLD)[mask_RL].sum(), list(encoder.model.parameters())
            )
        )

    distinct = encoder(token_RL, mask_RL)
    every = encoder.model.embeddings.word_embeddings(encoder.character_VC[token_RL].int())
    plain = encoder.model(inputs_embeds=every, attention_mask=mask_RL.long()).last_hidden_state
    torch.testing.assert_close(distinct, plain, rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients(distinct), gradients(plain), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        assert other.abs().sum() > 0


def test_a_sentence_does_not_depend_on_padding_nor_on_what_other_words_there_are():
    encoder = tiny()
    token_RL, mask_RL = sentences([0, 1, 4], [5, 2, 2, 3])
    with torch.no_grad():
        both = encoder(token_RL, mask_RL)
        alone = encoder(token_RL[:1, :5], mask_RL[:1, :5])
        torch.testing.assert_close(both[:1, :5], alone, rtol=1e-5, atol=1e-5)
        encoder.read_words([WORDS[4], "unseen", WORDS[1], WORDS[0]])
        torch.testing.assert_close(
            encoder(*sentences([3, 2, 0]))[:, :5], alone, rtol=1e-5, atol=1e-5
        )
        words = encoder.embed_words(
            torch.tensor([[CLS_ID, SEP_ID, MASK_ID, PAD_ID, FIRST_WORD_ID]])
        )[0]
    assert min((one - other).abs().max() for one, other in pairwise(words)) > 1e-3


def test_words_are_no_part_of_a_checkpoint_and_there_is_no_table_of_them():
    encoder = tiny()
    names = set(encoder.state_dict())
    assert "character_VC" not in names
    assert not [name for name in names if name.endswith("word_embeddings.weight")]
    assert {name for name, _ in encoder.named_parameters()} == names


def test_what_cannot_be_read_is_refused():
    encoder = tiny()
    with pytest.raises(DataError, match="token id 10 is of no word; this encoder has read 6 words"):
        encoder(*sentences([0, 6]))
    with pytest.raises(DataError, match="17 tokens long, .* this encoder reads 16"):
        encoder(*sentences([0], length=17))


def test_a_new_highway_carries_its_input_on_and_loading_leaves_the_global_generator(tmp_path):
    encoder = tiny()
    gate = encoder.state_dict()["model.embeddings.word_embeddings._highways._layers.0.bias"]
    assert gate[12:].tolist() == [1.0] * 12 and not (gate[:12] == 1.0).any()
    before = torch.random.get_rng_state()
    build_character_bert(str(save_character_bert(encoder, tmp_path / "saved")))
    assert torch.equal(before, torch.random.get_rng_state())
