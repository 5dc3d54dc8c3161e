"""The evaluation of a model: one skeleton for all methods.

A method's ``Evaluator`` scores one model over all splits. The base class scores the initial encoder
and the trained one in the same way, and reports chance, spread and unit scores with them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from raybio.core.final_report import FinalReport, LabeledMap, SplitScores, Stage, UnitScores
from raybio.core.interfaces import Collective, Encoder
from raybio.core.randomness import derive_seed


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelScores:
    """Scores of one model over all splits.

    It holds no embeddings: those of one model are freed before the next model is scored.

    Attributes:
        scores: split -> measure -> score with its interval.
        chance: the same measures for the same queries, by chance.
        spread: of the model's embeddings; empty where no embedding is trained.
        unit_scores: by split.
        embedding_map: of the model's embeddings.
        details: what the method reports of each model; plain JSON.
    """

    scores: SplitScores
    chance: SplitScores
    spread: Mapping[str, float] | None = None
    unit_scores: Mapping[str, UnitScores] = field(default_factory=dict)
    embedding_map: LabeledMap | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


class Evaluator(ABC):
    """Evaluates the model of a run, during training and at its end.

    A method implements ``evaluate_during_training``, ``initial_encoder`` and ``score``, and
    ``rivals`` where simpler methods solve its task.
    """

    @abstractmethod
    def evaluate_during_training(
        self, model: Encoder, collective: Collective
    ) -> Mapping[str, float]:
        """Return metrics under the names that logs and search spaces use, equal on every worker."""

    @abstractmethod
    def initial_encoder(self) -> Encoder:
        """Return the encoder as it was before training, on the CPU."""

    @abstractmethod
    def score(self, model: Encoder, collective: Collective, stage: Stage) -> ModelScores:
        """Score a model over all splits, with intervals.

        Args:
            model: the initial or the trained encoder, on the device that does the work.
            collective: workers that share the work.
            stage: which of the two it is.
        """

    def rivals(self, device: Any, collective: Collective) -> Iterator[tuple[Stage, ModelScores]]:
        """Score what needs no training of an encoder, by the names of its rows in tables.

        With unit scores on the units of the trained model, tables show the paired difference.

        Args:
            device: device that does the work.
            collective: workers that share the work.
        """
        yield from ()

    def details(self) -> Mapping[str, Any]:
        """Return what the method reports of the evaluation as a whole; plain JSON."""
        return {}

    def stages(self, model: Encoder, collective: Collective) -> Iterator[tuple[Stage, ModelScores]]:
        """Score the rivals, the initial encoder and the trained one, in the order of the report."""
        yield from self.rivals(device_of(model), collective)
        initial = self.initial_encoder().to(device_of(model))
        yield "initial", self.score(initial, collective, "initial")
        del initial  # its memory is free before the trained encoder is scored
        yield "trained", self.score(model, collective, "trained")

    def final_report(self, model: Encoder, collective: Collective) -> FinalReport:
        """Return the whole evaluation of the trained model."""
        scores_by_stage = dict(self.stages(model, collective))
        trained = scores_by_stage["trained"]
        scores: dict[Stage, SplitScores] = {"chance": trained.chance}
        spread: dict[Stage, Mapping[str, float]] = {}
        unit_scores: dict[Stage, Mapping[str, UnitScores]] = {}
        details_by_name: dict[str, dict[str, Any]] = {}
        for stage, model_scores in scores_by_stage.items():
            scores[stage] = model_scores.scores
            if model_scores.unit_scores:
                unit_scores[stage] = model_scores.unit_scores
            if model_scores.spread is not None:
                spread[stage] = model_scores.spread
            for name, detail in model_scores.details.items():
                details_by_name.setdefault(name, {})[stage] = detail
        return FinalReport(
            scores=scores,
            spread=spread,
            unit_scores=unit_scores,
            embedding_map=trained.embedding_map,
            details={**details_by_name, **self.details()},
        )


def bootstrap_seed(run_seed: int) -> int:
    """Return the seed of the bootstrap of a run's final evaluation.

    All models are scored with the same resamples, so that differences between them do not come from
    the draw.
    """
    return derive_seed(run_seed, "bootstrap")


def exact_scores(value_by_measure: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return ``{measure: {"value"}}``: computed, not estimated scores, which have no interval."""
    return {name: {"value": float(value)} for name, value in value_by_measure.items()}


def device_of(model: Encoder) -> Any:
    """Return the device of the model's weights."""
    return next(model.parameters()).device
