"""Map rows by Ray Data."""

from collections.abc import Callable
from typing import Any


def map_rows(
    workers: int, rows: list[dict[str, Any]], function: Callable[[dict[str, Any]], Any]
) -> list[Any]:
    """What becomes of the rows, in any order: a task a row, on whatever node; all of them must see the files."""
    from raybio.runtime.cluster.connection import connected

    with connected(workers):
        import ray.data

        ray.data.DataContext.get_current().enable_progress_bars = False
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows))
        mapped = dataset.map(
            function, num_cpus=0.8, compute=ray.data.TaskPoolStrategy(size=workers)
        )
        return list(mapped.iter_rows())
