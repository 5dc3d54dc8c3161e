"""Variants of a run: the same configuration with other values of some settings.

They are trained at the same time and shown in one table, such as Table 6 of McDermott et al.
(2023): random vectors, the initial encoder, λ = 0 and the λ of the run. With several settings,
every combination is a run. Runs that differ only in seed or sentence set are repetitions, shown by
mean and deviation.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

from raybio.core.config import first_path, override, override_all, present_path, value_at
from raybio.core.errors import ConfigError
from raybio.core.final_report import FinalReport, SplitScores
from raybio.core.plain_yaml import parse_yaml
from raybio.core.search_space import quoted
from raybio.evaluation.unit_scores import TRAINED, read_unit_scores
from raybio.methods import METHODS
from raybio.runtime.compare.cost import cost_in_words, describe_plan, describe_time
from raybio.runtime.compare.curves import write_curves
from raybio.runtime.compare.differences import differences
from raybio.runtime.compare.relations import Relation
from raybio.runtime.compare.run_test import RunTest
from raybio.runtime.compare.runs import GivenRun, Group
from raybio.runtime.compare.setting_names import (
    label_of,
    named,
    shared_draw,
    short_names,
    shown,
    without_draws,
)
from raybio.runtime.compare.setting_plots import SettingsScores, write_setting_plots
from raybio.runtime.compare.table import (
    ResultTable,
    over_repetitions,
    untrained_label,
    write_table,
)
from raybio.runtime.compare.unfinished import unfinished_reasons
from raybio.runtime.run.checks import check_spec
from raybio.runtime.run.cost import cost_of
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.runtime.run.parallel import train_runs
from raybio.runtime.run.precision import with_precision
from raybio.runtime.run.result import Result
from raybio.runtime.run.spec import RunSpec
from raybio.runtime.spool.spool import publish, refresh
from raybio.runtime.tracking.tracker import add_artifacts
from raybio.training.settings import TrainingConfig


@dataclass(frozen=True)
class Variation:
    """A setting, and other values of it that a run is compared with."""

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
    """A run of a comparison, and its values of the varied settings."""

    spec: RunSpec
    value_by_path: Mapping[str, Any]

    @property
    def label(self) -> str:
        """Its name in tables."""
        return label_of(self.value_by_path)

    @property
    def chosen(self) -> dict[str, Any]:
        """Its values of the varied settings, without those in which repetitions differ."""
        return without_draws(self.value_by_path)


def variants_of(spec: RunSpec, variations: Sequence[Variation]) -> list[Variant]:
    """Return the run itself, and a run for every other combination of the values.

    Raises:
        ConfigError: if a setting does not exist or is given twice, or a value does not fit or
            cannot be part of a run's name.
    """
    model = type(spec.config)
    paths = [present_path(model, variation.path) for variation in variations]
    if len(set(paths)) < len(paths):
        raise ConfigError(
            f"--compare: {', '.join(paths)}: want each setting once, its values by comma"
        )
    choices = [
        _choices(spec.config, path, variation.values)
        for path, variation in zip(paths, variations, strict=True)
    ]
    return [_variant(spec, dict(zip(paths, values, strict=True))) for values in product(*choices)]


def _variant(spec: RunSpec, value_by_path: dict[str, Any]) -> Variant:
    """Return the run with these values, named after those that differ from the spec's."""
    changed = {
        path: value for path, value in value_by_path.items() if value != value_at(spec.config, path)
    }
    first_by_path = {path: first_path(type(spec.config), path) for path in value_by_path}
    names = short_names(first_by_path.values())
    suffixes = [f".{names[first_by_path[path]]}-{named(value)}" for path, value in changed.items()]
    name = spec.name + "".join(suffixes)
    try:
        RunFolder(spec.runs, name)
    except ConfigError as error:
        options = [f"--compare {path}={shown(value)}" for path, value in value_by_path.items()]
        raise ConfigError(
            f"{' '.join(options)}: no name for that run can be made: {error}"
        ) from None
    varied = replace(
        spec,
        config=_with(spec.config, changed),
        name=name,
        explicit=spec.explicit | changed.keys(),
    )
    return Variant(varied.in_steps(), value_by_path)


def _choices(config: TrainingConfig, path: str, values: Iterable[Any]) -> list[Any]:
    """Return the run's own value and the others, each once and of the setting's type."""
    try:
        given = [value_at(override(config, path, value), path) for value in values]
    except ConfigError as error:
        raise ConfigError(f"--compare {path}: {error}") from None
    choices = [value_at(config, path)]
    for value in given:
        if value not in choices:
            choices.append(value)
    return choices


