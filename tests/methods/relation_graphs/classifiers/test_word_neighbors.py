"""Entities and relations by neighbors, and whether true graphs are nearest, against loops."""

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from raybio.core.randomness import derive_seed
from raybio.methods import METHODS
from raybio.methods.relation_graphs.annotations.gold import (
    Annotations,
    EmbeddedSentences,
    Gold,
    Related,
    read_gold,
)
from raybio.methods.relation_graphs.batches import RelationGraphBatch, WordBatch
from raybio.methods.relation_graphs.classifiers.knn import (
    KnnPredictions,
    _predict_pairs,
    predict_by_knn,
)
from raybio.methods.relation_graphs.config import KnnConfig, WordKnnSettings
from raybio.methods.relation_graphs.demo import SIMULATED_WORDS, WordsConfig
from raybio.methods.relation_graphs.evaluation.graph_accuracy import _accuracy, validate_graphs
from raybio.methods.relation_graphs.evaluation.sentence_scores import (
    choose_settings,
    score_probe,
    score_sentences,
)
from raybio.store.store import Store
from raybio.training.collective import SingleProcess
from raybio.training.embed import embed_rows
from tests import word_oracles
from tests.methods.conformance_cases import tiny_config
from tests.methods.relation_graphs.test_relation_graphs import batch_of
from tests.methods.relation_graphs.word_stores import store_of

SIZES = [4, 6, 5, 3]


def spaces(seed: int, labels: int = 2, num_pairs: int = 9) -> EmbeddedSentences:
    """Sentences of random words, some of whose pairs are related, in either order."""
    rng = np.random.default_rng(seed)
    indptr = np.cumsum([0, *SIZES])
    every = [
        pair
        for start, end in itertools.pairwise(indptr)
        for pair in itertools.combinations(range(start, end), 2)
    ]
    chosen = [every[place] for place in rng.choice(len(every), num_pairs, replace=False)]
    ordered = np.array([pair if rng.random() < 0.5 else pair[::-1] for pair in chosen])
    related = Related(ordered[:, 0], ordered[:, 1], rng.integers(1, labels + 1, num_pairs))
    words = torch.from_numpy(rng.normal(size=(indptr[-1], 3)).astype(np.float32))
    annotations = Annotations(*[np.zeros(0, np.int64)] * 6)
    gold = Gold(indptr, rng.integers(0, 5, indptr[-1]), related, annotations)
    return EmbeddedSentences(words, words, gold)


def by_loops(
    reference: EmbeddedSentences, queries: EmbeddedSentences, k: int, both_orders: bool
) -> set[tuple[int, int, int]]:
    """Return related pairs of ``asked``: the majority of the k nearest; the nearest breaks ties."""
    label = {
        frozenset(pair): number
        for *pair, number in zip(*(part.tolist() for part in reference.gold.pairs), strict=True)
    }

    def pairs(one: EmbeddedSentences):
        bounds = itertools.pairwise(one.gold.indptr_S1.tolist())
        return [
            pair for start, end in bounds for pair in itertools.combinations(range(start, end), 2)
        ]

    def chain(one: EmbeddedSentences, first: int, second: int):
        return torch.cat([one.pair_WD[first], one.pair_WD[second]]).double().numpy()

    found = set()
    for first, second in pairs(queries):
        own, near = chain(queries, first, second), []
        for one, other in pairs(reference):
            orders = [(one, other), (other, one)][: 2 if both_orders else 1]
            near.append(
                (
                    min(np.sum((own - chain(reference, *order)) ** 2) for order in orders),
                    (one, other),
                )
            )
        votes = [label.get(frozenset(pair), 0) for _, pair in sorted(near)[:k]]
        count = Counter(votes)
        winner = next(vote for vote in votes if count[vote] == max(count.values()))
        if winner:
            found.add((first, second, winner))
    return found


def everywhere(one: EmbeddedSentences) -> np.ndarray:
    return np.ones(len(one.gold.tag_W), dtype=bool)


