"""Classification by classwise kNN and by a linear classifier, against loops."""

import numpy as np
import pytest
import torch

from raybio.core.errors import ConfigError
from raybio.methods.mtb_mccl.embed_pairs import EmbeddedPairs
from raybio.methods.mtb_mccl.mccl.classifier import (
    Classifier,
    GoldPairs,
    choose_knn_settings,
    score_predictions,
)
from raybio.methods.mtb_mccl.mccl.config import (
    LINEAR,
    KnnSettings,
    RelationEvaluationConfig,
    RelationObjectiveConfig,
)
from raybio.methods.mtb_mccl.mccl.objective import RelationHead
from tests.ops.threads import in_threads


def known(num: int, num_classes: int, seed: int, labels_each: int = 1) -> GoldPairs:
    rng = np.random.default_rng(seed)
    embedding_PD = torch.from_numpy(rng.standard_normal((num, 6))).float()
    label_PC = np.zeros((num, num_classes), dtype=bool)
    for _ in range(labels_each):
        label_PC[np.arange(num), rng.integers(0, num_classes, num)] = True
    label_PC[:, 0] &= ~label_PC[:, 1:].any(1)
    row_P = np.sort(rng.integers(0, 4, num))
    return GoldPairs(
        EmbeddedPairs(embedding_PD, row_P, np.arange(num), np.arange(num) + 1), label_PC
    )


@pytest.mark.parametrize("is_multi_label", [False, True])
@pytest.mark.parametrize(("k", "weight"), [(1, 1.0), (3, 1.0), (50, 1.0), (3, 0.0), (3, 0.5)])
def test_the_nearest_labeled_pairs_of_each_class_decide_together_with_its_bias(
    is_multi_label, k, weight
):
    reference, queries = known(40, 4, 0, 1 + is_multi_label), known(15, 4, 1, 1 + is_multi_label)
    head = RelationHead(RelationObjectiveConfig(), num_classes=4, width=6)
    with torch.no_grad():
        head.bias_C.copy_(torch.tensor([0.1, -0.2, 0.3, 0.0]))
    classifier = Classifier(head, reference, is_multi_label)
    with torch.no_grad():
        score_PC = classifier.scores(
            queries.pairs.embedding_PD,
            (KnnSettings(1, 2.0), KnnSettings(k, weight), KnnSettings(7, 0.0)),
        )[KnnSettings(k, weight)]
    predicted_PC = classifier.predicted(score_PC)
    for place, query in enumerate(queries.pairs.embedding_PD):
        cosines = torch.nn.functional.cosine_similarity(query[None], reference.pairs.embedding_PD)
        scores = []
        for label in range(4):
            members = (
                cosines[torch.from_numpy(reference.label_PC[:, label])]
                .sort(descending=True)
                .values[:k]
            )
            scores.append(
                float(members.mean() + weight * head.bias_C.detach()[label])
                if len(members)
                else -np.inf
            )
        np.testing.assert_allclose(score_PC[place], scores, rtol=1e-5, atol=1e-6)
        expected = (
            {label for label in range(1, 4) if scores[label] > scores[0]}
            if is_multi_label
            else {int(np.argmax(scores))} - {0}
        )
        assert set(np.flatnonzero(predicted_PC[place]).tolist()) == expected


def test_workers_that_have_a_part_of_the_reference_set_each_decide_as_one_that_has_all_of_it():
    reference, queries, rules = (
        known(41, 4, 0),
        known(15, 4, 1),
        (KnnSettings(1, 0.0), KnnSettings(5, 0.0)),
    )
    whole = Classifier(None, reference, is_multi_label=False).scores(
        queries.pairs.embedding_PD, rules
    )
    parts = [
        slice(None, None, 2),
        slice(1, None, 2),
        slice(41, None),
    ]  # the last worker has no pair

    def scores(collective):
        place = parts[collective.rank]
        pairs = EmbeddedPairs(*(array[place] for array in reference.pairs))
        own = Classifier(None, GoldPairs(pairs, reference.label_PC[place]), False, collective)
        return own.scores(queries.pairs.embedding_PD, rules)

    for found in in_threads(len(parts), scores):
        assert list(found) == list(whole)
        for rule, score_PC in found.items():
            torch.testing.assert_close(score_PC, whole[rule])


