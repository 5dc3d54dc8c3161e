"""How the scores of a method's final evaluation are shown."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TableLayout:
    """How the scores of a final evaluation are shown.

    Attributes:
        title: what the scores measure.
        measures: name of a score -> its heading.
        splits: name of a split -> its heading; one table each.
        chance: how the scores of the row "chance" are computed.
        plain: scores that are shown as they are; all others in percent.
        beside: splits that repeat or refine another one; shown in tables, but neither tested nor plotted.
    """

    title: str
    measures: Mapping[str, str]
    splits: Mapping[str, str]
    chance: str = "candidates in random order, exactly"
    plain: frozenset[str] = frozenset()
    beside: frozenset[str] = frozenset()

    @property
    def judged(self) -> list[str]:
        """Splits on which runs are compared; the last one counts most."""
        return [split for split in self.splits if split not in self.beside]
