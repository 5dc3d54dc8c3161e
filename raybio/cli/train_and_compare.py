"""Train the runs of a command, and print their table."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from raybio.core.records import read_recomputable
from raybio.runtime.compare.table import ResultTable, lines_for_terminal, write_joint_table
from raybio.runtime.compare.variations import Variation, compare, variants_of
from raybio.runtime.run.driver import TrainRequest, check_request, with_precision
from raybio.runtime.run.folder import RunFolder


def train_and_show(
    settled: Mapping[str, Mapping[str, Any]], compared: Sequence[str], seeds: int
) -> None:
    """Train what was asked for, one after the other, each compared with its kin; several end in one more table.

    Args:
        settled: name of a part of the job -> the fields of its ``TrainRequest``.
        compared: other values of settings, as ``--compare`` takes them.
        seeds: how many seeds each is trained with.

    Raises:
        RaybioError: as ``train``; what can be known to be wrong with any part, before the first is trained.
    """
    requests = {name: TrainRequest(**fields) for name, fields in settled.items()}
    several = len(requests) > 1
    if several:
        runs = [
            variants.request
            for request in requests.values()
            for variants in variants_of(request, _variations(request, compared, seeds))
        ]
        for run in runs:
            check_request(run)
        precision_by_run = {run.name: run.precision for run in with_precision(runs)}
        requests = {
            name: replace(request, precision=precision_by_run[request.name])
            for name, request in requests.items()
        }
    shown = {}
    for name, request in requests.items():
        if several:
            print(f"\n{name}", flush=True)
        shown[name] = _train_and_show(request, _variations(request, compared, seeds))
    if several:
        path = write_joint_table(shown)
        print(f"\n{path.read_text(encoding='utf-8')}\n{path}")


def _variations(request: TrainRequest, compared: Sequence[str], seeds: int) -> list[Variation]:
    variations = [Variation.parse(text) for text in compared]
    if seeds > 1:
        first = request.config.seed
        variations.append(Variation("seed", tuple(range(first, first + seeds))))
    return variations


def _train_and_show(
    request: TrainRequest, variations: Sequence[Variation]
) -> tuple[ResultTable, RunFolder]:
    result, table = compare(request, variations)
    console = Console()
    if result.was_finished:
        console.print(
            f"{result.folder.name} was finished already, at step {result.step:,}", highlight=False
        )
    for renderable in lines_for_terminal(table):
        console.print(renderable)
    uri = (read_recomputable(result.folder.tracking, "tracking") or {}).get("uri", "")
    for what, where in {
        "result": result.folder.result,
        "model": result.folder.export,
        "plots": result.folder.plots,
        "MLflow": f"run {result.mlflow_run_id}, mlflow ui --backend-store-uri {uri.split('@')[-1]}",
    }.items():
        console.print(f"{what:>7}: {where}", highlight=False, soft_wrap=True, markup=False)
    return table, result.folder
