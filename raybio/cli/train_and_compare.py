"""Train the runs of a command, compare them, and print their tables."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from raybio.cli.console import stdout_console
from raybio.core.records import read_recomputable
from raybio.runtime.compare.table import ResultTable, lines_for_terminal, write_joint_table
from raybio.runtime.compare.variations import Variation, compare_all, plan_of
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.result import Result
from raybio.runtime.run.spec import RunSpec
from raybio.runtime.spool.spool import announce_copy, publish
from raybio.runtime.tracking.registry import Registration, register
from raybio.runtime.tracking.tracker import how_to_show


def train_and_compare(
    spec_by_part: Mapping[str, RunSpec],
    compared: Sequence[str],
    seeds: int,
    *,
    is_dry_run: bool = False,
    registration: Registration | None = None,
) -> None:
    """Train the runs of all parts of a command, and print the table of each part.

    Each part is compared with its variants. Several parts, such as tasks, also get a joint table.

    Args:
        spec_by_part: run of each part of the command, by the part's name.
        compared: other values of settings, as ``--compare`` takes them.
        seeds: number of seeds that each run is trained with.
        is_dry_run: print the runs and their time, and train none.
        registration: registers the run of each part as a model; with several parts, the part's name
            is appended. None: none is registered.

    Raises:
        RaybioError: as ``compare_all`` and ``register``.
    """
    specs = spec_by_part.values()
    for bucket, runs in {(spec.bucket, spec.runs) for spec in specs}:
        announce_copy("runs", runs, bucket)
    comparisons = [(spec, _variations(spec, compared, seeds)) for spec in specs]
    if is_dry_run:
        print("\n".join(plan_of(comparisons)))
        return
    compared_parts = {}
    for name, (result, table) in zip(spec_by_part, compare_all(comparisons), strict=True):
        if len(spec_by_part) > 1:
            print(f"\n{name}", flush=True)
        _print_result(result, table)
        bucket = spec_by_part[name].bucket
        if bucket is not None:
            print(f" bucket: {bucket / result.folder.name}, with all of it", flush=True)
        if registration is not None:
            _register(result, registration, part=name if len(spec_by_part) > 1 else "")
        compared_parts[name] = (table, result.folder)
    if len(spec_by_part) > 1:
        path = write_joint_table(compared_parts)
        first = next(iter(specs))
        if first.bucket is not None:
            publish(first.folder, first.bucket)
        print(f"\n{path.read_text(encoding='utf-8')}\n{path}")


def _register(result: Result, registration: Registration, *, part: str) -> None:
    if part:
        registration = replace(registration, name=f"{registration.name}-{part}")
    version = register(result.folder, registration)
    uri = f"models:/{registration.name}/{version}"
    if registration.alias is not None:
        uri += f", models:/{registration.name}@{registration.alias}"
    print(f"registered: {uri}", flush=True)


def _variations(spec: RunSpec, compared: Sequence[str], seeds: int) -> list[Variation]:
    variations = [Variation.parse(text) for text in compared]
    if seeds > 1:
        first = spec.config.seed
        variations.append(Variation("seed", tuple(range(first, first + seeds))))
    return variations


def _print_result(result: Result, table: ResultTable) -> None:
    folder = result.folder
    console = stdout_console()
    if result.was_finished:
        console.print(
            f"{folder.name} was finished already, at step {result.step:,}", highlight=False
        )
    if result.best_step is not None:
        schedule = result.config["schedule"]
        metric = schedule["keep_best"] or schedule["early_stopping_metric"]
        console.print(
            f"weights of step {result.best_step:,} of {result.step:,}, the best by {metric}",
            highlight=False,
        )
    for renderable in lines_for_terminal(table):
        console.print(renderable)
    lines = {
        "result": folder.result,
        "model": folder.export,
        "plots": folder.plots,
        "MLflow": mlflow_line(folder, result.mlflow_run_id),
    }
    for title, text in lines.items():
        console.print(f"{title:>7}: {text}", highlight=False, soft_wrap=True, markup=False)


def mlflow_line(folder: RunFolder, run_id: str | None) -> str:
    """Return a line on where to find a run in MLflow.

    Args:
        folder: the run's folder.
        run_id: MLflow's run id in the result; None if the run finished while MLflow was
            unavailable, which may have assigned an id since.
    """
    tracked = read_recomputable(folder.tracking, "tracking") or {}
    run_id = tracked.get("run_id") or run_id
    if not run_id:
        return "has no run yet; the same command sends it"
    return how_to_show(run_id, tracked.get("uri", ""))
