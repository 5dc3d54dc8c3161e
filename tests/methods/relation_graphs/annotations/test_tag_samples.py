"""Samples of CLNER: own tag first, then the other tags evenly."""

import numpy as np
import pytest

from raybio.core.errors import ConfigError
from raybio.methods.relation_graphs.annotations.tag_samples import (
    MAX_SORTED,
    NO_SAMPLE,
    draw_samples,
)
from raybio.methods.relation_graphs.config import SamplesConfig

SIZES = {0: 268, 1: 21, 2: 26, 3: 19, 4: 4}  # a batch of ADE: O, B-AE, I-AE, B-Drug, I-Drug


def batch_tags() -> np.ndarray:
    tag_W = np.repeat(list(SIZES), list(SIZES.values()))
    return np.random.default_rng(0).permutation(np.append(tag_W, [-1] * 16))


def drawn(
    tag_W: np.ndarray, config: SamplesConfig | None = None, seed: int = 0, num_tags: int = 5
) -> np.ndarray:
    queries = np.flatnonzero(tag_W >= 0)
    return draw_samples(
        tag_W, queries, config or SamplesConfig(), num_tags, np.random.default_rng(seed)
    )


def counts(tag_W: np.ndarray, sample_K: np.ndarray) -> list[int]:
    there = sample_K[sample_K != NO_SAMPLE]
    assert len(set(there.tolist())) == len(there)
    return np.bincount(tag_W[there], minlength=5).tolist()


def test_a_batch_of_ade_gives_the_counts_of_the_authors_rule():
    tag_W = batch_tags()
    samples = drawn(tag_W)
    for word, sample_K in zip(np.flatnonzero(tag_W >= 0), samples, strict=True):
        assert word not in sample_K
        own = int(tag_W[word])
        num_own = min(30, SIZES[own] - 1)
        share, filler = (80 - num_own) // 4, 2 if own == 0 else 0
        expected = {tag: min(share, size) for tag, size in SIZES.items()} | {
            own: num_own,
            filler: 0,
        }
        expected[filler] = min(80 - sum(expected.values()), SIZES[filler])
        assert counts(tag_W, sample_K) == [expected[tag] for tag in range(5)]
    of_outside = samples[np.flatnonzero(tag_W[tag_W >= 0] == 0)[0]]
    assert counts(tag_W, of_outside) == [
        30,
        12,
        22,
        12,
        4,
    ]  # worked by hand: 50 left, 12 each, what is left to I-AE


def test_every_member_of_a_tag_is_drawn_as_often_as_the_others():
    tag_W = np.repeat([0, 1], [40, 40])
    config = SamplesConfig(num_samples=10, num_positives=4)
    times = np.zeros(80)
    for seed in range(200):
        sample_MK = drawn(tag_W, config, seed, num_tags=2)
        np.add.at(times, sample_MK.ravel(), 1)
    # 200 draws x 80 words x 10 samples over 80 members.
    assert times.sum() == 200 * 80 * 10
    assert times.min() > 1800 and times.max() < 2200


def test_many_members_are_drawn_as_often_as_the_others_and_never_the_word_itself():
    tag_W = np.repeat([0, 1], [MAX_SORTED + 1, MAX_SORTED + 7])
    config = SamplesConfig(num_samples=80, num_positives=30)
    times = np.zeros(len(tag_W))
    for seed in range(3):
        sample_MK = drawn(tag_W, config, seed, num_tags=2)
        assert not (sample_MK == np.arange(len(tag_W))[:, None]).any()
        ordered_MK = np.sort(sample_MK, axis=1)
        assert (ordered_MK[:, 0] >= 0).all() and (np.diff(ordered_MK, axis=1) > 0).all()
        np.testing.assert_array_equal((tag_W[sample_MK] == tag_W[:, None]).sum(1), 30)
        np.add.at(times, sample_MK.ravel(), 1)
    # 3 draws of 80 samples a word: 240 a member, with a deviation of 15.
    assert times.min() > 160 and times.max() < 320
    assert abs(times[:100].mean() - 240) < 8 and abs(times[-100:].mean() - 240) < 8


@pytest.mark.parametrize("copies", [1, 20])
def test_samples_of_some_words_are_those_that_they_get_among_all(copies):
    tag_W = np.tile(batch_tags(), copies)
    every = np.flatnonzero(tag_W >= 0)
    whole = drawn(tag_W)
    rng = np.random.default_rng(5)
    for share in (0.0, 0.01, 0.3):
        some = np.flatnonzero(rng.random(len(every)) < share)
        part = draw_samples(tag_W, every[some], SamplesConfig(), 5, np.random.default_rng(0))
        np.testing.assert_array_equal(part, whole[some])


@pytest.mark.parametrize("tags", [[0], [0, 0], [1, 0], [-1, -1]])
def test_a_small_batch_has_fewer_samples(tags):
    tag_W = np.array(tags)
    for word, sample_K in zip(np.flatnonzero(tag_W >= 0), drawn(tag_W), strict=True):
        others = set(np.flatnonzero(tag_W >= 0).tolist()) - {int(word)}
        assert set(sample_K[sample_K != NO_SAMPLE].tolist()) == others


def test_positives_leave_room_for_other_tags():
    with pytest.raises(ConfigError, match="num_positives 30 leaves no room among num_samples 20"):
        SamplesConfig.from_mapping({"num_samples": 20})
