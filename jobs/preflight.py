"""Say what would go wrong, before anything starts: ok, warning or ERROR, each with what to do.

The same options as the training itself show whether it could run; without any, the machine and the cluster alone.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from raybio.cli.app import run_app
from raybio.cli.options import non_negative, positive
from raybio.runtime.run.request import Arguments

app = typer.Typer(help=__doc__, add_completion=False, pretty_exceptions_enable=False)


@app.command(help=__doc__)
def preflight(
    method: Annotated[
        str | None, typer.Option(help="whose training it will be, such as siamese")
    ] = None,
    space: Annotated[
        Path | None, typer.Option(help="or the search space of a sweep, which names the method")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="prepared store; default: the embedded corpus")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="one setting: a.b=value; repeatable")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="training workers")] = None,
    cpus_per_worker: Annotated[
        float | None, typer.Option(parser=positive, metavar="FLOAT", help="logical CPUs of each")
    ] = None,
    gpus_per_worker: Annotated[
        float | None,
        typer.Option(
            parser=non_negative, metavar="FLOAT", help="with --space: GPUs of each, or a fraction"
        ),
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option("--budget", help="with --space: of its budget: num_trials=6; repeatable"),
    ] = None,
    device: Annotated[str, typer.Option(help="without --space: auto, cpu or gpu")] = "auto",
    runs: Annotated[
        Path | None, typer.Option(help="folder of runs, or of sweeps with --space")
    ] = None,
    tracking_uri: Annotated[
        str | None, typer.Option(help="MLflow; default: mlflow.db beside the runs")
    ] = None,
    min_free_gib: Annotated[
        float,
        typer.Option(
            parser=non_negative, metavar="FLOAT", help="GiB that must be free on each disk"
        ),
    ] = 5.0,
    seconds: Annotated[
        float, typer.Option(parser=positive, metavar="FLOAT", help="how long each look may take")
    ] = 60.0,
    no_ray: Annotated[
        bool, typer.Option("--no-ray", help="look only at what needs no Ray: seconds")
    ] = False,
    to_json: Annotated[
        Path | None, typer.Option("--json", help="write what was found into this file too")
    ] = None,
) -> None:
    """The command line; ``--help`` is the module's description."""
    from raybio.runtime.preflight import finding
    from raybio.runtime.preflight.preflight import Intent
    from raybio.runtime.preflight.preflight import preflight as look

    given = (store, config, tuple(settings or ()), workers, cpus_per_worker, device)
    arguments = Arguments(*given, runs=runs, tracking_uri=tracking_uri)
    of_sweep = (space, tuple(budget or ()), gpus_per_worker)
    found = look(Intent(arguments, method, *of_sweep, min_free_gib, seconds, not no_ray))
    finding.show(found)
    if to_json is not None:
        to_json.write_text(
            json.dumps([asdict(one) for one in found], indent=1) + "\n", encoding="utf-8"
        )
    raise typer.Exit(any(one.state == finding.ERROR for one in found))


if __name__ == "__main__":
    run_app(app)
