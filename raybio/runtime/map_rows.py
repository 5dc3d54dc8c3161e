"""Map rows by Ray Data."""

from collections.abc import Callable
from typing import Any


def map_rows(
    workers: int, rows: list[dict[str, Any]], function: Callable[[dict[str, Any]], Any]
) -> list[Any]:
    """Apply a function to each row as a task of its own; return the results in any order.

    Tasks run on any node of the cluster: all nodes must see the files that they read.
    """
    from raybio.runtime.cluster.connection import connected

    with connected(workers):
        import ray.data

        ray.data.DataContext.get_current().enable_progress_bars = False
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows))
        mapped = dataset.map(
            function, num_cpus=0.8, compute=ray.data.TaskPoolStrategy(size=workers)
        )
        return list(mapped.iter_rows())
