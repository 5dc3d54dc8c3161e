"""The rival of the encoder: the letters of the sentences."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import roc_auc_score

from raybio.core.config import override_all
from raybio.core.final_report import CHARACTERS
from raybio.methods import METHODS
from raybio.methods.sppt.synthetic.evaluate import NodeLabelEvaluator, classify_letters
from raybio.methods.sppt.synthetic.store import TopicStore
from raybio.training.collective import SingleProcess
from tests.methods.conformance_cases import tiny_config


@pytest.fixture
def evaluator(tiny_topics: TopicStore) -> NodeLabelEvaluator:
    system = METHODS["sppt_synthetic"].build(tiny_config("sppt_synthetic"), tiny_topics.path)
    assert system.final_evaluate is not None
    return system.final_evaluate.__self__


def accuracy_of_letters(evaluator: NodeLabelEvaluator, words: tuple[str, str]) -> float:
    """Return the rival's accuracy where the nodes of a class have one of two words."""
    num_nodes = len(evaluator.nodes.text_N)
    label_N = np.arange(num_nodes) % 2
    texts = [f"{words[label]} {'qrst'[number % 3]}" for number, label in enumerate(label_N)]
    nodes = replace(evaluator.nodes, text_N=texts, label_N=label_N)
    changed = replace(evaluator, nodes=nodes)
    ((name, scores),) = changed.rivals("cpu", SingleProcess())
    assert name == CHARACTERS
    return scores.scores["nodes"]["accuracy"]["value"]


def test_classes_of_different_letters_are_found_without_an_encoder(
    evaluator: NodeLabelEvaluator,
) -> None:
    assert accuracy_of_letters(evaluator, ("abab abba", "xyxy yxxy")) == 1.0
    assert accuracy_of_letters(evaluator, ("abab abba", "abab abba")) < 0.9


def test_letters_that_the_encoder_does_not_read_do_not_count(
    evaluator: NodeLabelEvaluator,
) -> None:
    unread = "m" * evaluator.config.encoder.max_length
    words = (f"{unread} abab abba", f"{unread} xyxy yxxy")
    assert accuracy_of_letters(evaluator, words) < 0.9


def test_whole_sentences_count_where_the_length_is_left_to_the_encoder(
    evaluator: NodeLabelEvaluator,
) -> None:
    config = override_all(evaluator.config, {"encoder.max_length": "auto"})
    by_encoder = replace(evaluator, config=config)
    unread = "m" * evaluator.config.encoder.max_length
    words = (f"{unread} abab abba", f"{unread} xyxy yxxy")
    assert accuracy_of_letters(by_encoder, words) == 1.0


def test_the_final_table_has_the_rival_before_the_encoders(evaluator: NodeLabelEvaluator) -> None:
    report = evaluator.final_report(evaluator.initial_encoder(), SingleProcess())
    assert list(report.scores) == ["chance", CHARACTERS, "initial", "trained"]


def test_letters_are_scored_as_by_a_loop_over_the_nodes(evaluator: NodeLabelEvaluator) -> None:
    """Node by node: the three nearest others by scikit-learn's TF-IDF vote by inverse distance."""
    num_nodes = len(evaluator.nodes.text_N)
    rng = np.random.default_rng(0)
    label_N = rng.integers(0, 3, num_nodes)
    # Letters of two of the three classes are alike, and some texts are longer than what is read.
    letters = ("abcde", "abcdf", "vwxyz")
    texts = [
        "".join(rng.choice(list(letters[label] + "mno "), int(rng.integers(20, 120))))
        for label in label_N
    ]
    length = evaluator.config.encoder.max_length
    assert isinstance(length, int) and any(len(text) > length for text in texts)
    vectorizer = TfidfVectorizer(analyzer="char", ngram_range=(2, 4))
    vector_NV = vectorizer.fit_transform([text[:length] for text in texts]).toarray()
    vote_NC = np.zeros((num_nodes, 3))
    for node in range(num_nodes):
        distance_N = np.array([np.linalg.norm(vector_NV[node] - other) for other in vector_NV])
        distance_N[node] = np.inf
        for neighbor in np.argsort(distance_N)[:3]:
            vote_NC[node, label_N[neighbor]] += 1 / distance_N[neighbor]
    vote_NC /= vote_NC.sum(axis=1, keepdims=True)
    found = classify_letters(
        replace(evaluator.nodes, text_N=texts, label_N=label_N), evaluator.config
    )
    np.testing.assert_array_equal(found.accuracy_N, vote_NC.argmax(axis=1) == label_N)
    area = roc_auc_score(label_N, vote_NC, multi_class="ovr")
    assert found.auroc_N.mean() == pytest.approx(area, abs=1e-6)
    assert 0.4 < found.accuracy_N.mean() < 0.95
