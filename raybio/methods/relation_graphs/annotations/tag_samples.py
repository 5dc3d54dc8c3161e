"""CLNER's samples: words to compare each word with, balanced over tags (Section 3.3).

Shape letters: W words of the global batch, M anchors of one worker, K samples of an anchor; N words
of a tag, R rows of a worker among them.
"""

import numpy as np

from raybio.methods.relation_graphs.config import SamplesConfig

OUTSIDE = 0
"""Tag of words outside entities."""

NO_SAMPLE = -1

MAX_SORTED = 1024
"""Up to this many words, samples are drawn by sorting random keys, whose cost grows with words."""


def draw_samples(
    tag_W: np.ndarray,
    anchor_M: np.ndarray,
    config: SamplesConfig,
    num_tags: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the samples of some anchors, int64 (M, K), ``NO_SAMPLE`` where there are fewer.

    1. Up to ``num_positives`` words of the same tag, never the anchor itself.
    2. Equal shares of words of the other tags; all words of a tag that has fewer.
    3. The rest from ``OUTSIDE``. For anchors outside entities, the rest is from the other tag with
       the most words: in ADE mostly inner words of effects, which the authors' code always takes.

    All are drawn without replacement. An anchor's samples do not depend on other anchors: the
    generator skips the draws of words that are not in ``anchor_M``.

    Args:
        tag_W: tags of the words; negative: not sampled.
        anchor_M: words with a tag, ascending.
        config: numbers of samples.
        num_tags: number of tags, ``OUTSIDE`` first.
        rng: generator of the draws.
    """
    words_by_tag = [np.flatnonzero(tag_W == tag) for tag in range(num_tags)]
    most_frequent = max(range(1, num_tags), key=lambda tag: len(words_by_tag[tag]), default=OUTSIDE)
    sample_MK = np.full((len(anchor_M), config.num_samples), NO_SAMPLE, dtype=np.int64)
    tag_M = tag_W[anchor_M]
    for own in range(num_tags):
        members = words_by_tag[own]
        if not len(members):
            continue
        rows = np.flatnonzero(tag_M == own)
        index_R = np.searchsorted(members, anchor_M[rows])
        num_positives = min(config.num_positives, len(members) - 1)
        parts = [_draw_others(members, index_R, num_positives, rng)]
        left = config.num_samples - parts[0].shape[1]
        filler = most_frequent if own == OUTSIDE else OUTSIDE
        share = left // max(num_tags - 1, 1)
        # The filler comes last and takes what is left.
        others = sorted(set(range(num_tags)) - {own}, key=lambda tag: (tag == filler, tag))
        for tag in others:
            size = left if tag == filler else share
            parts.append(_draw(words_by_tag[tag], len(members), index_R, size, rng))
            left -= parts[-1].shape[1]
        drawn = np.concatenate(parts, axis=1)
        sample_MK[rows, : drawn.shape[1]] = drawn
    return sample_MK


def _draw(
    members_N: np.ndarray,
    num_rows: int,
    index_R: np.ndarray,
    size: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Draw ``size`` members (or all) without replacement, for each of the given rows."""
    size = min(size, len(members_N))
    if size == len(members_N):
        return np.broadcast_to(members_N, (len(index_R), size))
    if len(members_N) > MAX_SORTED:
        uniform_RK = _random_rows(rng, num_rows, index_R, size)
        return members_N[_distinct(uniform_RK, len(members_N))]
    key_RN = _random_rows(rng, num_rows, index_R, len(members_N))
    return members_N[np.argpartition(key_RN, size, axis=1)[:, :size]]


def _draw_others(
    members_N: np.ndarray, own_R: np.ndarray, size: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw ``size`` members without replacement for each member in ``own_R``, never itself."""
    num = len(members_N)
    if num > MAX_SORTED:
        index_RK = _distinct(_random_rows(rng, num, own_R, size), num - 1)
        return members_N[index_RK + (index_RK >= own_R[:, None])]
    key_RN = _random_rows(rng, num, own_R, num)
    key_RN[np.arange(len(own_R)), own_R] = 2.0
    return members_N[np.argsort(key_RN, axis=1)[:, :size]]


def _random_rows(
    rng: np.random.Generator, num_rows: int, index_R: np.ndarray, width: int
) -> np.ndarray:
    """Return ``rng.random((num_rows, width))[index_R]``; only these rows are computed.

    Args:
        rng: generator whose bits can be skipped; each number takes one draw.
        num_rows: number of rows by which the generator advances.
        index_R: ascending.
        width: numbers of a row.
    """
    row_RX = np.empty((len(index_R), width))
    # Neighboring rows are one run, which is drawn at once.
    ends = [*(np.flatnonzero(np.diff(index_R) != 1) + 1).tolist(), len(index_R)]
    start = 0
    position = 0
    for end in ends if len(index_R) else []:
        first = int(index_R[start])
        _skip(rng, (first - position) * width)
        rng.random(out=row_RX[start:end])
        position = first + end - start
        start = end
    _skip(rng, (num_rows - position) * width)
    return row_RX


def _skip(rng: np.random.Generator, num_draws: int) -> None:
    rng.bit_generator.advance(num_draws)  # type: ignore[attr-defined]  # of default_rng's PCG64


def _distinct(uniform_RK: np.ndarray, num: int) -> np.ndarray:
    """Return K distinct numbers of ``range(num)`` in each row (R, K), from uniforms in [0, 1).

    This is Floyd's algorithm (Bentley and Floyd, 1987, "A sample of brilliance"). The range grows
    by one number with each draw; a number that was drawn before is replaced by the newest one.
    """
    size = uniform_RK.shape[1]
    last_K = np.arange(num - size, num)
    index_KR = (uniform_RK * (last_K + 1)).astype(np.int64).T.copy()
    for k in range(1, size):
        is_taken_R = (index_KR[:k] == index_KR[k]).any(axis=0)
        index_KR[k, is_taken_R] = last_K[k]
    return index_KR.T
