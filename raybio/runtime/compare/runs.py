"""Runs given for a comparison: found by name or path, checked, and grouped by repetition."""

import contextlib
import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from raybio.core.errors import ConfigError
from raybio.core.final_report import FinalReport, SplitScores, UnitScores
from raybio.core.records import read_record
from raybio.evaluation.unit_scores import read_unit_scores
from raybio.methods import METHODS
from raybio.runtime.compare.variations import REPETITIONS
from raybio.runtime.run.folder import COMPLETE, RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.runtime.tune.trial import ENDED

_ABSENT = "(absent)"


Measure = tuple[str, str]
"""Split and score of a final evaluation."""


@dataclass(frozen=True)
class GivenRun:
    """A run, a trial of a sweep too, as its folder has it.

    Attributes:
        label: what it is called in tables; no other run of the comparison is called so.
        folder: where it lies.
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
        """Dotted path -> value; a setting that is younger than the run has its default."""
        config = self.identity["config"]
        with contextlib.suppress(
            ConfigError
        ):  # a setting that is gone, or takes other values now: it shows as it was
            config = METHODS[self.identity["method"]].config.from_mapping(config).to_mapping()
        # "auto" is no difference to what it came to.
        return _flat(config) | ({"precision": self.precision} if self.precision else {})

    @property
    def precision(self) -> str | None:
        """Precision of the result or outcome, or else as recorded at the start.

        Trials have no result.
        """
        ended = self.result.get("precision") or (
            read_record(self.folder.outcome, "outcome") or {}
        ).get("precision")
        recorded: str | None = ended or self.identity.get("precision")
        return recorded

    @cached_property
    def reports(self) -> list[dict[str, Any]]:
        """All that it logged."""
        return read_reports(self.folder.metrics)

    @cached_property
    def result(self) -> Mapping[str, Any]:
        """``result.json``; nothing where there is none, as for trials."""
        return read_record(self.folder.result, "result") or {}

    @property
    def status(self) -> str:
        """How it ended, if it did."""
        told = (
            self.result,
            read_record(self.folder.path / ENDED, "trial end") or {},
            read_record(self.folder.outcome, "outcome") or {},
        )
        return next((str(one["status"]) for one in told if "status" in one), "not ended yet")

    @cached_property
    def final_report(self) -> FinalReport | None:
        """The final evaluation; None before it, and where there is none."""
        if self.result.get("status") not in COMPLETE:
            return None
        return FinalReport.from_json(self.result["final"])

    @property
    def scores(self) -> SplitScores:
        """Split -> score -> value and interval, of the final evaluation; nothing before it."""
        report = self.final_report
        return {} if report is None else report.scores.get("trained", {})

    @property
    def chance(self) -> SplitScores:
        """Split -> score -> its value by chance; empty before the final evaluation."""
        report = self.final_report
        return {} if report is None else report.scores.get("chance", {})

    @cached_property
    def unit_scores(self) -> dict[str, UnitScores]:
        """By split what the final evaluation gave each unit; nothing where that was not kept."""
        return read_unit_scores(self.folder.unit_scores) if self.scores else {}

    @property
    def draw(self) -> tuple[Any, ...]:
        """What tells it from its repetitions."""
        return tuple(self.settings.get(path) for path in REPETITIONS)

    @property
    def chosen(self) -> dict[str, Any]:
        """Its settings without those in which repetitions differ."""
        # A run on all sets at once is no further draw of a set.
        return {
            path: value
            for path, value in self.settings.items()
            if path not in REPETITIONS or value == "all"
        }

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """(step, value) wherever it was logged."""
        return [
            (one["step"], one["metrics"][metric])
            for one in self.reports
            if metric in one["metrics"]
        ]


@dataclass(frozen=True)
class Group:
    """A run alone, or runs that repeat each other.

    Attributes:
        label: what it is called in tables.
        runs: one at least.
    """

    label: str
    runs: Sequence[GivenRun]


def given_runs(texts: Sequence[str], folder: Path, *, same_data: bool = True) -> list[GivenRun]:
    """The runs that are meant, each once.

    Args:
        texts: a name in ``folder`` or a path each, or a shell pattern of either.
        folder: of runs.
        same_data: refuse runs over different stores.

    Raises:
        ConfigError: if there is no such run, or there are fewer than two, or they cannot be
            compared.
    """
    by_path: dict[Path, Path] = {}
    for text in texts:
        for path in _meant(text, folder):
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
        GivenRun(label, RunFolder(path.parent, path.name))
        for label, path in zip(labels, paths, strict=True)
    ]
    _check(runs, same_data)
    return runs


def _meant(text: str, folder: Path) -> list[Path]:
    for path in (folder / text, Path(text)):
        if (identity := read_record(path / "run.json", "run")) is not None:
            if "space" in identity["config"]:
                raise ConfigError(
                    f"RUN {text}: is a sweep; want runs, such as its trials: '{path}/trials/*'"
                )
            return [path]
    for pattern in (str(Path(glob.escape(str(folder))) / text), text):
        if found := _matches(pattern):
            return found
    names = sorted(path.parent.name for path in folder.glob("*/run.json"))
    raise ConfigError(
        f"RUN {text}: no run of that name in {folder}, and no run's folder at that path; want one "
        f"of {', '.join(names) or 'them, and there is none yet'}, or a path (--runs DIR names "
        "another folder of runs)"
    )


def _matches(pattern: str) -> list[Path]:
    return sorted(Path(path) for path in glob.glob(pattern) if (Path(path) / "run.json").is_file())


def _check(runs: Sequence[GivenRun], same_data: bool) -> None:
    methods = {run.label: str(run.identity["method"]) for run in runs}
    if len(set(methods.values())) > 1:
        raise ConfigError(
            f"RUN: runs of different methods have no metric in common: {_listed(methods)}; want one"
        )
    stores = {
        run.label: f"{run.identity['store']} ({run.identity['data_digest'][:8]})" for run in runs
    }
    if same_data and len({run.identity["data_digest"] for run in runs}) > 1:
        raise ConfigError(
            f"RUN: over different data, scores answer different questions: {_listed(stores)}. Give "
            "runs over one store, or --curves-only for settings, curves and cost without scores "
            "and tests"
        )
    for run in runs:
        if not run.reports:
            raise ConfigError(
                f"RUN {run.label}: has reported nothing yet ({run.folder.path}); leave it out"
            )


def _listed(text_by_label: Mapping[str, str]) -> str:
    return ", ".join(f"{label}: {text}" for label, text in text_by_label.items())


def grouped(runs: Sequence[GivenRun]) -> list[Group]:
    """Runs that differ in nothing but seed or sentence set stand together.

    Runs of which two are the same in these too are no draws of chance; each of them stands alone.
    """
    alike: list[list[GivenRun]] = []
    for run in runs:
        group = next((found for found in alike if found[0].chosen == run.chosen), None)
        if group is None:
            alike.append([run])
        else:
            group.append(run)
    groups = []
    for members in alike:
        if len(members) > 1 and len({run.draw for run in members}) == len(members):
            groups.append(Group(f"{members[0].label} ({len(members)} runs)", members))
        else:
            groups += [Group(run.label, [run]) for run in members]
    place = {run.label: number for number, run in enumerate(runs)}
    return sorted(groups, key=lambda group: place[group.runs[0].label])


def differing_settings(runs: Sequence[GivenRun]) -> dict[str, list[Any]]:
    """Path -> each run's value, of the settings that are not the same in all."""
    paths = dict.fromkeys(path for run in runs for path in run.settings)
    values = {path: [run.settings.get(path, _ABSENT) for run in runs] for path in paths}
    return {
        path: of_runs
        for path, of_runs in values.items()
        if any(one != of_runs[0] for one in of_runs)
    }


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in mapping.items():
        found |= (
            _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return found
