"""The metric by which the trials of a sweep are compared."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raybio.core.errors import DivergedError, MetricError


@dataclass(frozen=True)
class Goal:
    """The metric of a sweep, and its direction.

    Attributes:
        metric: an evaluation metric.
        mode: ``max`` or ``min``.
    """

    metric: str
    mode: str

    def values(self, reports: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
        """Return (step, value) of the steps after step 0 at which the metric is defined."""
        values = []
        for report in reports:
            value = report["metrics"].get(self.metric, math.nan)
            if report["step"] > 0 and not math.isnan(value):
                values.append((report["step"], value))
        return values

    def initial(self, reports: Sequence[Mapping[str, Any]]) -> float | None:
        """Return the value at step 0, before training; None if it is not defined there."""
        for report in reports:
            value = report["metrics"].get(self.metric, math.nan)
            if report["step"] == 0 and not math.isnan(value):
                return float(value)
        return None

    def own_values(self, reports: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
        """Return the values of the trial itself, without those of an exploited trial (PBT)."""
        return self.values([report for report in reports if "exploited_from" not in report])

    def check(self, report: Mapping[str, Any]) -> None:
        """Refuse an evaluation without the metric: the trial could never be compared.

        An undefined metric (NaN), such as the rank correlation of a constant predictor, passes.
        ``values`` skips that evaluation, and a later one may be defined.

        Raises:
            DivergedError: if the metric is infinite.
            MetricError: if it is missing, with the metrics that are evaluated.
        """
        metrics = report["metrics"]
        value = report.get("not_finite", {}).get(self.metric, metrics.get(self.metric))
        if value is not None and math.isinf(float(value)):
            raise DivergedError(
                f"step {report['step']}: {self.metric} is {value}, want a finite number to compare "
                "by"
            )
        if report.get("is_evaluation") and value is None:
            has = ", ".join(sorted(name for name in metrics if name.count("/") == 1))
            raise MetricError(f"metric: {self.metric!r} is not evaluated; want one of {has}")

    def best(self, values: Sequence[tuple[int, float]]) -> tuple[int, float] | None:
        """Return the best (step, value), the first of equal ones; None if there is none."""
        sign = 1 if self.mode == "max" else -1
        return max(values, key=lambda pair: (sign * pair[1], -pair[0]), default=None)

    def is_reached_first(self, reports: Sequence[Mapping[str, Any]], step: int) -> bool:
        """Whether ``step`` is the first evaluation of the trial with its best value so far."""
        best = self.best(self.own_values(reports))
        return best is not None and best[0] == step
