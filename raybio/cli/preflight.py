"""Check what could go wrong before anything starts: ok, warning or ERROR, each with what to do.

With the options of a training or a sweep, its settings, store and resources are checked too.

Example: raybio preflight --method sppt_protein --store STORE --workers 2
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from raybio.cli import options as shared
from raybio.cli.options import non_negative, positive
from raybio.core.files import check_writable_file, replace_text
from raybio.runtime.run.options import RunOptions
from raybio.runtime.run.spec import Compute
from raybio.training.settings import Device

app = typer.Typer(help=__doc__, add_completion=False)


def _json_file(path: Path | None) -> Path | None:
    """Return the path of ``--json``, or None.

    Raises:
        ConfigError: if no file can be written there.
    """
    if path is not None and not _is_special(path):
        check_writable_file(path, "--json")
    return path


def _is_special(path: Path) -> bool:
    """Return whether a path is a device or a pipe, which no file can replace."""
    return path.exists() and not path.is_file() and not path.is_dir()


@app.command(help=__doc__)
def preflight(
    method: Annotated[
        str | None, typer.Option(help="method of the training, such as sppt_protein")
    ] = None,
    space: Annotated[
        Path | None,
        typer.Option(help="search space of a sweep: its name or YAML file; instead of --method"),
    ] = None,
    store: shared.Store = None,
    recipe: shared.RecipeName = None,
    config: shared.ConfigFile = None,
    settings: shared.Settings = None,
    init: shared.Init = None,
    workers: shared.Workers = None,
    cpus_per_worker: shared.CpusPerWorker = None,
    gpus_per_worker: shared.GpusPerWorker = None,
    budget: shared.Budget = None,
    device: Annotated[Device, typer.Option(help="where workers train, without --space")] = "auto",
    runs: Annotated[
        shared.LocationType | None,
        shared.location_option("folder of runs, or of sweeps with --space"),
    ] = None,
    tracking_uri: shared.TrackingUri = None,
    min_free_gib: Annotated[
        float,
        typer.Option(
            parser=non_negative, metavar="FLOAT", help="free space that each disk must have, in GiB"
        ),
    ] = 5.0,
    seconds: Annotated[
        float,
        typer.Option(
            parser=positive,
            metavar="FLOAT",
            help="time limit of each check, in seconds; fetching an encoder has none",
        ),
    ] = 60.0,
    no_ray: Annotated[
        bool, typer.Option("--no-ray", help="only checks that need no Ray: seconds")
    ] = False,
    to_json: Annotated[
        Path | None,
        typer.Option("--json", callback=_json_file, help="also write the findings to this file"),
    ] = None,
) -> None:
    """The command line; ``--help`` is the module's description."""
    from raybio.runtime.preflight import finding
    from raybio.runtime.preflight.preflight import Intent
    from raybio.runtime.preflight.preflight import preflight as run_checks

    options = RunOptions(
        store=store,
        recipe=recipe,
        config=config,
        settings=(*(settings or ()), *shared.init_settings(shared.init_source(init))),
        runs=runs,
        tracking=tracking_uri,
        compute=Compute(
            workers=workers,
            cpus_per_worker=cpus_per_worker,
            gpus_per_worker=gpus_per_worker,
            device=device,
        ),
    )
    intent = Intent(
        options=options,
        method=method,
        space=space,
        budget=tuple(budget or ()),
        min_free_gib=min_free_gib,
        seconds=seconds,
        with_ray=not no_ray,
    )
    findings = run_checks(intent)
    finding.show(findings)
    if to_json is not None:
        content = json.dumps([asdict(found) for found in findings], indent=1)
        if _is_special(to_json):
            to_json.write_text(content + "\n")
        else:
            to_json.parent.mkdir(parents=True, exist_ok=True)
            replace_text(to_json, content + "\n")
    raise typer.Exit(any(found.state == finding.ERROR for found in findings))
