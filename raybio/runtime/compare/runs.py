"""Runs given for a comparison: found by name or path, checked, and grouped by repetition."""

import glob
import os
from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from raybio.core.errors import ConfigError
from raybio.core.files import RUN
from raybio.core.final_report import FinalReport, SplitScores, Stage, UnitScores
from raybio.core.records import read_record
from raybio.evaluation.unit_scores import TRAINED, read_unit_scores
from raybio.methods import method_named
from raybio.runtime.compare.setting_names import (
    REPETITIONS,
    present_settings,
    shared_draw,
    without_draws,
)
from raybio.runtime.model_paths import near_runs
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.runtime.tune.trial import ENDED
from raybio.training.settings import COMPLETE

_ABSENT = "(absent)"


Measure = tuple[str, str]
"""Split and score of a final evaluation."""


@dataclass(frozen=True)
class GivenRun:
    """A run, or a trial of a sweep, read from its folder.

    Attributes:
        label: its unique name in the comparison's tables.
        folder: the run's folder.
    """

    label: str
    folder: RunFolder

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """``method``, ``data_digest``, ``config``, ``store`` and ``precision``."""
        content = self.folder.read_identity()
        assert content is not None
        return content

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Dotted path -> value; settings that did not exist yet have their defaults."""
        settings = present_settings(self.identity["method"], self.identity["config"])
        if self.precision:
            # Show the resolved value, so that "auto" does not differ from it.
            settings["precision"] = self.precision
        return settings

    @property
    def precision(self) -> str | None:
        """Precision of the result or outcome, or else as recorded at the start.

        Trials have no result.
        """
        outcome = read_record(self.folder.outcome, "outcome") or {}
        precision: str | None = (
            self.result.get("precision")
            or outcome.get("precision")
            or self.identity.get("precision")
        )
        return precision

    @cached_property
    def reports(self) -> list[dict[str, Any]]:
        """Lines of its metrics log."""
        return read_reports(self.folder.metrics)

    @cached_property
    def result(self) -> Mapping[str, Any]:
        """Content of ``result.json``; empty without one, as for trials."""
        return read_record(self.folder.result, "result") or {}

    @property
    def status(self) -> str:
        """Status of the run or trial; "not ended yet" before its end."""
        records = (
            self.result,
            read_record(self.folder.path / ENDED, "trial end") or {},
            read_record(self.folder.outcome, "outcome") or {},
        )
        for record in records:
            if "status" in record:
                return str(record["status"])
        return "not ended yet"

    @cached_property
    def final_report(self) -> FinalReport | None:
        """The final evaluation; None if there is none yet."""
        if self.result.get("status") not in COMPLETE:
            return None
        return FinalReport.from_json(self.result["final"])

    @property
    def scores(self) -> SplitScores:
        """Split -> score -> value and interval, of the final evaluation; nothing before it."""
        report = self.final_report
        return {} if report is None else report.scores.get("trained", {})

    @property
    def untrained(self) -> Mapping[str, SplitScores]:
        """Scores of chance, of rivals and of the encoder before training, by name of the row."""
        report = self.final_report
        if report is None:
            return {}
        return {name: scores for name, scores in report.scores.items() if name != "trained"}

    @cached_property
    def unit_scores_by_stage(self) -> dict[Stage, dict[str, UnitScores]]:
        """Stage -> split -> stored scores of single units in the final evaluation."""
        return read_unit_scores(self.folder.unit_scores) if self.scores else {}

    @property
    def unit_scores(self) -> dict[str, UnitScores]:
        """Split -> scores of single units of the trained model; empty if they were not kept."""
        return self.unit_scores_by_stage.get(TRAINED, {})

    @property
    def draw(self) -> tuple[Any, ...]:
        """Values that distinguish it from its repetitions."""
        return tuple(self.settings.get(path) for path in REPETITIONS)

    @property
    def chosen(self) -> dict[str, Any]:
        """Its settings without those in which repetitions differ."""
        return without_draws(self.settings)

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """Return (step, value) of every report that has the metric."""
        return [
            (report["step"], report["metrics"][metric])
            for report in self.reports
            if metric in report["metrics"]
        ]


@dataclass(frozen=True)
class Group:
    """A run, or several that repeat each other.

    Attributes:
        label: its name in tables.
        runs: at least one.
    """

    label: str
    runs: Sequence[GivenRun]

    @property
    def draws(self) -> list[Hashable]:
        """What each run shares with runs of other seeds: its sentence set or fold."""
        if len(self.runs) == 1:
            # Evaluated models are not runs and have no settings.
            return [()]
        return [shared_draw(run.settings) for run in self.runs]


def given_runs(
    texts: Sequence[str],
    folder: Path,
    *,
    same_data: bool = True,
    names: Container[str] | None = None,
) -> list[GivenRun]:
    """Return the runs that the user names, each once.

    Args:
        texts: names in ``folder``, paths, or shell patterns of either. A sweep means its trials.
        folder: folder of runs.
        same_data: whether runs over different stores are refused.
        names: names of the runs and sweeps of ``folder`` to consider; None: all.

    Raises:
        ConfigError: if there is no such run, or there are fewer than two, or they cannot be
            compared.
    """
    by_path: dict[Path, Path] = {}
    for text in texts:
        for path in _paths(text, folder, names):
            by_path.setdefault(path.resolve(), path)
    paths = list(by_path)
    if len(paths) < 2:
        raise ConfigError(
            f"RUN: got {len(paths)} run ({' '.join(texts)}), want at least two that differ"
        )
    labels = [path.name for path in paths]
    if len(set(labels)) < len(labels):
        shared = os.path.commonpath([path.parent for path in paths])
        labels = [str(path.relative_to(shared)) for path in paths]
    runs = [
        GivenRun(label, RunFolder(path.parent, path.name, None))
        for label, path in zip(labels, paths, strict=True)
    ]
    _check(runs, same_data)
    # A run may be named "initial", like a row without training.
    taken = {stage for run in runs for stage in run.untrained}
    return [replace(run, label=f"{run.label} (run)") if run.label in taken else run for run in runs]


def _paths(text: str, folder: Path, names: Container[str] | None) -> list[Path]:
    """Return the folders of runs that a name, path or pattern stands for."""
    for path in (folder / text, Path(text)):
        if not _counts(path, folder, names):
            continue
        identity = read_record(path / RUN, "run")
        if identity is None:
            continue
        if "space" in identity["config"]:
            return _trials(text, path)
        return [path]
    for pattern in (str(Path(glob.escape(str(folder))) / text), text):
        matches = [path for path in _matches(pattern) if _counts(path, folder, names)]
        if matches:
            return matches
    raise ConfigError(
        f"RUN {text}: no run of that name in {folder}, and no run's folder at that path; "
        f"{near_runs(folder, text)} (--runs DIR names another folder of runs)"
    )


def _counts(path: Path, folder: Path, names: Container[str] | None) -> bool:
    """Return False for the local copy of a run that its bucket no longer has, else True."""
    if names is None or folder not in path.parents:
        return True
    return path.relative_to(folder).parts[0] in names


def _trials(text: str, sweep: Path) -> list[Path]:
    """Return the folders of a sweep's trials that have reported anything."""
    trials = [
        path
        for path in _matches(f"{glob.escape(str(sweep))}/trials/*")
        if read_reports(RunFolder(path.parent, path.name, None).metrics)
    ]
    if not trials:
        raise ConfigError(f"RUN {text}: is a sweep, none of whose trials has reported anything yet")
    return trials


