"""The report of a benchmark: its schema, and how results become one.

``report.json`` is a record "benchmark report" with the fields of ``BenchmarkReport``;
``report.schema.json`` is its JSON schema.
"""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from raybio.benchmark.models import BenchmarkModel
from raybio.benchmark.rivals import RIVALS
from raybio.benchmark.statistics import (
    Limits,
    difference_test,
    interval_of_seeds,
    mean_of_tasks,
    score_interval,
    task_seed,
)
from raybio.benchmark.task import RIVAL_ROWS, BenchmarkTask, TaskFacts, TaskScores
from raybio.core.config import BaseConfig
from raybio.core.errors import ConfigError
from raybio.core.files import replace_text
from raybio.core.markdown import markdown_table
from raybio.core.records import FORMATS, write_record
from raybio.ops.significance import Interval, holm
from raybio.runtime.compare.run_test import LEVEL

KIND = "benchmark report"


class RowReport(BaseConfig):
    """A model or a rival on a task; numbers are null where they are undefined."""

    name: str
    is_rival: bool
    is_oracle: bool
    """Whether the rival reads gold answers, so that no model is expected to beat it."""
    value: float | None
    low: float | None
    high: float | None
    others: dict[str, float | None]
    remarks: list[str]


class PairReport(BaseConfig):
    """The difference first - second with its 95 % interval, and a paired permutation test.

    p_holm is adjusted over all tests of the task.
    """

    first: str
    second: str
    difference: float
    low: float
    high: float
    p: float
    p_holm: float


class TaskReport(BaseConfig):
    """A task: its facts, its rows from the best to the worst, and tests."""

    name: str
    title: str
    family: str
    reads: str
    measure: str
    protocol: str
    size: str
    leakage: str
    chance: dict[str, float]
    num_units: int
    rows: list[RowReport]
    tests: list[PairReport]
    skipped: dict[str, str]
    """Model -> why it has no row; "rivals" -> why none has; "protocol" -> why it is unknown; ""
    -> why the task did not run."""


class CostReport(BaseConfig):
    """The cost of a model: of embedding each corpus of this folder once.

    Keys are devices, "cuda" or "cpu". Loading the encoder does not count.
    """

    weight_bytes: int
    rows: dict[str, int]
    """Inputs that the encoder read."""
    seconds: dict[str, float]
    """Elapsed time on a GPU, processor time of all threads on CPUs."""
    rows_per_second: dict[str, float]
    peak_bytes: dict[str, int]
    """Peak memory of embedding; none where it was not measured."""
    other_processor_seconds: float
    """Processor time of tasks that embed by themselves, including their classifiers."""


class ModelReport(BaseConfig):
    """A model, or the mean of runs that differ in their seed, over all tasks."""

    name: str
    seeds: list[str] = []
    """Runs that it is the mean of; empty for a model."""
    reads: str
    digest: str
    precision: str = ""
    """Precision in which its encoder embedded: fp32, tf32 or bf16; empty for a rival."""
    mean: float | None
    low: float | None
    high: float | None
    num_tasks: int
    num_common_tasks: int
    num_rival_higher: int
    cost: CostReport | None


class BenchmarkReport(BaseConfig):
    """The whole report."""

    suite: str
    title: str
    seed: int
    before: str
    """Encoder that the run ``after`` began from; both are empty without ``--after``."""
    after: str
    models: list[ModelReport]
    tasks: list[TaskReport]


class TaskResults:
    """The results of a task.

    Attributes:
        task: the task.
        facts: facts of the task; None: it did not run, or they were refused.
        rivals: scores of each rival; None: they were not computed.
        rivals_reader: the model whose tokens the rivals read; empty if they need none.
        by_model: scores of each model that has some.
        skipped: see ``TaskReport``.
    """

    def __init__(self, task: BenchmarkTask) -> None:
        """Begin without results."""
        self.task = task
        self.facts: TaskFacts | None = None
        self.rivals: Mapping[str, TaskScores] | None = None
        self.rivals_reader = ""
        self.by_model: dict[str, TaskScores] = {}
        self.skipped: dict[str, str] = {}

    def join_reasons(self) -> None:
        """Keep a single reason if the task has no result at all and all reasons are equal."""
        reasons = set(self.skipped.values())
        has_results = bool(self.facts or self.rivals or self.by_model)
        if len(reasons) == 1 and not has_results:
            self.skipped = {"": reasons.pop()}

    def rows(self, names: Sequence[str]) -> tuple[dict[str, TaskScores], list[str]]:
        """Return the scores by row, models first, and the rows that are rivals.

        A rival that is given as a model has that name, and stays a rival.

        Raises:
            ConfigError: if a model has the name of a rival.
        """
        rows = {}
        rivals = dict(self.rivals or {})
        for name in names:
            if name in self.by_model:
                if name in rivals:
                    raise ConfigError(
                        f"MODEL {name}: is the name of another row of {self.task.name}; give its "
                        "folder another name"
                    )
                rows[name] = self.by_model[name]
            elif name in RIVALS:
                own = next((row for row in RIVALS[name] if row in rivals), None)
                if own is not None:
                    rows[name] = rivals.pop(own)
                elif self.rivals is not None:
                    self.skipped[name] = "the task has no such rival"
                elif not self.skipped.keys() & {"", RIVAL_ROWS}:
                    self.skipped[name] = "rivals are read in the tokens of a model, and none fits"
        given = [name for name in rows if name in RIVALS]
        return rows | rivals, [*given, *rivals]


