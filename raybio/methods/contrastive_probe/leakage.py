"""Queries of a benchmark whose answer a sentence of the store states."""

import re
from collections.abc import Iterable

import numpy as np

from raybio.methods.contrastive_probe.benchmark.probe_benchmark import ProbeBenchmark

_WORD = re.compile(r"\w+")


def queries_in_sentences(benchmark: ProbeBenchmark, sentences: Iterable[str]) -> int:
    """Return the number of queries whose head and one of whose answers are in one sentence.

    Names match as sequences of whole words, whatever their case and punctuation. An answer that is
    the head itself does not count.
    """
    name_by_words: dict[tuple[str, ...], list[int]] = {}
    for number, name in enumerate(benchmark.names):
        name_by_words.setdefault(_words(name), []).append(number)
    name_by_words.pop((), None)
    max_length_by_first: dict[str, int] = {}
    for words in name_by_words:
        max_length_by_first[words[0]] = max(max_length_by_first.get(words[0], 0), len(words))
    queries_by_head: dict[int, list[int]] = {}
    for query, head in enumerate(benchmark.head_Q.tolist()):
        queries_by_head.setdefault(head, []).append(query)
    answers = [
        set(part.tolist()) for part in np.split(benchmark.answer_P, benchmark.indptr_Q1[1:-1])
    ]
    stated: set[int] = set()
    for sentence in sentences:
        words = _words(sentence)
        names: set[int] = set()
        for start, first in enumerate(words):
            for length in range(1, max_length_by_first.get(first, 0) + 1):
                names.update(name_by_words.get(words[start : start + length], ()))
        for head in names:
            for query in queries_by_head.get(head, ()):
                if answers[query] & names - {head}:
                    stated.add(query)
    return len(stated)


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.casefold()))