def compare(spec: RunSpec, variations: Sequence[Variation] = ()) -> tuple[Result, ResultTable]:
    """Return the run's result and the table of ``compare_all`` for a single run."""
    (compared,) = compare_all([(spec, variations)])
    return compared


def compare_all(
    comparisons: Sequence[tuple[RunSpec, Sequence[Variation]]],
) -> list[tuple[Result, ResultTable]]:
    """Train runs and their variants, each resumable by itself, and write a table of each run.

    Finished runs are not trained again; the others are trained at the same time, as far as the
    cluster has room. The run's folder and its MLflow artifacts get the table (``table.md``,
    ``table.json``, ``plots/table-*.png``), evaluations over steps (``over_steps/``) and scores
    against numeric settings (``scores-by-*.csv``, ``plots/scores-by-*.png``).

    Raises:
        RaybioError: as ``train_runs``. What is wrong with any run is raised before the first is
            trained.
    """
    groups = [variants_of(spec, variations) for spec, variations in comparisons]
    specs = with_precision(_checked_specs(groups))
    if len(specs) > 2:
        print(f"{len(specs)} runs: {', '.join(each.name for each in specs)}")
    for line in describe_time(specs):
        print(line, flush=True)
    decided = iter(specs)
    results_by_group = train_runs([[next(decided) for _ in variants] for variants in groups])
    compared = []
    for variants, results in zip(groups, results_by_group, strict=True):
        compared.append((results[0], _written_table(variants, results)))
    return compared


def plan_of(comparisons: Sequence[tuple[RunSpec, Sequence[Variation]]]) -> list[str]:
    """Return lines about the runs that ``compare_all`` would train, and their time.

    Raises:
        RaybioError: as ``compare_all`` before it trains.
    """
    groups = [variants_of(spec, variations) for spec, variations in comparisons]
    return describe_plan(_checked_specs(groups))


def _checked_specs(groups: Sequence[Sequence[Variant]]) -> list[RunSpec]:
    """Return all runs, checked before Ray starts, so that none is refused after others trained."""
    specs = [variant.spec for variants in groups for variant in variants]
    for spec in specs:
        if spec.bucket is not None:
            # On an empty disk, runs in a bucket would otherwise seem not to have begun.
            refresh(spec.folder, spec.bucket)
        check_spec(spec)
    return specs


def _written_table(variants: Sequence[Variant], results: Sequence[Result]) -> ResultTable:
    """Write table, curves and plots of a comparison, and return the table."""
    result = results[0]
    table = result_table(variants, results)
    if len(results) > 1:
        cost = cost_in_words(cost_of(each.folder) for each in results)
        table = replace(table, remarks=[*table.remarks, *([f"cost: {cost}"] if cost else [])])
    paths = write_table(table, result.folder.path)
    if variants[0].value_by_path:
        paths += over_steps(variants, results)
        paths += write_setting_plots(
            scores_by_settings(variants, results, table.rows), table.layout, result.folder
        )
    add_artifacts(result.folder, paths)
    if variants[0].spec.bucket is not None:
        publish(result.folder, variants[0].spec.bucket)
    return table


def result_table(variants: Sequence[Variant], results: Sequence[Result]) -> ResultTable:
    """Return the table of trained runs: scores, differences from this run, and remarks."""
    rows = score_rows(variants, results)
    layout = METHODS[variants[0].spec.method].table.shown(rows.values())
    tests: list[RunTest] = []
    relations: list[Relation] = []
    remarks: list[str] = []
    unfinished: dict[str, str] = {}
    if rows:
        own, *others = compared_groups(variants, results)
        tests, relations, remarks = differences(own, others, layout)
        unfinished = unfinished_reasons([own, *others, *single_runs(variants, results)])
    final = results[0].final
    return ResultTable(
        rows,
        layout,
        precision_by_run=precisions_of_auto(variants, results),
        remarks=[*run_remarks(variants, results), *remarks],
        tests=tests,
        relations=relations,
        sizes={} if final is None else final.sizes,
        repeated=_repeated_rows(variants, results, rows),
        unfinished={label: reason for label, reason in unfinished.items() if label in rows},
    )


def _repeated_rows(
    variants: Sequence[Variant], results: Sequence[Result], rows: Mapping[str, SplitScores]
) -> frozenset[str]:
    """Return the labels of the rows that are averaged in a row of repetitions."""
    repeated = set()
    for numbers in _repetitions(variants):
        if len(numbers) > 1:
            repeated |= {_row_of_run(variants, results, number) for number in numbers}
            repeated |= {label for label in rows if f"{label}, {len(numbers)} runs" in rows}
    return frozenset(repeated)


