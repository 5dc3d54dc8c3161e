"""Workers of one run, as real processes without Ray."""

import datetime
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from raybio.runtime.run.spec import RunSpec
from raybio.store.store import Store
from raybio.training.collective import ProcessGroup
from raybio.training.settings import TrainingConfig
from tests.training.workers import TIMEOUT_SECONDS, run_workers

SHORT_SECONDS = 2


def verify_for_long(rank: int, collective: ProcessGroup, folder: Path, *, run: RunSpec) -> None:
    """Rank 0 verifies the store for longer than workers wait for one another."""
    from raybio.runtime.run import run_loop

    def set_timeout(seconds: int) -> None:
        dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=seconds))

    def meet_and_take_time(name: str) -> None:
        # Workers that have met are as slow as the machine.
        meet(name)
        set_timeout(TIMEOUT_SECONDS)

    def open_slowly(*arguments: Any, verify: bool = False, **options: Any) -> Store:
        if verify:
            time.sleep(2.5 * SHORT_SECONDS)
        return open_store(*arguments, verify=verify, **options)

    with collective.patient():  # both processes have imported everything
        pass
    meet = collective._meet
    collective._meet = meet_and_take_time  # type: ignore[method-assign]
    open_store = run_loop.open_store
    run_loop.open_store = open_slowly  # type: ignore[attr-defined]
    set_timeout(SHORT_SECONDS)
    system = run_loop.built_system(run, collective, verifies_store=rank == 0)
    assert system.name == "sppt_protein"
    assert collective.host_sum([1]) == [2]


def test_a_store_may_take_longer_to_verify_than_workers_wait_for_one_another(
    tmp_path: Path, tiny_store: Store, tiny_training: TrainingConfig
) -> None:
    run = RunSpec(
        method="sppt_protein",
        config=tiny_training,
        store=tiny_store.path,
        name="mine",
        runs=tmp_path / "runs",
    )
    run_workers(partial(verify_for_long, run=run), 2, tmp_path)
