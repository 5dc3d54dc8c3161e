"""Scores of extracted entities and of relations between them (Theodoropoulos et al., 2021).

Entities are chunks of BIO tags. A relation joins two words, the last ones of its entities, in
either order.

Shape letters: W words, S sentences, P pairs, F predicted and G gold pairs, C chunks, A classes
(types of entities, or relations).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from raybio.core.arrays import Floats, Integers
from raybio.core.final_report import UnitScores
from raybio.core.unit_counts import MEAN_OF_RATIOS, UnitCounts, share
from raybio.evaluation.unit_scores import sample_counts
from raybio.methods.relation_graphs.annotations.tags import check_sentences, chunks
from raybio.ops.significance import Interval, percentile_intervals

TASKS = ("ner", "re_minus", "re", "re_legacy")


MEASURES = tuple(f"{task}_{what}" for task in TASKS for what in ("f1", "precision", "recall"))


@dataclass(frozen=True)
class TaggedPairs:
    """Tags and relations of all words of a split, gold or predicted.

    Attributes:
        tag_W: 0 is O, 1 + 2t begins a chunk of type t, 2 + 2t is inside one.
        first_P, second_P: the words of each related pair, numbered over all sentences; a pair that
            is repeated with the same label, in either order, counts once.
        label_P: relation of each pair, >= 1.
    """

    tag_W: Integers
    first_P: Integers
    second_P: Integers
    label_P: Integers


def score_entities_relations(
    predicted: TaggedPairs,
    gold: TaggedPairs,
    *,
    indptr_S1: Integers,
    num_types: int,
    num_relations: int,
) -> "EntityRelationScores":
    """Compare entities and relations.

    A predicted chunk is right if a gold one has its type, start and end. A predicted pair is right
    if it is gold with its label; strictly right, if both its words are also the last ones of right
    chunks.

    Args:
        predicted: predictions of models of entities and of relations.
        gold: all gold annotations. A gold pair of a word with itself cannot be predicted, and
            counts as missed.
        indptr_S1: where each sentence begins among the words, and where the last one ends.
        num_types: number of entity types.
        num_relations: labels are 1 .. num_relations.

    Raises:
        ValueError: without sentences, or for tags, labels or pairs out of range, pairs across
            sentences, or predicted pairs of a word with itself.
    """
    num_words = len(gold.tag_W)
    num_sentences = len(indptr_S1) - 1
    check_sentences(indptr_S1, num_words)
    if num_sentences < 1:
        raise ValueError("there are no sentences, want at least 1")
    sentence_W = np.repeat(np.arange(num_sentences), np.diff(indptr_S1))
    for tagged, whose in ((predicted, "predicted"), (gold, "gold")):
        _check(tagged, whose, sentence_W, num_types, num_relations)
    if (predicted.first_P == predicted.second_P).any():
        raise ValueError("a predicted pair joins a word with itself, want two words of a sentence")
    spans = chunks(predicted.tag_W, indptr_S1)
    there = chunks(gold.tag_W, indptr_S1)
    gold_by_start_W2 = np.full((num_words, 2), -1)
    gold_by_start_W2[there.start_C] = np.stack([there.end_C, there.type_C], axis=1)
    is_right_C = (
        gold_by_start_W2[spans.start_C] == np.stack([spans.end_C, spans.type_C], axis=1)
    ).all(axis=1)
    is_right_end_W = np.zeros(num_words, dtype=bool)
    is_right_end_W[spans.end_C[is_right_C] - 1] = True

    predicted_F3 = _unordered(predicted)
    gold_G3 = _unordered(gold)
    gold_keys = {tuple(row) for row in gold_G3.tolist()}
    is_right_F = np.array([tuple(row) in gold_keys for row in predicted_F3.tolist()], dtype=bool)
    is_strict_F = is_right_F & is_right_end_W[predicted_F3[:, :2]].all(axis=1)

    def count_SA(word_X: Integers, class_X: Integers, num_classes: int) -> NDArray[np.int64]:
        cell_X = sentence_W[word_X] * num_classes + class_X
        return np.bincount(cell_X, minlength=num_sentences * num_classes).reshape(
            num_sentences, num_classes
        )

    entity_SA3 = [
        count_SA(start_X, type_X, num_types)
        for start_X, type_X in (
            (spans.start_C[is_right_C], spans.type_C[is_right_C]),
            (spans.start_C, spans.type_C),
            (there.start_C, there.type_C),
        )
    ]
    relation_SA4 = [
        count_SA(row_X3[:, 0], row_X3[:, 2] - 1, num_relations)
        for row_X3 in (predicted_F3[is_right_F], predicted_F3[is_strict_F], predicted_F3, gold_G3)
    ]
    return EntityRelationScores(np.stack(entity_SA3, axis=-1), np.stack(relation_SA4, axis=-1))


class TaskCounts(NamedTuple):
    """Counts of one task by sentence and class.

    Attributes:
        right_SA: number of right predictions.
        predicted_SA: number of predictions.
        gold_SA: number of gold items, right or missed.
        present_SA: a class counts in the mean over classes where this is above 0.
    """

    right_SA: Floats
    predicted_SA: Floats
    gold_SA: Floats
    present_SA: Floats


class SentenceCounts(ABC):
    """Counts by sentence and class, and scores computed from them; 0 / 0 is 0."""

    @cached_property
    @abstractmethod
    def tasks(self) -> Mapping[str, TaskCounts]:
        """The counts of each task, by its name."""

    @cached_property
    def counts(self) -> dict[str, UnitCounts]:
        """The counts of sentences of ``f1``, ``precision``, ``recall`` of each task.

        They are named as ``ner_f1``. Each score is a mean over the classes that are present.
        """
        counts = {}
        for task, (right_SA, predicted_SA, gold_SA, present_SA) in self.tasks.items():
            for what, part_SA, whole_SA in _shares(right_SA, predicted_SA, gold_SA):
                count_SA3 = np.stack([part_SA, whole_SA, present_SA], axis=-1)
                counts[f"{task}_{what}"] = UnitCounts(count_SA3, MEAN_OF_RATIOS)
        return counts

    @cached_property
    def values(self) -> dict[str, float]:
        """The scores of all sentences."""
        return {name: counts.value for name, counts in self.counts.items()}

    def by_class(self, task: str) -> dict[str, Floats]:
        """Return ``precision``, ``recall``, ``f1`` (A,) of a task; NaN for absent classes."""
        right_A, predicted_A, gold_A, present_A = (
            part_SA.sum(axis=0) for part_SA in self.tasks[task]
        )
        return {
            what: np.where(predicted_A + present_A > 0, share(part_A, whole_A), np.nan)
            for what, part_A, whole_A in _shares(right_A, predicted_A, gold_A)
        }

    def intervals(
        self, rng: np.random.Generator, *, num_resamples: int = 1000
    ) -> dict[str, Interval]:
        """Return the values with 95 % percentile intervals of the bootstrap over sentences.

        They reflect the sample of sentences, not training seeds. With very few sentences they are
        too narrow (Efron 1979), and with a single one unknown (NaN).
        """
        return percentile_intervals(self.counts, rng, num_resamples=num_resamples)

    def unit_scores(self) -> UnitScores:
        """Return the counts of sentences, for paired tests of finished runs."""
        return sample_counts(self.counts)


@dataclass(frozen=True)
class EntityRelationScores(SentenceCounts):
    """Counts of entities and of pairs of words. Means are over the classes that are gold.

    - ``ner``: chunks.
    - ``re_minus``: pairs, whatever their entities.
    - ``re``: strictly right pairs, relative to found pairs and to gold pairs.
    - ``re_legacy``: as in the authors' code, only gold pairs that were not found as pairs count as
      missing. A pair with a wrong entity is wrong but not missing, so recall is too high.

    Attributes:
        entity_SA3: number of right, found and gold chunks, by type.
        relation_SA4: number of right, strictly right, found and gold pairs, by relation (the first
            is label 1).
    """

    entity_SA3: Integers
    relation_SA4: Integers

    @cached_property
    def tasks(self) -> Mapping[str, TaskCounts]:
        """The counts of each task, by its name."""
        right, predicted, gold = np.moveaxis(self.entity_SA3.astype(np.float64), -1, 0)
        tasks = {"ner": TaskCounts(right, predicted, gold, gold)}
        right, strict, predicted, gold = np.moveaxis(self.relation_SA4.astype(np.float64), -1, 0)
        tasks["re_minus"] = TaskCounts(right, predicted, gold, gold)
        tasks["re"] = TaskCounts(strict, predicted, gold, gold)
        tasks["re_legacy"] = TaskCounts(strict, predicted, strict + gold - right, gold)
        return tasks


def _shares(
    right: Floats, predicted: Floats, gold: Floats
) -> tuple[tuple[str, Floats, Floats], ...]:
    return (
        ("f1", 2 * right, predicted + gold),
        ("precision", right, predicted),
        ("recall", right, gold),
    )


def _unordered(tagged: TaggedPairs) -> NDArray[np.int64]:
    """Return lower word, higher word and label (P, 3) of each distinct pair."""
    low_P = np.minimum(tagged.first_P, tagged.second_P)
    high_P = np.maximum(tagged.first_P, tagged.second_P)
    return np.unique(np.stack([low_P, high_P, tagged.label_P], axis=1).astype(np.int64), axis=0)


def _check(
    tagged: TaggedPairs, whose: str, sentence_W: Integers, num_types: int, num_relations: int
) -> None:
    num_words = len(sentence_W)
    if len(tagged.tag_W) != num_words or (num_words and tagged.tag_W.max() > 2 * num_types):
        raise ValueError(
            f"{whose} tags are {len(tagged.tag_W)}, up to {tagged.tag_W.max(initial=0)}; want "
            f"{num_words}, one a word, up to {2 * num_types}"
        )
    columns = (tagged.first_P, tagged.second_P, tagged.label_P)
    if any(
        column.shape != tagged.label_P.shape or column.ndim != 1 or column.dtype.kind not in "iu"
        for column in columns
    ):
        shapes = ", ".join(f"{column.dtype} {column.shape}" for column in columns)
        raise ValueError(
            f"{whose} first words, second words and labels are {shapes}; want integers, one each a "
            "pair"
        )
    for column, low, limit, what in (
        (tagged.first_P, 0, num_words, "words of pairs"),
        (tagged.second_P, 0, num_words, "words of pairs"),
        (tagged.label_P, 1, num_relations + 1, "labels"),
    ):
        if len(column) and not low <= column.min() <= column.max() < limit:
            raise ValueError(
                f"{whose} {what} span [{column.min()}, {column.max()}], want [{low}, {limit})"
            )
    if (sentence_W[tagged.first_P] != sentence_W[tagged.second_P]).any():
        raise ValueError(
            f"a {whose} pair joins words of two sentences, want pairs inside a sentence"
        )
