"""Downstream tasks: stores of their files, and the settings of the SPPT paper's code."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from raybio.core.errors import ConfigError
from raybio.core.location import Location
from raybio.core.recipes import recipes_of
from raybio.core.text import first_names
from raybio.methods.sppt.downstream.config import TASKS, Config
from raybio.methods.sppt.downstream.formats.read import read_task_files
from raybio.methods.sppt.downstream.prepare import DRAWN, prepare_task
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.runtime.run.options import RunOptions, default_folder
from raybio.store.demo_corpus import cached_store
from raybio.store.manifest import SCHEMA_VERSION
from raybio.store.sources import check_readable_files, describe_files
from raybio.store.store import SPLITS, open_store
from raybio.training.predictor import skipped_remarks
from raybio.training.settings import TrainingConfig

NUM_SPECIAL = 2
"""Maximum number of special tokens of a protein."""


MAX_SHOWN = 8
"""Maximum number of classes that are printed when a task's files are read."""


MIN_STEPS_BETWEEN_EVALUATIONS = 10
"""Fewest steps between two evaluations of a user's own task, if epochs are shorter."""

MIN_EVALUATIONS = 4
"""Evaluations that even the shortest training has, unless it has fewer epochs."""

VERSION = 2
"""Raised whenever the same files give another store."""


def task_parts(
    names: Sequence[str], data: Sequence[Path], stores: Sequence[Location]
) -> dict[str, RunOptions]:
    """Return options with the store and the published settings of each task.

    Args:
        names: tasks.
        data: files of each task; empty if there are stores.
        stores: prepared store of each task; empty if there are files.

    Raises:
        ConfigError: for a store of another task.
        DataError: if the files are damaged, or belong to another task.
        StoreError: if a store cannot be read or written.
    """
    opened = [open_store(path, TaskStore) for path in stores]
    if not opened:
        opened = [kept_task(name, files) for name, files in zip(names, data, strict=True)]
    for name, store in zip(names, opened, strict=True):
        if store.task != name:
            raise ConfigError(f"--store {store.location}: is of {store.task}, want one of {name}")
    return {
        store.task: RunOptions(store=store.location, published=partial(published_settings, store))
        for store in opened
    }


def kept_task(name: str, data: Path) -> TaskStore:
    """Return the store of these files, which the first call prepares.

    Raises:
        DataError: if the files are damaged, or not files of the task.
        StoreError: if the store cannot be written.
    """
    files, examples = read_task_files(name, data)
    check_readable_files(files)
    digest = describe_files(files)["sha256"][-8:]
    home = default_folder("stores", "RAYBIO_STORES") / f"{name}-{VERSION}.{SCHEMA_VERSION}-{digest}"

    def make(_: Path, path: Path) -> TaskStore:
        """Prepare the store at a path, and print its sizes."""
        store = prepare_task(path, name, files, examples)
        sizes = " / ".join(f"{len(store.split_rows(split)):,}" for split in SPLITS)
        line = f"{name}: a store of {data} in {path}: {sizes} rows ({', '.join(SPLITS)})"
        if store.class_names:
            classes = first_names(store.class_names, MAX_SHOWN)
            line += f", {len(store.class_names)} classes ({classes})"
        print(line, flush=True)
        _print_warnings(store)
        return store

    return cached_store(home, TaskStore, make)


def _print_warnings(store: TaskStore) -> None:
    """Print skipped rows, rows that are also training rows, and doubtful classes."""
    for remark in skipped_remarks(store.manifest["quarantine"]):
        print(remark, flush=True)
    num_drawn = store.manifest.get(DRAWN, 0)
    if num_drawn:
        relatives = "" if TASKS[store.task].on_texts else ", relatives may be in several"
        print(
            f"{num_drawn:,} rows have no split: 80 % train, 10 % dev, 10 % test were drawn; equal "
            f"ones are in one split{relatives}. A column 'split' says it otherwise",
            flush=True,
        )
    for split, num in store.known_from_training().items():
        if num:
            rows = len(store.split_rows(split))
            print(
                f"{num:,} of {rows:,} {split} rows are training rows too, whatever their label",
                flush=True,
            )
    for split, names in store.classes_absent_from_training().items():
        print(
            f"{split} classes absent from training, which can never be predicted: "
            f"{first_names(names, MAX_SHOWN)}",
            flush=True,
        )
    rare = store.rare_classes()
    if rare:
        verb = "class has" if len(rare) == 1 else "classes have"
        print(
            f"{len(rare):,} {verb} a single training row, too few to learn from: "
            f"{first_names(rare, MAX_SHOWN)}",
            flush=True,
        )
    similar = [" and ".join(map(repr, names)) for names in store.similar_classes()]
    if similar:
        print(
            "classes whose names differ only in case or outer blanks: "
            f"{first_names(similar, MAX_SHOWN)}. Give them one name if they are one",
            flush=True,
        )


def published_settings(store: TaskStore, given: TrainingConfig | None) -> dict[str, object]:
    """Return the paper's settings for a task, as in its recipe ``paper_TASK``.

    A user's own task has the settings of a published task of its kind. If an epoch has only a few
    steps, the task is evaluated every few epochs.

    Proteins are read to the end of the longest one, as in TAPE's code.

    Args:
        store: the task.
        given: the configuration that results from all settings; its batch decides the steps of an
            epoch. None: the paper's batch.
    """
    task = TASKS[store.task]
    name = task.recipe or f"paper_{store.task}"
    recipe = recipes_of("raybio.methods.sppt.downstream")[name].settings
    schedule = recipe["schedule"]
    num_train = len(store.split_rows("train"))
    rows = recipe["plan"]["global_batch_rows"]
    if isinstance(given, Config):
        rows = given.plan.global_batch_rows
    epoch = max(1, math.ceil(num_train / rows))
    max_epochs = schedule["max_epochs"]
    every = epoch
    if task.is_own:
        # An epoch of a small table is a step or two, and an evaluation takes longer.
        num_epochs = math.ceil(MIN_STEPS_BETWEEN_EVALUATIONS / epoch)
        every *= max(1, min(num_epochs, max_epochs // MIN_EVALUATIONS))
    settings: dict[str, object] = {
        "plan.global_batch_rows": rows,
        "schedule.max_steps": epoch * max_epochs,
        "schedule.evaluate_every_steps": every,
        "schedule.checkpoint_every_steps": every,
    }
    settings |= {f"optim.{name}": value for name, value in recipe["optim"].items()}
    in_epochs = ("max_epochs", "evaluate_every_epochs")
    settings |= {
        f"schedule.{name}": value for name, value in schedule.items() if name not in in_epochs
    }
    if not task.on_texts:
        longest = int(np.diff(store.indptr_N1).max()) + NUM_SPECIAL
        default = Config().encoder.max_length
        settings["encoder.max_length"] = (
            longest if task.labels == "residues" else max(longest, default)
        )
    return settings
