"""Keys of texts: copies have equal keys, other texts do not."""

import re
import unicodedata

import numpy as np

from raybio.store.text_keys import text_keys


def test_copies_differ_in_case_spaces_and_punctuation_only() -> None:
    texts = [
        "Naïve T-cells, in mice.",
        "naïve  T cells in mice",
        "NAÏVE T_CELLS\nIN MICE!",
        "Naive T-cells, in mice.",
        "naïve T cells in rats",
        "",
        " ... ",
        "12",
        "1 2",
        "straße",
        "STRASSE",
    ]
    keys = text_keys(texts)
    assert keys.dtype == np.uint64

    def plain(text: str) -> str:
        kept = (one for one in text.casefold() if unicodedata.category(one)[0] in "LNM")
        return re.sub(r"\s", "", "".join(kept))

    for left, left_key in zip(texts, keys, strict=True):
        for right, right_key in zip(texts, keys, strict=True):
            assert (left_key == right_key) == (plain(left) == plain(right)), (left, right)
    assert keys[5] == keys[6] == 0


def test_keys_do_not_depend_on_the_process_or_the_order() -> None:
    many = [f"text {number}" for number in range(10_000)]
    keys = text_keys(many)
    assert len(np.unique(keys)) == 10_000
    assert (text_keys(reversed(many)) == keys[::-1]).all()
    assert text_keys(["raybio"])[0] == text_keys(iter(["Ray-Bio"]))[0] == 735935996750391413
