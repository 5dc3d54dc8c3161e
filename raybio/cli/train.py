"""The command line of all training jobs. It imports neither torch nor Ray until training begins."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
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
from raybio.runtime.run.options import FOLD, RunOptions, resolve
from raybio.runtime.run.spec import Compute

ALL_FOLDS = (
    "train every fold of a cross-validation, several at once, and evaluate them together; "
    "--compare model=clgs adds a model"
)
LAST_TRAINING = (
    "after --all-folds: train each model again for its best number of steps, on validation "
    "sentences too; evaluate both"
)


def training_job(
    method: str, description: str, parts: Mapping[str, RunOptions] | None = None
) -> NoReturn:
    """Run the command line of a training job: parse, train, compare, print the table, exit.

    Args:
        method: key in ``METHODS``.
        description: first lines of ``--help``.
        parts: store and published settings of each part of the job, by name; None: one part, with
            the store of ``--store``.
    """
    default_comparison = METHODS[method].comparison
    has_folds = any(field.path == FOLD for field in fields(METHODS[method].config))
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

    @app.command(help=description, context_settings={"help_option_names": []})
    def command(
        store: options.Store = None,
        recipe: options.RecipeName = None,
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
                help="also train other values, for the table: SETTING=VALUE,VALUE; repeatable: "
                f"all combinations; default: {default_comparison or 'none'}",
            ),
        ] = None,
        seeds: options.Seeds = 1,
        no_baseline: options.NoBaseline = False,
        fold: Annotated[
            int | None,
            typer.Option(
                min=0, help=f"fold of a cross-validation: --set {FOLD}=", hidden=not has_folds
            ),
        ] = None,
        all_folds: Annotated[
            bool, typer.Option("--all-folds", help=ALL_FOLDS, hidden=not has_folds)
        ] = False,
        last_training: Annotated[
            bool, typer.Option("--last-training", help=LAST_TRAINING, hidden=not has_folds)
        ] = False,
        dry_run: options.DryRun = False,
        yes: options.Yes = False,
        verbose: options.Verbose = False,
        help_: Annotated[
            bool,
            typer.Option(
                "--help",
                is_eager=True,
                callback=help_of(method),
                help="show this and all settings",
            ),
        ] = False,
    ) -> None:
        """The command line; ``--help`` is the description."""
        all_settings = [*(settings or ())]
        if init is not None:
            all_settings.append(f"encoder.source={quoted(model_folder(init, '--init'))}")
        if fold is not None:
            all_settings.append(f"{FOLD}={fold}")
        compared = tuple(compare_with or ())
        if no_baseline and compared:
            raise ConfigError(
                f"--compare {' '.join(compared)} and --no-baseline: got both, want other runs next "
                "to this one, or none"
            )
        if last_training and not all_folds:
            raise ConfigError(
                "--last-training: follows --all-folds, which finds the best number of steps; give "
                "both"
            )
        given = RunOptions(
            store=store,
            recipe=recipe,
            config=config,
            settings=tuple(all_settings),
            name=name,
            runs=runs,
            tracking=tracking_uri,
            compute=Compute(workers=workers, cpus_per_worker=cpus_per_worker, device=device),
            verbose=verbose,
            yes=yes,
        )
        if all_folds and dry_run:
            raise ConfigError("--dry-run and --all-folds: got both, want one of them")
        if all_folds and has_folds:
            from raybio.experiments.cross_validation import cross_validate

            cross_validate(
                method, given, compared=compared, seeds=seeds, has_last_training=last_training
            )
            return
        if default_comparison is not None and not (compared or no_baseline or all_folds):
            compared = (default_comparison,)
        specs = {
            part: resolve(method, part_options)
            for part, part_options in options_by_part(given, parts or {}).items()
        }
        from raybio.cli.train_and_compare import train_and_compare

        train_and_compare(specs, compared, seeds, is_dry_run=dry_run)

    run_app(app)


def options_by_part(given: RunOptions, parts: Mapping[str, RunOptions]) -> dict[str, RunOptions]:
    """Return the options of each part of a job; of a job without parts, the given ones."""
    if not parts:
        return {"": given}
    merged = {}
    for name, part in parts.items():
        run_name = given.name
        # Of several parts, each is a run of its own.
        if given.name and len(parts) > 1:
            run_name = f"{given.name}-{name}"
        merged[name] = replace(given, store=part.store, published=part.published, name=run_name)
    return merged


def help_of(method: str) -> Callable[[typer.Context, bool], None]:
    """Return the callback of ``--help``: the command's own help, then the method's settings."""

    def show(context: typer.Context, value: bool) -> None:
        if not value:
            return
        typer.echo(context.get_help())
        _print_settings(method)
        raise typer.Exit

    return show


def _print_settings(method: str) -> None:
    recipes = METHODS[method].recipes
    if recipes:
        print("\nRecipes (--recipe)")
        for recipe in recipes.values():
            print(f"  {recipe.name}: {recipe.about}")
    settings = fields(METHODS[method].config)
    if not sys.stdout.isatty():
        print("\nSettings (--set or YAML): path, type, default, range, meaning")
        for field in settings:
            print(f"  {field.path}  {field.type}  {field.default}  {field.range}")
            print(f"      {field.meaning}")
        return
    table = Table(
        "setting", "type", "default", "range", "meaning", title="Settings, for --set or a YAML file"
    )
    for field in settings:
        table.add_row(*field)
    Console().print(table, markup=False)
