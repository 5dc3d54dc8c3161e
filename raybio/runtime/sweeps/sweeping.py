"""The command that sweeps: a search space and a store in, the best settings out."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raybio.config import fingerprint
from raybio.errors import ConfigError
from raybio.runtime.launch import Arguments, default_folder, settle, settled_config
from raybio.runtime.run_folder import RunFolder, read_json
from raybio.search_space import STEPS, SearchSpace, load_search_space
from raybio.systems import SYSTEMS

if TYPE_CHECKING:
    from raybio.runtime.sweeps.sweep import Swept

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

SHOWN_PLACES = 10


@app.command()
def sweep(
    space: Annotated[Path, typer.Argument(help="YAML file of search_spaces/: the system, what varies, the budget")],
    store: Annotated[Path | None, typer.Option(help="prepared store; default: the embedded corpus")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings that all trials share")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="one of them: a.b=value; repeatable")] = None,
    budget: Annotated[
        list[str] | None, typer.Option("--budget", help="of the space's budget: num_trials=6; repeatable")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="training workers of a trial; 1: its own process trains")] = 1,
    cpus_per_worker: Annotated[float | None, typer.Option(help="logical CPUs of each; default: equal parts")] = None,
    gpus_per_worker: Annotated[
        float | None, typer.Option(help="GPUs of each, a fraction lets trials share one; default: 1 if there are any")
    ] = None,
    name: Annotated[str | None, typer.Option(help="the sweep's name; the same name goes on with that sweep")] = None,
    sweeps: Annotated[Path | None, typer.Option(help="folder of sweeps; default: RAYBIO_SWEEPS or sweeps/")] = None,
    tracking_uri: Annotated[
        str | None, typer.Option(help="MLflow; default: sqlite, mlflow.db beside the sweeps")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the trials and start nothing")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="show Ray's own logs")] = False,
) -> None:
    """Try many settings of one system, stop the bad ones early, and write down the best.

    The same command again goes on: what has ended is not trained again.
    """
    found = load_search_space(space, {key: entry.config for key, entry in SYSTEMS.items()})
    sweeps = default_folder("sweeps", "RAYBIO_SWEEPS") if sweeps is None else sweeps
    arguments = Arguments(store=store, config=config, settings=tuple(settings or ()))
    given = tuple(budget or ()) if name is None else _recalled(RunFolder(sweeps, name), budget or ())
    wanted = found.with_budget(given)
    _refuse_both(wanted, arguments.settings)
    if dry_run:
        _show_plan(wanted, arguments)
        return
    fields = settle(wanted.system, arguments, "sweep")
    if name is None:
        # What may change when a sweep goes on is no part of the name that it gets by itself.
        name = f"{space.stem}-{fingerprint(found)[:4]}{fields['name'].removeprefix('sweep-')}"
        given = _recalled(RunFolder(sweeps, name), given)
        wanted = found.with_budget(given)
    # Only now: these import Ray and MLflow, which takes seconds.
    from raybio.runtime.sweeps.sweep import SweepRequest
    from raybio.runtime.sweeps.sweep import sweep as run

    request = SweepRequest(
        space=wanted,
        base=fields["config"],
        store=fields["store"],
        name=name,
        sweeps=sweeps,
        tracking=tracking_uri,
        workers=workers,
        cpus_per_worker=cpus_per_worker,
        gpus_per_worker=gpus_per_worker,
        verbose=verbose,
        budget=given,
    )
    _show(run(request))


def _recalled(folder: RunFolder, budget: Sequence[str]) -> tuple[str, ...]:
    """The budget as the sweep's last start was given it, but for what is given now."""
    names = {_name(text) for text in budget}
    earlier = [text for text in (read_json(folder.launch) or {}).get("budget", []) if _name(text) not in names]
    if earlier:
        print(f"as {folder.name} was started before: {' '.join(f'--budget {text}' for text in earlier)}")
    return (*earlier, *budget)


def _name(text: str) -> str:
    return text.partition("=")[0].strip()


def _refuse_both(space: SearchSpace, settings: tuple[str, ...]) -> None:
    """Refuse settings that the space or its budget decides: they would be ignored."""
    grace = space.budget.grace_steps
    for text in settings:
        path, value = _name(text), text.partition("=")[2].strip()
        if path in space.space:
            raise ConfigError(f"--set {text}: the space varies {path}; take it out of one of them")
        if path == STEPS:
            raise ConfigError(
                f"--set {text}: the space's budget decides how long trials train; want --budget max_steps="
            )
        is_rare = path == "schedule.evaluate_every_steps" and value.isdigit() and not 0 < int(value) <= grace
        if is_rare or path == "schedule.checkpoint_every_steps":
            raise ConfigError(
                f"--set {text}: trials are evaluated and saved whenever one may be stopped, every {grace} steps at "
                "least; want --budget grace_steps=, or schedule.evaluate_every_steps below it"
            )


def _show_plan(space: SearchSpace, arguments: Arguments) -> None:
    """The trials, checked as far as that needs no store that is not there."""
    # Only now: these import Ray, which takes seconds.
    from raybio.runtime.sweeps.suggest import planned
    from raybio.runtime.sweeps.trial import TrialOrder

    store, base = settled_config(SYSTEMS[space.system], arguments, Path("runs"))
    trials = planned(space, TrialOrder(base, space, "" if store is None else str(store), "").check)
    if space.search.kind == "optuna":
        print("optuna learns from each trial; before it has learned anything, it would try")
    for number, settings in enumerate(trials, start=1):
        print(f"{number:4}  " + ", ".join(f"{path}={value}" for path, value in settings.items()))
    budget = space.budget
    rule = (
        ""
        if space.scheduler.kind == "none"
        else f", judged by {space.scheduler.kind} from step {budget.grace_steps:,} on"
    )
    again = f"; then the best {budget.num_repeated} with {budget.num_seeds} seeds each" if budget.num_repeated else ""
    print(f"{len(trials)} trials of {budget.max_steps:,} steps at most{rule}{again}")


def _show(swept: "Swept") -> None:
    from rich.console import Console
    from rich.table import Table

    console, space = Console(), swept.order.space
    table = Table(title=f"{swept.folder.name}: the best settings")
    for name in ("", *(path.replace(".", ".\n", 1) for path in space.space), space.metric, "at step"):
        table.add_column(name, overflow="fold")
    for number, place in enumerate(swept.places[:SHOWN_PLACES], start=1):
        interval = "" if place.low is None else f" [{place.low:.4f}, {place.high:.4f}]"
        chosen = [
            f"{place.settings.get(path, ''):.3g}"
            if isinstance(place.settings.get(path), float)
            else str(place.settings.get(path, ""))
            for path in space.space
        ]
        table.add_row(str(number), *chosen, f"{place.mean:.4f}{interval}", f"{place.best_step:,}")
    console.print(table)
    ways: dict[str, int] = {}
    for one in swept.trials:
        ways[one.status] = ways.get(one.status, 0) + 1
    console.print(f"{len(swept.trials)} trials: " + ", ".join(f"{num} {status}" for status, num in ways.items()))
    path = swept.folder.path
    lines = {"report": f"{path / 'report.html'}", "best": f"{path / 'best.yaml'}"}
    if swept.places:
        lines["model"] = f"{path / 'trials' / swept.places[0].trials[0].name / 'export'}"
    lines["MLflow"] = f"run {swept.mlflow_run_id}, mlflow ui --backend-store-uri {swept.uri.split('@')[-1]}"
    for what, where in lines.items():
        console.print(f"{what:>7}: {where}", highlight=False, soft_wrap=True, markup=False)
