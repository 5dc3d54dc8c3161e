"""Scores of extracted entities and of relations between them (Theodoropoulos et al., 2021).

Entities are chunks of BIO tags. A relation joins two words, the last ones of its entities, in
either order.

Shape letters: W words, S sentences, P pairs, F predicted and G gold pairs, C chunks, A classes
(types of entities, or relations), X samples of sentences.
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
from raybio.evaluation.unit_scores import linear_share, sample_units, share
from raybio.methods.relation_graphs.annotations.tags import check_sentences, chunks
from raybio.ops.significance import Interval, percentile_intervals, resampled_sums

TASKS = ("ner", "re_minus", "re", "re_legacy")


MEASURES = tuple(f"{task}_{what}" for task in TASKS for what in ("f1", "precision", "recall"))


@dataclass(frozen=True)
class TaggedPairs:
    """Tags and relations of all words of a split, of gold or of a model.

    Attributes:
        tag_W: 0 is O, 1 + 2t begins a chunk of type t, 2 + 2t is inside one.
        first_P, second_P: the words of each related pair, numbered over all sentences; a pair that
            comes twice with one label, in whatever order, counts once.
        label_P: its relation, >= 1.
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
        predicted: by models of entities and of relations.
        gold: all that there is to find. A gold pair of one word with itself cannot be found, and
            counts as missed.
        indptr_S1: where each sentence begins among the words, and where the last one ends.
        num_types: of entities.
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
    """Counts of one task by sentence and class; (X, A) for samples of sentences.

    Attributes:
        right_SA: predicted and right.
        predicted_SA: predicted.
        gold_SA: right or missing.
        present_SA: a class counts in the mean over classes where this is above 0.
    """

    right_SA: Floats
    predicted_SA: Floats
    gold_SA: Floats
    present_SA: Floats


class SentenceCounts(ABC):
    """Counts by sentence and class, and the scores that follow. A share of nothing is 0."""

    @cached_property
    @abstractmethod
    def tasks(self) -> Mapping[str, TaskCounts]:
        """The counts of each task, by its name."""

    @cached_property
    def values(self) -> dict[str, float]:
        """``f1``, ``precision``, ``recall`` of each task, as ``ner_f1``: means over classes."""
        whole = {
            task: TaskCounts(*(part_SA.sum(axis=0)[None] for part_SA in counts))
            for task, counts in self.tasks.items()
        }
        return {name: float(value_X[0]) for name, value_X in _statistics(whole).items()}

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

        They speak of the choice of sentences alone, not of training seeds; with very few sentences
        they are too narrow (Efron 1979), and with a single one unknown: NaN.
        """
        num_sentences = self._num_sentences
        # All counts as columns, so that every task has the same samples.
        count_SC = np.concatenate([np.hstack(counts) for counts in self.tasks.values()], axis=1)
        sum_XC = resampled_sums(count_SC, rng, num_resamples)
        samples = {}
        start = 0
        for task, counts in self.tasks.items():
            num_classes = counts.right_SA.shape[1]
            end = start + len(counts) * num_classes
            sums = sum_XC[:, start:end].reshape(num_resamples, len(counts), num_classes)
            samples[task] = TaskCounts(*sums.swapaxes(0, 1))
            start = end
        return percentile_intervals(self.values, _statistics(samples), num_sentences)

    def unit_scores(self) -> UnitScores:
        """Return what each sentence contributes to each value, for paired tests of finished runs.

        Linearized at the run's counts, as ``RelationScores.unit_scores`` does it: the mean over
        sentences is the value.
        """
        num_sentences = self._num_sentences
        value_by_measure = {}
        for task, counts in self.tasks.items():
            parts = [part_SA * num_sentences for part_SA in counts]
            is_present_A = parts[-1].any(axis=0)
            right_AS, predicted_AS, gold_AS = (part[:, is_present_A].T for part in parts[:-1])
            for what, part_AS, whole_AS in _shares(right_AS, predicted_AS, gold_AS):
                by_class = [
                    linear_share(part_S, whole_S)
                    for part_S, whole_S in zip(part_AS, whole_AS, strict=True)
                ]
                value_by_measure[f"{task}_{what}"] = (
                    np.mean(by_class, axis=0) if by_class else np.zeros(num_sentences)
                )
        return sample_units(np.arange(num_sentences), value_by_measure)

    @property
    def _num_sentences(self) -> int:
        return len(next(iter(self.tasks.values())).right_SA)


@dataclass(frozen=True)
class EntityRelationScores(SentenceCounts):
    """Counts of entities and of pairs of words. Means are over the classes that are gold.

    - ``ner``: chunks.
    - ``re_minus``: pairs, whatever their entities.
    - ``re``: pairs that are strictly right, of those found and of those gold.
    - ``re_legacy``: the authors' code, which counts as missing only the gold pairs that were not
      found as pairs. A pair that is lost through its entities is wrong, but not missing, and recall
      is too high.

    Attributes:
        entity_SA3: chunks right, found and gold, by type.
        relation_SA4: pairs right, strictly right, found and gold, by relation (the first is label
            1).
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


def _statistics(tasks: Mapping[str, TaskCounts]) -> dict[str, Floats]:
    """Return every measure (X,) of each sample's counts (X, A)."""
    value_by_name = {}
    for task, (right_XA, predicted_XA, gold_XA, present_XA) in tasks.items():
        is_present_XA = (present_XA > 0).astype(np.float64)
        for what, part_XA, whole_XA in _shares(right_XA, predicted_XA, gold_XA):
            sum_X = (share(part_XA, whole_XA) * is_present_XA).sum(axis=1)
            value_by_name[f"{task}_{what}"] = share(sum_X, is_present_XA.sum(axis=1))
    return value_by_name


def _unordered(tagged: TaggedPairs) -> NDArray[np.int64]:
    """Return lower word, higher word and label (P, 3) of each pair, none twice."""
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
