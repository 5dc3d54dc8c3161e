"""Titles and headings of the tables that show a method's final scores."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TableLayout:
    """Layout of the tables of a final evaluation.

    Attributes:
        title: name of the evaluation.
        measures: name of a score -> its column heading.
        splits: name of a split -> its table heading; one table per split.
        chance: how the scores in the row "chance" are computed.
        plain: scores shown as raw numbers; all others are shown in percent.
        secondary: splits that repeat or refine another one; shown in tables, but neither tested
            nor plotted.
    """

    title: str
    measures: Mapping[str, str]
    splits: Mapping[str, str]
    chance: str = "candidates in random order, exactly"
    plain: frozenset[str] = frozenset()
    secondary: frozenset[str] = frozenset()

    @property
    def compared(self) -> list[str]:
        """Splits on which runs are compared; the last one counts most."""
        return [split for split in self.splits if split not in self.secondary]
