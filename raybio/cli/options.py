"""Options of all training jobs, and parsers of numbers for options of all jobs."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer


def positive(text: str) -> float:
    """Return the number above 0 in ``text``.

    It is a typer ``parser``, since a range of typer's own accepts NaN.

    Raises:
        typer.BadParameter: for anything else, including NaN and infinity.
    """
    return _number(text, "a number above 0", lambda value: value > 0)


def non_negative(text: str) -> float:
    """Return the number of 0 or more in ``text``; otherwise as ``positive``."""
    return _number(text, "a number of 0 or more", lambda value: value >= 0)


def fraction(text: str) -> float:
    """Return the number from 0 to 1 in ``text``; otherwise as ``positive``."""
    return _number(text, "a number from 0 to 1", lambda value: 0 <= value <= 1)


def _number(text: str, wanted: str, is_wanted: Callable[[float], bool]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and is_wanted(value)):
        raise typer.BadParameter(f"got {text}, want {wanted}")
    return value


Store = Annotated[Path | None, typer.Option(help="prepared store; default: the embedded corpus")]


ConfigFile = Annotated[Path | None, typer.Option(help="YAML file of settings")]


RecipeName = Annotated[
    str | None,
    typer.Option("--recipe", help="settings that come with the job, listed below; or demo"),
]


Settings = Annotated[
    list[str] | None, typer.Option("--set", help="one setting: a.b=value; repeatable")
]


Init = Annotated[
    str | None,
    typer.Option(help="initial encoder: folder of a finished run, model folder or hub id"),
]


Workers = Annotated[
    int | None,
    typer.Option(min=1, help="number of training workers; default: 1, or as the run began"),
]


CpusPerWorker = Annotated[
    float | None,
    typer.Option(
        parser=positive,
        metavar="FLOAT",
        help="logical CPUs of each worker; default: all but the share of Ray Data",
    ),
]


Device = Annotated[str, typer.Option(help="auto, cpu or gpu")]


Name = Annotated[str | None, typer.Option(help="name of the run; the same name resumes that run")]


Runs = Annotated[Path | None, typer.Option(help="folder of runs; default: RAYBIO_RUNS or runs/")]


TrackingUri = Annotated[
    str | None,
    typer.Option(help="MLflow tracking URI; default: sqlite, mlflow.db next to the runs"),
]


Seeds = Annotated[
    int,
    typer.Option(min=1, help="number of seeds, for mean ± standard deviation in the table"),
]


NoBaseline = Annotated[bool, typer.Option("--no-baseline", help="train only this run")]


DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="print the runs and the time that they take, and train none"),
]


Yes = Annotated[bool, typer.Option("--yes", help="accept a run of more than a day on CPUs")]


Verbose = Annotated[bool, typer.Option("--verbose", help="show Ray's own logs and progress bars")]
