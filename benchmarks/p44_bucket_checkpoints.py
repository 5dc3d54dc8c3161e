"""P44: checkpoints of a run in a bucket beside those of a run in a local folder, of 50 M parameters (600 MB).

Peer: ``CheckpointStore`` in a local folder. Ours: the same with uploads to an S3 server (moto) in a process of its own
on this machine, behind a proxy that counts requests. The ratio is that of the training thread's stall at a save. The
note has requests a checkpoint, and what a start waits for: reading the newest checkpoint, here with an empty disk.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import torch
from _measure import NUM_PAIRS, SMALL, interleaved, report, seconds_of
from torch import nn

from raybio.core.config import BaseConfig
from raybio.core.location import BucketPath
from raybio.store.bucket import BucketFolder
from raybio.training.checkpoint import CheckpointStore
from raybio.training.remote_checkpoints import RemoteCheckpoints, last_step_of_log
from raybio.training.snapshot import TrainingState
from tests.s3 import ENVIRONMENT, serve_s3

NUM_LAYERS = 12
KEEP = 2


def serve(pipe: Connection) -> None:
    """Serve in this process; answer each message by the number of requests since the last one."""
    with serve_s3() as server:
        pipe.send((server.url, server.new_bucket().bucket))
        while pipe.recv():
            pipe.send(len(server.requests))
            server.requests.clear()


@contextlib.contextmanager
def server() -> Iterator[tuple[Connection, BucketPath]]:
    context = multiprocessing.get_context("spawn")
    pipe, end = context.Pipe()
    process = context.Process(target=serve, args=(end,))
    process.start()
    end.close()
    try:
        url, bucket = pipe.recv()
        os.environ |= ENVIRONMENT | {"AWS_ENDPOINT_URL": url}
        yield pipe, BucketPath("s3", bucket)
    finally:
        pipe.send(False)
        process.join()


class Run:
    """A run's checkpoints and its log."""

    def __init__(self, folder: Path, bucket: BucketFolder | None) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.log = folder / "metrics.jsonl"
        self.step = 0
        remote = None
        if bucket is not None:
            remote = RemoteCheckpoints(
                bucket,
                folder / "fetched",
                keep=KEEP,
                check_lease=lambda: None,
                on_change=lambda manifests: None,
                last_reported_step=lambda: last_step_of_log(self.log),
                log=self.log,
            )
        self.store = CheckpointStore(folder / "checkpoints", keep=KEEP, remote=remote)
        self.store.load_newest(BaseConfig(), "data")

    def save(self, state: TrainingState) -> float:
        """Save the next step, and return the seconds that the training thread stood still."""
        self.store.wait()
        self.step += 1
        seconds = seconds_of(lambda: self.store.save(state, self.step))
        with self.log.open("a") as log:
            log.write(json.dumps({"step": self.step, "time_ms": 0, "metrics": {}}) + "\n")
        return seconds


def new_state(width: int) -> TrainingState:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(NUM_LAYERS)])
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, width)).square().mean().backward()
    optimizer.step()
    return TrainingState(model, optimizer, {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=64 if SMALL else 2048, help="of the 12 layers")
    state = new_state(parser.parse_args().width)
    folder = Path(tempfile.mkdtemp(prefix="p44-"))
    try:
        with server() as (pipe, bucket):
            local = Run(folder / "local", None)
            own = BucketFolder(bucket / "runs" / "mine")
            ours = Run(folder / "ours", own)
            sides = [lambda: ours.save(state), lambda: local.save(state)]
            stalls = interleaved(sides, NUM_PAIRS, clock=lambda side: side())
            for run in (ours, local):
                run.save(state)
                run.store.wait()
            count(pipe)
            ours.save(state)
            ours.store.wait()
            requests = count(pipe)
            from_disk, from_bucket = reading_seconds(folder, own)
            ours.store.close()
            local.store.close()
    finally:
        shutil.rmtree(folder)
    ratios = [peer / own for own, peer in stalls]
    num_parameters = sum(parameter.numel() for parameter in state.model.parameters())
    note = (
        f"{num_parameters / 1e6:.3g} M parameters, keep {KEEP}: stall {1 / median(ratios):.2f}× of the local folder's; "
        f"{requests} requests a checkpoint; reading the newest at a start: {from_bucket / from_disk:.1f}× "
        f"({from_bucket:.2g} s of an empty disk, {from_disk:.2g} s of a local folder)"
    )
    report("P44", "local folder", median(ratios), min(ratios), note)


def reading_seconds(folder: Path, bucket: BucketFolder) -> tuple[float, float]:
    """Return the seconds to read and verify the newest checkpoint of a local folder and of a bucket."""
    local = CheckpointStore(folder / "local" / "checkpoints", keep=KEEP)
    from_disk = median(seconds_of(local.latest) for _ in range(NUM_PAIRS))
    times = []
    for _ in range(NUM_PAIRS):
        # It loads the newest checkpoint.
        times.append(seconds_of(lambda: Run(folder / "reader", bucket)))
        shutil.rmtree(folder / "reader")
    return from_disk, median(times)


def count(pipe: Connection) -> int:
    pipe.send(True)
    return int(pipe.recv())


if __name__ == "__main__":
    main()