def _matches(pattern: str) -> list[Path]:
    return sorted(Path(path) for path in glob.glob(pattern) if (Path(path) / RUN).is_file())


def _check(runs: Sequence[GivenRun], same_data: bool) -> None:
    methods = {run.label: str(run.identity["method"]) for run in runs}
    if len(set(methods.values())) > 1:
        raise ConfigError(
            f"RUN: runs of different methods have no metric in common: {listed(methods)}; want one"
        )
    for run in runs:
        _check_method(run)
    stores = {
        run.label: f"{run.identity['store']} ({run.identity['data_digest'][:8]})" for run in runs
    }
    if same_data and len({run.identity["data_digest"] for run in runs}) > 1:
        raise ConfigError(
            f"RUN: scores over different data cannot be compared: {listed(stores)}. Give "
            "runs over one store, or --curves-only for settings, curves and cost without scores "
            "and tests"
        )
    for run in runs:
        if not run.reports:
            raise ConfigError(
                f"RUN {run.label}: has reported nothing yet ({run.folder.path}); leave it out"
            )


def _check_method(run: GivenRun) -> None:
    """Refuse a run of a method that is not here.

    Raises:
        ConfigError: naming the run.
    """
    try:
        method_named(str(run.identity["method"]))
    except ConfigError as error:
        raise ConfigError(
            f"RUN {run.label}: {str(error).rstrip('.')}. Install the package that adds the method, "
            "or use the version of raybio that trained the run"
        ) from None


def listed(value_by_label: Mapping[str, Any]) -> str:
    """Return "label: value, label: value" for messages."""
    return ", ".join(f"{label}: {value}" for label, value in value_by_label.items())


def grouped(runs: Sequence[GivenRun]) -> list[Group]:
    """Group the runs that differ only in seed or sentence set.

    If runs agree in these as well, only the first is part of the group. The others repeat the same
    training and are not independent: each is a group of its own, see ``same_training``.
    """
    again = {run.label for _, others in same_training(runs) for run in others}
    singles: list[list[GivenRun]] = []
    alike: list[list[GivenRun]] = []
    for run in runs:
        if run.label in again:
            singles.append([run])
            continue
        members = next((members for members in alike if _is_repetition(run, members[0])), None)
        if members is None:
            alike.append([run])
        else:
            members.append(run)
    groups = []
    for members in [*alike, *singles]:
        label = members[0].label
        groups.append(Group(f"{label} ({len(members)} runs)" if members[1:] else label, members))
    position_by_label = {run.label: number for number, run in enumerate(runs)}
    return sorted(groups, key=lambda group: position_by_label[group.runs[0].label])


def same_training(runs: Sequence[GivenRun]) -> list[tuple[GivenRun, list[GivenRun]]]:
    """Return each run that others repeat with the same data, settings and seed, and the others.

    The first is a finished one, if there is one.
    """
    trainings: list[tuple[GivenRun, list[GivenRun]]] = []
    for run in sorted(runs, key=lambda run: run.status not in COMPLETE):
        others = next(
            (
                others
                for first, others in trainings
                if _data_digest(first) == _data_digest(run) and first.settings == run.settings
            ),
            None,
        )
        if others is None:
            trainings.append((run, []))
        else:
            others.append(run)
    return [(first, others) for first, others in trainings if others]


def _is_repetition(run: GivenRun, other: GivenRun) -> bool:
    return _data_digest(run) == _data_digest(other) and run.chosen == other.chosen


def _data_digest(run: GivenRun) -> Any:
    return run.identity.get("data_digest")


def differing_settings(runs: Sequence[GivenRun]) -> dict[str, list[Any]]:
    """Return path -> value of each run, for the settings that are not the same in all."""
    paths = dict.fromkeys(path for run in runs for path in run.settings)
    differing = {}
    for path in paths:
        values = [run.settings.get(path, _ABSENT) for run in runs]
        if any(value != values[0] for value in values):
            differing[path] = values
    return differing
