"""Prefetching of batches in a thread while a GPU computes earlier ones."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from raybio.core.batch import TokenBatch
from raybio.training.loop import Batches

DEPTH = 2
"""Batches that are made ahead."""


def prefetched(batches: Batches) -> Batches:
    """Return the same batches in the same order, made ahead by a thread.

    The thread collates while the host waits for a GPU. On a CPU there is no gain, since both would
    take turns.
    """

    def ahead(first_step: int) -> Iterator[tuple[int, TokenBatch]]:
        """Yield the batches of ``first_step`` and all later steps."""
        iterator = batches(first_step)
        thread = ThreadPoolExecutor(1, thread_name_prefix="raybio-collate")
        try:
            waiting = deque(thread.submit(next, iterator, None) for _ in range(DEPTH))
            while (batch := waiting.popleft().result()) is not None:
                waiting.append(thread.submit(next, iterator, None))
                yield batch
        finally:
            thread.shutdown(cancel_futures=True)

    return ahead
