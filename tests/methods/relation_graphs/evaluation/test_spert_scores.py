"""Scores by SpERT's conventions against a loop over flat labels, as SpERT's code counts them."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from raybio.methods.relation_graphs.annotations.folds import FoldRows
from raybio.methods.relation_graphs.annotations.gold import Related, read_gold
from raybio.methods.relation_graphs.evaluation.sentence_scores import (
    chance_scores,
    score_predictions,
)
from raybio.methods.relation_graphs.evaluation.spert_scores import score_spans
from raybio.methods.relation_graphs.store import WordStore
from tests import word_oracles
from tests.methods.relation_graphs.word_stores import store_of

WORDS = [f"w{number}" for number in range(9)]
KINDS = ["Drug", "Adverse-Effect", "Gene"]
RELATIONS = ["Adverse-Effect", "treats"]
Item = tuple[object, ...]


def random_sentences(rng: np.random.Generator, num: int) -> list[tuple]:
    """Return sentences whose entities overlap, and occur twice; Gene is rare."""
    sentences = []
    for _ in range(num):
        entities = []
        for _ in range(int(rng.integers(1, 6))):
            start = int(rng.integers(0, 8))
            end = start + int(rng.integers(1, 3))
            entities.append((str(rng.choice(KINDS, p=[0.5, 0.45, 0.05])), start, end))
        relations = []
        for _ in range(int(rng.integers(0, 5))):
            head, tail = rng.integers(0, len(entities), 2).tolist()
            if head == tail:
                continue
            relations.append((head, tail, str(rng.choice(RELATIONS))))
        sentences.append((WORDS, entities, relations))
    return sentences


def guesses(
    store: WordStore, rows: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, Related]:
    """Return tags and pairs that are often right."""
    gold = read_gold(store, rows)
    is_wrong_W = rng.random(len(gold.tag_W)) < 0.2
    tag_W = np.where(is_wrong_W, rng.integers(0, 7, len(gold.tag_W)), gold.tag_W)
    pairs = set()
    for first, second, label in zip(*(part.tolist() for part in gold.pairs), strict=True):
        if first != second and rng.random() < 0.8:
            pairs.add((min(first, second), max(first, second), label))
    for sentence in range(len(rows)):
        first, second = sorted(rng.choice(9, 2, replace=False).tolist())
        pairs.add((9 * sentence + first, 9 * sentence + second, int(rng.integers(1, 3))))
    columns = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 3).T
    return tag_W, Related(*columns)


def spert_metrics(gold: list[list[Item]], found: list[list[Item]]) -> dict[str, list[float]]:
    """Return (P, R, F1), micro and macro, of items whose last part is their class >= 1."""
    gold_flat, found_flat, classes = [], [], set()
    for of_gold, of_found in zip(gold, found, strict=True):
        for item in set(of_gold) | set(of_found):
            gold_flat.append(item[-1] if item in of_gold else 0)
            found_flat.append(item[-1] if item in of_found else 0)
            classes.add(item[-1])
    options = {"labels": sorted(classes), "zero_division": 0}
    return {
        average: list(
            precision_recall_fscore_support(gold_flat, found_flat, average=average, **options)[:3]
        )
        for average in ("micro", "macro")
    }


def overlap(one: tuple, other: tuple) -> bool:
    """Return whether two different entities share a word, as SpERT's code says."""
    return one != other and one[0] < other[1] and other[0] < one[1]


