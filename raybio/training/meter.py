"""Losses and rates of the training loop, for its reports."""

import time
from collections.abc import Iterator

import torch

from raybio.core.batch import TokenBatch
from raybio.core.interfaces import Collective


class Meter:
    """Losses of the last step, and rates since the last reading.

    Tokens are counted without padding. Rates include the time in which the loop waits for input. A
    GPU may still compute during this time, so it costs less than measured. Of several workers, the
    one that waited longest counts: the others then wait for it in the step, not for input.
    """

    def __init__(self, collective: Collective) -> None:
        """Start the clock; every worker reads its meter after the same steps."""
        self._collective = collective
        self._last: dict[str, float] = {}
        self._tokens = 0.0
        self._steps = 0
        self._stall_seconds = 0.0
        self._since = time.perf_counter()

    def timed(self, batches: Iterator[tuple[int, TokenBatch]]) -> Iterator[tuple[int, TokenBatch]]:
        """Yield the batches, and add the time that each takes to arrive."""
        while True:
            since = time.perf_counter()
            item = next(batches, None)
            self._stall_seconds += time.perf_counter() - since
            if item is None:
                return
            yield item

    def add(self, metrics: dict[str, float]) -> None:
        """Add the metrics of a step."""
        self._last = metrics
        self._tokens += metrics["tokens"]
        self._steps += 1

    def read(self) -> dict[str, float]:
        """Return the last losses and the rates since the last reading."""
        seconds = time.perf_counter() - self._since
        stall_seconds = torch.tensor(self._stall_seconds, dtype=torch.float64)
        rates = {
            "tokens_per_second": self._tokens / seconds,
            "steps_per_second": self._steps / seconds,
            "stall_seconds": self._collective.all_max(stall_seconds).item(),
        }
        self._tokens = 0.0
        self._steps = 0
        self._stall_seconds = 0.0
        self.restart_clock()
        return self._last | rates

    def restart_clock(self) -> None:
        """Exclude the time since the last reading from the rates."""
        self._since = time.perf_counter()
