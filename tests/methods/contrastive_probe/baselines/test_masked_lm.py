"""Masked language models of five architectures, against the whole forward pass of transformers."""

import pytest
import torch
from transformers import BertForMaskedLM

from raybio.core.errors import ConfigError
from raybio.methods.contrastive_probe.baselines.masked_lm import MaskedLanguageModel, load_masked_lm
from tests.encoders.tiny_text import (
    ARCHITECTURES,
    MAX_POSITIONS,
    save_tiny,
    save_with_head,
    tiny_model,
    tiny_tokenizer,
)
from tests.minilm import WHY_NOT, minilm_folder

TEXTS = [
    "Asthma and [MASK] factors in the [MASK]",
    "[MASK] is COVID-19, they [MASK] say so and cost",
    "[MASK][MASK]",
]


def padded(model, texts):
    token_NL = torch.nn.utils.rnn.pad_sequence(
        [torch.from_numpy(one) for one in model.cloze_tokens(texts, 64)],
        batch_first=True,
        padding_value=model.pad_id,
    )
    return token_NL, torch.stack([torch.nonzero(row == model.mask_id)[:, 0] for row in token_NL])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_log_probabilities_at_positions_equal_those_of_a_complete_forward_pass(
    tmp_path, architecture
):
    model = load_masked_lm(save_with_head(tmp_path, architecture))
    assert model.max_tokens == MAX_POSITIONS
    token_NL, place_NJ = padded(model, TEXTS)
    with torch.inference_mode():
        logits_NLV = model.model(
            input_ids=token_NL, attention_mask=(token_NL != model.pad_id).long()
        ).logits
    expected_NJV = torch.stack(
        [row[places] for row, places in zip(logits_NLV, place_NJ, strict=True)]
    ).log_softmax(2)
    torch.testing.assert_close(
        model.log_probs(token_NL, place_NJ), expected_NJV, rtol=1e-5, atol=1e-5
    )


def test_log_probabilities_do_not_depend_on_padding(tmp_path):
    model = load_masked_lm(save_with_head(tmp_path, "bert"))
    together_NJV = model.log_probs(*padded(model, TEXTS))
    for number, text in enumerate(TEXTS):
        torch.testing.assert_close(model.log_probs(*padded(model, [text]))[0], together_NJV[number])


def test_a_predicted_padding_token_inside_a_text_is_not_padding(tmp_path):
    model = load_masked_lm(save_with_head(tmp_path, "bert"))
    token_NL, place_NJ = padded(model, TEXTS[:1])
    token_NL[0, int(place_NJ[0, 0])] = model.pad_id
    with torch.inference_mode():
        logits_LV = model.model(
            input_ids=token_NL, attention_mask=torch.ones_like(token_NL)
        ).logits[0]
    expected_V = logits_LV[place_NJ[0, 1]].log_softmax(0)
    torch.testing.assert_close(
        model.log_probs(token_NL, place_NJ)[0, 1], expected_V, rtol=1e-5, atol=1e-5
    )


def test_a_checkpoint_without_its_head_is_refused_and_the_missing_weights_are_named(tmp_path):
    with pytest.raises(
        ConfigError, match=r"no complete language-model head: 6 weights.*cls\.predictions\.bias"
    ):
        load_masked_lm(save_tiny(tmp_path, "bert"))


def test_a_published_sentence_encoder_has_no_head():
    folder = minilm_folder()
    if folder is None:
        pytest.skip(WHY_NOT)
    with pytest.raises(ConfigError, match=r"cls\.predictions\.transform\.dense\.weight"):
        load_masked_lm(str(folder))


def test_a_text_too_long_loses_words_and_keeps_its_mask_and_special_tokens():
    tokenizer = tiny_tokenizer()
    model = MaskedLanguageModel(
        BertForMaskedLM(tiny_model("bert", len(tokenizer)).config), tokenizer
    )
    (whole,) = model.cloze_tokens(["asthma and risk [MASK] of life"], 64)
    cls, asthma, and_, risk, mask, of, life, sep = whole.tolist()
    cuts = {
        size: model.cloze_tokens(["asthma and risk [MASK] of life"], size)[0].tolist()
        for size in (8, 7, 5, 4, 3)
    }
    assert cuts == {
        8: whole.tolist(),
        7: [cls, and_, risk, mask, of, life, sep],
        5: [cls, mask, of, life, sep],
        4: [cls, mask, of, sep],
        3: [cls, mask, sep],
    }
    with pytest.raises(ValueError, match="no mask token"):
        model.cloze_tokens(["asthma"], 64)
    with pytest.raises(ValueError, match="max_tokens is 2, want 3 at least"):
        model.cloze_tokens(["asthma [MASK]"], 2)


def test_tokens_of_a_name_equal_its_tokens_inside_a_text():
    tokenizer = tiny_tokenizer()
    model = MaskedLanguageModel(
        BertForMaskedLM(tiny_model("bert", len(tokenizer)).config), tokenizer
    )
    (name,) = model.name_tokens(["risk factors"])
    (text,) = model.cloze_tokens(["asthma and risk factors [MASK]"], 64)
    assert name == tuple(text.tolist()[3:5])
