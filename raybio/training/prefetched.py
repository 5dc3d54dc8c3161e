"""Batches that a thread makes while a GPU computes earlier ones."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from raybio.core.batch import TokenBatch
from raybio.training.loop import Batches

DEPTH = 2
"""Batches that are made ahead."""


def prefetched(batches: Batches) -> Batches:
    """Return the same batches in the same order, made ahead by a thread.

    The host waits for a GPU most of the time, and the thread collates meanwhile. On a CPU both
    would compute in turns, which gains nothing.
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
