"""Scores of entities and relations by the conventions of SpERT (Eberts and Ulges 2020).

Counting follows SpERT's code: in each sentence, entities are a set of (span, type), and relations a
set of (ends, relation). All annotated entities are gold, also overlapping ones. The ends of a
predicted relation are the predicted chunks that its two words end; a pair of words without such
chunks is no prediction. Ends are compared in either order, since only SpERT predicts a direction.
SpERT's figures without overlapping entities skip annotated entities that overlap another, and
relations whose ends overlap.

Shape letters: W words, S sentences, P pairs, C chunks, E gold entities, R gold relations, A classes
(types of entities, or relations), F predicted items, G gold ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from raybio.methods.relation_graphs.annotations.gold import Gold, Related
from raybio.methods.relation_graphs.annotations.tags import chunks
from raybio.methods.relation_graphs.scores import Integers, SentenceCounts, TaskCounts


@dataclass(frozen=True)
class SpertScores(SentenceCounts):
    """Counts of entities and of relations between spans.

    - ``spert_ner``: entities with their span and type.
    - ``spert_re``: relations whose ends have their spans and types ("with NEC").
    - ``spert_boundaries``: relations whose ends have their spans ("without NEC").

    Each is a mean over the classes that are gold or found (macro); ``…_micro`` pools all classes.

    Attributes:
        entity_SA3: number of right, found and gold entities, by type.
        relation_SA3: the same for relations with types, by relation (the first is label 1).
        boundary_SA3: the same for relations without types.
    """

    entity_SA3: Integers
    relation_SA3: Integers
    boundary_SA3: Integers

    @cached_property
    def tasks(self) -> Mapping[str, TaskCounts]:
        """The counts of each task, by its name."""
        tasks = {}
        for task, count_SA3 in (
            ("spert_ner", self.entity_SA3),
            ("spert_re", self.relation_SA3),
            ("spert_boundaries", self.boundary_SA3),
        ):
            right_SA, predicted_SA, gold_SA = np.moveaxis(count_SA3.astype(np.float64), -1, 0)
            macro = TaskCounts(right_SA, predicted_SA, gold_SA, predicted_SA + gold_SA)
            tasks[task] = macro
            tasks[f"{task}_micro"] = TaskCounts(
                *(part_SA.sum(axis=1, keepdims=True) for part_SA in macro)
            )
        return tasks


def score_spans(
    gold: Gold,
    pairs: Related,
    tag_W: np.ndarray,
    *,
    num_types: int,
    num_relations: int,
    with_overlaps: bool = True,
) -> SpertScores:
    """Compare predicted tags and related pairs with the annotated entities and relations.

    Args:
        gold: annotations of the sentences.
        pairs: predicted related pairs.
        tag_W: predicted tags.
        num_types: number of entity types.
        num_relations: labels are 1 .. num_relations.
        with_overlaps: whether annotated entities that overlap others are gold, too.
    """
    found_C3 = np.stack(chunks(tag_W, gold.indptr_S1), axis=1)
    chunk_W = np.full(len(tag_W), -1)
    chunk_W[found_C3[:, 1] - 1] = np.arange(len(found_C3))
    first_P = chunk_W[pairs.first_P]
    second_P = chunk_W[pairs.second_P]
    has_ends_P = (first_P >= 0) & (second_P >= 0)
    found_F7 = _relations(
        found_C3, first_P[has_ends_P], second_P[has_ends_P], pairs.label_P[has_ends_P]
    )
    noted = gold.annotations
    entity_E3 = np.stack([noted.start_E, noted.end_E, noted.type_E], axis=1)
    gold_G7 = _relations(entity_E3, noted.head_R, noted.tail_R, noted.label_R)
    if not with_overlaps:
        # Predicted chunks never overlap.
        entity_E3 = entity_E3[~_overlap_E(entity_E3, len(tag_W))]
        is_equal_G = (gold_G7[:, :3] == gold_G7[:, 3:6]).all(axis=1)
        gold_G7 = gold_G7[is_equal_G | (gold_G7[:, 1] <= gold_G7[:, 3])]
    without_types = [0, 1, 3, 4, 6]
    return SpertScores(
        _counts_SA3(found_C3, entity_E3, gold.indptr_S1, num_types),
        _counts_SA3(found_F7, gold_G7, gold.indptr_S1, num_relations, first_class=1),
        _counts_SA3(
            found_F7[:, without_types],
            gold_G7[:, without_types],
            gold.indptr_S1,
            num_relations,
            first_class=1,
        ),
    )


def _overlap_E(entity_E3: np.ndarray, num_words: int) -> np.ndarray:
    """Return which entities (start, end, type) overlap a different entity."""
    different_U3, index_E = np.unique(entity_E3, axis=0, return_inverse=True)
    num_W = np.zeros(num_words, dtype=np.int64)
    for start, end, _ in different_U3.tolist():
        num_W[start:end] += 1
    overlaps_U = [bool((num_W[start:end] > 1).any()) for start, end, _ in different_U3.tolist()]
    return np.array(overlaps_U, dtype=bool)[index_E.reshape(-1)]


def _relations(
    span_X3: np.ndarray, one_R: np.ndarray, other_R: np.ndarray, label_R: np.ndarray
) -> np.ndarray:
    """Return (start, end, type) of both ends, the earlier one first, and the relation (R, 7)."""
    rows = []
    for head, tail, label in zip(
        span_X3[one_R].tolist(), span_X3[other_R].tolist(), label_R.tolist(), strict=True
    ):
        rows.append([*min(head, tail), *max(head, tail), label])
    return np.array(rows, dtype=np.int64).reshape(-1, 7)


def _counts_SA3(
    found_FX: np.ndarray,
    gold_GX: np.ndarray,
    indptr_S1: np.ndarray,
    num_classes: int,
    first_class: int = 0,
) -> np.ndarray:
    """Count right, found and gold items by sentence and class; duplicates count once.

    The first column of an item is a word of its sentence, the last one its class.
    """
    num_sentences = len(indptr_S1) - 1
    sentence_W = np.repeat(np.arange(num_sentences), np.diff(indptr_S1))
    predicted = {tuple(item) for item in found_FX.tolist()}
    gold = {tuple(item) for item in gold_GX.tolist()}
    count_SA3 = np.zeros((num_sentences, num_classes, 3), dtype=np.int64)
    for number, items in enumerate((predicted & gold, predicted, gold)):
        for item in items:
            count_SA3[sentence_W[item[0]], item[-1] - first_class, number] += 1
    return count_SA3
