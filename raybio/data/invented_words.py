"""Words for simulated corpora."""

import numpy as np

_SYLLABLES = [first + second for first in "bcdfglmnprstv" for second in ("a", "e", "i", "o", "u", "an", "er", "ol")]


class InventedWords:
    """Words of two to four syllables, never one twice."""

    def __init__(self, rng: np.random.Generator) -> None:
        """Draw from ``rng``."""
        self.rng, self.seen = rng, set[str]()

    def new(self) -> str:
        """The next word."""
        while True:
            word = "".join(self.rng.choice(_SYLLABLES, int(self.rng.integers(2, 5))))
            if word not in self.seen:
                self.seen.add(word)
                return word
