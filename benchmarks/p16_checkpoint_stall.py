"""P16: how long training stands still for a checkpoint of 50 M parameters with AdamW's moments (600 MB).

Peer: ``torch.save`` of both state dicts to the same disk, without a Ray report and without fsync, both
of which would only make it slower. Ours: ``CheckpointStore.save``; its thread then writes, hashes and syncs, which
costs processor time that the note gives.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from _measure import NUM_PAIRS, SMALL
from torch import nn

from raybio.core.config import BaseConfig
from raybio.training.checkpoint import CheckpointStore
from raybio.training.snapshot import TrainingState

WIDTH, NUM_LAYERS = (64, 2) if SMALL else (2048, 12)


class Stall(NamedTuple):
    seconds: float
    cpu_seconds: float

    def __add__(self, other: "Stall") -> "Stall":  # type: ignore[override]
        return Stall(self.seconds + other.seconds, self.cpu_seconds + other.cpu_seconds)


def state_of_50m() -> TrainingState:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS)])
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    state = TrainingState(model, optimizer, {})
    train(state)
    return state


def train(state: TrainingState) -> None:
    state.optimizer.zero_grad()
    state.model(torch.ones(64, WIDTH)).square().mean().backward()
    state.optimizer.step()


def check_equal(peer_file: Path, store: CheckpointStore) -> None:
    peer = torch.load(peer_file, weights_only=True)
    newest = store.latest()
    assert newest is not None
    for name, tensor in newest.model_tensors().items():
        assert torch.equal(tensor, peer["model"][name])


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="p16-"))
    state = state_of_50m()
    store = CheckpointStore(folder / "ours", keep=1)
    store.load_newest(BaseConfig(), "data")

    def peer_save() -> None:
        torch.save(
            {"model": state.model.state_dict(), "optimizer": state.optimizer.state_dict()},
            folder / "peer.pt",
        )

    def our_save() -> None:
        store.save(state, 1)

    def peer_stall() -> Stall:
        store.wait()
        return clock(peer_save)

    def our_stall() -> Stall:
        store.wait()  # a run's checkpoints lie further apart than one takes to write
        return clock(our_save)

    try:
        peer_stall(), our_stall()
        writer_cpu_seconds = clock(store.wait).cpu_seconds
        check_equal(folder / "peer.pt", store)
        pairs = []
        for _ in range(NUM_PAIRS):
            first_a, first_b = peer_stall(), our_stall()
            second_b, second_a = our_stall(), peer_stall()
            pairs.append((first_a + second_a, first_b + second_b))
    finally:
        store.close()
        shutil.rmtree(folder)
    print(json.dumps(result(state, pairs, writer_cpu_seconds)), flush=True)


def result(
    state: TrainingState, pairs: list[tuple[Stall, Stall]], writer_cpu_seconds: float
) -> dict[str, object]:
    num_parameters = sum(parameter.numel() for parameter in state.model.parameters())
    ratios = [peer.seconds / ours.seconds for peer, ours in pairs]
    peer_cpu, our_cpu = (median(pair[side].cpu_seconds for pair in pairs) / 2 for side in (0, 1))
    return {
        "row": "P16",
        "peer": "torch.save",
        "median_ratio": round(median(ratios), 2),
        "min_ratio": round(min(ratios), 2),
        "note": f"{num_parameters / 1e6:.0f} M parameters; stall {1 / median(ratios):.2f}× of the peer's; processor "
        f"time of the stall {our_cpu:.2f} s against {peer_cpu:.2f} s, of our writing thread {writer_cpu_seconds:.1f} s",
    }


def clock(function: Callable[[], object]) -> Stall:
    start, cpu_start = time.perf_counter(), time.process_time()
    function()
    return Stall(time.perf_counter() - start, time.process_time() - cpu_start)


if __name__ == "__main__":
    main()