def test_biases_that_have_learned_too_much_are_left_out_where_validation_pairs_are_better_without():
    reference = GoldPairs(EmbeddedPairs(torch.eye(3), *[np.arange(3)] * 3), np.eye(3, dtype=bool))
    queries = GoldPairs(
        EmbeddedPairs(torch.eye(3), np.zeros(3, int), np.arange(3), np.arange(3) + 1),
        reference.label_PC,
    )
    rules = [KnnSettings(1, 0.0), KnnSettings(1, 1.0)]
    for bias, expected in ((2.0, KnnSettings(1, 0.0)), (0.5, KnnSettings(1, 1.0))):
        head = RelationHead(RelationObjectiveConfig(), num_classes=3, width=3)
        with torch.no_grad():
            head.bias_C.copy_(torch.tensor([bias, 0.0, 0.0]))
        classifier = Classifier(head, reference, is_multi_label=False)
        rule, scores = choose_knn_settings(classifier, queries, rules)
        assert (rule, scores.values["f1"]) == (expected, 1.0)
    classifier = Classifier(None, reference, is_multi_label=False)
    assert choose_knn_settings(classifier, queries, rules[1:])[0] == KnnSettings(
        1, 0.0
    )  # there are none to leave out
    equal = [KnnSettings(5, 1.0), KnnSettings(1, 1.0), KnnSettings(3, 1.0)]
    assert choose_knn_settings(classifier, queries, equal)[0].num_neighbors == 1


@pytest.mark.parametrize(
    "given", [{"num_neighbors": []}, {"num_neighbors": [3, 0]}, {"bias_weights": []}]
)
def test_without_a_rule_or_a_neighbor_nothing_could_be_decided(given):
    with pytest.raises(ConfigError, match=next(iter(given))):
        RelationEvaluationConfig.from_mapping(given)


def test_a_linear_classifier_decides_alone():
    head = RelationHead(RelationObjectiveConfig(kind="ce"), num_classes=3, width=6)
    classifier = Classifier(head, None, is_multi_label=False)
    queries = known(9, 3, 1)
    with torch.no_grad():
        ((rule, score_PC),) = classifier.scores(
            queries.pairs.embedding_PD, (KnnSettings(1, 0.0), KnnSettings(3, 1.0))
        ).items()
        assert rule == LINEAR
        torch.testing.assert_close(score_PC, head.classifier(queries.pairs.embedding_PD))
    assert (
        classifier.predicted(score_PC).argmax(1)
        == score_PC.argmax(1).numpy() * (score_PC.argmax(1).numpy() > 0)
    ).all()


def test_perfect_predictions_score_one_and_none_score_zero():
    queries = known(30, 4, 2)
    gold_PC = queries.label_PC.copy()
    assert score_predictions(queries, gold_PC).values["f1"] == 1.0
    assert score_predictions(queries, np.zeros_like(gold_PC)).values["f1"] == 0.0


def test_a_relation_that_is_no_candidate_is_missed():
    queries = known(30, 4, 2)
    outside_F4 = np.array(
        [[1, 90, 91, 2], [7, 0, 1, 3]]
    )  # in a document that was asked about, and in one without pairs
    found = score_predictions(queries._replace(outside_F4=outside_F4), queries.label_PC)
    num = queries.label_PC[:, 1:].sum()
    assert found.values["recall"] == pytest.approx(num / (num + 2))
    assert found.values["precision"] == 1.0
    assert len(found.count_UR4) == len(np.unique([*queries.pairs.row_P, 7]))


def test_with_several_relations_and_no_pair_without_any_nothing_states_how_near_is_near_enough():
    reference, queries = known(40, 4, 0, 2), known(15, 4, 1, 2)
    reference.label_PC[:, 0] = False
    with pytest.raises(
        ConfigError, match="no labeled training pair is without a relation.*data.label_fraction"
    ):
        choose_knn_settings(
            Classifier(None, reference, is_multi_label=True), queries, [KnnSettings(1, 0.0)]
        )
