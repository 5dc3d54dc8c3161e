"""Variants of a run: the same configuration with other values of some settings.

They are trained one after the other and end in one table.

SPPT's Table 6 is such a comparison: random vectors, the initial encoder, λ = 0, and the λ of the
run. Of several settings every combination is a run; those that differ in nothing but seed or
sentence set are repetitions, of which mean and deviation are told.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from raybio.core.config import override, override_all, parse_yaml, value_at
from raybio.core.errors import ConfigError
from raybio.core.search_space import quoted
from raybio.methods import METHODS
from raybio.runtime.compare.curves import write_curves
from raybio.runtime.compare.labels import label_of, leaf, named, shown
from raybio.runtime.compare.table import (
    ResultTable,
    SettingsScores,
    over_repetitions,
    write_setting_plots,
    write_table,
)
from raybio.runtime.run.checks import check_spec
from raybio.runtime.run.driver import train
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.runtime.run.precision import with_precision
from raybio.runtime.run.result import Result
from raybio.runtime.run.spec import RunSpec
from raybio.runtime.tracking.tracker import add_artifacts
from raybio.training.settings import TrainingConfig

REPETITIONS = ("seed", "plan.sentence_set", "data.fold")
"""Settings whose values are no choice: runs that differ in them are averaged."""


@dataclass(frozen=True)
class Variation:
    """One setting and the other values of it that a run is compared with."""

    path: str
    values: tuple[Any, ...]

    @classmethod
    def parse(cls, text: str) -> "Variation":
        """Read ``objective.lambda_spml=0,0.1,0.5``.

        Raises:
            ConfigError: if it does not have that form.
        """
        path, separator, values = text.partition("=")
        if not separator or not path.strip() or not values.strip():
            raise ConfigError(f"--compare {text!r}: want SETTING=VALUE,VALUE such as seed=1,2")
        try:
            return cls(path.strip(), tuple(parse_yaml(f"[{values}]")))
        except ConfigError as error:
            raise ConfigError(f"--compare {text!r}: {error}") from None


@dataclass(frozen=True)
class Variant:
    """A run of a comparison and its values of the settings that are varied."""

    spec: RunSpec
    value_by_path: Mapping[str, Any]

    @property
    def label(self) -> str:
        """What it is called in tables."""
        return label_of(self.value_by_path)

    @property
    def chosen(self) -> dict[str, Any]:
        """Its values of settings in which runs are no repetitions of each other."""
        # A run on all sets at once is no further draw of a set.
        return {
            path: value
            for path, value in self.value_by_path.items()
            if path not in REPETITIONS or value == "all"
        }


def variants_of(spec: RunSpec, variations: Sequence[Variation]) -> list[Variant]:
    """The run itself and, of all combinations of the values, those that differ from it.

    Raises:
        ConfigError: if a setting does not exist or is given twice, or a value does not fit or
            cannot be part of a run's name.
    """
    paths = [one.path for one in variations]
    if len(set(paths)) < len(paths):
        raise ConfigError(
            f"--compare: {', '.join(paths)}: want each setting once, its values by comma"
        )
    variants = []
    for values in product(*(_choices(spec.config, one) for one in variations)):
        value_by_path = dict(zip(paths, values, strict=True))
        changed = {
            path: value
            for path, value in value_by_path.items()
            if value != value_at(spec.config, path)
        }
        name = spec.name + "".join(
            f".{leaf(path)}-{named(value)}" for path, value in changed.items()
        )
        try:
            RunFolder(spec.runs, name)
        except ConfigError as error:
            given = " ".join(
                f"--compare {path}={shown(value)}" for path, value in value_by_path.items()
            )
            raise ConfigError(f"{given}: no name for that run can be made: {error}") from None
        config, explicit = _with(spec.config, changed), spec.explicit | changed.keys()
        variants.append(
            Variant(replace(spec, config=config, name=name, explicit=explicit), value_by_path)
        )
    return variants


def _choices(config: TrainingConfig, variation: Variation) -> list[Any]:
    """The run's own value and the others, each once, as the setting's type has them."""
    path = variation.path
    try:
        given = [value_at(override(config, path, value), path) for value in variation.values]
    except ConfigError as error:
        raise ConfigError(f"--compare {path}: {error}") from None
    choices = [value_at(config, path)]
    for value in given:
        if value not in choices:
            choices.append(value)
    return choices


def compare(spec: RunSpec, variations: Sequence[Variation] = ()) -> tuple[Result, ResultTable]:
    """Train a run and its variants, each resumable by itself, and write one table of all.

    Whatever is finished already is not trained again. The table goes into the run's folder
    (``table.md``, ``table.json``, ``plots/table-*.png``) and among its MLflow artifacts, and so do
    the evaluations over steps (``over_steps/``), those of repetitions as mean ± deviation, and
    scores against numeric settings (``scores-by-*.csv``, ``plots/scores-by-*.png``).

    Raises:
        RaybioError: as ``train``.
    """
    variants = variants_of(spec, variations)
    for one in variants:
        check_spec(
            one.spec
        )  # now, before Ray is joined, and not when the run itself has been trained
    specs = with_precision([one.spec for one in variants])
    if len(variants) > 2:
        print(f"{len(variants)} runs: {', '.join(one.spec.name for one in variants)}")
    result = train(specs[0])
    results = [result]
    results += [
        train(replace(variant, parent_run_id=result.mlflow_run_id)) for variant in specs[1:]
    ]
    layout = METHODS[spec.method].table
    precisions = precisions_of_auto(variants, results)
    table = ResultTable(
        score_rows(variants, results), layout, precisions, cut_remarks(variants, results)
    )
    paths = write_table(table, result.folder)
    if variations:
        paths += over_steps(variants, results) + write_setting_plots(
            scores_by_settings(variants, results), layout, result.folder
        )
    add_artifacts(result.folder, paths)
    return result, table


def precisions_of_auto(variants: Sequence[Variant], results: Sequence[Result]) -> dict[str, str]:
    """Return the precision of each run with ``precision: auto``, by the run's name."""
    return {
        one.spec.name: result.precision
        for one, result in zip(variants, results, strict=True)
        if one.spec.config.precision == "auto" and result.precision is not None
    }


