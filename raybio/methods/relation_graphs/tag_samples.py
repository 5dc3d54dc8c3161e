"""Tag samples."""

import numpy as np

from raybio.methods.relation_graphs.config import SamplesConfig

OUTSIDE = 0
"""The tag of words of no entity."""


NO_SAMPLE = -1


def draw_samples(
    tag_W: np.ndarray,
    asked_M: np.ndarray,
    config: SamplesConfig,
    num_tags: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Words to compare words with, int64 (M, K), ``NO_SAMPLE`` where there are fewer.

    First words of the same tag, at most ``num_positives`` and never the word itself; then equal
    shares of the other tags, all words of a tag that has fewer; what is then left goes to
    ``OUTSIDE``, or for words outside to the other tag that the batch has most of (in ADE mostly the
    inner words of effects, which the authors' code always takes). All are drawn without
    replacement.

    Args:
        tag_W: the words' tags; negative: takes no part.
        asked_M: words to draw for.
        config: how many.
        num_tags: tags that there are, ``OUTSIDE`` first.
        rng: draws.
    """
    words_by_tag = [np.flatnonzero(tag_W == tag) for tag in range(num_tags)]
    most_frequent = max(range(1, num_tags), key=lambda tag: len(words_by_tag[tag]), default=OUTSIDE)
    sample_MK = np.full((len(asked_M), config.num_samples), NO_SAMPLE, dtype=np.int64)
    tag_M = tag_W[asked_M]
    for own in range(num_tags):
        here = np.flatnonzero(tag_M == own)
        if not len(here):
            continue
        members = words_by_tag[own]
        place = np.searchsorted(members, asked_M[here])
        drawn = [_others(members, place, min(config.num_positives, len(members) - 1), rng)]
        left = config.num_samples - drawn[0].shape[1]
        filler = most_frequent if own == OUTSIDE else OUTSIDE
        share = left // max(num_tags - 1, 1)
        for tag in sorted(set(range(num_tags)) - {own}, key=lambda tag: (tag == filler, tag)):
            drawn.append(
                _drawn(words_by_tag[tag], len(here), left if tag == filler else share, rng)
            )
            left -= drawn[-1].shape[1]
        found = np.concatenate(drawn, axis=1)
        sample_MK[here, : found.shape[1]] = found
    return sample_MK


def _drawn(members: np.ndarray, num_rows: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """``size`` members, or all, without replacement, in each row."""
    size = min(size, len(members))
    if size == len(members):
        return np.broadcast_to(members, (num_rows, size))
    return members[np.argpartition(rng.random((num_rows, len(members))), size, axis=1)[:, :size]]


def _others(
    members: np.ndarray, own_M: np.ndarray, size: int, rng: np.random.Generator
) -> np.ndarray:
    """``size`` members, without replacement and without the row's own, whose place is given."""
    key = rng.random((len(own_M), len(members)))
    key[np.arange(len(own_M)), own_M] = 2.0
    return members[np.argsort(key, axis=1)[:, :size]]