def benchmark_report(
    suite: str,
    title: str,
    results: Sequence[TaskResults],
    models: Sequence[BenchmarkModel | str],
    seed: int,
    *,
    with_before: bool = False,
    seed_groups: Mapping[str, Sequence[str]] = {},
) -> BenchmarkReport:
    """Return the report.

    Args:
        suite: name of the suite.
        title: its title.
        results: results of each task.
        models: the models in order; rivals by their names.
        seed: of intervals and tests.
        with_before: whether the second model is the encoder that the first one began from.
        seed_groups: models that differ in their seed, by the name of their common row.
    """
    names = [model if isinstance(model, str) else model.name for model in models]
    tasks = [_task_report(each, names, seed, seed_groups) for each in results]
    reports = [_model_report(model, tasks, results, models) for model in models]
    reads_by_name = {report.name: report.reads for report in reports}
    for name, members in seed_groups.items():
        standing = _standing(name, reads_by_name[members[0]], tasks, models)
        reports.append(ModelReport(seeds=list(members), cost=None, **standing))
    after, before = names[:2] if with_before else ("", "")
    return BenchmarkReport(
        suite=suite,
        title=title,
        seed=seed,
        before=before,
        after=after,
        models=reports,
        tasks=tasks,
    )


def write_report(report: BenchmarkReport, out: Path) -> None:
    """Write ``report.json``, its schema and ``results.csv``."""
    schema = BenchmarkReport.model_json_schema()
    header = {
        "format": {"const": KIND},
        "version": {"const": FORMATS[KIND].version},
        "checksum": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    }
    schema["properties"] = header | schema["properties"]
    schema["required"] = [*header, *schema["required"]]
    replace_text(out / "report.schema.json", json.dumps(schema, indent=1) + "\n")
    write_record(out / "report.json", KIND, report.to_mapping())
    replace_text(out / "results.csv", _csv(report))


def card_table(report: BenchmarkReport, model: str) -> str:
    """Return the table of a model for its card, in Markdown; empty if it has no row."""
    rows = []
    for task in report.tasks:
        own = next((row for row in task.rows if row.name == model), None)
        if own is None:
            continue
        rival = best_rival(task)
        shown = "" if rival is None else f"{rival.name} {number(rival.value)}"
        rows.append([task.title, task.measure, interval_text(own), shown])
    if not rows:
        return ""
    return markdown_table(["task", "measure", model, "best without training"], rows)


def best_rival(task: TaskReport) -> RowReport | None:
    """Return the best row of a rival that reads no gold answers."""
    for row in task.rows:
        if row.is_rival and not row.is_oracle and row.value is not None:
            return row
    return None


def pair_test(task: TaskReport, first: str, second: str) -> PairReport | None:
    """Return the test of two rows, in whichever order."""
    for test in task.tests:
        if {test.first, test.second} == {first, second}:
            return test
    return None


def difference_text(test: PairReport) -> str:
    """Return "+0.025 [+0.010, +0.040]"."""
    return f"{test.difference:+z.3f} [{test.low:+z.3f}, {test.high:+z.3f}]"


class TrainingChange(NamedTuple):
    """What training changed on a task.

    Attributes:
        task: the task.
        before: row of the encoder that the run began from.
        after: row of the run.
        test: after - before.
    """

    task: TaskReport
    before: RowReport
    after: RowReport
    test: PairReport

    @property
    def word(self) -> str:
        """Whether training gained or lost, if the difference is significant.

        A gain that leaves the run below a rival says so.
        """
        if self.test.p_holm >= LEVEL:
            return "no significant change"
        if self.test.difference < 0:
            return "lost"
        rival = best_rival(self.task)
        rows = self.task.rows  # the best first
        if rival is not None and rows.index(rival) < rows.index(self.after):
            return f"gained, below {rival.name}"
        return "gained"


