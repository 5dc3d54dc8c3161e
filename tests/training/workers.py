"""Real gloo processes for tests: each runs a function of (rank, collective, folder)."""

import datetime
import multiprocessing
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from raybio.training.gather import ProcessGroup

TIMEOUT_SECONDS = 60

Work = Callable[[int, ProcessGroup, Path], None]


def run_workers(work: Work, world: int, folder: Path, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
    """Run ``work`` in ``world`` processes; an exception in any of them is raised here."""
    # A server that has imported torch forks the workers, in a tenth of the time that new interpreters take; forking
    # the test process itself would take its autograd threads along, which torch refuses.
    multiprocessing.set_forkserver_preload(["torch.distributed", "raybio.training.gather"])
    mp.start_processes(
        _worker, args=(work, world, str(folder), timeout_seconds), nprocs=world, start_method="forkserver"
    )


def _worker(rank: int, work: Work, world: int, folder: str, timeout_seconds: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=timeout_seconds),
    )
    try:
        work(rank, ProcessGroup(), Path(folder))
    finally:
        dist.destroy_process_group()
