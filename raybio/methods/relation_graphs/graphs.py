"""Graphs."""

import itertools
import math
from collections import Counter
from typing import NamedTuple

import numpy as np

from raybio.methods.relation_graphs.config import GraphsConfig, NegativeChoice
from raybio.methods.relation_graphs.store import WordStore
from raybio.methods.relation_graphs.tags import gold_pairs


class Graph(NamedTuple):
    """Words that are its nodes, and its edges, as places in ``words``, one direction each."""

    words: list[int]
    edges: list[tuple[int, int]]


class Sentence(NamedTuple):
    """What false graphs are made from.

    Attributes:
        num_words: of the sentence.
        pairs: related words, distinct.
        partners: (side, word) -> all words of the entities to which a word is related that stands
            on that side of a pair, 0 or 1.
        alike: words of the entities whose type those on side 0 have, and of those on side 1.
    """

    num_words: int
    pairs: list[tuple[int, int]]
    partners: dict[tuple[int, int], set[int]]
    alike: tuple[set[int], set[int]]


def read_sentence(store: WordStore, row: int) -> Sentence:
    """A stored sentence."""
    start_E, end_E, type_E = (column.tolist() for column in store.entities(row))
    head_P, tail_P, _ = (column.tolist() for column in store.relations(row))
    partners: dict[tuple[int, int], set[int]] = {}
    for pair in zip(tail_P, head_P, strict=True):
        for side in (0, 1):
            other = pair[1 - side]
            partners.setdefault((side, end_E[pair[side]] - 1), set()).update(
                range(start_E[other], end_E[other])
            )
    types = ({type_E[entity] for entity in tail_P}, {type_E[entity] for entity in head_P})
    spans = list(zip(start_E, end_E, type_E, strict=True))
    alike = tuple(
        {word for start, end, kind in spans if kind in one for word in range(start, end)}
        for one in types
    )
    first_R, second_R, _ = gold_pairs(store, row)
    pairs = list(zip(first_R.tolist(), second_R.tolist(), strict=True))
    return Sentence(
        len(store.sentence(row)), list(dict.fromkeys(pairs)), partners, (alike[0], alike[1])
    )


def pair_graphs(
    sentence: Sentence, config: GraphsConfig, rng: np.random.Generator
) -> list[list[Graph]]:
    """For each pair its graph of two nodes, and then false ones that keep one end of it (CLDR).

    Half of the false ones keep the first end; each side is drawn without replacement from all words
    that it allows.
    """
    graphs = []
    for pair in sentence.pairs:
        found = [pair]
        for side, num in (
            (0, config.num_negatives - config.num_negatives // 2),
            (1, config.num_negatives // 2),
        ):
            allowed = _replacements(sentence, pair, side, config.negatives)
            drawn = rng.choice(allowed, min(num, len(allowed)), replace=False).tolist()
            found += [(pair[0], word) if side == 0 else (word, pair[1]) for word in drawn]
        graphs.append([Graph(list(words), [(0, 1)]) for words in found])
    return graphs


def _replacements(
    sentence: Sentence, pair: tuple[int, int], side: int, rule: NegativeChoice
) -> list[int]:
    """Words that may stand opposite the end of ``pair`` at ``side``, which stays."""
    kept = pair[side]
    related = {one[1 - end] for one in sentence.pairs for end in (0, 1) if one[end] == kept}
    if rule == "entities":
        related |= sentence.partners[side, kept]
    return [word for word in range(sentence.num_words) if word != kept and word not in related]


def whole_graphs(sentence: Sentence, num_negatives: int, rng: np.random.Generator) -> list[Graph]:
    """The graph of all pairs, and false ones in which other words stand at one end of every pair (CLGS).

    Half of the false ones keep the pairs' first ends, half the second ones; no two are equal, and
    each has as many edges as the true one. The words that replace an end are of no entity of its
    type and are no end that stays; each pair draws its own, so that the number of nodes may change.
    Fewer where there are not enough words; empty for a sentence without pairs.
    """
    if not sentence.pairs:
        return []
    graphs = [_graph(sentence.pairs)]
    for kept, num in ((0, num_negatives - num_negatives // 2), (1, num_negatives // 2)):
        for words in _distinct_words(sentence, kept, num, rng):
            ends = zip(sorted(pair[kept] for pair in sentence.pairs), words, strict=True)
            graphs.append(
                _graph([(one, other) if kept == 0 else (other, one) for one, other in ends])
            )
    return graphs


def _distinct_words(
    sentence: Sentence, kept: int, num: int, rng: np.random.Generator
) -> list[tuple[int, ...]]:
    """Up to ``num`` draws of a word for each pair, in the order of the ends that stay; no two give the same graph."""
    taken = sentence.alike[1 - kept] | {pair[kept] for pair in sentence.pairs}
    allowed = [word for word in range(sentence.num_words) if word not in taken]
    # Pairs that share an end have different words at the other, or they would be one edge.
    sizes = [size for _, size in sorted(Counter(pair[kept] for pair in sentence.pairs).items())]
    num_graphs = math.prod(math.comb(len(allowed), size) for size in sizes)
    if num_graphs <= 2 * num:
        parts = itertools.product(*(itertools.combinations(allowed, size) for size in sizes))
        all_words = [tuple(itertools.chain(*part)) for part in parts]
        return [
            all_words[place]
            for place in rng.choice(num_graphs, min(num, num_graphs), replace=False).tolist()
        ]
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < num:  # at least every second draw is new
        parts_drawn = [sorted(rng.choice(allowed, size, replace=False).tolist()) for size in sizes]
        drawn[tuple(itertools.chain(*parts_drawn))] = None
    return list(drawn)


def _graph(pairs: list[tuple[int, int]]) -> Graph:
    words = list(dict.fromkeys(word for pair in pairs for word in pair))
    place = {word: number for number, word in enumerate(words)}
    # Every node has a loop anyway; an edge counts once, whichever way it is written.
    edges = {tuple(sorted((place[one], place[other]))) for one, other in pairs if one != other}
    return Graph(words, sorted(edges))  # type: ignore[arg-type]
