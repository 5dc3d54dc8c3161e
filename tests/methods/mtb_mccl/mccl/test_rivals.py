"""Rivals of relation extraction, against scikit-learn and loops."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import Ridge

from raybio.methods.mtb_mccl.mccl import rivals
from raybio.methods.mtb_mccl.mccl.classifier import (
    GoldPairs,
    predict_classes,
    score_predictions,
)
from raybio.methods.mtb_mccl.mccl.config import LINEAR
from raybio.methods.mtb_mccl.mccl.frozen_classifiers import L2, softmax_classifier
from raybio.methods.mtb_mccl.mccl.labeled_pairs import LabeledPairs
from raybio.methods.mtb_mccl.mccl.system import build
from raybio.methods.mtb_mccl.pair_words import PairWords
from raybio.training.collective import SingleProcess
from tests.methods.conformance_cases import tiny_config
from tests.methods.mtb_mccl.mccl.test_classifier import known

SPLITS = ("train", "dev", "test")


def words_for(gold: GoldPairs, seed: int) -> PairWords:
    """Three words a pair, the first of which often names its first relation."""
    rng = np.random.default_rng(seed)
    label_P = gold.label_PC.argmax(1)
    word_P3 = rng.integers(4, 30, (len(label_P), 3))
    word_P3[:, 0] = np.where(rng.random(len(label_P)) < 0.7, label_P, word_P3[:, 0])
    return PairWords(
        np.arange(0, 3 * len(label_P) + 1, 3), word_P3.ravel(), np.zeros(len(label_P), np.int64)
    )


def example(labels_each: int = 1) -> tuple[dict[str, GoldPairs], dict[str, PairWords]]:
    sizes = {"train": 120, "dev": 60, "test": 60}
    gold = {
        split: known(size, 4, seed, labels_each) for seed, (split, size) in enumerate(sizes.items())
    }
    return gold, {
        split: words_for(pairs, 7 + number) for number, (split, pairs) in enumerate(gold.items())
    }


@pytest.mark.parametrize("is_multi_label", [False, True])
def test_ridge_on_words_is_scikit_learns_with_an_offset_that_dev_chooses(is_multi_label) -> None:
    gold, words = example(1 + is_multi_label)
    rival = rivals.words_rival(gold, words, is_multi_label)
    known_words = sorted(set(words["train"].feature_W.tolist()))

    def counts(split: str) -> np.ndarray:
        return np.array(
            [
                [np.sum(word_3 == word) for word in known_words]
                for word_3 in words[split].feature_W.reshape(-1, 3)
            ],
            dtype=float,
        )

    weights = TfidfTransformer(sublinear_tf=True).fit(counts("train"))
    vectors = {split: weights.transform(counts(split)).toarray() for split in SPLITS}
    best = (-1.0, 0.0, 0.0)
    on_test = {}
    for penalty in rivals.PENALTIES:
        model = Ridge(penalty).fit(vectors["train"], gold["train"].label_PC.astype(float))
        for offset in rivals.NA_OFFSETS:
            f1 = {}
            for split in ("dev", "test"):
                predicted_PC = np.zeros_like(gold[split].label_PC)
                for pair, score_C in enumerate(model.predict(vectors[split])):
                    score_C[0] -= offset
                    if is_multi_label:
                        predicted_PC[pair] = score_C > score_C[0]
                    else:
                        predicted_PC[pair, score_C.argmax()] = True
                    predicted_PC[pair, 0] = False
                f1[split] = score_predictions(gold[split], predicted_PC).values["f1"]
            on_test[penalty, offset] = f1["test"]
            if f1["dev"] > best[0] + 1e-9:
                best = (f1["dev"], penalty, offset)
    assert rival.scores["dev"].values["f1"] == pytest.approx(best[0])
    assert rival.settings == {
        "penalty": best[1],
        "na_offset": best[2],
        "training_pairs": 120,
    }
    assert rival.scores["test"].values["f1"] == pytest.approx(on_test[best[1:]])
    assert rival.scores["test"].values["f1"] > 0.5


def test_a_relation_without_training_pair_is_never_predicted_and_one_class_is_enough() -> None:
    gold, words = example()
    gold["train"].label_PC[gold["train"].label_PC[:, 2]] = [True, False, False, False]
    for rival in rivals.relation_rivals(gold, words, False):
        by_relation = rival.scores["test"].by_relation()
        assert by_relation["gold"][2] > 0
        if rival.name == "ridge on TF-IDF":
            assert by_relation["predicted"][2] == 0
    gold["train"].label_PC[:] = [False, True, False, False]
    gold["train"].pairs.embedding_PD[:] = 1.0  # constant
    for rival in rivals.relation_rivals(gold, words, False):
        assert (rival.scores["test"].by_relation()["predicted"][2:] == 0).all(), rival.name
    del gold["test"], words["test"]
    for rival in rivals.relation_rivals(gold, words, False):
        assert rival.scores.keys() == {"dev"}


@pytest.mark.parametrize("is_multi_label", [False, True])
def test_softmax_has_the_penalty_with_the_best_f1_on_dev(is_multi_label) -> None:
    gold, _ = example(1 + is_multi_label)
    rival = rivals.softmax_rival(gold, is_multi_label)
    f1 = {}
    for l2 in L2:
        classifier = softmax_classifier(gold["train"], is_multi_label, l2)
        f1[l2] = [
            score_predictions(
                gold[split], predict_classes(classifier, LINEAR, gold[split].pairs.embedding_PD)
            ).values["f1"]
            for split in ("dev", "test")
        ]
    best = max(f1, key=lambda l2: f1[l2][0])
    assert rival.settings == {"l2": best, "training_pairs": 120}
    assert [rival.scores[split].values["f1"] for split in ("dev", "test")] == f1[best]


def test_whole_documents_are_drawn_where_there_are_too_many_pairs(tiny_documents) -> None:
    labeled = LabeledPairs(tiny_documents, "train", 1.0, 0)
    everything = np.arange(len(labeled.rows))
    assert rivals.drawn_documents(labeled, labeled.num_pairs).tolist() == everything.tolist()
    few = rivals.drawn_documents(labeled, labeled.num_pairs // 2)
    sizes = [len(labeled.pairs(row)[0]) for row in labeled.rows.tolist()]
    assert 0 < len(few) < len(everything)
    assert sum(sizes[number] for number in few) <= labeled.num_pairs // 2
    assert len(rivals.drawn_documents(labeled, 0)) == 1


def evaluator_of(store: Path, **settings: object):
    return build(tiny_config("relation_finetune", **settings), store).final_evaluate.__self__


def test_the_final_table_says_from_how_many_documents_rivals_learn(
    tiny_documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator = evaluator_of(tiny_documents.path)
    assert evaluator.remarks() == []
    monkeypatch.setattr(rivals.drawn_documents, "__defaults__", (1,))
    num_documents = len(evaluator.labeled("train").rows)
    assert evaluator.remarks() == [
        f"rivals without training of an encoder learn from 1 of {num_documents} training "
        "documents, which have at most 50,000 pairs"
    ]
    without = evaluator_of(tiny_documents.path, **{"evaluation.rivals": False})
    assert without.remarks() == []


def test_the_final_table_shows_rivals_of_the_same_labels(tiny_documents) -> None:
    settings = {"data.label_fraction": 0.5}
    evaluator = evaluator_of(tiny_documents.path, **settings)
    report = evaluator.final_report(evaluator.initial_encoder(), SingleProcess())
    names = ["softmax on frozen encoder", "ridge on TF-IDF"]
    assert list(report.scores) == ["chance", *names, "initial", "trained"]
    for name in names:
        assert report.scores[name]["test"].keys() == report.scores["trained"]["test"].keys()
        found = report.details["rivals"][name]
        assert found["training_pairs"] == evaluator.labeled("train").num_pairs
    assert report.scores["ridge on TF-IDF"]["test"]["f1"]["value"] > 0.5
    # Other draws of the labels have other documents under the same positions.
    for scores_by_split in report.unit_scores.values():
        for split, units in scores_by_split.items():
            assert units.unit_U.tolist() == evaluator.labeled(split).rows.tolist()
    other = evaluator_of(
        tiny_documents.path,
        **settings
        | {"objective.kind": "ce", "optim.peak_lr": 0.5, "evaluation.num_neighbors": "[1]"},
    )
    for name, found in other.rivals("cpu", SingleProcess()):
        assert found.scores == report.scores[name]
