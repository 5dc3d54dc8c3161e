"""Final scores against a setting that is a number, as in MCCL's Figures 1, 2 and 4: temperatures, labels, proxies."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raybio.runtime.comparisons.labels import label_of, shown
from raybio.runtime.comparisons.overlay_plots import plot_against
from raybio.runtime.comparisons.result_table import Scores
from raybio.runtime.run_folder import RunFolder
from raybio.systems import TableLayout

MIN_VALUES = 3
"""Two values are a difference, and stand in the table."""


@dataclass(frozen=True)
class Judged:
    """A run, or runs that repeat each other.

    Attributes:
        value_by_path: the settings in which it was chosen to differ from the others.
        scores: of its final evaluation; of repetitions means, see ``over_repetitions``.
    """

    value_by_path: Mapping[str, Any]
    scores: Scores


def write_against(judged: Sequence[Judged], layout: TableLayout, folder: RunFolder) -> list[Path]:
    """Of each setting with three numbers or more ``against-SETTING.csv`` and ``plots/against-SETTING.png``.

    They show the last split that runs are judged by and all have, a line for each combination of the other settings.
    Files of an earlier comparison are deleted. Returns the paths.
    """
    for earlier in (*folder.path.glob("against-*.csv"), *folder.plots.glob("against-*.png")):
        earlier.unlink()
    splits = [split for split in layout.judged if all(split in one.scores for one in judged)]
    paths = []
    for setting in _numeric(judged) if splits else []:
        score_by_line = _lines(judged, setting, splits[-1])
        rows = [
            (splits[-1], line, shown(value), measure, *_numbers(scores[measure]))
            for line, scores_by_value in score_by_line.items()
            for value, scores in scores_by_value.items()
            for measure in layout.measures
        ]
        paths.append(folder.path / f"against-{setting}.csv")
        with paths[-1].open("w", newline="", encoding="utf-8") as file:
            header = ("split", "label", setting, "measure", "runs", "value", "low", "high")
            csv.writer(file).writerows([header, *rows])
        title = f"{layout.title}, {layout.splits[splits[-1]]}"
        picture = folder.plots / f"against-{setting}.png"
        paths.append(plot_against(score_by_line, layout.measures, picture, title=title, setting=setting))
    return paths


def _numeric(judged: Sequence[Judged]) -> list[str]:
    """The settings that are a number everywhere, and not everywhere one of two."""
    found = []
    for path in judged[0].value_by_path if judged else ():
        values = [one.value_by_path.get(path) for one in judged]
        are_numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        if are_numbers and len(set(values)) >= MIN_VALUES:
            found.append(path)
    return found


def _lines(judged: Sequence[Judged], setting: str, split: str) -> dict[str, dict[float, Mapping[str, Any]]]:
    """The other settings -> value of the setting, ascending -> scores."""
    lines: dict[str, dict[float, Mapping[str, Any]]] = {}
    for one in judged:
        others = {path: value for path, value in one.value_by_path.items() if path != setting}
        lines.setdefault(label_of(others), {})[one.value_by_path[setting]] = one.scores[split]
    return {line: dict(sorted(scores_by_value.items())) for line, scores_by_value in lines.items()}


def _numbers(score: Mapping[str, float]) -> tuple[int, float, float, float]:
    """Runs, value and where its spread ends."""
    return int(score.get("num_runs", 1)), score["value"], score["low"], score["high"]
