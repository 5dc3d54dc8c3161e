"""Map rows by Ray Data."""

from collections.abc import Callable
from functools import partial
from typing import Any

from raybio.core.errors import RaybioError
from raybio.runtime.task_errors import error_columns, raise_error_of


def map_rows(
    workers: int, rows: list[dict[str, Any]], function: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[Any]:
    """Apply a function to each row as a task of its own; return the results in any order.

    Tasks run on any node of the cluster: all nodes must see the files that they read.

    Raises:
        RaybioError: the first one of a task; a full disk's, too.
    """
    from raybio.runtime.cluster.connection import connected

    with connected(workers):
        import ray.data

        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        # Nothing moves while each task works on a large file, or waits for a CPU.
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
