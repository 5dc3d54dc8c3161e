"""True and false graphs of sentences (Theodoropoulos et al., 2021, Sections 3.1 and 3.2).

A pair is (last word of a relation's tail, last word of its head); in ADE (drug, adverse effect).
Words are numbered from 0 in their sentence.
"""

import itertools
import math
from collections import Counter
from typing import NamedTuple

import numpy as np

from raybio.methods.relation_graphs.annotations.tags import gold_pairs
from raybio.methods.relation_graphs.config import GraphsConfig, NegativeChoice
from raybio.methods.relation_graphs.store import WordStore


class SentenceGraph(NamedTuple):
    """Nodes (words of a sentence) and edges (indices of ``words``), each in one direction."""

    words: list[int]
    edges: list[tuple[int, int]]


class Sentence(NamedTuple):
    """Parts of true and false graphs.

    Attributes:
        num_words: number of words.
        pairs: related words, distinct.
        partners: (side, word) -> for a word on side 0 or 1 of a pair, all words of the entities to
            which it is related.
        alike: for side 0 and side 1 of pairs, the words of all entities with a type of that side.
    """

    num_words: int
    pairs: list[tuple[int, int]]
    partners: dict[tuple[int, int], set[int]]
    alike: tuple[set[int], set[int]]


def read_sentence(store: WordStore, row: int) -> Sentence:
    """Read a sentence of a store."""
    start_E, end_E, type_E = (column.tolist() for column in store.entities(row))
    head_P, tail_P, _ = (column.tolist() for column in store.relations(row))
    partners: dict[tuple[int, int], set[int]] = {}
    for pair in zip(tail_P, head_P, strict=True):
        for side in (0, 1):
            other = pair[1 - side]
            partners.setdefault((side, end_E[pair[side]] - 1), set()).update(
                range(start_E[other], end_E[other])
            )

    def words_of_types(types: set[int]) -> set[int]:
        words: set[int] = set()
        for start, end, kind in zip(start_E, end_E, type_E, strict=True):
            if kind in types:
                words.update(range(start, end))
        return words

    first_R, second_R, _ = gold_pairs(store, row)
    pairs = list(zip(first_R.tolist(), second_R.tolist(), strict=True))
    return Sentence(
        num_words=len(store.sentence(row)),
        pairs=list(dict.fromkeys(pairs)),
        partners=partners,
        alike=(
            words_of_types({type_E[entity] for entity in tail_P}),
            words_of_types({type_E[entity] for entity in head_P}),
        ),
    )


def pair_graphs(
    sentence: Sentence, config: GraphsConfig, rng: np.random.Generator
) -> list[list[SentenceGraph]]:
    """Return, for each related pair, its graph of two nodes and false ones (CLDR).

    A false graph keeps one end of the pair. Half of them keep the first end. Replacements are drawn
    without replacement from the allowed words of each side.
    """
    num_second = config.num_negatives // 2
    num_by_side = {0: config.num_negatives - num_second, 1: num_second}
    graphs = []
    for pair in sentence.pairs:
        variants = [pair]
        for side, num in num_by_side.items():
            allowed = _replacements(sentence, pair, side, config.negatives)
            drawn = rng.choice(allowed, min(num, len(allowed)), replace=False).tolist()
            variants += [(pair[0], word) if side == 0 else (word, pair[1]) for word in drawn]
        graphs.append([SentenceGraph(list(words), [(0, 1)]) for words in variants])
    return graphs


def _replacements(
    sentence: Sentence, pair: tuple[int, int], side: int, negatives: NegativeChoice
) -> list[int]:
    """Return the words that may replace the other end of ``pair`` while ``side`` is kept."""
    kept = pair[side]
    related = {other[1 - end] for other in sentence.pairs for end in (0, 1) if other[end] == kept}
    if negatives == "entities":
        related |= sentence.partners[side, kept]
    return [word for word in range(sentence.num_words) if word != kept and word not in related]


def whole_graphs(
    sentence: Sentence, num_negatives: int, rng: np.random.Generator
) -> list[SentenceGraph]:
    """Return the graph of all pairs, and false ones with other words at one end (CLGS).

    - Half of the false graphs keep the first ends of all pairs, half the second ones. No two are
      equal, and each has as many edges as the true one.
    - Replacements belong to no entity of the replaced type and are not kept ends. Each pair draws
      its own replacement, so the number of nodes may change.
    - There are fewer false graphs if the words do not suffice, and no graphs without pairs.
    """
    if not sentence.pairs:
        return []
    graphs = [_graph(sentence.pairs)]
    for kept, num in ((0, num_negatives - num_negatives // 2), (1, num_negatives // 2)):
        kept_ends = sorted(pair[kept] for pair in sentence.pairs)
        for words in _distinct_words(sentence, kept, num, rng):
            ends = zip(kept_ends, words, strict=True)
            graphs.append(_graph([(end, word) if kept == 0 else (word, end) for end, word in ends]))
    return graphs


def _distinct_words(
    sentence: Sentence, kept: int, num: int, rng: np.random.Generator
) -> list[tuple[int, ...]]:
    """Draw up to ``num`` distinct graphs: a word for each pair, in the order of the kept ends."""
    taken = sentence.alike[1 - kept] | {pair[kept] for pair in sentence.pairs}
    allowed = [word for word in range(sentence.num_words) if word not in taken]
    # Pairs that share an end need different words at the other end, or they would be one edge.
    count_by_end = Counter(pair[kept] for pair in sentence.pairs)
    sizes = [size for _, size in sorted(count_by_end.items())]
    num_graphs = math.prod(math.comb(len(allowed), size) for size in sizes)
    if num_graphs <= 2 * num:
        parts = itertools.product(*(itertools.combinations(allowed, size) for size in sizes))
        all_words = [tuple(itertools.chain(*part)) for part in parts]
        chosen = rng.choice(num_graphs, min(num, num_graphs), replace=False).tolist()
        return [all_words[index] for index in chosen]
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < num:  # at least every second draw is new
        parts_drawn = [sorted(rng.choice(allowed, size, replace=False).tolist()) for size in sizes]
        drawn[tuple(itertools.chain(*parts_drawn))] = None
    return list(drawn)


def _graph(pairs: list[tuple[int, int]]) -> SentenceGraph:
    words = list(dict.fromkeys(word for pair in pairs for word in pair))
    node_by_word = {word: number for number, word in enumerate(words)}
    # Every node has a loop anyway; an edge counts once in either direction.
    edges = {
        tuple(sorted((node_by_word[first], node_by_word[second])))
        for first, second in pairs
        if first != second
    }
    return SentenceGraph(words, sorted(edges))  # type: ignore[arg-type]
