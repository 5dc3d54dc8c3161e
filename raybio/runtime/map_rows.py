"""Map rows by Ray Data."""

from collections.abc import Callable
from functools import partial
from typing import Any

from raybio.core.errors import RaybioError
from raybio.runtime.task_errors import error_columns, raise_error_of


def map_rows(
    workers: int, rows: list[dict[str, Any]], function: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[Any]:
    """Apply a function to each row in a separate task; return the results in any order.

    Tasks run on any node of the cluster, so all nodes must see the files that tasks read.

    Raises:
        RaybioError: the first error of a task, also for a full disk.
    """
    from raybio.runtime.cluster.connection import connected

    with connected(workers):
        import ray.data

        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        # There is no progress while all tasks work on large files, or wait for a CPU.
        context.execution_no_progress_timeout_s = -1
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows))
        mapped = dataset.map(
            partial(_map_row, function),
            num_cpus=0.8,
            compute=ray.data.TaskPoolStrategy(size=workers),
        )
        results = []
        for row in mapped.iter_rows():
            raise_error_of(row)
            results.append(row)
        return results


def _map_row(
    function: Callable[[dict[str, Any]], dict[str, Any]], row: dict[str, Any]
) -> dict[str, Any]:
    try:
        return function(row)
    except (RaybioError, OSError) as error:
        return error_columns(error)
