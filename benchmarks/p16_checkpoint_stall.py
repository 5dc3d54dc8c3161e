"""P16: how long training stands still for a checkpoint of 50 M parameters with AdamW's moments (600 MB).

Peer: ``torch.save`` of both state dicts to the same disk, without a Ray report and without fsync, both
of which would only make it slower. Ours: ``CheckpointStore.save``; its thread then writes, hashes and syncs. A second
result charges us for that thread as well: the same training steps after either, from the call to the thread's end.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import nn
from training_setup import paired_seconds

from raybio.config import Config
from raybio.training.checkpoint import CheckpointStore, TrainingState

WIDTH, NUM_LAYERS, NUM_PAIRS = 2048, 12, 5


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


def report(peer: str, pairs: list[tuple[float, float]], note: Callable[[float, float], str]) -> None:
    ratios = [theirs / ours for theirs, ours in pairs]
    result = {
        "row": "P16",
        "peer": peer,
        "median_ratio": round(median(ratios), 2),
        "min_ratio": round(min(ratios), 2),
        "note": note(median(theirs for theirs, _ in pairs), median(ours for _, ours in pairs)),
    }
    print(json.dumps(result), flush=True)


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="p16-"))
    state = state_of_50m()
    num_parameters = sum(parameter.numel() for parameter in state.model.parameters())
    store = CheckpointStore(folder / "ours", keep=1)
    store.load_newest(Config(), "data")
    num_steps = 4

    def peer_save() -> None:
        torch.save({"model": state.model.state_dict(), "optimizer": state.optimizer.state_dict()}, folder / "peer.pt")

    def our_save() -> None:
        store.save(state, 1)

    def peer_stall() -> float:
        store.wait()
        return clock(peer_save)

    def our_stall() -> float:
        store.wait()  # a run's checkpoints lie further apart than one takes to write
        return clock(our_save)

    def peer_and_steps() -> None:
        peer_save()
        for _ in range(num_steps):
            train(state)

    def ours_and_steps() -> None:
        our_save()
        for _ in range(num_steps):
            train(state)
        store.wait()

    try:
        peer_stall(), our_stall(), store.wait()
        check_equal(folder / "peer.pt", store)
        stalls = []
        for _ in range(NUM_PAIRS):
            a, b = peer_stall(), our_stall()
            b, a = b + our_stall(), a + peer_stall()
            stalls.append((a / 2, b / 2))
        size = f"{num_parameters / 1e6:.0f} M parameters"
        report(
            "torch.save",
            stalls,
            lambda peer, ours: f"{size}; stall {ours / peer:.2f}× of the peer's ({ours:.2f} s against {peer:.2f} s)",
        )
        store.wait()
        report(
            f"torch.save, then {num_steps} steps either way",
            paired_seconds(peer_and_steps, ours_and_steps, NUM_PAIRS),
            lambda peer, ours: f"{size}; all that saving costs, the writing thread included, fsync only on our side",
        )
    finally:
        store.close()
        shutil.rmtree(folder)


def clock(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
