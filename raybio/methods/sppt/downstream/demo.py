"""The embedded default task: folds of simulated domains, to be told in families that training has not seen.

A fold's motif changes from family to family; a sequence is its family's motif between random ends.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from pydantic import Field

from raybio.core.config import BaseConfig, fingerprint
from raybio.methods.sppt.downstream.formats import read_task_files
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.methods.sppt.downstream.tasks import prepare_task
from raybio.store.demo_corpus import cached_store
from raybio.store.store import SCHEMA_VERSION

VERSION = 1
"""Rises whenever the same settings give another task or another store of it."""


RESIDUES = "ACDEFGHIKLMNPQRSTVWY"


TAPE_FILES = {"train": "train", "dev": "valid", "test": "test_fold_holdout"}


class FoldsConfig(BaseConfig):
    """Size and shape of the simulated folds."""

    num_folds: int = Field(12, ge=2, description="classes")
    families_per_fold: int = Field(
        6, ge=3, description="families of each; the last is test, the one before dev"
    )
    rows_per_family: int = Field(12, ge=1, description="sequences of each")
    motif_length: int = Field(30, ge=5, description="residues of a fold's motif")
    divergence: float = Field(
        0.3, ge=0, le=1, description="share of the motif that a family changes"
    )
    seed: int = Field(0, ge=0, description="of everything")


def default_task(directory: str | Path, config: FoldsConfig | None = None) -> TaskStore:
    """The embedded task, simulated and prepared the first time, opened afterwards.

    Args:
        directory: where it is kept, under a name that depends on every setting.
        config: settings; the demo's if None.

    Raises:
        StoreError: if the directory cannot be written.
    """
    config = config or FoldsConfig()
    home = Path(directory) / f"folds-{VERSION}.{SCHEMA_VERSION}-{fingerprint(config)}"

    def make(raw: Path, store: Path) -> TaskStore:
        files, examples = read_task_files("remote_homology", write_folds(raw, config))
        return prepare_task(store, "remote_homology", files, examples)

    return cached_store(home, TaskStore, make)


def write_folds(directory: str | Path, config: FoldsConfig) -> Path:
    """Simulate, and write TAPE's JSON files into a folder. The same settings give the same bytes."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[dict[str, object]]] = {split: [] for split in TAPE_FILES}
    for split, sequence, fold in _rows(config):
        rows[split].append({"primary": sequence, "fold_label": fold})
    for split, ending in TAPE_FILES.items():
        (folder / f"remote_homology_{ending}.json").write_text(json.dumps(rows[split]))
    return folder


def _rows(config: FoldsConfig) -> Iterator[tuple[str, str, int]]:
    rng = np.random.default_rng(config.seed)
    letters = np.array(list(RESIDUES))
    for fold in range(config.num_folds):
        motif = rng.choice(letters, config.motif_length)
        for family in range(config.families_per_fold):
            is_changed = rng.random(config.motif_length) < config.divergence
            own = np.where(is_changed, rng.choice(letters, config.motif_length), motif)
            left = config.families_per_fold - family
            split = "test" if left == 1 else "dev" if left == 2 else "train"
            for _ in range(config.rows_per_family):
                ends = [rng.choice(letters, int(rng.integers(3, 12))) for _ in range(2)]
                yield split, "".join(np.concatenate([ends[0], own, ends[1]])), fold
