"""The command that trains a method. It imports neither torch nor Ray until training begins."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from raybio.cli import options
from raybio.cli.training_help import (
    HelpTexts,
    help_all_option,
    help_arguments,
    help_option,
    help_texts,
)
from raybio.core.config import override
from raybio.core.errors import ConfigError
from raybio.core.fields import fields
from raybio.core.plain_yaml import parse_yaml
from raybio.methods import METHODS
from raybio.runtime.run.options import FOLD, RunOptions, check_writable, resolve
from raybio.runtime.run.spec import Compute, RunSpec
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
        sources: options for paths and URIs that ``expand`` removes from the arguments.
    """
    default_comparison = METHODS[method].comparison
    has_folds = _has_folds(method)
    texts = texts or help_texts(method)
    app = typer.Typer(add_completion=False)

    @app.command(
        cls=TyperCommand if expand is None else _parts_command(expand),
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
        device: options.DeviceOption = "auto",
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
        source = options.init_source(init)
        all_settings = [*(settings or ()), *options.init_settings(source)]
        if fold is not None:
            all_settings.append(f"{FOLD}={fold}")
        request = TrainingRequest(
            method=method,
            options=RunOptions(
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
            ),
            compared=tuple(compare_with or ()),
            seeds=seeds,
            no_baseline=no_baseline,
            all_folds=all_folds,
            last_training=last_training,
            dry_run=dry_run,
            register=register,
            alias=alias,
        )
        _check(request)
        with options.errors_name_init(init, source):
            _run(request, context.obj or {})

    command.uri_options = tuple(sources)  # type: ignore[attr-defined]
    return app


def _parts_command(expand: Expand) -> type[TyperCommand]:
    """Return the class of a command whose arguments are expanded before they are parsed."""

    class PartsCommand(TyperCommand):
        """Stores the parts of the training in the context."""

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            # Shell completion also parses arguments; it must not prepare a store.
            help_only = help_arguments(args)
            if help_only:
                # The parser does not know the options that ``expand`` removes.
                args = help_only
            elif not ctx.resilient_parsing:
                args, ctx.obj = expand(args)
            return super().parse_args(ctx, args)

    return PartsCommand


def _has_folds(method: str) -> bool:
    return any(field.path == FOLD for field in fields(METHODS[method].config))


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """The options of one command line.

    Attributes:
        method: key in ``METHODS``.
        options: options of each run.
        compared: other values of settings, as ``--compare`` takes them.
        seeds: number of seeds that each run is trained with.
        no_baseline: train only this run.
        all_folds: train every fold of a cross-validation.
        last_training: after all folds, train each model again for its best number of steps.
        dry_run: print the runs, and train none.
        register: name of the registered model in MLflow; None: none is registered.
        alias: alias of its version.
    """

    method: str
    options: RunOptions
    compared: tuple[str, ...]
    seeds: int
    no_baseline: bool
    all_folds: bool
    last_training: bool
    dry_run: bool
    register: str | None
    alias: str | None


def _check(request: TrainingRequest) -> None:
    """Refuse options that exclude or lack one another.

    Raises:
        ConfigError: naming both.
    """
    if request.no_baseline and request.compared:
        raise ConfigError(
            f"--compare {' '.join(request.compared)} and --no-baseline: got both, want other runs "
            "next to this one, or none"
        )
    if request.all_folds and not _has_folds(request.method):
        raise ConfigError(f"--all-folds: {request.method} has no setting {FOLD}; leave it out")
    if request.last_training and not request.all_folds:
        raise ConfigError(
            "--last-training: follows --all-folds, which finds the best number of steps; give both"
        )
    if request.alias is not None and request.register is None:
        raise ConfigError(
            f"--alias {request.alias}: names a registered version; give --register, too"
        )
    if request.register is not None and request.all_folds:
        raise ConfigError(
            "--register and --all-folds: got both, want one of them: folds are many models"
        )


def _run(request: TrainingRequest, parts: Mapping[str, RunOptions]) -> None:
    """Train all folds, or each part with its compared runs."""
    if request.all_folds:
        from raybio.experiments.cross_validation import cross_validate

        cross_validate(
            request.method,
            request.options,
            compared=request.compared,
            seeds=request.seeds,
            has_last_training=request.last_training,
            is_dry_run=request.dry_run,
        )
        return
    registration = None
    if request.register is not None:
        registration = Registration(request.register, request.alias)
    specs = {
        part: resolve(request.method, part_options)
        for part, part_options in options_by_part(request.options, parts).items()
    }
    compared = request.compared
    default_comparison = METHODS[request.method].comparison
    if default_comparison is not None and not (compared or request.no_baseline):
        refusal = _refusal(specs.values(), default_comparison)
        if refusal:
            print(f"not compared with {default_comparison}: {refusal}", flush=True)
        else:
            compared = (default_comparison,)
    if not request.dry_run:
        for spec in specs.values():
            check_writable(spec.runs, spec.bucket)
    else:
        # Print this first: the following code imports torch and transformers, and reads the store.
        print("dry run: checking the settings against the store", flush=True)
    from raybio.cli.train_and_compare import train_and_compare

    train_and_compare(
        specs, compared, request.seeds, is_dry_run=request.dry_run, registration=registration
    )


def _refusal(specs: Iterable[RunSpec], comparison: str) -> str:
    """Return why a run cannot have the values that it is compared with; "" if all can."""
    path, _, values = comparison.partition("=")
    try:
        for spec in specs:
            for value in parse_yaml(f"[{values}]"):
                override(spec.config, path, value)
    except ConfigError as error:
        return str(error)
    return ""


def options_by_part(given: RunOptions, parts: Mapping[str, RunOptions]) -> dict[str, RunOptions]:
    """Return the options of each part of a command; without parts, the given options."""
    if not parts:
        return {"": given}
    merged = {}
    for name, part in parts.items():
        run_name = given.name
        # With several parts, each is a separate run.
        if given.name and len(parts) > 1:
            run_name = f"{given.name}-{name}"
        merged[name] = replace(given, store=part.store, published=part.published, name=run_name)
    return merged
