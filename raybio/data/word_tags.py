"""What the words of a sentence are to be told apart by: BIO tags, and pairs of words that stand for relations.

Shape letters: W words of a sentence, R pairs.
"""

from collections.abc import Sequence

import numpy as np

from raybio.data.word_store import WordStore

OUTSIDE_TAG = 0
"""Number of the tag "O"."""


def tag_names(entity_types: Sequence[str]) -> tuple[str, ...]:
    """Names of the tags by number: "O", and for each type t a "B-" (1 + 2 t) and an "I-" (2 + 2 t)."""
    return ("O", *(f"{letter}-{kind}" for kind in entity_types for letter in "BI"))


def tags_of(store: WordStore, row: int) -> np.ndarray:
    """The tag of each word of a sentence, int64 (W,).

    Entities are written in the order of the file, and a later one over an earlier one that it overlaps, as the authors'
    preprocessing does: what is left of the earlier one may begin with an "I-" tag.
    """
    tag_W = np.full(len(store.sentence(row)), OUTSIDE_TAG, dtype=np.int64)
    for start, end, kind in zip(*store.entities(row), strict=True):
        tag_W[start:end] = 2 + 2 * kind
        tag_W[start] = 1 + 2 * kind
    return tag_W


def gold_pairs(store: WordStore, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pairs of words that stand for the relations of a sentence: (first (R,), second (R,), label (R,)), int64.

    The first is the last word of the tail's entity and the second that of the head's: in ADE (drug, adverse effect),
    as the authors order them. Each triple is there once, in the order of the file; both words may be the same one.
    """
    _, end_E, _ = store.entities(row)
    head_P, tail_P, label_P = store.relations(row)
    triples = zip((end_E[tail_P] - 1).tolist(), (end_E[head_P] - 1).tolist(), label_P.tolist(), strict=True)
    pair_R3 = np.array(list(dict.fromkeys(triples)), dtype=np.int64).reshape(-1, 3)
    return pair_R3[:, 0], pair_R3[:, 1], pair_R3[:, 2]
