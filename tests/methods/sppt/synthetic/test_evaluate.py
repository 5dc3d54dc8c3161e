"""The rival of the encoder: the letters of the sentences."""

from dataclasses import replace

import numpy as np
import pytest

from raybio.core.config import override_all
from raybio.core.final_report import CHARACTERS
from raybio.methods import METHODS
from raybio.methods.sppt.synthetic.evaluate import NodeLabelEvaluator
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
    model = evaluator.initial_encoder()
    changed = replace(evaluator, nodes=nodes)
    name, scores = next(iter(changed.untrained(model, SingleProcess())))
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
