"""A benchmark from models and a suite to its report."""

import fcntl
import re
from collections.abc import Sequence
from pathlib import Path

from raybio.benchmark.log import BenchmarkLog
from raybio.benchmark.models import BenchmarkModel
from raybio.benchmark.page import write_page
from raybio.benchmark.report import BenchmarkReport, TaskResults, benchmark_report, write_report
from raybio.benchmark.suite import Suite
from raybio.benchmark.task import RIVAL_ROWS
from raybio.benchmark.work import Part, Results, WorkItem, identity_of
from raybio.core.digest import digest_of
from raybio.core.errors import ClusterError, ConfigError, DataError, StoreError
from raybio.runtime.run.spec import Compute
from raybio.runtime.run.tasks import run_tasks
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
        tracking: MLflow's URI: a run with a child for each model; None: none is written.
        verbose: show Ray's own logs.
        with_before: whether the second model is the encoder that the first one began from.

    Raises:
        ClusterError: if another command writes this report, or Ray cannot start.
        ConfigError: if no task can run.
    """
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError(
                f"--out {out}: another command is writing this report. Wait until it ends, or "
                "choose another folder"
            ) from None
        results = _evaluated(models, suite, out, with_ray, verbose)
        report = benchmark_report(
            suite.name, suite.title, results, models, seed, with_before=with_before
        )
        write_report(report, out)
        write_page(out / "report.html", report)
        if tracking is not None:
            _track(report, out, tracking)
        return report


def _track(report: BenchmarkReport, out: Path, uri: str) -> None:
    metrics_by_model: dict[str, dict[str, float]] = {}
    for model in report.models:
        mean = {} if model.mean is None else {"mean of common tasks": model.mean}
        metrics_by_model[model.name] = mean
    for task in report.tasks:
        for row in task.rows:
            if row.name in metrics_by_model and row.value is not None:
                metrics_by_model[row.name][_metric(f"{task.name}/{task.measure}")] = row.value
    names = ("report.html", "report.json", "results.csv")
    track_models(
        uri,
        "benchmark",
        digest_of({"out": str(out), "suite": report.suite}),
        f"{out.name}: {report.title}",
        metrics_by_model,
        [out / name for name in names],
    )


def _metric(measure: str) -> str:
    """Return a measure's name without the characters that MLflow refuses."""
    return re.sub(r"[^\w./ -]", "_", measure)


def _evaluated(
    models: Sequence[BenchmarkModel | str],
    suite: Suite,
    out: Path,
    with_ray: bool,
    verbose: bool,
) -> list[TaskResults]:
    say = BenchmarkLog(out).say
    encoders = [model for model in models if isinstance(model, BenchmarkModel)]
    results = [TaskResults(task) for task in suite.tasks]
    rival_parts: dict[str, Part] = {}
    model_parts: dict[tuple[str, str], Part] = {}
    items: dict[tuple[str, str], list[Part]] = {}
    for each in results:
        task = each.task
        reason = task.check()
        if not reason:
            try:
                reads = task.reads
                of_task = task.identity()
            except (DataError, StoreError) as error:
                reason = str(error)
        if reason:
            each.skipped[""] = reason
            say(f"skipped: {task.name}: {reason}")
            continue
        fitting = [model for model in encoders if model.reads == reads]
        for model in encoders:
            if model not in fitting:
                each.skipped[model.name] = f"reads {model.reads}, the task has {reads}"
        first = fitting[0] if fitting and task.rivals_read_the_model else None
        part = Part(task, identity_of(of_task, first, is_rivals=True), is_rivals=True)
        rival_parts[task.name] = part
        items.setdefault((task.group, "" if first is None else first.name), []).append(part)
        for model in fitting:
            part = Part(task, identity_of(of_task, model, is_rivals=False), is_rivals=False)
            model_parts[task.name, model.name] = part
            items.setdefault((task.group, model.name), []).append(part)
    if not rival_parts:
        first_reason = next(iter(results)).skipped[""]
        raise ConfigError(f"--suite {suite.name}: none of its tasks can run; {first_reason}")
    model_by_name = {model.name: model for model in encoders}
    work = [WorkItem(out, model_by_name.get(name), parts) for (_, name), parts in items.items()]
    _do(work, with_ray=with_ray, verbose=verbose, out=out)
    kept = Results(out)
    for each in results:
        if each.task.name not in rival_parts:
            continue
        each.rivals = kept.of_rivals(rival_parts[each.task.name])
        for model in encoders:
            own = model_parts.get((each.task.name, model.name))
            result = None if own is None else kept.of_model(own)
            if result is not None:
                each.by_model[model.name] = result
        for item in work:
            for part in item.parts:
                reason = item.reason_by_part.get(str(part), "")
                if part.task is each.task and reason:
                    name = item.model.name if item.model and not part.is_rivals else RIVAL_ROWS
                    each.skipped[name] = reason
    return results


def _do(work: Sequence[WorkItem], *, with_ray: bool, verbose: bool, out: Path) -> None:
    """Do what is not done, on a cluster or here."""
    say = BenchmarkLog(out).say
    missing = [item for item in work if not item.is_done]
    for item in work:
        if item.is_done:
            say(f"read back: {item}")
    if with_ray:
        run_tasks(
            missing, Compute(), needs_gpu=lambda item: item.model is not None, verbose=verbose
        )
        return
    for number, item in enumerate(missing, start=1):
        item.keep(item.work())
        print(f"{item}: {number} of {len(missing)}", flush=True)