@pytest.mark.parametrize("both_orders", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_nearest_pairs_of_training_vote_with_the_labels_of_either_order(seed, both_orders):
    reference, queries = spaces(seed, num_pairs=20), spaces(seed + 10)
    config = KnnConfig(num_pair_neighbors=(1, 3, 4), both_orders=both_orders)
    voted = _predict_pairs(reference, queries, everywhere(queries), config)
    for k, found in voted.items():
        triples = set(zip(*(part.tolist() for part in found), strict=True))
        assert triples == by_loops(reference, queries, k, both_orders), k
        assert triples


def test_a_reference_without_relations_finds_none():
    reference = spaces(0, num_pairs=9)
    nothing = np.zeros(0, dtype=np.int64)
    reference = reference._replace(
        gold=reference.gold._replace(pairs=Related(nothing, nothing, nothing))
    )
    found = _predict_pairs(reference, spaces(3), everywhere(reference), KnnConfig())[5]
    assert all(len(part) == 0 for part in found)


def test_the_best_numbers_are_chosen_each_by_its_own_score_and_of_equals_the_least():
    queries = spaces(4)
    gold, nothing = queries.gold, np.zeros(0, dtype=np.int64)
    none = Related(nothing, nothing, nothing)
    pairs_by_k = {7: gold.pairs, 1: none, 3: gold.pairs}
    tag_W_by_k = {1: np.zeros_like(gold.tag_W), 5: gold.tag_W, 9: gold.tag_W}
    found = KnnPredictions(queries, pairs_by_k, tag_W_by_k, (("a", "b"), ("NA", "x", "y")))
    assert found.best_settings(WordKnnSettings(7, 1, 2.0)) == WordKnnSettings(3, 5, 2.0)
    values = found.scores(WordKnnSettings(3, 5, 2.0)).values
    assert values["re_minus_f1"] == values["ner_f1"] == 1
    assert found.scores(WordKnnSettings(1, 1, 2.0)).values["re_minus_f1"] == 0


@pytest.mark.parametrize("share_of_entities", [0.0, 0.4, 1.0])
def test_pairs_of_chunk_ends_are_those_of_all_pairs_whose_words_end_chunks_of_the_same_tags(
    tmp_path, share_of_entities
):
    store = SIMULATED_WORDS.prepare(
        tmp_path, WordsConfig(num_sentences=40, num_drugs=6, num_effects=6)
    )
    rng = np.random.default_rng(0)

    def randomly(rows: np.ndarray) -> EmbeddedSentences:
        gold = read_gold(store, rows)
        size = len(gold.tag_W)
        # A tag is where its words are: some lie with O.
        where_W = np.where(rng.random(size) < share_of_entities, gold.tag_W, 0)
        tag_WD = torch.from_numpy(np.eye(5)[where_W] + rng.normal(0, 0.3, (size, 5))).float()
        pair_WD = torch.from_numpy(np.eye(5)[gold.tag_W] + rng.normal(0, 0.3, (size, 5))).float()
        return EmbeddedSentences(pair_WD, tag_WD, gold)

    reference, queries = randomly(np.arange(30)), randomly(np.arange(30, 40))
    settings = {"num_pair_neighbors": (1, 3), "num_tag_neighbors": (1, 5)}
    every = predict_by_knn(reference, queries, store, KnnConfig(**settings))
    pruned = predict_by_knn(
        reference, queries, store, KnnConfig(candidates="chunk_ends", **settings)
    )
    for tags, pairs in itertools.product((1, 5), (1, 3)):
        chunks = word_oracles.chunks(
            every.tag_W_by_k[tags].tolist(), queries.gold.indptr_S1.tolist()
        )
        ends = {end - 1 for _, end, _ in chunks}
        related = np.stack(every.pairs_by_k[pairs], axis=1)
        kept = np.array(
            [first in ends and second in ends for first, second, _ in related.tolist()], dtype=bool
        )
        expected = KnnPredictions(
            queries, {pairs: Related(*related[kept].T)}, every.tag_W_by_k, every.names
        )
        rule = WordKnnSettings(pairs, tags, 1.0)
        assert pruned.scores(rule).values == expected.scores(rule).values
        if share_of_entities == 0.4:
            assert 0 < kept.sum() < len(kept)
    assert (
        pruned.best_settings(rule).num_tag_neighbors == every.best_settings(rule).num_tag_neighbors
    )


def test_what_a_related_pair_counts_in_the_probe_is_chosen_by_its_score_on_validation_sentences(
    tmp_path,
):
    store = SIMULATED_WORDS.prepare(
        tmp_path, WordsConfig(num_sentences=60, num_drugs=6, num_effects=6)
    )
    rng = np.random.default_rng(0)
    directions_TD = rng.normal(size=(5, 8))

    def noisy(rows: np.ndarray) -> EmbeddedSentences:
        gold = read_gold(store, rows)
        words = torch.from_numpy(
            directions_TD[gold.tag_W] + rng.normal(size=(len(gold.tag_W), 8))
        ).float()
        return EmbeddedSentences(words, words, gold)

    reference, dev, test = noisy(np.arange(40)), noisy(np.arange(40, 50)), noisy(np.arange(50, 60))
    config = KnnConfig(probe_positive_weights=(50.0, 0.01, 3.0))
    by_weight = {
        weight: score_probe(reference, dev, store, config, WordKnnSettings(5, 7, weight)).values[
            "re_minus_f1"
        ]
        for weight in (50.0, 0.01, 3.0)
    }
    assert len(set(by_weight.values())) > 1
    rule = choose_settings(reference, dev, store, config)
    assert rule == WordKnnSettings(5, 7, max(by_weight, key=lambda weight: by_weight[weight]))
    assert (
        score_sentences(reference, test, store, config, rule).probe.values
        == score_probe(reference, test, store, config, rule).values
    )
    assert choose_settings(reference, dev, store, KnnConfig()) == WordKnnSettings(5, 7, 1.0)


def test_a_sentence_has_the_share_of_its_anchors_whose_true_graph_is_strictly_nearest():
    pairs = [[(1, 3), (1, 2)], [(1, 4), (2, 4), (3, 4)], [(8, 9)], [(8, 9), (8, 10)]]
    batch = batch_of(pairs, [[(0, 1)]] * 8, [0, 0, 1, 2], [7, 3, 5])
    # KnnPredictions; beaten by the third; nothing to be told apart from; a tie, which is not found.
    similarity_G = torch.tensor([0.9, 0.1, 0.5, 0.2, 0.6, 0.3, 0.4, 0.4])
    accuracy_S, chance_S = _accuracy(similarity_G, batch)
    assert accuracy_S.tolist() == [0.5, 0.0]
    # One and two false graphs; one.
    assert chance_S == pytest.approx([(1 / 2 + 1 / 3) / 2, 1 / 2])


@pytest.mark.parametrize(
    "model, settings", [("cldr", {}), ("clgs", {}), ("joint", {"objective.tag_weight": 0.5})]
)
def test_sentences_without_relations_are_no_part_of_the_loss_of_graphs(
    tmp_path, model, settings
) -> None:
    """With all false graphs nothing is drawn; in any batches each sentence counts once."""
    plain = (["nothing", "is", "said", "here"], [("Drug", 3, 4)], [])
    related = [
        (
            [*["w"] * num, "da", "v", "ea"],
            [("Drug", num, num + 1), ("AE", num + 2, num + 3)],
            [(1, 0)],
        )
        for num in range(1, 6)
    ]
    sentences = [plain, *related[:1], plain, plain, *related[1:], plain, plain]
    store = store_of(tmp_path, sentences)
    found = []
    for size in (2, 3, 10):
        given = {
            "model": model,
            "plan.global_batch_rows": size,
            "graphs.num_negatives": 1000,
        } | settings
        system = METHODS["relation_graphs"].build(
            tiny_config("relation_graphs", **given), store.path
        )
        objective = system.objective
        if model == "joint":  # whose samples of words are drawn from the batch
            objective = replace(objective, model="cldr")
        rows = np.arange(store.num_rows)
        parts = (system.model, objective, system.collate, rows, SingleProcess())
        found.append(validate_graphs(*parts, max_tokens=4096).log_likelihood)
    assert found == pytest.approx([found[0]] * 3, rel=1e-4)
    assert found[0] < -0.1
    none = validate_graphs(*parts[:3], np.array([0, 2]), SingleProcess(), max_tokens=4096)
    assert math.isnan(none.log_likelihood) and not none.metrics()


@pytest.mark.parametrize("tag_weight", [1.0, 0.5])
def test_the_loss_of_validation_sentences_is_that_of_training_where_all_are_one_batch(
    tiny_words, tag_weight
) -> None:
    given = {"model": "joint", "plan.global_batch_rows": 1000, "objective.tag_weight": tag_weight}
    given |= {
        "objective.reduction": "sum",
        "objective.in_batch_negatives": True,
    }  # which are no matter
    system = METHODS["relation_graphs"].build(
        tiny_config("relation_graphs", **given), tiny_words.path
    )
    model, rows = system.model.eval(), np.arange(tiny_words.num_rows)
    found = validate_graphs(
        model, system.objective, system.collate, rows, SingleProcess(), max_tokens=4096
    )
    batch = RelationGraphBatch.from_arrays(
        system.collate.arrays(rows, derive_seed(system.collate.seed, "validation", 0))
    )
    plain = system.objective.config.model_copy(
        update={"reduction": "mean", "in_batch_negatives": False}
    )

    def read(some):
        return WordBatch.from_arrays(system.collate.reader.arrays(some.tolist()))

    with torch.no_grad():
        word_WD = embed_rows(model, read, rows, SingleProcess(), max_tokens=4096)
        expected = (
            replace(system.objective, config=plain)
            .embedding_loss(word_WD, batch, SingleProcess())
            .loss
        )
    assert found.log_likelihood == pytest.approx(-float(expected), rel=1e-5)


def test_the_nearest_graph_is_one_texts_whatever_the_loss_compares(tiny_words: Store) -> None:
    found = []
    for pairing in ("paper", "diagonal"):
        config = tiny_config("relation_graphs", **{"model": "cldr", "objective.pairing": pairing})
        system = METHODS["relation_graphs"].build(config, tiny_words.path)
        rows = np.arange(tiny_words.num_rows)
        parts = (system.model, system.objective, system.collate, rows, SingleProcess())
        found.append(validate_graphs(*parts, max_tokens=4096))
    assert found[0].log_likelihood != found[1].log_likelihood
    assert 0 < found[0].accuracy_S.mean() < 1
    np.testing.assert_array_equal(found[0].accuracy_S, found[1].accuracy_S)
