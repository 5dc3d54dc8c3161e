"""The result of the final evaluation of a run, and its JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from raybio.core.unit_counts import MEAN, STATISTICS, UnitCounts

Stage = str
"""The models of a report: the rows of its table.

``chance`` is a random order or a constant prediction, computed exactly. ``random`` are random
vectors. ``initial`` is the encoder before training, ``trained`` the encoder after it. All others
are a method's rivals, which need no training of an encoder.
"""

CHARACTERS = "character 2-4-grams"
"""Stage of ``evaluation.lexical.character_scores``, a rival of several methods."""

Score = Mapping[str, float]
"""``value``, and ``low`` and ``high`` of its 95 % interval; scores of chance have no interval."""

SplitScores = Mapping[str, Mapping[str, Score]]
"""Split -> measure -> score."""


@dataclass(frozen=True)
class UnitScores:
    """Scores of the U units (nodes, texts, queries) of a split, for comparisons unit by unit.

    A measure has counts for each unit, and a statistic of the counts is the run's score. Most
    measures have one value per unit. Their score is the mean over all units, whether micro, macro
    or over groups.

    Attributes:
        unit_U: store rows, or numbers of terms or queries.
        value_by_measure: (U,) values of each measure, or (U, ...) counts.
        statistic_by_measure: names in ``core.unit_counts.STATISTICS``; a mean where it has none.
    """

    unit_U: NDArray[np.integer[Any]]
    value_by_measure: Mapping[str, NDArray[Any]]
    statistic_by_measure: Mapping[str, str] = field(default_factory=dict)

    def counts(self, measure: str) -> UnitCounts:
        """Return the counts of a measure."""
        return UnitCounts(
            self.value_by_measure[measure], self.statistic_by_measure.get(measure, MEAN)
        )

    def named(self, row_N: NDArray[np.integer[Any]]) -> "UnitScores":
        """Return the scores of units that are positions in ``row_N``, under these rows."""
        return replace(self, unit_U=row_N[self.unit_U])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to store: ``measure``, or ``measure:statistic`` if it is no mean."""
        arrays = {}
        for measure, value_U in self.value_by_measure.items():
            statistic = self.statistic_by_measure.get(measure, MEAN)
            arrays[measure if statistic == MEAN else f"{measure}:{statistic}"] = value_U
        return arrays

    @classmethod
    def from_arrays(
        cls, unit_U: NDArray[np.integer[Any]], arrays: Mapping[str, NDArray[Any]]
    ) -> "UnitScores":
        """Return the scores that ``arrays`` gave.

        Raises:
            ValueError: for a statistic that this version does not know.
        """
        values = {}
        statistics = {}
        for name, value_U in arrays.items():
            measure, _, statistic = name.partition(":")
            values[measure] = value_U
            if statistic:
                statistics[measure] = statistic
        unknown = sorted(set(statistics.values()) - STATISTICS.keys())
        if unknown:
            raise ValueError(f"statistic {unknown[0]} was written by a newer version of raybio")
        return cls(unit_U, values, statistics)


@dataclass(frozen=True, eq=False)
class LabeledMap:
    """A two-dimensional map of S embeddings.

    Attributes:
        position_S2: coordinates, float32.
        group_S: a label for each point, such as its species.
    """

    position_S2: NDArray[np.floating[Any]]
    group_S: Sequence[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class FinalReport:
    """The final evaluation of a run, equal on every worker except the map.

    Attributes:
        scores: stage -> split -> measure -> score; tables show the stages in this order.
        spread: spread of the embeddings by stage, see ``ops.embedding_geometry``.
        unit_scores: stage -> split -> scores of its units, for the stages that have them. They are
            stored in a separate file, not in the JSON.
        embedding_map: of the trained model, where the method draws one; on the first worker only.
        sizes: split -> what its scores are means over, such as ``14 links of 25 nodes``.
        remarks: what the evaluation left out, without a full stop; shown below its tables.
        details: additional results of a method; plain JSON.
    """

    scores: Mapping[Stage, SplitScores]
    spread: Mapping[Stage, Mapping[str, float]] = field(default_factory=dict)
    unit_scores: Mapping[Stage, Mapping[str, UnitScores]] = field(default_factory=dict)
    embedding_map: LabeledMap | None = None
    sizes: Mapping[str, str] = field(default_factory=dict)
    remarks: Sequence[str] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON without the unit scores; details stand next to scores and spread."""
        content: dict[str, Any] = {
            "scores": dict(self.scores),
            "spread": dict(self.spread),
            "sizes": dict(self.sizes),
            "remarks": list(self.remarks),
            **self.details,
        }
        if self.embedding_map is not None:
            content["embedding_map"] = {
                "positions": self.embedding_map.position_S2.tolist(),
                "groups": list(self.embedding_map.group_S),
            }
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self | None:
        """Read what ``to_json`` returned; None if it has no scores: the run was not evaluated.

        Unit scores are not in the JSON and stay empty. Scores that are null were undefined and
        become NaN.
        """
        if "scores" not in content:
            return None
        details = dict(content)
        scores = nan_for_null(details.pop("scores"))
        spread = details.pop("spread", {})
        sizes = details.pop("sizes", {})
        remarks = details.pop("remarks", [])
        points = details.pop("embedding_map", None)
        embedding_map = None
        if points is not None:
            embedding_map = LabeledMap(np.asarray(points["positions"]), points["groups"])
        return cls(
            scores=scores,
            spread=spread,
            embedding_map=embedding_map,
            sizes=sizes,
            remarks=remarks,
            details=details,
        )


def nan_for_null(scores: Any) -> Any:
    """Return nested mappings of scores with NaN for null, the undefined number of JSON files."""
    if isinstance(scores, dict):
        return {name: nan_for_null(part) for name, part in scores.items()}
    return math.nan if scores is None else scores
