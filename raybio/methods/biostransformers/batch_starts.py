"""Where in the stream of pairs the batches of ``drop`` start.

A batch starts where the one before ended, so the start of a step follows from all batches before
it. Every 64th start is kept in the machine's cache: a process fills at most 64 batches to find the
start of a step that an earlier process of the machine has been at.

Shape letters: B pairs of a batch, K kept starts.
"""

from collections.abc import Callable

import numpy as np

from raybio.core.cache import shared_beginning

STEPS_PER_START = 64
"""Steps from one kept start to the next: filling as many batches takes half a second at most."""


class BatchStarts:
    """The starts of consecutive batches, the first one at 0.

    Args:
        series: a file name that identifies everything that the batches depend on.
        fill: returns the positions (B,) in the stream of the batch that starts at a position.
    """

    def __init__(self, series: str, fill: Callable[[int], np.ndarray]) -> None:
        self._series = f"{series}-every-{STEPS_PER_START}"
        self._fill = fill
        self._kept = [0]
        self._blocks: dict[int, list[int]] = {}
        """The starts after a kept one, as far as they are known, for the last two of these."""

    def start(self, step: int) -> int:
        """Return the position in the stream at which the batch of ``step`` starts."""
        number, index = divmod(step, STEPS_PER_START)
        while number >= len(self._kept):
            kept_K = shared_beginning(self._series, len(self._kept) + 1, self._with_one_more)
            self._kept = kept_K.tolist()
        return self._start_in_block(number, index)

    def positions(self, step: int) -> np.ndarray:
        """Return the positions (B,) in the stream of the batch of ``step``."""
        self.start(step)
        return self._fill_in_block(*divmod(step, STEPS_PER_START))

    def _with_one_more(self) -> np.ndarray:
        start = self._start_in_block(len(self._kept) - 1, STEPS_PER_START)
        return np.array([*self._kept, start], dtype=np.int64)

    def _start_in_block(self, number: int, index: int) -> int:
        if number not in self._blocks:
            while len(self._blocks) > 1:
                del self._blocks[min(self._blocks)]
            self._blocks[number] = [self._kept[number]]
        starts = self._blocks[number]
        while index >= len(starts):
            self._fill_in_block(number, len(starts) - 1)
        return starts[index]

    def _fill_in_block(self, number: int, index: int) -> np.ndarray:
        starts = self._blocks[number]
        position_B = self._fill(starts[index])
        if index + 1 == len(starts):
            starts.append(int(position_B[-1]) + 1)
        return position_B
