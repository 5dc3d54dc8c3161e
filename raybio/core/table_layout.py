"""Titles and headings of the tables that show a method's final scores."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from raybio.core.final_report import Score

UNDEFINED = "undefined"
"""Cell of a score that has no value, such as the rank correlation of a constant predictor."""

UNFINISHED = " †"
"""Mark behind the label of a row whose training is not finished."""


def unfinished_remarks(reason_by_row: Mapping[str, str]) -> list[str]:
    """Return a line, without a full stop, for each reason why trainings are not finished."""
    rows_by_reason: dict[str, list[str]] = {}
    for row, reason in reason_by_row.items():
        rows_by_reason.setdefault(reason, []).append(row)
    return [
        f"{UNFINISHED.strip()} training not finished, {reason}: {'; '.join(rows)}"
        for reason, rows in rows_by_reason.items()
    ]


@dataclass(frozen=True)
class TableLayout:
    """Layout of the tables of a final evaluation.

    Attributes:
        title: name of the evaluation.
        measures: name of a score -> its column heading.
        splits: name of a split -> its table heading; one table per split.
        chance: how the scores in the row "chance" are computed.
        if_passed: a sentence, without a full stop, on what to do where a rival is higher than a
            trained model; empty: nothing is advised.
        optional: as ``measures``, of scores that only some stores define; see ``shown``.
        plain: scores shown as raw numbers; all others are shown in percent.
        secondary: splits that repeat or refine another one; shown in tables, but neither tested
            nor plotted.
        oracles: row that reads gold answers -> what it is. Tables say where it is higher than a
            model, but the untrained row that is tested is never one.
    """

    title: str
    measures: Mapping[str, str]
    splits: Mapping[str, str]
    chance: str = "candidates in random order, exactly"
    plain: frozenset[str] = frozenset()
    secondary: frozenset[str] = frozenset()
    oracles: Mapping[str, str] = field(default_factory=dict)
    if_passed: str = ""
    optional: Mapping[str, str] = field(default_factory=dict)

    @property
    def compared(self) -> list[str]:
        """Splits on which runs are compared; the last one counts most."""
        return [split for split in self.splits if split not in self.secondary]

    def chosen_on_scored(self, metric: str) -> str | None:
        """Return a remark if choosing by a logged metric means choosing on the units of the table.

        This holds for the table's own measures, or a part of them (``val/acc_at_10/may_treat``), if
        there is no separate test split. Otherwise return None.
        """
        measures = tuple(self.measures)
        is_scored = any(part.endswith(measures) for part in metric.split("/")[1:])
        if "test" in self.splits or not is_scored:
            return None
        return (
            f"chosen by {metric}, on units that the final table scores: its scores are optimistic"
        )

    def scale(self, metric: str) -> tuple[int, int]:
        """Return the factor of a score in tables, and the digits after its point.

        Args:
            metric: a measure, or a logged metric of the same score, such as ``val/link_mrr``.
        """
        name = metric.rpartition("/")[2]
        is_plain = any(name == plain or name.endswith(f"_{plain}") for plain in self.plain)
        return (1, 3) if is_plain else (100, 2)

    def cell(self, score: Score, measure: str) -> str:
        """Format a score for a table: "61.52 [59.01, 63.97]".

        A mean over runs is shown with its standard deviation: "61.52 ± 0.40".
        """
        if math.isnan(score["value"]):
            return UNDEFINED
        scale, digits = self.scale(measure)

        def shown(value: float) -> str:
            return f"{scale * value:.{digits}f}"

        text = shown(score["value"])
        is_mean = "num_runs" in score
        if is_mean and score["num_runs"] > 1:
            text += f" ± {shown(score.get('deviation', score['high'] - score['value']))}"
        # Without a deviation, the bounds of a mean are one deviation around it.
        has_interval = "low" in score and (not is_mean or "deviation" in score)
        if has_interval and not math.isnan(score["low"]):
            text += f" [{shown(score['low'])}, {shown(score['high'])}]"
        return text

    def shown(self, rows: Iterable[Mapping[str, Mapping[str, Any]]]) -> "TableLayout":
        """Return the layout with the optional measures that all rows have in all splits.

        Args:
            rows: scores of each row: split -> name of a score -> score.
        """
        scored = [scores for row in rows for scores in row.values()]
        optional = {
            name: title
            for name, title in self.optional.items()
            if scored and all(name in scores for scores in scored)
        }
        return replace(self, measures={**self.measures, **optional}, optional={})
