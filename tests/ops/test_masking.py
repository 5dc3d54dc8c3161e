import numpy as np
import pytest

from raybio.core.batch import IGNORED_LABEL
from raybio.ops.masking import mask_tokens

MASK = 1
RESIDUES = np.arange(5, 25)


def draws(num_tokens, seed=0):
    return np.random.default_rng(seed).random((3, num_tokens))


def tokens(num_tokens, seed=1):
    rng = np.random.default_rng(seed)
    return rng.choice(RESIDUES, num_tokens).astype(np.int16), rng.random(num_tokens) < 0.1


def oracle(token, is_special, uniform, choice, random, rate, style):
    masked, label = [], []
    for i in range(len(token)):
        is_chosen = not is_special[i] and uniform[i] < rate
        label.append(int(token[i]) if is_chosen else IGNORED_LABEL)
        if is_chosen and (style == "always" or choice[i] < 0.8):
            masked.append(MASK)
        elif is_chosen and choice[i] < 0.9:
            masked.append(int(RESIDUES[int(random[i] * len(RESIDUES))]))
        else:
            masked.append(int(token[i]))
    return masked, label


@pytest.mark.parametrize("style", ["always", "bert"])
@pytest.mark.parametrize("rate", [0.0, 0.15, 1.0])
def test_masking_equals_the_loop(style, rate):
    token, is_special = tokens(2000)
    before = token.copy()
    masked, label = mask_tokens(
        token,
        is_special,
        *draws(2000),
        rate=rate,
        mask_id=MASK,
        style=style,
        random_token_ids=RESIDUES,
    )
    assert (masked.tolist(), label.tolist()) == oracle(token, is_special, *draws(2000), rate, style)
    assert masked.dtype == token.dtype
    assert np.array_equal(token, before)


def test_bert_style_replaces_eighty_ten_ten_percent():
    token, is_special = np.full(200_000, 30), np.zeros(200_000, dtype=bool)
    masked, label = mask_tokens(
        token,
        is_special,
        *draws(200_000),
        rate=0.15,
        mask_id=MASK,
        style="bert",
        random_token_ids=RESIDUES,
    )
    chosen = label != IGNORED_LABEL
    assert abs(chosen.mean() - 0.15) < 0.004
    assert abs((masked[chosen] == MASK).mean() - 0.8) < 0.01
    assert abs(np.isin(masked[chosen], RESIDUES).mean() - 0.1) < 0.01
    assert abs((masked[chosen] == 30).mean() - 0.1) < 0.01
    assert np.array_equal(masked[~chosen], token[~chosen])


def test_special_tokens_alone_or_no_token_at_all_give_no_label():
    for num_tokens in (0, 3):
        _, label = mask_tokens(
            np.zeros(num_tokens, dtype=np.int64),
            np.ones(num_tokens, dtype=bool),
            *draws(num_tokens),
            rate=1.0,
            mask_id=MASK,
            random_token_ids=RESIDUES,
        )
        assert (label == IGNORED_LABEL).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 1.5}, "share"),
        ({"style": "never"}, "always"),
        ({"style": "bert", "random_token_ids": []}, "empty"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    token, is_special = tokens(10)
    with pytest.raises(ValueError, match=message):
        mask_tokens(
            token,
            is_special,
            *draws(10),
            **{"rate": 0.15, "mask_id": MASK, "random_token_ids": RESIDUES} | settings,
        )
