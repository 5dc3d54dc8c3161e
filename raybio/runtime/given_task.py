"""A downstream task on the command line: its files become a store, and its published settings come first."""

import argparse
import math
from pathlib import Path
from typing import NamedTuple

from raybio.config import did_you_mean, fingerprint
from raybio.data.prepare import demand_files, describe_files
from raybio.data.store import open_store
from raybio.data.task_files import read_task_files
from raybio.data.task_store import TaskStore
from raybio.data.tasks import TASKS, TaskConfig, prepare_task
from raybio.errors import ConfigError, StoreError
from raybio.runtime.launch import default_folder

BATCH = "plan.global_batch_rows"


class Published(NamedTuple):
    """Settings of the SPPT paper's code for a task.

    Attributes:
        rows: of a step.
        rate: learning rate.
        epochs: at most.
        stops_early: after 25 epochs without a better loss on dev; else the rate rises and falls.
    """

    rows: int
    rate: float
    epochs: int
    stops_early: bool


PUBLISHED = {
    "remote_homology": Published(16, 1e-5, 200, True),
    "secondary_structure": Published(16, 1e-5, 200, True),
    "stability": Published(512, 1e-4, 200, True),
    "fluorescence": Published(128, 5e-5, 200, True),
    "paper_field": Published(32, 5e-5, 2, False),
    "scicite": Published(32, 1e-5, 3, False),
    "acl_arc": Published(32, 5e-5, 4, False),
}


def with_task(arguments: list[str]) -> list[str]:
    """The arguments of a training command in place of ``TASK --data FILES``; the store is prepared if it is not there.

    Raises:
        ConfigError: for an unknown task, or one without its files.
        DataError: if the files are damaged, or none of the task.
    """
    if not arguments or arguments[0].startswith("-"):
        return arguments
    name, *rest = arguments
    if name not in TASKS:
        near = did_you_mean(name, list(TASKS))
        raise ConfigError(f"{name!r} is no task; want one of {', '.join(TASKS)}, or options alone.{near}")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--store", type=Path)
    given, others = parser.parse_known_args(rest)
    if (given.data is None) == (given.store is None):
        raise ConfigError(f"{name}: want either --data FILES (see docs/structure_preserving.md) or --store STORE")
    path = given.store if given.data is None else kept_task(name, given.data)
    store = open_store(path, TaskStore)
    if store.task != name:
        raise ConfigError(f"--store {path}: is of {store.task}, want one of {name}")
    settings = published_settings(name, len(store.split_rows("train")), _rows_of_a_step(others, PUBLISHED[name].rows))
    chosen = [part for setting, value in settings.items() for part in ("--set", f"{setting}={value}")]
    return ["--store", str(path), *chosen, *others]


def kept_task(name: str, data: Path) -> Path:
    """The store of these files, prepared the first time.

    Raises:
        DataError: if the files are damaged, or none of the task.
        StoreError: if the store cannot be written.
    """
    files, examples = read_task_files(name, data)
    demand_files(files)
    digest = fingerprint(TaskConfig()) + describe_files(files)["sha256"]
    path = default_folder("stores", "RAYBIO_STORES") / f"{name}-{digest[:4]}{digest[-8:]}"
    try:
        open_store(path, TaskStore)
    except StoreError:
        print(f"{name}: a store of {data} in {path}", flush=True)
        prepare_task(path, name, files, examples)
    return path


def published_settings(name: str, num_train: int, rows: int) -> dict[str, object]:
    """The paper's settings for a task with so many training rows, in steps of ``rows`` sequences."""
    published = PUBLISHED[name]
    epoch = max(1, math.ceil(num_train / rows))
    settings: dict[str, object] = {
        BATCH: rows,
        "optim.peak_lr": published.rate,
        "schedule.max_steps": epoch * published.epochs,
        "schedule.evaluate_every_steps": epoch,
        "schedule.checkpoint_every_steps": epoch,
    }
    if published.stops_early:
        return settings | {"schedule.early_stopping_metric": "val/log_likelihood"}
    return settings | {"optim.schedule": "linear", "optim.warmup_ratio": 0.2}


def _rows_of_a_step(arguments: list[str], usual: int) -> int:
    """What the last ``--set plan.global_batch_rows=`` says, so that epochs are reckoned by it."""
    found = [text.partition("=")[2] for text in arguments if text.startswith(f"{BATCH}=")]
    return int(found[-1]) if found and found[-1].isdigit() and int(found[-1]) else usual
