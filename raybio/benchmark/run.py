"""A benchmark from models and a suite to its report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raybio.benchmark.log import BenchmarkLog
from raybio.benchmark.models import BenchmarkModel, seed_groups
from raybio.benchmark.page import write_page
from raybio.benchmark.report import BenchmarkReport, TaskResults, benchmark_report, write_report
from raybio.benchmark.suite import Suite
from raybio.benchmark.task import RIVAL_ROWS
from raybio.benchmark.work import Part, PartKind, Results, compute_parts
from raybio.core.digest import digest_of
from raybio.core.errors import ClusterError, ConfigError, DataError, StorageError, StoreError
from raybio.core.files import try_lock
from raybio.core.shared_scores import Identity
from raybio.runtime.tracking.model_runs import track_models


def run_benchmark(
    models: Sequence[BenchmarkModel | str],
    suite: Suite,
    out: Path,
    *,
    seed: int = 0,
    with_ray: bool = True,
    tracking: str | None = None,
    verbose: bool = False,
    with_before: bool = False,
) -> BenchmarkReport:
    """Evaluate models and rivals on all tasks; write the report. Kept results are read back.

    Args:
        models: encoders, and rivals by their names.
        suite: the tasks.
        out: folder of the report; workers see it under the same path.
        seed: of intervals and tests.
        with_ray: whether tasks are divided over a cluster; otherwise they run in this process.
        tracking: MLflow URI for a run with a child run for each model; None: no tracking.
        verbose: show Ray's own logs.
        with_before: whether the second model is the encoder that the first one began from.

    Raises:
        ClusterError: if another command writes this report, or Ray cannot start.
        ConfigError: if no task has a row.
    """
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("a") as lock:
        if not try_lock(lock):
            raise ClusterError(
                f"--out {out}: another command is writing this report. Wait until it ends, or "
                "choose another folder"
            )
        results = _evaluated(models, suite, out, with_ray, verbose)
        report = benchmark_report(
            suite.name,
            suite.title,
            results,
            models,
            seed,
            with_before=with_before,
            seed_groups=seed_groups(models),
        )
        write_report(report, out)
        write_page(out / "report.html", report)
        if tracking is not None:
            _track(report, out, tracking)
        return report


def _track(report: BenchmarkReport, out: Path, uri: str) -> None:
    metrics_by_model: dict[str, dict[str, float]] = {}
    for model in report.models:
        if model.seeds:
            # MLflow shows means of runs by itself.
            continue
        mean = {} if model.mean is None else {"mean of common tasks": model.mean}
        metrics_by_model[model.name] = mean
    for task in report.tasks:
        for row in task.rows:
            if row.name in metrics_by_model and row.value is not None:
                metrics_by_model[row.name][f"{task.name}/{task.measure}"] = row.value
    names = ("report.html", "report.json", "results.csv")
    track_models(
        uri,
        digest_of({"out": str(out), "suite": report.suite}),
        f"{out.name}: {report.title}",
        metrics_by_model,
        [out / name for name in names],
    )


@dataclass
class _TaskPlan:
    """The results that the report needs from a task.

    Attributes:
        results: the task's results; filled in.
        identity: the task's identity.
        fitting: the models that read its inputs.
        rivals: part with its rivals; None: they need a model, and no model fits.
    """

    results: TaskResults
    identity: Identity
    fitting: Sequence[BenchmarkModel]
    rivals: Part | None = None

    def part(self, kind: PartKind, model: BenchmarkModel | None = None) -> Part:
        """Return a part of the task."""
        return Part.of(self.results.task, self.identity, kind, model)

    def parts(self) -> list[Part]:
        """Return all parts of the task."""
        if not self.results.task.rivals_read_the_model:
            self.rivals = self.part("rivals")
        elif self.fitting:
            self.rivals = self.part("rivals", self.fitting[0])
        of_task = [self.part("facts"), *([self.rivals] if self.rivals else [])]
        return of_task + [self.part("scores", model) for model in self.fitting]

    def next_rivals(self) -> Part | None:
        """Return the part with rivals for the next model, if they failed and there is one."""
        if RIVAL_ROWS not in self.results.skipped:
            return None
        if self.rivals is None or self.rivals.model is None:
            return None
        number = self.fitting.index(self.rivals.model) + 1
        if number == len(self.fitting):
            return None
        del self.results.skipped[RIVAL_ROWS]
        self.rivals = self.part("rivals", self.fitting[number])
        return self.rivals

    def read(self, kept: Results) -> None:
        """Fill in the kept results."""
        results = self.results
        results.facts = kept.facts(self.part("facts"))
        if self.rivals is not None:
            results.rivals = kept.rivals(self.rivals)
            if results.rivals is not None and self.rivals.model is not None:
                results.rivals_reader = self.rivals.model.name
        for model in self.fitting:
            scores = kept.scores(self.part("scores", model))
            if scores is not None:
                results.by_model[model.name] = scores


def _evaluated(
    models: Sequence[BenchmarkModel | str],
    suite: Suite,
    out: Path,
    with_ray: bool,
    verbose: bool,
) -> list[TaskResults]:
    """Return the results of each task; compute those that are not kept."""
    encoders = [model for model in models if isinstance(model, BenchmarkModel)]
    results = [TaskResults(task) for task in suite.tasks]
    plans = []
    for each in results:
        plan = _plan(each, encoders)
        if plan is None:
            BenchmarkLog(out).say(f"skipped: {each.task.name}: {each.skipped['']}")
        else:
            plans.append(plan)
    if not plans:
        raise _without_rows(suite, results)
    parts = [part for plan in plans for part in plan.parts()]
    while parts:
        refused = compute_parts(parts, out, with_ray=with_ray, verbose=verbose)
        for each in results:
            each.skipped.update(refused.get(each.task.name, {}))
        # Rivals that failed with a model may be computed with the next one.
        next_rivals = [plan.next_rivals() for plan in plans]
        parts = [part for part in next_rivals if part is not None]
    for plan in plans:
        plan.read(Results(out))
    for each in results:
        each.join_reasons()
    if not any(each.by_model or each.rivals for each in results):
        raise _without_rows(suite, results)
    return results


def _without_rows(suite: Suite, results: Sequence[TaskResults]) -> ConfigError:
    reasons = []
    for each in results:
        own = "; ".join(dict.fromkeys(each.skipped.values())) or "no model fits"
        reasons.append(f"{each.task.name}: {own}")
    return ConfigError(
        f"--suite {suite.name}: none of its tasks has a row, so no report is written. "
        + ". ".join(reasons)
    )


def _plan(results: TaskResults, encoders: Sequence[BenchmarkModel]) -> _TaskPlan | None:
    """Return the plan of a task; None if it cannot run, with the reason in its results."""
    task = results.task
    reason = task.check()
    if not reason:
        try:
            reads = task.reads
            identity = task.identity()
        except (DataError, StorageError, StoreError) as error:
            reason = str(error)
    if reason:
        results.skipped[""] = reason
        return None
    fitting = []
    for model in encoders:
        if model.reads in (reads, *task.also_reads):
            fitting.append(model)
        else:
            results.skipped[model.name] = f"{model}, the task has {reads}"
    return _TaskPlan(results, identity, fitting)
