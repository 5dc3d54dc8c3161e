"""Training, validation and test sentences of a fold."""

from dataclasses import dataclass

import numpy as np

from raybio.methods.relation_graphs.config import FoldConfig
from raybio.methods.relation_graphs.store import WordStore, draw_validation


@dataclass(frozen=True)
class FoldRows:
    """Rows of a fold, ascending."""

    train: np.ndarray
    dev: np.ndarray
    test: np.ndarray

    @property
    def train_and_dev(self) -> np.ndarray:
        """The sentences whose words and pairs predict those of test sentences."""
        return np.union1d(self.train, self.dev)


def read_fold(store: WordStore, config: FoldConfig) -> FoldRows:
    """Return the rows of a fold.

    Raises:
        ConfigError: if the store has no such fold.
    """
    train = store.fold_rows(config.fold, "train")
    dev = store.fold_rows(config.fold, "dev")
    test = store.fold_rows(config.fold, "test")
    if not len(dev):
        train, dev = draw_validation(train, config.validation_share)
    if config.train_on_validation:
        train = np.union1d(train, dev)
    return FoldRows(np.sort(train), np.sort(dev), np.sort(test))
