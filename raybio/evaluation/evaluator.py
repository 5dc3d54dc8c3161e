"""The evaluation of a model: one skeleton for all methods.

A method's ``Evaluator`` scores one model over all splits. The base class scores the initial encoder
and the trained one in the same way, and reports chance, spread and unit scores with them.
"""

import base64
import contextlib
import io
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from raybio.core.digest import modules_digest, weights_digest
from raybio.core.errors import EvaluationStoppedError
from raybio.core.final_report import FinalReport, LabeledMap, SplitScores, Stage, UnitScores
from raybio.core.interfaces import Collective, Encoder
from raybio.core.randomness import derive_seed
from raybio.core.shared_scores import Identity, SharedScores
from raybio.evaluation.unit_scores import MAX_UNITS

_log = logging.getLogger(__name__)

_UNITS = "units"
"""Key of the unit numbers among packed arrays; no measure has this name."""

TRAINING_SETTINGS = frozenset({"objective", "optim", "schedule", "on_nonfinite"})
"""Sections of a configuration that, in most methods, only training reads."""

ENCODER_SETTINGS = frozenset({"seed", "encoder", "plan", "memory"})
"""Sections of a configuration that rows without an encoder do not depend on; see ``Untrained``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelScores:
    """Scores of one model over all splits.

    It holds no embeddings, so that they are freed before the next model is scored.

    Attributes:
        scores: split -> measure -> score with its interval.
        chance: chance level of the same measures for the same queries.
        spread: of the model's embeddings; empty where no embedding is trained.
        unit_scores: by split.
        draw_map: draws a map of the model's embeddings. It is called on the first worker alone,
            after all collective operations, when the other workers have nothing left to do.
        details: the method's own results for each model; plain JSON.
    """

    scores: SplitScores
    chance: SplitScores
    spread: Mapping[str, float] | None = None
    unit_scores: Mapping[str, UnitScores] = field(default_factory=dict)
    draw_map: Callable[[], LabeledMap] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


class Untrained(NamedTuple):
    """Rows of a report that need no training, and are scored together.

    Attributes:
        name: name of the row, or of all rows; unique in a report.
        rows: yields (row name in tables, scores); a collective operation.
        reads: names what the rows read of the store, such as tokens up to a length, if they do not
            depend on ``ENCODER_SETTINGS`` otherwise: runs that differ there share them. None: they
            depend on the initial encoder or on the seed.
    """

    name: str
    rows: Callable[[], Iterable[tuple[Stage, ModelScores]]]
    reads: str | None = None

    @classmethod
    def row(
        cls, name: Stage, score: Callable[[], ModelScores], reads: str | None = None
    ) -> "Untrained":
        """Return a single row."""
        return cls(name, lambda: [(name, score())], reads)


class Evaluator(ABC):
    """Evaluates the model of a run, during training and at its end.

    A method implements ``evaluate_during_training``, ``initial_encoder`` and ``score``, and
    ``rivals`` where simpler methods solve its task.

    Attributes:
        training_settings: sections of the configuration that do not affect the initial encoder or
            the scores of untrained models; runs that differ only there share these scores. A
            method removes a section that its untrained models depend on.
        rivals_read: what the rivals read, see ``Untrained.reads``.
    """

    training_settings: ClassVar[frozenset[str]] = TRAINING_SETTINGS
    rivals_read: ClassVar[str | None] = None

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
            stage: whether it is the initial or the trained encoder.
        """

    def rivals(self, device: Any, collective: Collective) -> Iterator[tuple[Stage, ModelScores]]:
        """Yield (row name in tables, scores) of models that need no training of an encoder.

        If their unit scores are on the units of the trained model, tables show paired differences.

        Args:
            device: device that does the work.
            collective: workers that share the work.
        """
        yield from ()

    def sizes(self) -> Mapping[str, str]:
        """Return split -> what its scores are averaged over, such as ``14 links of 25 nodes``.

        Splits that are missing here are shown with their number of units.
        """
        return {}

    def details(self) -> Mapping[str, Any]:
        """Return the method's own results for the whole evaluation; plain JSON."""
        return {}

    def remarks(self) -> Sequence[str]:
        """Return remarks on what the evaluation skips, such as rows that are not sampled.

        If the step of the weights was chosen on a sample, a remark says so (``chosen_on``).
        Tables show each remark below them, with a full stop.
        """
        return ()

    def untrained(self, model: Encoder, collective: Collective) -> Iterator[Untrained]:
        """Yield what needs no training, in the order of the report: rivals, the initial encoder.

        Scores depend neither on the weights of ``model`` nor on each other: a run may read them
        from another run, or from its own start before.

        Args:
            model: the trained encoder, for its device and its width.
            collective: workers that share the work.
        """
        device = device_of(model)
        yield Untrained("rivals", partial(self.rivals, device, collective), self.rivals_read)
        yield self.initial(device, collective)

    def initial(self, device: Any, collective: Collective) -> Untrained:
        """Return the row of the initial encoder; arguments as ``rivals``."""

        def score() -> ModelScores:
            _log.info("final evaluation: evaluating the encoder before training")
            return self.score(self.initial_encoder().to(device), collective, "initial")

        return Untrained.row("initial", score)

    def final_report(
        self,
        model: Encoder,
        collective: Collective,
        shared: SharedScores | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> FinalReport:
        """Return the whole evaluation of the trained model.

        Args:
            model: the trained encoder.
            collective: workers that share the work.
            shared: scores of untrained models, which runs read from each other.
            should_stop: called before each model is scored.

        Raises:
            EvaluationStoppedError: if ``should_stop`` returns True on any worker.
        """
        digests = {} if shared is None else _initial_digests(self.initial_encoder())
        scores_by_stage: dict[Stage, ModelScores] = {}
        for untrained in self.untrained(model, collective):
            _stop_if_requested(should_stop, collective)
            if shared is None:
                scores_by_stage |= _scored(untrained)
            else:
                identity = self._identity(untrained, shared, digests, model, collective)
                scores_by_stage |= _shared_scores(untrained, shared, identity, collective)
        _stop_if_requested(should_stop, collective)
        _log.info("final evaluation: evaluating the trained encoder")
        scores_by_stage["trained"] = self.score(model, collective, "trained")
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
        # Of more units, only a sample is kept, whose size says nothing.
        sizes = {
            split: f"{len(units.unit_U):,} units"
            for split, units in trained.unit_scores.items()
            if len(units.unit_U) < MAX_UNITS
        }
        report = FinalReport(
            sizes={**sizes, **self.sizes()},
            scores=scores,
            spread=spread,
            unit_scores=unit_scores,
            remarks=self.remarks(),
            details={**details_by_name, **self.details()},
        )
        if trained.draw_map is None or collective.rank != 0:
            return report
        return replace(report, embedding_map=trained.draw_map())

    def _identity(
        self,
        untrained: Untrained,
        shared: SharedScores,
        initial_digests: Mapping[str, str],
        model: Encoder,
        collective: Collective,
    ) -> Identity:
        """Return everything that the scores of untrained models depend on."""
        facts = {
            "rows": untrained.name,
            "device": device_of(model).type,
            "threads": torch.get_num_threads(),
            "workers": collective.world,
        }
        if untrained.reads is None:
            return shared.identity(self.training_settings, {**facts, **initial_digests})
        ignored = self.training_settings | ENCODER_SETTINGS
        return shared.identity(ignored, {**facts, "reads": untrained.reads})


def _initial_digests(initial: Encoder) -> dict[str, str]:
    return {
        "initial_weights_sha256": weights_digest(initial.state_dict().items()),
        "initial_modules_sha256": modules_digest(initial),
    }


def _stop_if_requested(should_stop: Callable[[], bool], collective: Collective) -> None:
    (num_requests,) = collective.host_sum([int(should_stop())])
    if num_requests:
        raise EvaluationStoppedError("the final evaluation was asked to stop")


def _scored(untrained: Untrained) -> dict[Stage, ModelScores]:
    scores_by_stage = {}
    for name, scores in untrained.rows():
        _log.info("final evaluation: %s evaluated", name)
        scores_by_stage[name] = scores
    return scores_by_stage


def _shared_scores(
    untrained: Untrained, shared: SharedScores, identity: Identity, collective: Collective
) -> dict[Stage, ModelScores]:
    """Read the scores of untrained models, or compute them for other starts and runs to read."""
    # The other workers wait for the first one in the sum.
    with shared.lock(identity) if collective.rank == 0 else contextlib.nullcontext():
        content = shared.read(identity)
        (num_known,) = collective.host_sum([int(content is not None)])
        # All workers compute, or none does.
        if num_known < collective.world:
            text = _to_text(_scored(untrained))
            content = json.loads(text)
            if collective.rank == 0:
                shared.write(identity, text)
        elif content:
            _log.info("final evaluation: %s taken from an earlier evaluation", ", ".join(content))
    return {stage: _from_json(parts) for stage, parts in content.items()}


def _to_text(scores_by_stage: Mapping[Stage, ModelScores]) -> str:
    """Return the scores of untrained models as JSON, without their maps."""
    content = {}
    for stage, model_scores in scores_by_stage.items():
        content[stage] = {
            "scores": model_scores.scores,
            "chance": model_scores.chance,
            "spread": model_scores.spread,
            "details": model_scores.details,
            "unit_scores": {
                split: _packed({_UNITS: scores.unit_U, **scores.arrays()})
                for split, scores in model_scores.unit_scores.items()
            },
        }
    return json.dumps(content, default=float)


def _from_json(parts: Mapping[str, Any]) -> ModelScores:
    unit_scores = {}
    for split, packed in parts["unit_scores"].items():
        arrays = _unpacked(packed)
        unit_scores[split] = UnitScores.from_arrays(arrays.pop(_UNITS), arrays)
    return ModelScores(**{**parts, "unit_scores": unit_scores})


def _packed(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return arrays as text; floats are stored in float32, as in the files of a run."""
    content = io.BytesIO()
    kept: dict[str, Any] = {
        name: values if np.issubdtype(values.dtype, np.integer) else values.astype(np.float32)
        for name, values in arrays.items()
    }
    np.savez_compressed(content, **kept)
    return base64.b64encode(content.getvalue()).decode()


def _unpacked(text: str) -> dict[str, NDArray[Any]]:
    with np.load(io.BytesIO(base64.b64decode(text))) as arrays:
        return dict(arrays)


def bootstrap_seed(run_seed: int) -> int:
    """Return the seed of the bootstrap of a run's final evaluation.

    All models are scored with the same resamples, so that differences between them do not come from
    the draw.
    """
    return derive_seed(run_seed, "bootstrap")


RIVAL_SEED = bootstrap_seed(0)
"""Seed for rivals: all runs over a store have the same resamples, whatever the run's seed."""


def chosen_on(num_units: int, num_all: int, noun: str, settings: str) -> str:
    """Return the remark on the sample by which ``schedule.best_metric`` chose the step.

    Args:
        num_units: units of each evaluation during training.
        num_all: number of units that they were sampled from.
        noun: what the units are, such as "validation articles".
        settings: paths of the settings that decide their number.
    """
    return f"the step of the weights was chosen on {num_units:,} of {num_all:,} {noun} ({settings})"


def exact_scores(value_by_measure: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return ``{measure: {"value"}}``: computed, not estimated scores, which have no interval."""
    return {name: {"value": float(value)} for name, value in value_by_measure.items()}


def device_of(model: Encoder) -> Any:
    """Return the device of the model's weights."""
    return next(model.parameters()).device