def compared_groups(variants: Sequence[Variant], results: Sequence[Result]) -> list[Group]:
    """Return the runs of each combination of settings, this run first, named as their rows."""
    groups = []
    for numbers in _repetitions(variants):
        label = _row_of_group(variants, results, numbers)
        runs = [GivenRun(results[number].folder.name, results[number].folder) for number in numbers]
        groups.append(Group(label, runs))
    return groups


def single_runs(variants: Sequence[Variant], results: Sequence[Result]) -> list[Group]:
    """Return each run as a group, named as its row."""
    return [
        Group(_row_of_run(variants, results, number), [GivenRun(result.folder.name, result.folder)])
        for number, result in enumerate(results)
    ]


def _row_of_run(variants: Sequence[Variant], results: Sequence[Result], number: int) -> str:
    """Return the label of a run's row."""
    if number > 0:
        return variants[number].label
    label = variants[0].label
    if not variants[0].value_by_path:
        label = variants[0].spec.name
        final = results[0].final
        # A run may be called "initial", as a row without training is.
        if final is None or label not in final.scores:
            return label
    return f"{label} (this run)"


def _row_of_group(
    variants: Sequence[Variant], results: Sequence[Result], numbers: Sequence[int]
) -> str:
    """Return the label of the row of a run, or of repetitions."""
    if len(numbers) == 1:
        return _row_of_run(variants, results, numbers[0])
    return _row_of_means([variants[number] for number in numbers])


def _row_of_means(repeated: Sequence[Variant]) -> str:
    """Return the label of the row of repetitions."""
    settings = label_of(repeated[0].chosen)
    return f"{settings}, {len(repeated)} runs" if settings else f"{len(repeated)} runs"


def precisions_of_auto(variants: Sequence[Variant], results: Sequence[Result]) -> dict[str, str]:
    """Return the precision of each run with ``precision: auto``, by the run's name."""
    precision_by_run = {}
    for variant, result in zip(variants, results, strict=True):
        if variant.spec.config.precision == "auto" and result.precision is not None:
            precision_by_run[variant.spec.name] = result.precision
    return precision_by_run


def score_rows(variants: Sequence[Variant], results: Sequence[Result]) -> dict[str, SplitScores]:
    """Return the rows of the table by label; empty if a run has no final evaluation.

    First come the rows without training: those of this run, and those of other settings where the
    settings change them, such as another encoder or share of labels. Then come the other runs, this
    run, and the means of repetitions.
    """
    reports = [result.final for result in results if result.final is not None]
    if len(reports) < len(results):
        return {}
    rows: dict[str, SplitScores] = {}
    untrained = [stage for stage in reports[0].scores if stage != "trained"]
    for stage in untrained:
        rows[stage] = reports[0].scores[stage]
    for number, report in enumerate(reports[1:], start=1):
        rows[_row_of_run(variants, results, number)] = report.scores["trained"]
    rows[_row_of_run(variants, results, 0)] = reports[0].scores["trained"]
    measures = METHODS[variants[0].spec.method].table.measures
    units_by_stage = [read_unit_scores(result.folder.unit_scores) for result in results]
    repeated = [numbers for numbers in _repetitions(variants) if len(numbers) > 1]

    def mean_of(stage: str, numbers: Sequence[int]) -> SplitScores:
        return over_repetitions(
            [reports[number].scores[stage] for number in numbers],
            [units_by_stage[number].get(stage, {}) for number in numbers],
            measures,
            [shared_draw(variants[number].value_by_path) for number in numbers],
        )

    if repeated and repeated[0][0] == 0:
        # Scores without training may depend on the seed, for instance if it draws the labels.
        # Scores that do not depend on it have their row above.
        for stage in untrained:
            run_scores = [reports[number].scores[stage] for number in repeated[0]]
            label = untrained_label(stage, run_scores)
            if label != stage:
                rows[label] = mean_of(stage, repeated[0])
    for stage in untrained:
        for label, numbers in _other_untrained(variants, reports, stage).items():
            if len(numbers) == 1:
                rows[label] = reports[numbers[0]].scores[stage]
            else:
                rows[f"{label}, {len(numbers)} runs"] = mean_of(stage, numbers)
    # The run's own repetitions come last, which plots show in the accent color.
    for numbers in reversed(repeated):
        rows[_row_of_means([variants[number] for number in numbers])] = mean_of(TRAINED, numbers)
    return rows


