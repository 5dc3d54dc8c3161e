"""The command that trains a method. It imports neither torch nor Ray until training begins."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from raybio.cli import options
from raybio.cli.training_help import HelpTexts, help_all_option, help_option, help_texts
from raybio.core.config import fields
from raybio.core.errors import ConfigError
from raybio.methods import METHODS
from raybio.runtime.run.options import FOLD, RunOptions, resolve
from raybio.runtime.run.spec import Compute
from raybio.runtime.tracking.registry import Registration

ALL_FOLDS = (
    "train every fold of a cross-validation, several at once, and evaluate them together, as a "
    "sweep in the folder of --runs, default: RAYBIO_SWEEPS or sweeps/; --compare model=clgs adds a "
    "model"
)
LAST_TRAINING = (
    "after --all-folds: train each model again for its best number of steps, on validation "
    "sentences too; evaluate both"
)


Expand = Callable[[list[str]], tuple[list[str], Mapping[str, RunOptions]]]


def training_app(
    method: str,
    *,
    texts: HelpTexts | None = None,
    expand: Expand | None = None,
    sources: Sequence[str] = (),
) -> typer.Typer:
    """Return the command that trains a method: parse, train, compare, print the table.

    Args:
        method: key in ``METHODS``.
        texts: description, example and usage of its help; None: made from the method's description.
        expand: replaces the arguments before they are parsed; it also returns store and published
            settings of each part of the training, by name. Without parts, the store is ``--store``.
        sources: options that ``expand`` takes off the arguments, and that take paths and URIs.
    """
    default_comparison = METHODS[method].comparison
    has_folds = any(field.path == FOLD for field in fields(METHODS[method].config))
    texts = texts or help_texts(method)
    app = typer.Typer(add_completion=False)

    class Command(TyperCommand):
        """Keeps the parts of the training in the context."""

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            # Completion parses what is typed so far; it must prepare no store.
            if expand is not None and not ctx.resilient_parsing:
                args, ctx.obj = expand(args)
            return super().parse_args(ctx, args)

    @app.command(
        cls=Command,
        help=texts.description,
        options_metavar=texts.usage,
        context_settings={"help_option_names": []},
    )
    def command(
        context: typer.Context,
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
        register: options.Register = None,
        alias: options.Alias = None,
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
        strict: options.Strict = False,
        verbose: options.Verbose = False,
        help_: Annotated[bool, help_option(method)] = False,
        help_all: Annotated[bool, help_all_option(method)] = False,
    ) -> None:
        """The command line; ``--help`` is the description."""
        all_settings = [*(settings or ()), *options.init_settings(init)]
        if fold is not None:
            all_settings.append(f"{FOLD}={fold}")
        compared = tuple(compare_with or ())
        _refuse_contradictions(
            method,
            compared=compared,
            no_baseline=no_baseline,
            has_folds=has_folds,
            all_folds=all_folds,
            last_training=last_training,
            dry_run=dry_run,
            register=register,
            alias=alias,
        )
        registration = None if register is None else Registration(register, alias)
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
            accepts_long_run=yes,
            is_strict=strict,
        )
        if all_folds:
            from raybio.experiments.cross_validation import cross_validate

            cross_validate(
                method, given, compared=compared, seeds=seeds, has_last_training=last_training
            )
            return
        if default_comparison is not None and not (compared or no_baseline):
            compared = (default_comparison,)
        specs = {
            part: resolve(method, part_options)
            for part, part_options in options_by_part(given, context.obj or {}).items()
        }
        from raybio.cli.train_and_compare import train_and_compare

        train_and_compare(specs, compared, seeds, is_dry_run=dry_run, registration=registration)

    command.uri_options = tuple(sources)  # type: ignore[attr-defined]
    return app


def _refuse_contradictions(
    method: str,
    *,
    compared: Sequence[str],
    no_baseline: bool,
    has_folds: bool,
    all_folds: bool,
    last_training: bool,
    dry_run: bool,
    register: str | None,
    alias: str | None,
) -> None:
    """Refuse options that exclude or lack one another.

    Raises:
        ConfigError: naming both.
    """
    if no_baseline and compared:
        raise ConfigError(
            f"--compare {' '.join(compared)} and --no-baseline: got both, want other runs next "
            "to this one, or none"
        )
    if all_folds and not has_folds:
        raise ConfigError(f"--all-folds: {method} has no setting {FOLD}; leave it out")
    if last_training and not all_folds:
        raise ConfigError(
            "--last-training: follows --all-folds, which finds the best number of steps; give both"
        )
    if alias is not None and register is None:
        raise ConfigError(f"--alias {alias}: names a registered version; give --register, too")
    if register is not None and all_folds:
        raise ConfigError(
            "--register and --all-folds: got both, want one of them: folds are many models"
        )
    if all_folds and dry_run:
        raise ConfigError("--dry-run and --all-folds: got both, want one of them")


def options_by_part(given: RunOptions, parts: Mapping[str, RunOptions]) -> dict[str, RunOptions]:
    """Return the options of each part of a command; of one without parts, the given ones."""
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
