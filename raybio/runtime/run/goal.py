"""What the trials of a sweep are compared by."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raybio.core.errors import ConfigError, DivergedError


class MetricError(ConfigError):
    """A sweep's metric is none that its method evaluates: so it will be in every trial."""


@dataclass(frozen=True)
class Goal:
    """What a sweep looks at in its trials.

    Attributes:
        metric: an evaluation metric.
        mode: ``max`` or ``min``.
    """

    metric: str
    mode: str

    def values(self, reports: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
        """(step, value) at each step after the start where the metric is evaluated and defined, in order."""
        logged = ((report["step"], report["metrics"]) for report in reports)
        return [
            (step, metrics[self.metric])
            for step, metrics in logged
            if step > 0 and not math.isnan(metrics.get(self.metric, math.nan))
        ]

    def own_values(self, reports: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
        """Those that the trial came to itself: not those that it took over with another trial's weights."""
        return self.values([report for report in reports if "goes_on_from" not in report])

    def check(self, report: Mapping[str, Any]) -> None:
        """Refuse an evaluation that has not the metric: the whole training would be for nothing.

        An undefined metric (NaN), such as the rank correlation of a constant predictor, passes: ``values`` leaves the
        evaluation out, so that it is never the best, and a later one may be defined.

        Raises:
            DivergedError: if it is infinite.
            MetricError: if there is none, naming those that there are.
        """
        metrics = report["metrics"]
        value = report.get("not_finite", {}).get(self.metric, metrics.get(self.metric))
        if value is not None and math.isinf(float(value)):
            raise DivergedError(
                f"step {report['step']}: {self.metric} is {value}, want a finite number to compare by"
            )
        if report.get("is_evaluation") and value is None:
            has = ", ".join(sorted(name for name in metrics if name.count("/") == 1))
            raise MetricError(f"metric: {self.metric!r} is not evaluated; want one of {has}")

    def best(self, values: Sequence[tuple[int, float]]) -> tuple[int, float] | None:
        """The best of them, the first of equals; None of none."""
        sign = 1 if self.mode == "max" else -1
        return max(values, key=lambda pair: (sign * pair[1], -pair[0]), default=None)

    def is_reached_first(self, reports: Sequence[Mapping[str, Any]], step: int) -> bool:
        """Whether ``step`` is an evaluation, and better than all of the trial's own before."""
        best = self.best(self.own_values(reports))
        return best is not None and best[0] == step