def changes(report: BenchmarkReport) -> list[TrainingChange]:
    """Return what training changed on each task that both encoders have; none without ``after``."""
    found = []
    for task in report.tasks:
        row_by_name = {row.name: row for row in task.rows}
        test = pair_test(task, report.after, report.before)
        if test is not None:
            found.append(
                TrainingChange(task, row_by_name[report.before], row_by_name[report.after], test)
            )
    return found


def number(value: float | None) -> str:
    """Return a score with three digits."""
    return "undefined" if value is None else f"{value:z.3f}"


def interval_text(row: RowReport | ModelReport) -> str:
    """Return "0.615 [0.590, 0.640]"."""
    value = row.value if isinstance(row, RowReport) else row.mean
    if value is None or row.low is None:
        return number(value)
    return f"{number(value)} [{number(row.low)}, {number(row.high)}]"


def _task_report(
    results: TaskResults,
    names: Sequence[str],
    seed: int,
    seed_groups: Mapping[str, Sequence[str]],
) -> TaskReport:
    task = results.task
    rows, rivals = results.rows(names)
    of_task = task_seed(seed, task.name)
    shown = []
    for name, scores in rows.items():
        interval = score_interval(scores, of_task, task.limits)
        shown.append(
            RowReport(
                name=name,
                is_rival=name in rivals,
                is_oracle=name in task.oracles,
                **_numbers(interval),
                others={key: _number(value) for key, value in scores.others.items()},
                remarks=list(scores.remarks),
            )
        )
    for name, members in seed_groups.items():
        if rows.keys() >= set(members):
            over_seeds = interval_of_seeds([rows[member] for member in members], task.limits)
            shown.append(
                RowReport(
                    name=name,
                    is_rival=False,
                    is_oracle=False,
                    **_numbers(over_seeds),
                    others={},
                    remarks=[f"mean of {', '.join(members)}; interval over seeds and units"],
                )
            )
    shown.sort(key=lambda row: -math.inf if row.value is None else row.value, reverse=True)
    facts = results.facts or TaskFacts("", "")
    protocol = facts.protocol
    if results.rivals_reader:
        protocol += f" Rivals on contents read them in the tokens of {results.rivals_reader}."
    encoders = [name for name in names if name in rows and name not in rivals]
    return TaskReport(
        name=task.name,
        title=task.title if not results.skipped.get("") else task.name,
        family=task.family,
        reads=task.reads if not results.skipped.get("") else "",
        measure=task.measure,
        protocol=protocol.strip(),
        size=facts.size,
        leakage=facts.leakage,
        chance={name: value for name, value in facts.chance.items() if math.isfinite(value)},
        num_units=max((len(scores.unit_ids) for scores in rows.values()), default=0),
        rows=shown,
        tests=_tests(rows, encoders, of_task, task.limits),
        skipped=results.skipped,
    )


def _tests(
    rows: Mapping[str, TaskScores], encoders: Sequence[str], seed: int, limits: Limits
) -> list[PairReport]:
    """Return the tests of each encoder with the later encoders and with all rivals.

    Rivals are not tested against each other: the p values of encoders must not depend on which
    rivals were named. p values are adjusted over the tests of one task. Adjusted over all tasks,
    even the smallest p of a permutation test could become insignificant.
    """
    rivals = [name for name in rows if name not in encoders]
    tests = {}
    for number, first in enumerate(encoders):
        for second in (*encoders[number + 1 :], *rivals):
            test = difference_test(rows[first], rows[second], seed, limits)
            if test is not None:
                tests[first, second] = test
    adjusted = holm([test.p for test in tests.values()]).tolist()
    return [
        PairReport(
            first=first,
            second=second,
            difference=test.difference.value,
            low=test.difference.low,
            high=test.difference.high,
            p=test.p,
            p_holm=p_holm,
        )
        for ((first, second), test), p_holm in zip(tests.items(), adjusted, strict=True)
    ]


