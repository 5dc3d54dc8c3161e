"""The command that sweeps: a search space and a store in, the best settings out."""

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raybio.cli.options import non_negative, positive
from raybio.core.config import fingerprint, read_mapping
from raybio.core.errors import ConfigError
from raybio.core.records import read_record
from raybio.core.search_space import STEPS, SearchSpace, base_values_outside, format_value
from raybio.core.search_space_file import load_search_space
from raybio.methods import METHODS
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.request import (
    Arguments,
    base_configs,
    default_folder,
    settle,
    settled_config,
)
from raybio.runtime.tune.plan import planned
from raybio.runtime.tune.trial import TrialSpec
from raybio.training.settings import TrainingConfig

if TYPE_CHECKING:
    from raybio.runtime.tune.driver import SweepResult


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


SHOWN_SETTINGS = 10


@app.command()
def sweep(
    space: Annotated[
        Path,
        typer.Argument(help="YAML file of search_spaces/: the method, what varies, the budget"),
    ],
    store: Annotated[
        Path | None, typer.Option(help="prepared store; default: the embedded corpus")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML file of settings that all trials share")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="one of them: a.b=value; repeatable")
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option("--budget", help="of the space's budget: num_trials=6; repeatable"),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="training workers of a trial; 1, the default: its own process trains"
        ),
    ] = None,
    cpus_per_worker: Annotated[
        float | None,
        typer.Option(
            parser=positive, metavar="FLOAT", help="logical CPUs of each; default: equal parts"
        ),
    ] = None,
    gpus_per_worker: Annotated[
        float | None,
        typer.Option(
            parser=non_negative,
            metavar="FLOAT",
            help="GPUs of each, a fraction lets trials share one; default: 1 if there are any",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="the sweep's name; the same name goes on with that sweep")
    ] = None,
    sweeps: Annotated[
        Path | None, typer.Option(help="folder of sweeps; default: RAYBIO_SWEEPS or sweeps/")
    ] = None,
    tracking_uri: Annotated[
        str | None, typer.Option(help="MLflow; default: sqlite, mlflow.db beside the sweeps")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the trials and start nothing")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="show Ray's own logs")] = False,
) -> None:
    """Try many settings of one method, stop the bad ones early, and write down the best.

    The same command again goes on: what has ended is not trained again.
    """
    arguments = Arguments(store=store, config=config, settings=tuple(settings or ()))
    found = load_search_space(space, base_configs(arguments))
    sweeps = default_folder("sweeps", "RAYBIO_SWEEPS") if sweeps is None else sweeps
    given = _Given(tuple(budget or ()), workers, cpus_per_worker, gpus_per_worker, tracking_uri)
    if name is not None:
        given = given.after(RunFolder(sweeps, name))
    wanted = found.with_budget(given.budget)
    _refuse_both(wanted, arguments.settings)
    _tell_both(wanted, config)
    if dry_run:
        _show_plan(wanted, arguments)
        return
    fields = settle(wanted.method, arguments, "sweep")
    _warn_outside(wanted, fields["config"])
    if name is None:
        # What may change when a sweep goes on is no part of the name that it gets by itself.
        name = f"{space.stem}-{fingerprint(found, ignore=['tied'])[:4]}{fields['name'].removeprefix('sweep-')}"
        given = given.after(RunFolder(sweeps, name))
        wanted = found.with_budget(given.budget)
    from raybio.runtime.tune.driver import SweepRequest
    from raybio.runtime.tune.driver import sweep as run

    shared = {"verbose": verbose, "explicit": fields["explicit"], **given.fields()}
    asked = SweepRequest(wanted, fields["config"], fields["store"], name, sweeps, **shared)
    _show(run(asked))


