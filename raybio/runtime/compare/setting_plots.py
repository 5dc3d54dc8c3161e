"""Final scores against a numeric setting, as CSV and picture.

Examples are Figures 1, 2 and 4 of Zhou et al. (2023): temperatures, labels, proxies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raybio.core.csv_table import write_csv
from raybio.core.final_report import SplitScores
from raybio.core.table_layout import TableLayout
from raybio.runtime.compare.plots import plot_scores_by_setting
from raybio.runtime.compare.setting_names import label_of, shown
from raybio.runtime.run.folder import RunFolder

MIN_VALUES = 3
"""Minimum number of values to plot; for two values, the table shows the difference."""


@dataclass(frozen=True)
class SettingsScores:
    """The scores of a run, or the means of runs that repeat each other.

    Attributes:
        value_by_path: values of the varied settings.
        scores: scores of the final evaluation; for repetitions see ``over_repetitions``.
    """

    value_by_path: Mapping[str, Any]
    scores: SplitScores


def write_setting_plots(
    scores_by_settings: Sequence[SettingsScores], layout: TableLayout, folder: RunFolder
) -> list[Path]:
    """Write scores against each setting with three numbers or more, as CSV and picture.

    They show the last of the layout's compared splits that all runs have, with a line for each
    combination of the other settings. Scores and 95 % intervals are those of the table. Files of an
    earlier comparison are deleted.

    Returns:
        The paths of ``scores-by-SETTING.csv`` and ``plots/scores-by-SETTING.png``.
    """
    for earlier in (*folder.path.glob("scores-by-*.csv"), *folder.plots.glob("scores-by-*.png")):
        earlier.unlink()
    splits = [
        split
        for split in layout.compared
        if all(split in settings.scores for settings in scores_by_settings)
    ]
    if not splits:
        return []
    split = splits[-1]
    paths = []
    for setting in _numeric(scores_by_settings):
        score_by_line = _lines(scores_by_settings, setting, split)
        paths.append(folder.path / f"scores-by-{setting}.csv")
        _write_csv(paths[-1], score_by_line, layout, split=split, setting=setting)
        paths.append(
            plot_scores_by_setting(
                score_by_line,
                layout.measures,
                folder.plots / f"scores-by-{setting}.png",
                title=f"{layout.title}, {layout.splits[split]}",
                setting=setting,
            )
        )
    return paths


def _write_csv(
    path: Path,
    score_by_line: Mapping[str, Mapping[float, Mapping[str, Any]]],
    layout: TableLayout,
    *,
    split: str,
    setting: str,
) -> None:
    rows: list[tuple[object, ...]] = [
        ("split", "label", setting, "measure", "runs", "value", "low", "high", "deviation")
    ]
    for line, scores_by_value in score_by_line.items():
        for value, scores in scores_by_value.items():
            for measure in layout.measures:
                score = scores[measure]
                num_runs = int(score.get("num_runs", 1))
                start = (split, line, shown(value), measure, num_runs, score["value"])
                rows.append((*start, *_spread(score)))
    write_csv(path, rows)


def _spread(score: Mapping[str, float]) -> tuple[float | None, float | None, float | None]:
    """Return both ends of the 95 % interval, and the standard deviation over runs, if known."""
    if "num_runs" not in score:
        return score["low"], score["high"], None
    if "deviation" in score:
        return score["low"], score["high"], score["deviation"]
    # Without unit scores, both ends are one standard deviation around the mean.
    return None, None, score["high"] - score["value"]


def _numeric(scores_by_settings: Sequence[SettingsScores]) -> list[str]:
    """Return the settings that are a number in all runs and have ``MIN_VALUES`` different ones."""
    numeric = []
    for path in scores_by_settings[0].value_by_path if scores_by_settings else ():
        values = [settings.value_by_path.get(path) for settings in scores_by_settings]
        are_numbers = all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in values
        )
        if are_numbers and len(set(values)) >= MIN_VALUES:
            numeric.append(path)
    return numeric


def _lines(
    scores_by_settings: Sequence[SettingsScores], setting: str, split: str
) -> dict[str, dict[float, Mapping[str, Any]]]:
    """Return label of the other settings -> value of the setting, ascending -> scores."""
    lines: dict[str, dict[float, Mapping[str, Any]]] = {}
    for settings in scores_by_settings:
        others = dict(settings.value_by_path)
        value = others.pop(setting)
        lines.setdefault(label_of(others), {})[value] = settings.scores[split]
    return {line: dict(sorted(scores_by_value.items())) for line, scores_by_value in lines.items()}
