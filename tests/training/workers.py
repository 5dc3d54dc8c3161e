"""Real gloo processes for tests: each runs a function of (rank, collective, folder)."""

import datetime
import multiprocessing
import multiprocessing.forkserver
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from raybio.training.collective import ProcessGroup

TIMEOUT_SECONDS = 1500
"""Ends a hang. Processes form their group late on a busy machine."""

SLOW_TO_IMPORT = ("torch.distributed", "transformers.models.bert.modeling_bert", "raybio.methods")

Work = Callable[[int, ProcessGroup, Path], None]


def run_workers(work: Work, world: int, folder: Path) -> None:
    """Run ``work`` in ``world`` processes; an exception in any of them is raised here."""
    forkserver()
    mp.start_processes(
        _worker, args=(work, world, str(folder)), nprocs=world, start_method="forkserver"
    )


def forkserver() -> ForkServerContext:
    """Return a context that forks from a server with the slow imports of the tests.

    It starts processes in a tenth of the time of new interpreters. A fork of the test process
    itself would inherit its autograd threads, which torch refuses.
    """
    multiprocessing.set_forkserver_preload([name for name in SLOW_TO_IMPORT if name in sys.modules])
    multiprocessing.forkserver.ensure_running()
    return multiprocessing.get_context("forkserver")


def _worker(rank: int, work: Work, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=TIMEOUT_SECONDS),
    )
    try:
        work(rank, ProcessGroup(), Path(folder))
    finally:
        dist.destroy_process_group()