@dataclass(frozen=True)
class _Given:
    """Options that the next start of a sweep begins with, unless it is given others."""

    budget: tuple[str, ...] = ()
    workers: int | None = None
    cpus_per_worker: float | None = None
    gpus_per_worker: float | None = None
    tracking_uri: str | None = None

    def fields(self) -> dict[str, Any]:
        """Of a ``SweepRequest``."""
        cpus, gpus = self.cpus_per_worker, self.gpus_per_worker
        asked = {"workers": self.workers or 1, "cpus_per_worker": cpus, "gpus_per_worker": gpus}
        return asked | {"tracking": self.tracking_uri, "given": asdict(self)}

    def after(self, folder: RunFolder) -> "_Given":
        """These, and of what the sweep's last start was given all that is not given now."""
        earlier = (read_record(folder.launch, "launch") or {}).get("given", {})
        names = {_name(text) for text in self.budget}
        budget = [text for text in earlier.pop("budget", []) if _name(text) not in names]
        others = {
            name: value
            for name, value in earlier.items()
            if value is not None and getattr(self, name) is None
        }
        told = [f"--budget {text}" for text in budget]
        told += [f"--{name.replace('_', '-')} {value}" for name, value in others.items()]
        if told:
            print(f"as {folder.name} was started before: {' '.join(told)}")
        return replace(self, budget=(*budget, *self.budget), **others)


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
        is_rare = (
            path == "schedule.evaluate_every_steps"
            and value.isdigit()
            and not 0 < int(value) <= grace
        )
        if is_rare or path == "schedule.checkpoint_every_steps":
            raise ConfigError(
                f"--set {text}: trials are evaluated and saved whenever one may be stopped, every {grace} steps at "
                "least; want --budget grace_steps=, or schedule.evaluate_every_steps below it"
            )


def _tell_both(space: SearchSpace, config: Path | None) -> None:
    """Say which settings of ``--config`` the space or its budget decides: a whole configuration may well have them."""
    if config is None:
        return
    given, named = read_mapping(config), list[str]()
    for path in (*space.space, STEPS):
        section, _, setting = path.partition(".")
        found = given.get(section, {})
        if section in given and (not setting or (isinstance(found, dict) and setting in found)):
            named.append(path)
    if named:
        print(
            f"of {config}, {', '.join(named)} {'is' if len(named) == 1 else 'are'} not used: the space decides"
        )


def _warn_outside(space: SearchSpace, base: TrainingConfig) -> None:
    for described in base_values_outside(space, base):
        print(f"warning: {described}", file=sys.stderr)


def _show_plan(space: SearchSpace, arguments: Arguments) -> None:
    """The trials, checked as far as that needs no store that is not there."""
    store, base = settled_config(METHODS[space.method], arguments, Path("runs"))
    _warn_outside(space, base)
    trials = planned(space, TrialSpec(base, space, "" if store is None else str(store), "").check)
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
    again = (
        f"; then the best {budget.num_repeated} with {budget.num_seeds} seeds each"
        if budget.num_repeated
        else ""
    )
    print(f"{len(trials)} trials of {budget.max_steps:,} steps at most{rule}{again}")
    print(f"compared by {space.metric}; whether that is evaluated, the first trial tells")


def _show(swept: "SweepResult") -> None:
    from rich.console import Console
    from rich.table import Table

    console, space = Console(), swept.spec.space
    table = Table(title=f"{swept.folder.name}: the best settings")
    for name in (
        "",
        *(path.replace(".", ".\n", 1) for path in space.space),
        space.metric,
        "at step",
    ):
        table.add_column(name, overflow="fold")
    for number, ranked in enumerate(swept.ranking[:SHOWN_SETTINGS], start=1):
        interval = "" if ranked.low is None else f" [{ranked.low:.4f}, {ranked.high:.4f}]"
        chosen = [format_value(ranked.settings.get(path, "")) for path in space.space]
        table.add_row(str(number), *chosen, f"{ranked.mean:.4f}{interval}", f"{ranked.best_step:,}")
    console.print(table)
    ways: dict[str, int] = {}
    for one in swept.trials:
        ways[one.status] = ways.get(one.status, 0) + 1
    console.print(
        f"{len(swept.trials)} trials: "
        + ", ".join(f"{num} {status}" for status, num in ways.items())
    )
    path = swept.folder.path
    lines = {"report": f"{path / 'report.html'}", "best": f"{path / 'best.yaml'}"}
    if swept.ranking:
        first = swept.ranking[0].trials[0]
        lines["model"] = (
            f"{path / 'trials' / first.name / 'export'}, of its step {first.best_step:,}"
        )
    lines["MLflow"] = (
        f"run {swept.mlflow_run_id}, mlflow ui --backend-store-uri {swept.uri.split('@')[-1]}"
    )
    for what, where in lines.items():
        console.print(f"{what:>7}: {where}", highlight=False, soft_wrap=True, markup=False)
