"""Tags and relations looked up in training sentences, without vectors or training.

- A word gets the most frequent tag of its lower-cased form in training; O if training lacks it.
- Two words are related if both end a predicted entity, and most training pairs of entities with
  these two types, in this order and with the same words between them, are related.
- If training has no such pair with these words between, all training pairs with the two types are
  counted that agree on whether another entity stands between.

Ties go to "no entity" and "not related".

Shape letters: S sentences, W words, V lower-cased words, A tags, C entities, P pairs of entities.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from raybio.methods.relation_graphs.annotations.gold import Related, read_gold
from raybio.methods.relation_graphs.annotations.tags import chunks, tag_names
from raybio.methods.relation_graphs.classifiers.knn import pair_labels
from raybio.methods.relation_graphs.store import WordStore


@dataclass(frozen=True)
class EntityPair:
    """Two entities of a sentence, in text order.

    Attributes:
        first: last word of the first entity, numbered over all sentences.
        second: last word of the second one.
        between: types of both, and the words between them.
        types: types of both, and whether another entity stands between them.
    """

    first: int
    second: int
    between: Hashable
    types: Hashable


@dataclass(frozen=True)
class LookUp:
    """Most frequent tags of words and relations of entity pairs in training sentences.

    Attributes:
        store: the sentences.
        form_V: number of the lower-cased form of each of the store's words.
        tag_V: most frequent tag of each form; O for forms that training lacks.
        label_by_key: most frequent relation, or 0, of the pairs with the same ``between`` or
            ``types``.
    """

    store: WordStore
    form_V: np.ndarray
    tag_V: np.ndarray
    label_by_key: Mapping[Hashable, int]

    @classmethod
    def of(cls, store: WordStore, rows: np.ndarray) -> "LookUp":
        """Count in the sentences ``rows``."""
        lowered = [word.lower() for word in store.words]
        number_by_form = {form: number for number, form in enumerate(dict.fromkeys(lowered))}
        form_V = np.array([number_by_form[form] for form in lowered], np.int64)
        gold = read_gold(store, rows)
        num_tags = len(tag_names(store.entity_types))
        form_W = form_V[_words(store, rows)]
        cell_W = form_W * num_tags + gold.tag_W
        count_VA = np.bincount(cell_W, minlength=len(number_by_form) * num_tags)
        tag_V = count_VA.reshape(-1, num_tags).argmax(axis=1)
        pairs = list(_entity_pairs(form_W, gold.tag_W, gold.indptr_S1))
        first_P, second_P = _ends(pairs)
        counts: dict[Hashable, Counter[int]] = defaultdict(Counter)
        for pair, label in zip(pairs, pair_labels(gold, first_P, second_P).tolist(), strict=True):
            counts[pair.between][label] += 1
            counts[pair.types][label] += 1
        label_by_key = {key: _most_frequent(count) for key, count in counts.items()}
        return cls(store, form_V, tag_V, label_by_key)

    def predict(self, rows: np.ndarray) -> tuple[np.ndarray, Related]:
        """Return the tags (W,) of the words of sentences, and the related pairs."""
        indptr_S1 = np.cumsum([0, *(len(self.store.sentence(row)) for row in rows.tolist())])
        form_W = self.form_V[_words(self.store, rows)]
        tag_W = self.tag_V[form_W]
        related = []
        labels = []
        for pair in _entity_pairs(form_W, tag_W, indptr_S1):
            by_types = self.label_by_key.get(pair.types, 0)
            label = self.label_by_key.get(pair.between, by_types)
            if label:
                related.append(pair)
                labels.append(label)
        return tag_W, Related(*_ends(related), np.array(labels, np.int64))


def _entity_pairs(
    form_W: np.ndarray, tag_W: np.ndarray, indptr_S1: np.ndarray
) -> Iterator[EntityPair]:
    """Yield the pairs of entities of each sentence, in text order."""
    chunks_of_tags = chunks(tag_W, indptr_S1)
    # Chunks are in text order, so those of a sentence stand together.
    bound_S1 = np.searchsorted(chunks_of_tags.start_C, indptr_S1).tolist()
    start_C, end_C, type_C = (part.tolist() for part in chunks_of_tags)
    for begin, end in itertools.pairwise(bound_S1):
        for first in range(begin, end):
            for second in range(first + 1, end):
                kinds = (type_C[first], type_C[second])
                words = tuple(form_W[end_C[first] : start_C[second]].tolist())
                is_apart = second - first > 1
                yield EntityPair(
                    first=end_C[first] - 1,
                    second=end_C[second] - 1,
                    between=(*kinds, words),
                    types=(*kinds, is_apart),
                )


def _ends(pairs: list[EntityPair]) -> tuple[np.ndarray, np.ndarray]:
    first_P = np.array([pair.first for pair in pairs], np.int64)
    second_P = np.array([pair.second for pair in pairs], np.int64)
    return first_P, second_P


def _most_frequent(count: Counter[int]) -> int:
    """Return the most frequent label; on ties the smallest."""
    return min(count, key=lambda label: (-count[label], label))


def _words(store: WordStore, rows: np.ndarray) -> np.ndarray:
    """Return the words (W,) of sentences end to end."""
    nothing = np.zeros(0, np.int64)
    return np.concatenate([nothing, *(store.sentence(row) for row in rows.tolist())])
