"""A training that is killed, for a process of its own: a module that is imported fast."""

import os
import signal
from pathlib import Path

import torch

from raybio.training.checkpoint import CheckpointStore
from raybio.training.loop import fit
from raybio.training.settings import TrainingConfig
from tests.methods.conformance_cases import METHODS


def train_and_be_killed(
    name: str, config: TrainingConfig, store: Path, folder: Path, step: int, num_threads: int
) -> None:
    """Train into ``folder`` until SIGKILL after a step; with as many threads, for equal weights."""
    torch.set_num_threads(num_threads)
    system = METHODS[name].build(config, store)
    for report in fit(system, config, checkpoints=CheckpointStore(folder)):
        if report.step == step:
            os.kill(os.getpid(), signal.SIGKILL)
