"""Gold tags and related word pairs of sentences, and their embeddings.

Shape letters: S sentences, W words of all of them, P related pairs, D embedding width.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raybio.methods.relation_graphs.store import WordStore
from raybio.methods.relation_graphs.tags import gold_pairs, tags_of
from raybio.methods.relation_graphs.word_pairs import WordPairs


class Related(NamedTuple):
    """Related pairs of words; words are numbered over all sentences.

    Attributes:
        first_P: first word of each pair.
        second_P: second word, of the same sentence.
        label_P: relation, >= 1.
    """

    first_P: np.ndarray
    second_P: np.ndarray
    label_P: np.ndarray


class Gold(NamedTuple):
    """Gold annotations of sentences.

    Attributes:
        indptr_S1: CSR pointers to the words of each sentence.
        tag_W: BIO tags.
        pairs: related pairs of words.
    """

    indptr_S1: np.ndarray
    tag_W: np.ndarray
    pairs: Related


def read_gold(store: WordStore, rows: np.ndarray) -> Gold:
    """Return tags and related words of stored sentences."""
    nothing = np.zeros(0, dtype=np.int64)
    lengths = [len(store.sentence(row)) for row in rows.tolist()]
    indptr_S1 = np.cumsum([0, *lengths], dtype=np.int64)
    firsts = [nothing]
    seconds = [nothing]
    labels = [nothing]
    for row, start in zip(rows.tolist(), indptr_S1[:-1].tolist(), strict=True):
        first_R, second_R, label_R = gold_pairs(store, row)
        firsts.append(first_R + start)
        seconds.append(second_R + start)
        labels.append(label_R)
    tag_W = np.concatenate([nothing, *(tags_of(store, row) for row in rows.tolist())])
    related = Related(np.concatenate(firsts), np.concatenate(seconds), np.concatenate(labels))
    return Gold(indptr_S1, tag_W, related)


class EmbeddedSentences(NamedTuple):
    """Embedded words of sentences with their gold annotations.

    Attributes:
        pair_WD: words as they are, for pairs.
        tag_WD: words after the tag head, for tags.
        gold: tags and related pairs.
    """

    pair_WD: Tensor
    tag_WD: Tensor
    gold: Gold

    @property
    def pairs(self) -> WordPairs:
        """All candidate pairs: any two words of a sentence."""
        indptr_S1 = torch.from_numpy(self.gold.indptr_S1).to(self.pair_WD.device)
        return WordPairs(self.pair_WD, indptr_S1)
