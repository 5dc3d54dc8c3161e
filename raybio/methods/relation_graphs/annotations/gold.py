"""Gold tags and related word pairs of sentences, and their embeddings.

Shape letters: S sentences, W words of all of them, P related pairs, D embedding width.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raybio.methods.relation_graphs.annotations.tags import gold_pairs, tags_of
from raybio.methods.relation_graphs.annotations.word_pairs import WordPairs
from raybio.methods.relation_graphs.store import WordStore


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


class Annotations(NamedTuple):
    """Annotated entities and relations; entities may overlap.

    Attributes:
        start_E: first word of each entity, numbered over all sentences.
        end_E: end of each entity (exclusive).
        type_E: type of each entity.
        head_R: head of each relation, an index of the entities.
        tail_R: tail of each relation.
        label_R: relation, >= 1.
    """

    start_E: np.ndarray
    end_E: np.ndarray
    type_E: np.ndarray
    head_R: np.ndarray
    tail_R: np.ndarray
    label_R: np.ndarray


class Gold(NamedTuple):
    """Gold annotations of sentences.

    Attributes:
        indptr_S1: CSR pointers to the words of each sentence.
        tag_W: BIO tags.
        pairs: related pairs of words.
        annotations: the entities and relations that tags and pairs represent.
    """

    indptr_S1: np.ndarray
    tag_W: np.ndarray
    pairs: Related
    annotations: Annotations


def read_gold(store: WordStore, rows: np.ndarray) -> Gold:
    """Return tags, related words and annotations of stored sentences."""
    lengths = [len(store.sentence(row)) for row in rows.tolist()]
    indptr_S1 = np.cumsum([0, *lengths], dtype=np.int64)
    tags = [tags_of(store, row) for row in rows.tolist()]
    pairs = []
    annotations = []
    num_entities = 0
    for row, start in zip(rows.tolist(), indptr_S1[:-1].tolist(), strict=True):
        first_R, second_R, label_R = gold_pairs(store, row)
        pairs.append((first_R + start, second_R + start, label_R))
        start_E, end_E, type_E = store.entities(row)
        head_R, tail_R, relation_R = store.relations(row)
        annotations.append(
            (
                start_E + start,
                end_E + start,
                type_E,
                head_R + num_entities,
                tail_R + num_entities,
                relation_R,
            )
        )
        num_entities += len(start_E)
    return Gold(
        indptr_S1,
        _joined(tags),
        Related(*_joined_columns(pairs, len(Related._fields))),
        Annotations(*_joined_columns(annotations, len(Annotations._fields))),
    )


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def _joined_columns(
    parts: Sequence[tuple[np.ndarray, ...]], num_columns: int
) -> Iterator[np.ndarray]:
    for column in range(num_columns):
        yield _joined([part[column] for part in parts])


class EmbeddedSentences(NamedTuple):
    """Embedded words of sentences with their gold annotations.

    Attributes:
        pair_WD: words before the tag head, for pairs.
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
