"""The skeleton of every evaluation, on an evaluator that counts."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from raybio.core.final_report import Stage, UnitScores
from raybio.core.interfaces import Collective, Encoder
from raybio.evaluation.evaluator import Evaluator, ModelScores, exact_scores
from raybio.evaluation.unit_scores import MAX_UNITS
from raybio.training.collective import SingleProcess


class Constant(Encoder):
    """An encoder of one weight."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(weight))


class WeightEvaluator(Evaluator):
    """Scores the weight of a model."""

    def evaluate_during_training(self, model: Encoder, collective: Collective) -> dict[str, float]:
        return {"val/weight": model.weight.item()}

    def initial_encoder(self) -> Encoder:
        return Constant(0.25)

    def score(self, model: Encoder, collective: Collective, stage: Stage) -> ModelScores:
        return ModelScores(
            scores={"val": exact_scores({"weight": model.weight.item()})},
            chance={"val": exact_scores({"weight": 0.0})},
            spread={"cosine": model.weight.item()},
            unit_scores={"val": UnitScores(np.arange(2), {"weight": np.full(2, 0.5)})},
            details={"rules": stage},
        )

    def details(self) -> dict[str, int]:
        return {"nodes": 3}


def test_a_report_has_chance_first_and_then_the_initial_and_the_trained_encoder() -> None:
    report = WeightEvaluator().final_report(Constant(0.75), SingleProcess())
    assert list(report.scores) == ["chance", "initial", "trained"]
    values = {stage: scores["val"]["weight"]["value"] for stage, scores in report.scores.items()}
    assert values == {"chance": 0.0, "initial": 0.25, "trained": 0.75}
    assert report.spread == {"initial": {"cosine": 0.25}, "trained": {"cosine": 0.75}}
    assert list(report.unit_scores) == ["initial", "trained"]


def test_a_final_evaluation_reports_each_model_before_or_after_it_is_scored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class WithRival(WeightEvaluator):
        def rivals(
            self, device: Any, collective: Collective
        ) -> Iterator[tuple[Stage, ModelScores]]:
            yield "TF-IDF", self.score(Constant(0.5), collective, "initial")

    with caplog.at_level("INFO", "raybio"):
        WithRival().final_report(Constant(0.75), SingleProcess())
    assert caplog.messages == [
        "final evaluation: TF-IDF evaluated",
        "final evaluation: evaluating the encoder before training",
        "final evaluation: initial evaluated",
        "final evaluation: evaluating the trained encoder",
    ]


def test_a_split_is_shown_with_its_number_of_units_unless_only_a_sample_of_them_is_kept() -> None:
    report = WeightEvaluator().final_report(Constant(0.75), SingleProcess())
    assert report.sizes == {"val": "2 units"}

    class OfLinks(WeightEvaluator):
        def score(self, model: Encoder, collective: Collective, stage: Stage) -> ModelScores:
            many = UnitScores(np.arange(MAX_UNITS), {"weight": np.ones(MAX_UNITS)})
            scores = super().score(model, collective, stage)
            return replace(scores, unit_scores={**scores.unit_scores, "large": many})

        def sizes(self) -> dict[str, str]:
            return {"val": "1 link of 2 nodes"}

    report = OfLinks().final_report(Constant(0.75), SingleProcess())
    assert report.sizes == {"val": "1 link of 2 nodes"}


def test_details_of_a_model_are_reported_by_stage_next_to_those_of_the_whole() -> None:
    report = WeightEvaluator().final_report(Constant(0.75), SingleProcess())
    assert report.details == {"rules": {"initial": "initial", "trained": "trained"}, "nodes": 3}
