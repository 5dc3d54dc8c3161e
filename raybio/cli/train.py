"""The command line of all training jobs. It imports neither torch nor Ray until training begins."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from raybio.cli import options
from raybio.cli.app import run_app
from raybio.core.config import fields
from raybio.core.errors import ConfigError
from raybio.core.search_space import quoted
from raybio.methods import METHODS
from raybio.runtime.run.folder import model_folder
from raybio.runtime.run.request import FOLD, ONE_FOLD, Arguments, Part, settle

ALL_FOLDS = (
    "train every fold, several at once, and judge them together; --compare model=clgs adds a model"
)


LAST_TRAINING = "after --all-folds: train each model again for its best steps, on validation sentences too; judge both"


def training_job(method: str, description: str, parts: Sequence[Part] = ()) -> NoReturn:
    """Run a training job's command line: parse, train, compare, print the table, exit.

    Args:
        method: its name in ``METHODS``.
        description: what ``--help`` says first.
        parts: trainings that the job brings stores and settings for; none: what ``--store`` says.
    """
    usual = METHODS[method].comparison
    has_folds = any(field.path == FOLD for field in fields(METHODS[method].config))
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    @app.command(help=description, context_settings={"help_option_names": []})
    def command(
        store: options.Store = None,
        config: options.ConfigFile = None,
        settings: options.Settings = None,
        init: options.Init = None,
        workers: options.Workers = None,
        cpus_per_worker: options.CpusPerWorker = None,
        device: options.Device = "auto",
        name: options.Name = None,
        runs: options.Runs = None,
        tracking_uri: options.TrackingUri = None,
        compare_with: Annotated[
            list[str] | None,
            typer.Option(
                "--compare",
                help="train these too, for the table: SETTING=VALUE,VALUE; repeatable: all combinations; default: "
                f"{usual or 'none'}",
            ),
        ] = None,
        seeds: options.Seeds = 1,
        no_baseline: options.NoBaseline = False,
        fold: Annotated[
            int | None, typer.Option(min=0, help=ONE_FOLD, hidden=not has_folds)
        ] = None,
        all_folds: Annotated[
            bool, typer.Option("--all-folds", help=ALL_FOLDS, hidden=not has_folds)
        ] = False,
        last_training: Annotated[
            bool, typer.Option("--last-training", help=LAST_TRAINING, hidden=not has_folds)
        ] = False,
        yes: options.Yes = False,
        verbose: options.Verbose = False,
        help_: Annotated[
            bool,
            typer.Option(
                "--help", is_eager=True, callback=help_of(method), help="show this and all settings"
            ),
        ] = False,
    ) -> None:
        """The command line; ``--help`` is the description."""
        source = [] if init is None else [f"encoder.source={quoted(model_folder(init, '--init'))}"]
        chosen = (*(settings or ()), *source, *([] if fold is None else [f"{FOLD}={fold}"]))
        compared = _compared_with(compare_with or [], None if all_folds else usual, no_baseline)
        given = (store, config, chosen, workers, cpus_per_worker, device, name, runs, tracking_uri)
        if last_training and not all_folds:
            raise ConfigError(
                "--last-training: follows --all-folds, which finds out for how many steps; give both"
            )
        arguments = Arguments(
            *given, compared, seeds, verbose, yes, has_last_training=last_training
        )
        if all_folds and has_folds:
            _train_all_folds(method, arguments)
        else:
            _train(method, arguments, parts)

    run_app(app)


def _compared_with(given: list[str], usual: str | None, no_baseline: bool) -> tuple[str, ...]:
    if no_baseline and given:
        raise ConfigError(
            f"--compare {' '.join(given)} and --no-baseline: got both, want other runs beside this one, or none"
        )
    return tuple(given) if given or no_baseline or usual is None else (usual,)


def _train(method: str, arguments: Arguments, parts: Sequence[Part]) -> None:
    asked = {part.name: _of_part(arguments, part, is_one=len(parts) == 1) for part in parts} or {
        "": arguments
    }
    settled = {name: settle(method, one, Path(sys.argv[0]).stem) for name, one in asked.items()}
    from raybio.cli.train_and_compare import train_and_show

    train_and_show(settled, arguments.compare, arguments.seeds)


def _of_part(arguments: Arguments, part: Part, *, is_one: bool) -> Arguments:
    name = arguments.name if is_one or not arguments.name else f"{arguments.name}-{part.name}"
    return replace(arguments, store=part.store, published=part.published, name=name)


def _train_all_folds(method: str, arguments: Arguments) -> None:
    from raybio.experiments.cross_validation import train_and_show

    train_and_show(method, arguments)


def help_of(method: str) -> Callable[[typer.Context, bool], None]:
    """What ``--help`` calls: the command's own help and, below it, the settings of a system."""

    def show(context: typer.Context, value: bool) -> None:
        if not value:
            return
        typer.echo(context.get_help())
        _print_settings(method)
        raise typer.Exit

    return show


def _print_settings(method: str) -> None:
    entry = METHODS[method]
    if not sys.stdout.isatty():
        print("\nSettings (--set or YAML): path, type, default, range, meaning")
        for field in fields(entry.config):
            print(
                f"  {field.path}  {field.type}  {field.default}  {field.range}\n      {field.meaning}"
            )
        return
    table = Table(
        "setting", "type", "default", "range", "meaning", title="Settings, for --set or a YAML file"
    )
    for field in fields(entry.config):
        table.add_row(*field)
    Console().print(table, markup=False)