def _model_report(
    model: BenchmarkModel | str,
    tasks: Sequence[TaskReport],
    results: Sequence[TaskResults],
    models: Sequence[BenchmarkModel | str],
) -> ModelReport:
    if isinstance(model, str):
        return ModelReport(cost=None, **_standing(model, "", tasks, models))
    standing = _standing(model.name, model.reads, tasks, models)
    own = {"digest": model.digest, "precision": model.precision}
    return ModelReport(cost=_cost(model, results), **standing | own)


def _standing(
    name: str, reads: str, tasks: Sequence[TaskReport], models: Sequence[BenchmarkModel | str]
) -> dict[str, Any]:
    """Return the fields of a ``ModelReport`` that are computed from the rows of a name.

    Args:
        name: of a model, a rival or a common row.
        reads: kind of its inputs; empty for a rival.
        tasks: all tasks.
        models: all models, whose common tasks the mean is over.
    """
    row_by_task = {}
    num_rival_higher = 0
    for task in tasks:
        own = next((row for row in task.rows if row.name == name), None)
        if own is None or own.value is None:
            continue
        row_by_task[task.name] = own
        rival = best_rival(task)
        if rival is not None and rival.value is not None and rival.value > own.value:
            num_rival_higher += 1
    # Encoders of one kind of input are compared over the tasks that all of them have. A rival has
    # a mean if it has all of these tasks: means over other tasks could not be compared. A model
    # without any row, such as one that fails, removes no task from the others.
    with_rows = {row.name for task in tasks for row in task.rows if row.value is not None}
    encoders = [each for each in models if not isinstance(each, str) and each.name in with_rows]
    peers = [each.name for each in encoders if reads in ("", each.reads)]
    if not peers:
        peers = [each for each in models if isinstance(each, str) and each in with_rows]
    shared = []
    for task in tasks:
        scored = {row.name for row in task.rows if row.value is not None}
        if scored.issuperset(peers):
            shared.append(task.name)
    common = []
    if row_by_task.keys() >= set(shared):
        common = [_interval(row_by_task[task]) for task in shared]
    return {
        "name": name,
        "reads": reads,
        "digest": "",
        **_numbers(mean_of_tasks(common), "mean"),
        "num_tasks": len(row_by_task),
        "num_common_tasks": len(common),
        "num_rival_higher": num_rival_higher,
    }


def _cost(model: BenchmarkModel, results: Sequence[TaskResults]) -> CostReport:
    rows: dict[str, int] = {}
    seconds: dict[str, float] = {}
    peak_bytes: dict[str, int] = {}
    for cost in model.costs():
        rows[cost.device] = rows.get(cost.device, 0) + cost.rows
        seconds[cost.device] = seconds.get(cost.device, 0.0) + cost.seconds
        if cost.peak_bytes is not None:
            peak_bytes[cost.device] = max(cost.peak_bytes, peak_bytes.get(cost.device, 0))
    return CostReport(
        weight_bytes=model.num_weight_bytes,
        rows=rows,
        seconds=seconds,
        rows_per_second={
            device: rows[device] / seconds[device] for device in rows if seconds[device] > 0
        },
        peak_bytes=peak_bytes,
        other_processor_seconds=sum(
            each.by_model[model.name].processor_seconds
            for each in results
            if model.name in each.by_model
        ),
    )


def _interval(row: RowReport) -> Interval:
    assert row.value is not None
    if row.low is None or row.high is None:
        return Interval(row.value, math.nan, math.nan)
    return Interval(row.value, row.low, row.high)


def _numbers(interval: Interval, name: str = "value") -> dict[str, float | None]:
    return {
        name: _number(interval.value),
        "low": _number(interval.low),
        "high": _number(interval.high),
    }


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _csv(report: BenchmarkReport) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    header = ("task", "family", "row", "is_rival", "measure", "value", "low", "high", "units")
    writer.writerow(header)
    for task in report.tasks:
        for row in task.rows:
            start = (task.name, task.family, row.name, int(row.is_rival))
            units = task.num_units
            writer.writerow((*start, task.measure, row.value, row.low, row.high, units))
            for name, value in row.others.items():
                writer.writerow((*start, name, value, "", "", units))
    for model in report.models:
        if model.cost is not None:
            for name, value in _costs(model.cost).items():
                writer.writerow(("embedding", "Cost", model.name, 0, name, value, "", "", ""))
    return text.getvalue()


def _costs(cost: CostReport) -> dict[str, float]:
    speeds = {f"rows per second, {device}": speed for device, speed in cost.rows_per_second.items()}
    peaks = {f"peak bytes, {device}": number for device, number in cost.peak_bytes.items()}
    return {**speeds, **peaks}
