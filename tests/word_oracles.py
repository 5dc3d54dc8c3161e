"""Oracles of words and word pairs: loops over scalars, from the definitions."""

import itertools

import numpy as np


def pairs(indptr) -> list[tuple[int, int]]:
    """All words i < j of one sentence, by sentence, i and j."""
    bounds = list(itertools.pairwise(indptr))
    return [(i, j) for start, end in bounds for i in range(start, end) for j in range(i + 1, end)]


def nearest_pairs(
    query, query_indptr, reference, reference_indptr, k: int, both_orders: bool = False
):
    """Return (squared distance, first, second) of the k nearest; ties in order."""

    def square(one, other) -> np.float32:
        return np.float32(((one.astype(np.float64) - other.astype(np.float64)) ** 2).sum())

    table = [[square(one, other) for other in reference] for one in query]
    found = []
    for a, b in pairs(query_indptr):
        near = []
        for c, d in pairs(reference_indptr):
            distance = table[a][c] + table[b][d]
            near.append(
                (min(distance, table[b][c] + table[a][d]) if both_orders else distance, c, d)
            )
        found.append(sorted(near)[:k])
    return found


def chunks(tags, indptr) -> list[tuple[int, int, int]]:
    """(start, end, type), word by word: B opens, I of the open type goes on, all else closes."""
    found = []
    for start, end in itertools.pairwise(indptr):
        opened = None
        for word in range(start, end):
            kind = (tags[word] - 1) // 2
            if tags[word] > 0 and tags[word] % 2 == 1:
                if opened is not None:
                    found.append((opened[0], word, opened[1]))
                opened = (word, kind)
            elif opened is not None and (tags[word] == 0 or kind != opened[1]):
                found.append((opened[0], word, opened[1]))
                opened = None
        if opened is not None:
            found.append((opened[0], end, opened[1]))
    return found


def majority_vote(labels, num_classes: int) -> list[int]:
    """The class with most votes; of several, the first to be met."""
    found = []
    for row in labels:
        votes = [sum(1 for label in row if label == r) for r in range(num_classes)]
        found.append(next(int(label) for label in row if votes[label] == max(votes)))
    return found


def entity_relation_scores(predicted, gold, num_types: int, num_relations: int) -> dict[str, float]:
    """Return all values, from sets. A side is sentences of (tags, [(word, word, label)])."""
    found_chunks, gold_chunks, found_pairs, gold_pairs = set(), set(), set(), set()
    for number, sentence in enumerate(zip(predicted, gold, strict=True)):
        for (tags, rows), its_chunks, its_pairs in zip(
            sentence, (found_chunks, gold_chunks), (found_pairs, gold_pairs), strict=True
        ):
            its_chunks |= {(number, *chunk) for chunk in chunks(tags, [0, len(tags)])}
            its_pairs |= {(number, min(i, j), max(i, j), label) for i, j, label in rows}
    ends = {(number, end - 1) for number, _, end, _ in found_chunks & gold_chunks}
    strict = {
        pair
        for pair in found_pairs & gold_pairs
        if {(pair[0], pair[1]), (pair[0], pair[2])} <= ends
    }

    def macro(right, found, missed, there, classes) -> tuple[float, float, float]:
        rows = []
        for number in classes:
            tp, fp, fn = (
                sum(1 for row in side if row[3] == number)
                for side in (right, found - right, missed)
            )
            if any(row[3] == number for row in there):
                f1 = 2 * tp / (2 * tp + fp + fn) if tp else 0.0
                rows.append((f1, tp / (tp + fp) if tp else 0.0, tp / (tp + fn) if tp else 0.0))
        return (
            tuple(sum(column) / len(rows) for column in zip(*rows, strict=True))
            if rows
            else (0.0, 0.0, 0.0)
        )

    types, labels = range(num_types), range(1, num_relations + 1)
    right_chunks, right_pairs = found_chunks & gold_chunks, found_pairs & gold_pairs
    messages = {
        "ner": macro(right_chunks, found_chunks, gold_chunks - right_chunks, gold_chunks, types),
        "re_minus": macro(right_pairs, found_pairs, gold_pairs - right_pairs, gold_pairs, labels),
        "re": macro(strict, found_pairs, gold_pairs - strict, gold_pairs, labels),
        "re_legacy": macro(strict, found_pairs, gold_pairs - found_pairs, gold_pairs, labels),
    }
    return {
        f"{task}_{what}": row[place]
        for task, row in messages.items()
        for place, what in enumerate(("f1", "precision", "recall"))
    }
