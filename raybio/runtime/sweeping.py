"""The command that sweeps: a search space and a store in, the best settings out."""

from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from raybio.config import fingerprint, override
from raybio.runtime.launch import Arguments, default_folder, settle
from raybio.search_space import SearchSpace, load_search_space
from raybio.systems import SYSTEMS

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)


@app.command()
def sweep(
    space: Annotated[Path, typer.Argument(help="YAML file of search_spaces/: the system, what varies, the budget")],
    store: Annotated[Path | None, typer.Option(help="prepared store; default: the embedded corpus")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings that all trials share")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="one of them: a.b=value; repeatable")] = None,
    num_trials: Annotated[int | None, typer.Option(min=1, help="default: the space's")] = None,
    max_concurrent_trials: Annotated[int | None, typer.Option(min=1, help="default: the space's")] = None,
    workers: Annotated[int, typer.Option(min=1, help="training workers of a trial; 1: its own process trains")] = 1,
    cpus_per_worker: Annotated[float, typer.Option(help="logical CPUs of each")] = 1,
    gpus_per_worker: Annotated[float, typer.Option(help="GPUs of each; a fraction lets trials share one")] = 0,
    name: Annotated[str | None, typer.Option(help="the sweep's name; the same name goes on with that sweep")] = None,
    sweeps: Annotated[Path | None, typer.Option(help="folder of sweeps; default: RAYBIO_SWEEPS or sweeps/")] = None,
    tracking_uri: Annotated[str | None, typer.Option(help="MLflow; default: sqlite, mlflow.db beside the sweeps")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the trials and start nothing")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="show Ray's own logs")] = False,
) -> None:
    """Try many settings, stop the bad ones early, and write down the best; again under its name, a sweep goes on."""
    wanted = _with_budget(
        load_search_space(space, {key: entry.config for key, entry in SYSTEMS.items()}), num_trials, max_concurrent_trials
    )
    fields = settle(wanted.system, Arguments(store=store, config=config, settings=tuple(settings or ())), "sweep")
    # Only now: these import Ray and MLflow, which takes seconds.
    from raybio.runtime.suggest import planned

    if dry_run:
        _show_plan(wanted, planned(wanted))
        return
    from raybio.runtime.sweep import SweepRequest
    from raybio.runtime.sweep import sweep as run

    request = SweepRequest(
        space=wanted,
        base=fields["config"],
        store=fields["store"],
        name=name or f"{space.stem}-{fingerprint(wanted)[:4]}{fields['name'][-8:]}",
        sweeps=default_folder("sweeps", "RAYBIO_SWEEPS") if sweeps is None else sweeps,
        tracking=tracking_uri,
        workers=workers,
        cpus_per_worker=cpus_per_worker,
        gpus_per_worker=gpus_per_worker,
        verbose=verbose,
    )
    _show(request, run(request))


def _with_budget(space: SearchSpace, num_trials: int | None, at_once: int | None) -> SearchSpace:
    given = {"num_trials": num_trials, "max_concurrent_trials": at_once}
    changed = {key: value for key, value in given.items() if value is not None}
    return space.model_copy(update={"budget": space.budget.model_copy(update=changed)})


def _show_plan(space: SearchSpace, trials: list[dict[str, Any]]) -> None:
    if space.search.kind == "optuna":
        print("optuna learns as it goes; before it has learned anything, it would try")
    for number, settings in zip(count(1), trials, strict=False):
        print(f"{number:4}  " + ", ".join(f"{path}={value}" for path, value in settings.items()))
    budget = space.budget
    print(f"{len(trials)} trials of {budget.max_steps:,} steps, each stopped after {budget.grace_steps:,} at the earliest")
