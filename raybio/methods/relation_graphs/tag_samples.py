"""CLNER's samples: words to compare each word with, balanced over tags (Section 3.3).

Shape letters: W words of the global batch, M anchors, K samples of an anchor.
"""

import numpy as np

from raybio.methods.relation_graphs.config import SamplesConfig

OUTSIDE = 0
"""Tag of words outside entities."""

NO_SAMPLE = -1


def draw_samples(
    tag_W: np.ndarray,
    anchor_M: np.ndarray,
    config: SamplesConfig,
    num_tags: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the samples of each anchor, int64 (M, K), ``NO_SAMPLE`` where there are fewer.

    1. Up to ``num_positives`` words of the same tag, never the anchor itself.
    2. Equal shares of the other tags; all words of a tag that has fewer.
    3. The rest from ``OUTSIDE``. For anchors outside, from the other tag with most words: in ADE
       mostly inner words of effects, which the authors' code always takes.

    All are drawn without replacement.

    Args:
        tag_W: tags of the words; negative: not sampled.
        anchor_M: the anchors.
        config: numbers of samples.
        num_tags: number of tags, ``OUTSIDE`` first.
        rng: generator of the draws.
    """
    words_by_tag = [np.flatnonzero(tag_W == tag) for tag in range(num_tags)]
    most_frequent = max(range(1, num_tags), key=lambda tag: len(words_by_tag[tag]), default=OUTSIDE)
    sample_MK = np.full((len(anchor_M), config.num_samples), NO_SAMPLE, dtype=np.int64)
    tag_M = tag_W[anchor_M]
    for own in range(num_tags):
        rows = np.flatnonzero(tag_M == own)
        if not len(rows):
            continue
        members = words_by_tag[own]
        index = np.searchsorted(members, anchor_M[rows])
        parts = [_draw_others(members, index, min(config.num_positives, len(members) - 1), rng)]
        left = config.num_samples - parts[0].shape[1]
        filler = most_frequent if own == OUTSIDE else OUTSIDE
        share = left // max(num_tags - 1, 1)
        # The filler comes last and takes what is left.
        others = sorted(set(range(num_tags)) - {own}, key=lambda tag: (tag == filler, tag))
        for tag in others:
            size = left if tag == filler else share
            parts.append(_draw(words_by_tag[tag], len(rows), size, rng))
            left -= parts[-1].shape[1]
        drawn = np.concatenate(parts, axis=1)
        sample_MK[rows, : drawn.shape[1]] = drawn
    return sample_MK


def _draw(members: np.ndarray, num_rows: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draw ``size`` members, or all, without replacement in each row."""
    size = min(size, len(members))
    if size == len(members):
        return np.broadcast_to(members, (num_rows, size))
    return members[np.argpartition(rng.random((num_rows, len(members))), size, axis=1)[:, :size]]


def _draw_others(
    members: np.ndarray, own_M: np.ndarray, size: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw ``size`` members without replacement, never the row's own, whose index is given."""
    key = rng.random((len(own_M), len(members)))
    key[np.arange(len(own_M)), own_M] = 2.0
    return members[np.argsort(key, axis=1)[:, :size]]
