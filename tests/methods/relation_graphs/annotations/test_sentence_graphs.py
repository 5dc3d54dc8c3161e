"""True and false graphs of a sentence, by the paper's rule and by the authors' code's."""

from collections import Counter

import numpy as np
import pytest

from raybio.methods.relation_graphs.annotations.graphs import (
    Sentence,
    pair_graphs,
    read_sentence,
    whole_graphs,
)
from raybio.methods.relation_graphs.config import GraphsConfig
from tests.methods.relation_graphs.word_stores import store_of

WORDS = ["after", "da", "db", "and", "dc", "came", "ea", "eb", "or", "ec"]
ENTITIES = [("Drug", 1, 3), ("Drug", 4, 5), ("Adverse-Effect", 6, 8), ("Adverse-Effect", 9, 10)]
RELATIONS = [
    (2, 0),
    (3, 1),
    (2, 1),
]  # (head: effect, tail: drug): drug1 - ae1, drug2 - ae2, drug2 - ae1


@pytest.fixture
def sentence(tmp_path) -> Sentence:
    store = store_of(tmp_path, [(WORDS, ENTITIES, RELATIONS)])
    return read_sentence(store, 0)


def drawn(sentence, rule, num_negatives=100, seed=0):
    config = GraphsConfig(num_negatives=num_negatives, negatives=rule)
    return pair_graphs(sentence, config, np.random.default_rng(seed))


def test_a_pair_is_the_last_words_of_drug_and_effect(sentence):
    assert sentence.pairs == [(2, 7), (4, 9), (4, 7)]
    assert [graphs[0].words for graphs in drawn(sentence, "entities")] == [[2, 7], [4, 9], [4, 7]]


@pytest.mark.parametrize(
    "rule, with_drug, with_effect",
    [
        # Of drug1, all words of its only effect are out; the other effect stays a useful false one.
        ("entities", {0, 1, 3, 4, 5, 8, 9}, {0, 3, 5, 6, 8, 9}),
        ("last_words", {0, 1, 3, 4, 5, 6, 8, 9}, {0, 1, 3, 5, 6, 8, 9}),
    ],
)
def test_what_may_stand_in_a_false_pair(sentence, rule, with_drug, with_effect):
    false = [tuple(graph.words) for graph in drawn(sentence, rule)[0][1:]]
    assert {second for first, second in false if first == 2} == with_drug
    assert {first for first, second in false if second == 7} == with_effect
    assert len(set(false)) == len(false)


def test_half_of_the_false_pairs_keep_each_end(sentence):
    for graphs in drawn(sentence, "entities", num_negatives=8):
        (first, second), *false = (tuple(graph.words) for graph in graphs)
        assert [one[0] == first for one in false] == [True] * 4 + [False] * 4
        assert all(one[1] == second for one in false[4:])


def test_draws_depend_on_the_generator_alone(sentence):
    assert drawn(sentence, "entities", 4, seed=1) == drawn(sentence, "entities", 4, seed=1)
    assert drawn(sentence, "entities", 4, seed=1) != drawn(sentence, "entities", 4, seed=2)


def test_a_whole_graph_joins_all_related_words(sentence):
    true = whole_graphs(sentence, 0, np.random.default_rng(0))
    assert [graph.words for graph in true] == [[2, 7, 4, 9]]
    assert true[0].edges == [(0, 1), (1, 2), (2, 3)]  # 2-7, 7-4, 4-9


def test_false_whole_graphs_replace_one_side_of_every_pair_in_turn(sentence):
    _, *false = whole_graphs(sentence, 8, np.random.default_rng(0))
    assert len(false) == 8
    for number, graph in enumerate(false):
        edges = {frozenset((graph.words[one], graph.words[other])) for one, other in graph.edges}
        kept, taken = ({2, 4}, {6, 7, 9}) if number < 4 else ({7, 9}, {1, 2, 4})
        assert all(len(edge & kept) == 1 and not edge & taken - kept for edge in edges)
        assert kept <= set(graph.words)


@pytest.mark.parametrize("num_negatives", [8, 30, 100, 10_000])
def test_false_whole_graphs_are_distinct_and_have_as_many_relations_as_the_true_one(
    sentence, num_negatives
):
    """4 has two effects and 7 two drugs: C(5, 1) C(5, 2) ways to replace effects, and drugs."""
    true, *false = whole_graphs(sentence, num_negatives, np.random.default_rng(0))
    messages = {
        frozenset(frozenset((graph.words[one], graph.words[other])) for one, other in graph.edges)
        for graph in false
    }
    assert len(messages) == len(false) == min(num_negatives, 100)
    assert {len(edges) for edges in messages} == {len(true.edges)} == {3}


def test_all_false_whole_graphs_are_equally_likely(sentence):
    counts = Counter(
        tuple(
            sorted(
                map(tuple, np.sort(np.array(graph.words)[np.array(graph.edges)], axis=1).tolist())
            )
        )
        for seed in range(3000)
        for graph in whole_graphs(sentence, 4, np.random.default_rng(seed))[1:]
    )
    assert len(counts) == 100
    assert min(counts.values()) / 120 > 0.6 and max(counts.values()) / 120 < 1.4


def test_a_sentence_without_room_has_fewer_false_graphs(tmp_path):
    store = store_of(
        tmp_path, [(["da", "ea"], [("Drug", 0, 1), ("Adverse-Effect", 1, 2)], [(1, 0)])]
    )
    sentence = read_sentence(store, 0)
    assert [len(graphs) for graphs in drawn(sentence, "entities")] == [1]
    assert len(whole_graphs(sentence, 8, np.random.default_rng(0))) == 1


def test_one_word_may_be_both_ends(tmp_path):
    entities = [("Drug", 0, 1), ("Adverse-Effect", 0, 1)]
    store = store_of(tmp_path, [(["dea", "w", "v"], entities, [(1, 0)])])
    sentence = read_sentence(store, 0)
    assert sentence.pairs == [(0, 0)]
    assert {tuple(graph.words) for graph in drawn(sentence, "entities")[0]} == {
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (2, 0),
    }
    assert whole_graphs(sentence, 0, np.random.default_rng(0))[0].edges == []


def test_a_sentence_without_relations_has_no_graphs(tmp_path):
    store = store_of(
        tmp_path,
        [
            (["da", "w"], [("Drug", 0, 1)], []),
            (["da", "ea"], [("Drug", 0, 1), ("AE", 1, 2)], [(1, 0)]),
        ],
    )
    assert drawn(read_sentence(store, 0), "entities") == []
    assert whole_graphs(read_sentence(store, 0), 4, np.random.default_rng(0)) == []