def slow_spert(
    sentences: list[tuple],
    store: WordStore,
    tag_W: np.ndarray,
    pairs: Related,
    *,
    with_overlaps: bool = True,
) -> dict[str, float]:
    kinds = {name: number + 1 for number, name in enumerate(store.entity_types)}
    labels = {name: number for number, name in enumerate(store.relation_names)}
    items: dict[str, tuple[list, list]] = {
        task: ([], []) for task in ("spert_ner", "spert_re", "spert_boundaries")
    }

    def add(task: str, gold: list[Item], found: list[Item]) -> None:
        items[task][0].append(gold)
        items[task][1].append(found)

    for number, (words, entities, relations) in enumerate(sentences):
        start, stop = number * len(words), (number + 1) * len(words)
        spans = [(begin, end, kinds[kind]) for kind, begin, end in entities]
        chunks = [
            (begin, end, kind + 1)
            for begin, end, kind in word_oracles.chunks(tag_W[start:stop].tolist(), [0, len(words)])
        ]
        if not with_overlaps:
            relations = [row for row in relations if not overlap(spans[row[0]], spans[row[1]])]
        apart = [span for span in spans if not any(overlap(span, other) for other in spans)]
        add("spert_ner", spans if with_overlaps else apart, chunks)
        gold = [(frozenset([spans[h], spans[t]]), labels[name]) for h, t, name in relations]
        found = []
        for first, second, label in zip(*(part.tolist() for part in pairs), strict=True):
            ends = [chunk for chunk in chunks if chunk[1] - 1 in (first - start, second - start)]
            if start <= first < stop and len(ends) == 2:
                found.append((frozenset(ends), label))
        add("spert_re", gold, found)

        def untyped(rows: list[Item]) -> list[Item]:
            return [(frozenset(span[:2] for span in ends), label) for ends, label in rows]

        add("spert_boundaries", untyped(gold), untyped(found))
    values = {}
    for task, (gold_items, found_items) in items.items():
        metrics = spert_metrics(gold_items, found_items)
        for average, suffix in (("macro", ""), ("micro", "_micro")):
            for what, value in zip(("precision", "recall", "f1"), metrics[average], strict=True):
                values[f"{task}{suffix}_{what}"] = value
    return values


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("with_overlaps", [True, False])
def test_all_values_equal_the_loop(seed: int, with_overlaps: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    sentences = random_sentences(rng, 40)
    store = store_of(tmp_path, sentences)
    rows = np.arange(len(sentences))
    tag_W, pairs = guesses(store, rows, rng)
    scores = score_predictions(
        read_gold(store, rows), pairs, tag_W, store, spert_overlaps=with_overlaps
    )
    expected = slow_spert(sentences, store, tag_W, pairs, with_overlaps=with_overlaps)
    assert scores.spert.values == pytest.approx(expected)
    assert 0 < expected["spert_re_f1"] <= expected["spert_boundaries_f1"] < 1
    units = scores.unit_scores()
    for name, value in expected.items():
        assert units.counts(name).value == pytest.approx(value), name
        assert scores.intervals()[name]["value"] == pytest.approx(value), name


def test_conventions_differ_where_the_guide_says_so(tmp_path: Path) -> None:
    """A pair without entities is no prediction, and overlapping entities are missed."""
    entities = [("Drug", 0, 1), ("Adverse-Effect", 2, 4), ("Adverse-Effect", 3, 5)]
    store = store_of(tmp_path, [(WORDS, entities, [(1, 0), (2, 0)])])
    gold = read_gold(store, np.arange(1))
    only = {"num_types": 2, "num_relations": 1}
    begin_drug, begin_effect = (1 + 2 * store.entity_types.index(kind) for kind in KINDS[:2])
    assert gold.tag_W.tolist()[:5] == [begin_drug, 0, begin_effect, begin_effect, begin_effect + 1]
    tag_W = np.array([begin_drug, 0, 0, begin_effect, begin_effect + 1, 0, 0, 0, 0])
    # The second pair ends no chunk.
    pairs = Related(np.array([0, 0]), np.array([4, 7]), np.array([1, 1]))
    ours = score_predictions(gold, pairs, tag_W, store)
    spert = score_spans(gold, pairs, tag_W, **only).values
    assert (ours.knn.values["re_precision"], ours.knn.values["re_recall"]) == (0.5, 0.5)
    assert (spert["spert_re_precision"], spert["spert_re_recall"]) == (1, 0.5)
    # Tags keep one word of the entity that is overlapped, and SpERT all of it: both are missed.
    assert spert["spert_ner_micro_recall"] == pytest.approx(2 / 3)
    # Wrong type, right span.
    tag_W[3:5] = [begin_drug, begin_drug + 1]
    spert = score_spans(gold, pairs, tag_W, **only).values
    assert (spert["spert_re_f1"], spert["spert_boundaries_precision"]) == (0, 1)


def test_chance_has_scores_by_the_same_conventions(tmp_path: Path) -> None:
    sentences = random_sentences(np.random.default_rng(0), 12)
    store = store_of(tmp_path, sentences)
    rows = np.arange(12)
    chance = chance_scores(store, FoldRows(rows[:6], rows[6:8], rows[8:]), "test")
    assert 0 < chance["spert_ner_micro_f1"] < 1
    assert chance["spert_re_micro_f1"] < chance["spert_ner_micro_f1"]