def score_rows(variants: Sequence[Variant], results: Sequence[Result]) -> dict[str, Any]:
    """Label -> scores: what no run trained, each run, and the means of repetitions."""
    reports = [result.final for result in results if result.final is not None]
    if len(reports) < len(results):
        return {}
    scores = [report.scores for report in reports]
    untrained = {label: own for label, own in scores[0].items() if label != "trained"}
    runs = {
        one.label: of_run["trained"] for one, of_run in zip(variants[1:], scores[1:], strict=True)
    }
    label = (
        f"{variants[0].label} (this run)" if variants[0].value_by_path else variants[0].spec.name
    )
    rows = untrained | runs | {label: scores[0]["trained"]}
    repeated = [numbers for numbers in _alike(variants) if len(numbers) > 1]
    if repeated and repeated[0][0] == 0:
        # The untrained may differ by seed as well, as where labels are drawn by it.
        rows |= {
            f"{who}, {len(repeated[0])} runs": over_repetitions(
                [scores[number][who] for number in repeated[0]]
            )
            for who in untrained
        }
    for numbers in reversed(
        repeated
    ):  # the run's own come last, which plots show in the accent colour
        settings = label_of(variants[numbers[0]].chosen)
        title = f"{settings}, {len(numbers)} runs" if settings else f"{len(numbers)} runs"
        rows[title] = over_repetitions([scores[number]["trained"] for number in numbers])
    return rows


def cut_remarks(variants: Sequence[Variant], results: Sequence[Result]) -> list[str]:
    """What was cut of the inputs: one line each, with the run's label where the runs differ."""
    by_run = [[one["remark"] for one in result.inputs if one["remark"]] for result in results]
    if all(remarks == by_run[0] for remarks in by_run):
        return by_run[0]
    pairs = zip(variants, by_run, strict=True)
    return [
        f"{one.label or one.spec.name}: {remark}" for one, remarks in pairs for remark in remarks
    ]


def scores_by_settings(
    variants: Sequence[Variant], results: Sequence[Result]
) -> list[SettingsScores]:
    """Return the scores of each combination of the varied settings.

    Empty if a run has no final evaluation.
    """
    reports = [result.final for result in results if result.final is not None]
    if len(reports) < len(results):
        return []
    scores = [report.scores["trained"] for report in reports]
    return [
        SettingsScores(
            variants[numbers[0]].chosen,
            scores[numbers[0]]
            if len(numbers) == 1
            else over_repetitions([scores[number] for number in numbers]),
        )
        for numbers in _alike(variants)
    ]


def _alike(variants: Sequence[Variant]) -> list[list[int]]:
    """The runs by number, those that repeat each other together."""
    alike: dict[str, list[int]] = {}
    for number, one in enumerate(variants):
        alike.setdefault(label_of(one.chosen), []).append(number)
    return list(alike.values())


def over_steps(variants: Sequence[Variant], results: Sequence[Result]) -> list[Path]:
    """Write the method's metrics over the steps of all runs into ``over_steps/`` of the first.

    Repetitions are averaged.

    A metric that some run does not log on its way is left out. Returns the folder, if there is
    anything in it.
    """
    first = variants[0].spec
    reports = [read_reports(one.folder.metrics) for one in results]
    logged = [{name for report in of_run for name in report["metrics"]} for of_run in reports]
    metrics = [
        name
        for name in METHODS[first.method].step_metrics
        if all(name in names for names in logged)
    ]
    names_by_label = {}
    for numbers in _alike(variants):
        label = label_of(variants[numbers[0]].chosen)
        of_group = [variants[number].value_by_path for number in numbers]
        varied = [
            path for path in of_group[0] if any(one[path] != of_group[0][path] for one in of_group)
        ]
        several = f"{len(numbers)} runs, by {' and '.join(map(leaf, varied))}"
        title = (
            variants[numbers[0]].label
            if len(numbers) == 1
            else f"{label}, {several}"
            if label
            else several
        )
        names_by_label[title] = [results[number].folder.name for number in numbers]
    out = results[0].folder.path / "over_steps"
    for metric in metrics:
        write_curves(
            Path(first.runs),
            names_by_label,
            metric,
            out / metric.removeprefix("val/"),
            METHODS[first.method],
        )
    return [out] if metrics else []


def _with(config: TrainingConfig, value_by_path: Mapping[str, Any]) -> TrainingConfig:
    """As ``override_all``, for values that are no text to be read as YAML."""
    return override_all(config, {path: quoted(value) for path, value in value_by_path.items()})