def _other_untrained(
    variants: Sequence[Variant], reports: Sequence[FinalReport], stage: str
) -> dict[str, list[int]]:
    """Return the runs whose scores without training differ from those of this run.

    Args:
        variants: the compared runs.
        reports: their final evaluations.
        stage: a row without training.

    Returns:
        Label, with the settings that the row depends on -> indices of the repetitions with these
        settings; one index if all repetitions have the same scores.
    """
    groups = _repetitions(variants)
    # Compared as text, since NaN is not equal to itself.
    texts = [[repr(reports[number].scores.get(stage)) for number in group] for group in groups]
    chosen = [variants[group[0]].chosen for group in groups]
    relevant = set()
    for one, two in combinations(range(len(groups)), 2):
        differing = [path for path in chosen[one] if chosen[one][path] != chosen[two].get(path)]
        if len(differing) == 1 and texts[one] != texts[two]:
            relevant.add(differing[0])
    shown = {tuple(texts[0])}
    rows = {}
    for group, group_texts, settings in zip(groups, texts, chosen, strict=True):
        is_new = tuple(group_texts) not in shown
        if is_new and all(stage in reports[number].scores for number in group):
            shown.add(tuple(group_texts))
            label = label_of({path: settings[path] for path in settings if path in relevant})
            rows[f"{stage}, {label}"] = group[:1] if len(set(group_texts)) == 1 else group
    return rows


def run_remarks(variants: Sequence[Variant], results: Sequence[Result]) -> list[str]:
    """Return remarks on inputs that were cut and on data that evaluations left out.

    A remark also says if the step of the weights was chosen on data that the table scores. Remarks
    have the run's label if runs differ.
    """
    remarks_by_run = []
    for variant, result in zip(variants, results, strict=True):
        metric = variant.spec.config.schedule.best_metric
        chosen = metric and METHODS[variant.spec.method].table.chosen_on_scored(metric)
        cuts = [rows["remark"] for rows in result.inputs if rows["remark"]]
        evaluation = [] if result.final is None else result.final.remarks
        step = [f"the step of the weights was {chosen}"] if chosen else []
        remarks_by_run.append([*cuts, *evaluation, *step])
    if all(remarks == remarks_by_run[0] for remarks in remarks_by_run):
        return remarks_by_run[0]
    lines = []
    for variant, remarks in zip(variants, remarks_by_run, strict=True):
        lines += [f"{variant.label or variant.spec.name}: {remark}" for remark in remarks]
    return lines


def scores_by_settings(
    variants: Sequence[Variant], results: Sequence[Result], rows: Mapping[str, SplitScores]
) -> list[SettingsScores]:
    """Return the scores of each combination of the varied settings, from ``score_rows``.

    Empty if there are no rows, since a run has no final evaluation.
    """
    combinations = []
    for numbers in _repetitions(variants) if rows else ():
        row = rows[_row_of_group(variants, results, numbers)]
        combinations.append(SettingsScores(variants[numbers[0]].chosen, row))
    return combinations


def _repetitions(variants: Sequence[Variant]) -> list[list[int]]:
    """Return the indices of the runs, with repetitions of one run in one list."""
    indices_by_label: dict[str, list[int]] = {}
    for number, variant in enumerate(variants):
        indices_by_label.setdefault(label_of(variant.chosen), []).append(number)
    return list(indices_by_label.values())


def over_steps(variants: Sequence[Variant], results: Sequence[Result]) -> list[Path]:
    """Write the method's metrics over the steps of all runs into ``over_steps/`` of the first.

    Repetitions are averaged. Metrics that some run does not log are omitted. Return the folder if
    it has any content.
    """
    spec = variants[0].spec
    method = METHODS[spec.method]
    logged: list[set[str]] = []
    for result in results:
        reports = read_reports(result.folder.metrics)
        logged.append({name for report in reports for name in report["metrics"]})
    metrics = [name for name in method.step_metrics if all(name in names for names in logged)]
    names_by_label = {}
    for numbers in _repetitions(variants):
        title = _title_of_repetitions([variants[number] for number in numbers])
        names_by_label[title] = [results[number].folder.name for number in numbers]
    out = results[0].folder.path / "over_steps"
    for metric in metrics:
        folder = out / metric.removeprefix("val/")
        write_curves(spec.runs, names_by_label, metric, folder, method)
    return [out] if metrics else []


def _title_of_repetitions(variants: Sequence[Variant]) -> str:
    """Return the label of a run, or of several with their number and what they differ in."""
    first = variants[0]
    if len(variants) == 1:
        return first.label
    names = short_names(first.value_by_path)
    varied = []
    for path, value in first.value_by_path.items():
        if any(variant.value_by_path[path] != value for variant in variants):
            varied.append(names[path])
    several = f"{len(variants)} runs, by {' and '.join(varied)}"
    label = label_of(first.chosen)
    return f"{label}, {several}" if label else several


def _with(config: TrainingConfig, value_by_path: Mapping[str, Any]) -> TrainingConfig:
    """Return ``override_all`` for values that are not texts to be read as YAML."""
    return override_all(config, {path: quoted(value) for path, value in value_by_path.items()})
