"""Folds."""

import random
from dataclasses import dataclass

import numpy as np

from raybio.methods.relation_graphs.config import FoldConfig
from raybio.methods.relation_graphs.store import WordStore

VALIDATION_SEED = 42
"""The authors'."""


@dataclass(frozen=True)
class Fold:
    """Rows of a fold, ascending."""

    train: np.ndarray
    dev: np.ndarray
    test: np.ndarray


def read_fold(store: WordStore, config: FoldConfig) -> Fold:
    """The rows of a fold.

    Raises:
        ConfigError: if the store has no such fold.
    """
    train, dev, test = (store.fold_rows(config.fold, split) for split in ("train", "dev", "test"))
    if not len(dev) and config.validation_share:
        # As the authors draw them, from Python's own generator and the fold's own order: the very
        # same sentences.
        size = int(config.validation_share * len(train))
        chosen = np.zeros(len(train), dtype=bool)
        chosen[random.Random(VALIDATION_SEED).sample(range(len(train)), size)] = True
        train, dev = train[~chosen], train[chosen]
    return Fold(
        np.union1d(train, dev) if config.train_on_validation else np.sort(train),
        np.sort(dev),
        np.sort(test),
    )
