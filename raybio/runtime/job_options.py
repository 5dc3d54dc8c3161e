"""The options that all training jobs have."""

from pathlib import Path
from typing import Annotated

import typer

Store = Annotated[Path | None, typer.Option(help="prepared store; default: the embedded corpus")]
ConfigFile = Annotated[Path | None, typer.Option(help="YAML file of settings")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="one setting: a.b=value; repeatable")]
Init = Annotated[
    str | None, typer.Option(help="encoder to begin with: a finished run's folder, a model's folder or a hub id")
]
Workers = Annotated[int | None, typer.Option(help="training workers; default: 1, or as the run began")]
CpusPerWorker = Annotated[
    float | None, typer.Option(help="logical CPUs of each; default: what leaves Ray Data its share")
]
Device = Annotated[str, typer.Option(help="auto, cpu or gpu")]
Name = Annotated[str | None, typer.Option(help="the run's name; the same name goes on with that run")]
Runs = Annotated[Path | None, typer.Option(help="folder of runs; default: RAYBIO_RUNS or runs/")]
TrackingUri = Annotated[str | None, typer.Option(help="MLflow; default: sqlite, mlflow.db beside the runs")]
Seeds = Annotated[int, typer.Option(min=1, help="train with so many seeds, for mean ± standard deviation in the table")]
NoBaseline = Annotated[bool, typer.Option("--no-baseline", help="train this run alone")]
Verbose = Annotated[bool, typer.Option("--verbose", help="show Ray's own logs and progress bars")]
