"""A small model and its checkpoints, for the tests of checkpoints."""

import hashlib
from pathlib import Path

import torch
from torch import Tensor, nn

from raybio.core.config import BaseConfig
from raybio.training.checkpoint import CheckpointStore
from raybio.training.optim import build_optimizer
from raybio.training.settings import OptimConfig
from raybio.training.snapshot import TrainingState

FILES = ["manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"]
DATA = "d" * 64


class Settings(BaseConfig):
    width: int = 4
    max_steps: int = 10
    optim: OptimConfig = OptimConfig()


class SmallModel(nn.Module):
    """Has what real models have: tied weights, a buffer, a frozen part, a part without gradient."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.embed.weight
        self.unused = nn.Linear(2, 2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, token_N: Tensor) -> Tensor:
        return self.head(self.norm(self.embed(token_N)))


def new_state(seed: int = 0) -> TrainingState:
    model = SmallModel(seed)
    return TrainingState(model, build_optimizer(model, OptimConfig()), {"seen": seed})


def train(state: TrainingState, steps: range) -> None:
    for step in steps:
        token_N = torch.randint(0, 7, (16,), generator=torch.Generator().manual_seed(step))
        state.optimizer.zero_grad()
        nn.functional.cross_entropy(state.model(token_N), token_N).backward()
        state.optimizer.step()


def weights_hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def open_store(folder: Path, **options: object) -> CheckpointStore:
    store = CheckpointStore(folder, **{"retry_delays_seconds": (), **options})
    store.load_newest(Settings(), DATA)
    return store


def save_steps(folder: Path, *steps: int, keep: int = 3) -> None:
    store = open_store(folder, keep=keep)
    for step in steps:
        store.save(new_state(step), step)
    store.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
