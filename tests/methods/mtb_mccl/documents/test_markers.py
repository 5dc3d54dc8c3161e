"""Markers around mentions, against a slow writer of nested brackets."""

import numpy as np
import pytest

from raybio.methods.mtb_mccl.documents.markers import NOT_READ, Markers, TextTokens, insert_markers

MARKERS = Markers(
    prefix_ids=(1,), suffix_ids=(2,), opening_id=3, closing_id=4, blank_id=5, mask_id=6
)


def words(num: int) -> TextTokens:
    """Words of two letters and a blank: number 10, 11, ..."""
    start_T = np.arange(num) * 3
    return TextTokens(np.arange(num) + 10, start_T, start_T + 2)


def marked(
    num: int,
    mentions: list[tuple[int, int]],
    blank: list[bool] | None = None,
    max_tokens: int = 100,
):
    start_M, end_M = (np.array([one[side] for one in mentions], dtype=np.int64) for side in (0, 1))
    is_blank_M = np.array(blank or [False] * len(mentions), dtype=bool)
    return insert_markers(words(num), start_M, end_M, is_blank_M, MARKERS, max_tokens)


def shown(found) -> str:
    names = {1: "<", 2: ">", 3: "[", 4: "]", 5: "_"}
    return "".join(names.get(token, chr(ord("a") + token - 10)) for token in found.id_S.tolist())


def test_a_mention_is_marked_and_its_place_is_that_of_its_opening_marker():
    found = marked(4, [(3, 8)])
    assert shown(found) == "<a[bc]d>"
    assert found.position_M.tolist() == [2]
    assert found.is_plain_S.tolist() == [False, True, False, False, False, False, True, False]


def test_mentions_in_one_another_nest():
    found = marked(5, [(3, 5), (3, 11), (9, 11), (0, 2)])
    assert shown(found) == "<[a][[b]c[d]]e>"
    assert [found.id_S[place] for place in found.position_M] == [3] * 4
    assert found.position_M.tolist() == [5, 4, 9, 1]


def test_the_same_span_twice_gets_two_pairs_of_markers():
    found = marked(2, [(0, 2), (0, 2)])
    assert shown(found) == "<[[a]]b>"
    assert sorted(found.position_M.tolist()) == [1, 2]


def test_a_blanked_mention_keeps_its_markers_and_loses_its_words():
    assert shown(marked(4, [(3, 8), (9, 11)], [True, False])) == "<a[_][d]>"
    assert shown(marked(4, [(0, 11), (3, 5)], [True, False])) == "<[_[]]>"
    assert shown(marked(4, [(0, 11), (3, 5)], [False, True])) == "<[a[_]cd]>"


def test_a_mention_spans_every_token_of_which_it_has_a_letter_and_one_without_any_is_not_read():
    assert shown(marked(3, [(4, 7)])) == "<a[bc]>"
    found = marked(3, [(2, 3), (0, 2)])
    assert shown(found) == "<[a]bc>"
    assert found.position_M.tolist() == [NOT_READ, 1]


@pytest.mark.parametrize("max_tokens", range(3, 12))
def test_what_is_too_long_loses_its_end_and_the_mentions_in_it(max_tokens):
    whole, found = marked(5, [(3, 5), (9, 14)]), marked(5, [(3, 5), (9, 14)], max_tokens=max_tokens)
    assert len(found.id_S) == min(max_tokens, len(whole.id_S))
    assert found.id_S.tolist() == [*whole.id_S[: len(found.id_S) - 1].tolist(), 2]
    expected = [
        place if place < len(found.id_S) - 1 else NOT_READ for place in whole.position_M.tolist()
    ]
    assert found.position_M.tolist() == expected


def test_many_random_mentions_are_balanced_and_hold_their_words():
    rng = np.random.default_rng(0)
    for _ in range(200):
        num = int(rng.integers(1, 8))
        cuts = np.sort(rng.integers(0, num + 1, (int(rng.integers(0, 4)), 2)), axis=1)
        # Nested or apart: crossing spans have no brackets.
        spans = [(a, b) for a, b in cuts.tolist() if a < b]
        spans = [
            s
            for i, s in enumerate(spans)
            if all(not (t[0] < s[0] < t[1] < s[1] or s[0] < t[0] < s[1] < t[1]) for t in spans[:i])
        ]
        found = marked(num, [(3 * a, 3 * b - 1) for a, b in spans])
        text = shown(found)[1:-1]
        assert text.replace("[", "").replace("]", "") == "".join(
            chr(ord("a") + n) for n in range(num)
        )
        for (a, b), place in zip(spans, found.position_M.tolist(), strict=True):
            inside, depth = "", 0
            for letter in shown(found)[place:]:
                depth += {"[": 1, "]": -1}.get(letter, 0)
                inside += letter
                if depth == 0:
                    break
            assert inside.replace("[", "").replace("]", "") == "".join(
                chr(ord("a") + n) for n in range(a, b)
            )
