"""Gold."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raybio.methods.relation_graphs.store import WordStore
from raybio.methods.relation_graphs.tags import gold_pairs, tags_of
from raybio.methods.relation_graphs.word_pairs import WordPairs


class Related(NamedTuple):
    """Pairs of words with the relation of each.

    Attributes:
        first_P: words, numbered through.
        second_P: other words of the same sentences.
        label_P: >= 1.
    """

    first_P: np.ndarray
    second_P: np.ndarray
    label_P: np.ndarray


class Gold(NamedTuple):
    """What sentences have; words are numbered through.

    Attributes:
        indptr_S1: words of each sentence.
        tag_W: BIO tags.
        pairs: related words.
    """

    indptr_S1: np.ndarray
    tag_W: np.ndarray
    pairs: Related


def read_gold(store: WordStore, rows: np.ndarray) -> Gold:
    """Tags and related words of stored sentences."""
    nothing = np.zeros(0, dtype=np.int64)
    indptr_S1 = np.cumsum([0, *(len(store.sentence(row)) for row in rows.tolist())], dtype=np.int64)
    found = [gold_pairs(store, row) for row in rows.tolist()]
    first, second = (
        np.concatenate(
            [
                nothing,
                *(one[side] + start for one, start in zip(found, indptr_S1[:-1], strict=True)),
            ]
        )
        for side in (0, 1)
    )
    label = np.concatenate([nothing, *(one[2] for one in found)])
    tag_W = np.concatenate([nothing, *(tags_of(store, row) for row in rows.tolist())])
    return Gold(indptr_S1, tag_W, Related(first, second, label))


class EmbeddedSentences(NamedTuple):
    """Words of some sentences where relations, and where tags are to be found, with what is known of them.

    Attributes:
        pair_WD: for pairs of words.
        tag_WD: for single words.
        gold: tags and related pairs.
    """

    pair_WD: Tensor
    tag_WD: Tensor
    gold: Gold

    @property
    def pairs(self) -> WordPairs:
        """All candidates."""
        return WordPairs(
            self.pair_WD, torch.from_numpy(self.gold.indptr_S1).to(self.pair_WD.device)
        )
