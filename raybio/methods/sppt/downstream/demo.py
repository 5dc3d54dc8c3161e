"""Demo task: fold classification of simulated domains, of families that are not in training.

Each fold has a motif, of which each family changes a part. A sequence is its family's motif between
random ends.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from pydantic import Field

from raybio.core.config import BaseConfig
from raybio.methods.sppt.downstream.formats.read import read_task_files
from raybio.methods.sppt.downstream.prepare import prepare_task
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.store.demo_corpus import DemoCorpus

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
TAPE_FILES = {"train": "train", "dev": "valid", "test": "test_fold_holdout"}


class FoldsConfig(BaseConfig):
    """Size and shape of the simulated folds."""

    num_folds: int = Field(12, ge=2, description="classes")
    families_per_fold: int = Field(
        6, ge=3, description="families of a fold; the last is test, the one before it dev"
    )
    rows_per_family: int = Field(12, ge=1, description="sequences of a family")
    motif_length: int = Field(30, ge=5, description="residues of a fold's motif")
    divergence: float = Field(
        0.3, ge=0, le=1, description="fraction of the motif that a family changes"
    )
    seed: int = Field(0, ge=0, description="seed of the simulation")


def _prepare(raw: Path, store: Path, config: FoldsConfig) -> TaskStore:
    files, examples = read_task_files("remote_homology", write_folds(raw, config))
    return prepare_task(store, "remote_homology", files, examples)


SIMULATED_FOLDS = DemoCorpus(
    name="folds",
    version=1,
    config=FoldsConfig,
    kind=TaskStore,
    prepare_files=_prepare,
)
"""The demo corpus."""


def write_folds(directory: str | Path, config: FoldsConfig) -> Path:
    """Simulate a task and write it as TAPE's JSON files. Equal settings give equal bytes."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[dict[str, object]]] = {split: [] for split in TAPE_FILES}
    for split, sequence, fold in _rows(config):
        rows[split].append({"primary": sequence, "fold_label": fold})
    for split, ending in TAPE_FILES.items():
        (folder / f"remote_homology_{ending}.json").write_bytes(json.dumps(rows[split]).encode())
    return folder


def _rows(config: FoldsConfig) -> Iterator[tuple[str, str, int]]:
    """Yield split, sequence and fold."""
    rng = np.random.default_rng(config.seed)
    letters = np.array(list(RESIDUES))
    split_by_family = {config.families_per_fold - 2: "dev", config.families_per_fold - 1: "test"}
    for fold in range(config.num_folds):
        motif = rng.choice(letters, config.motif_length)
        for family in range(config.families_per_fold):
            is_changed = rng.random(config.motif_length) < config.divergence
            family_motif = np.where(is_changed, rng.choice(letters, config.motif_length), motif)
            split = split_by_family.get(family, "train")
            for _ in range(config.rows_per_family):
                start = rng.choice(letters, int(rng.integers(3, 12)))
                end = rng.choice(letters, int(rng.integers(3, 12)))
                yield split, "".join(np.concatenate([start, family_motif, end])), fold
