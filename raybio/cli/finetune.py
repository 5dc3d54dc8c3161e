"""The command ``raybio train finetune``: ``TASK,TASK --data FILES --data FILES``."""

import argparse
from pathlib import Path
from typing import NamedTuple

from raybio.cli.options import path_or_uri
from raybio.cli.stores import local_copy
from raybio.cli.training_command import training_app
from raybio.cli.training_help import help_texts
from raybio.core.config import load, override_all
from raybio.core.errors import ConfigError
from raybio.core.location import location
from raybio.core.text import did_you_mean
from raybio.methods.sppt.downstream.config import TASKS, Config
from raybio.runtime.run.options import RunOptions, parse_settings, runs_folder

METHOD = "finetune"

ABOUT = (
    f"TASK: {', '.join(name for name, task in TASKS.items() if task.is_own)} on tables of your "
    "own (.csv, .tsv, .jsonl, .parquet, or a folder with train, dev and test): columns sequence "
    "or text, label, and perhaps split. Or a published one with its files: "
    f"{', '.join(name for name, task in TASKS.items() if not task.is_own)}.\n\n"
    "Several, separated by commas and each with a --data, end in one table. The settings are the "
    "paper's for such a task; --set changes them. Without a task it trains on built-in simulated "
    "folds.\n\n"
    "--compare encoder.source=A,B adds encoders to the table, --seeds 3 their spread."
)


class TasksAndOptions(NamedTuple):
    """A parsed command line with tasks.

    Attributes:
        arguments: options of the training command, without the tasks and their files.
        parts: store and published settings of each task; empty without a task.
    """

    arguments: list[str]
    parts: dict[str, RunOptions]


def with_tasks(arguments: list[str]) -> TasksAndOptions:
    """Remove tasks and their files from a command line, and prepare the missing stores.

    Raises:
        ConfigError: for an unknown task, or one without its files.
        DataError: if the files are damaged, or belong to another task.
        StoreError: if a store cannot be written.
    """
    if not arguments or arguments[0].startswith("-"):
        if any(argument.split("=")[0] == "--data" for argument in arguments):
            raise ConfigError(
                "--data: no task is given; want it first, such as raybio train finetune "
                f"text_classification --data FILES. Tasks: {', '.join(TASKS)}"
            )
        _check_name(arguments)
        return TasksAndOptions(arguments, {})
    names = arguments[0].split(",")
    rest = arguments[1:]
    for name in names:
        if name not in TASKS:
            raise ConfigError(
                f"{name!r} is no task; want one of {', '.join(TASKS)}, or options alone."
                f"{did_you_mean(name, TASKS)}"
            )
        if names.count(name) > 1:
            raise ConfigError(f"{name}: is there twice, want each task once")
    parser = _parser()
    parser.add_argument("--data", type=path_or_uri, action="append", default=[])
    parser.add_argument("--store", type=path_or_uri, action="append", default=[])
    # Check the settings first, since reading files takes long.
    _check_settings(rest)
    given, others = parser.parse_known_args(rest)
    if bool(given.data) == bool(given.store) or len(given.data or given.store) != len(names):
        each = ", once a task, in their order" if len(names) > 1 else ""
        got = "no data is given"
        if given.data or given.store:
            got = f"got {len(given.data)} --data and {len(given.store)} --store"
        raise ConfigError(
            f"{', '.join(names)}: {got}, want either --data FILES or --store STORE{each}"
        )
    data = [local_copy(each, "--data") for each in given.data]
    from raybio.experiments.downstream_tasks import task_parts  # reads and writes stores

    return TasksAndOptions(others, task_parts(names, data, given.store))


def _check_name(arguments: list[str]) -> None:
    """Refuse the name of a command with several tasks if the tasks are missing.

    The runs of such a command are named NAME-TASK, so no run has the name itself.
    """
    parser = _parser()
    parser.add_argument("--name")
    for option in ("--runs", "--store", "--config"):
        parser.add_argument(option)
    given, _ = parser.parse_known_args(arguments)
    if given.name is None or given.store or given.config:
        return
    runs_location = location(given.runs, "--runs") if given.runs else None
    runs, bucket = runs_folder(runs_location)
    # For a bucket, the command itself looks up the name.
    if bucket is not None or (runs / given.name).exists():
        return
    tasks = [task for task in TASKS if (runs / f"{given.name}-{task}").exists()]
    if tasks:
        raise ConfigError(
            f"--name {given.name}: no run is called so, but there are runs of {', '.join(tasks)} "
            "beginning with it; want the whole command again, or one of them alone, such as "
            f"--name {given.name}-{tasks[0]}"
        )


def _check_settings(arguments: list[str]) -> None:
    parser = _parser()
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--config", type=Path)
    given, _ = parser.parse_known_args(arguments)
    base = Config() if given.config is None else load(Config, given.config)
    override_all(base, parse_settings(given.set))


def _parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(add_help=False, allow_abbrev=False)


app = training_app(
    METHOD,
    # The demo's learning rate is for a randomly initialized encoder, and would ruin a trained one.
    texts=help_texts(
        METHOD,
        ABOUT,
        "protein_regression --data table.csv --init MODEL",
        "optim.peak_lr=0.0001",
    )._replace(usage="[TASK,... --data FILES] [OPTIONS]"),
    expand=with_tasks,
    sources=("--data",),
)
