"""The command that sweeps a search space on a store and writes the best settings."""

import sys
from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from raybio.cli import options as shared
from raybio.cli.console import stdout_console
from raybio.cli.contrastive_probe.train import prepare_given_store
from raybio.cli.options import positive
from raybio.cli.training_help import help_arguments
from raybio.core.config import first_path, name_digits, present_names
from raybio.core.plain_yaml import read_mapping
from raybio.core.records import read_record
from raybio.core.search_space import (
    STEPS,
    SearchSpace,
    base_values_outside,
    format_value,
    refuse_decided_settings,
)
from raybio.core.search_space_file import load_search_space
from raybio.methods import METHODS, present_name
from raybio.runtime.run.folder import RunFolder, name_beginning
from raybio.runtime.run.options import (
    RunOptions,
    base_configs,
    check_writable,
    resolve,
    resolve_config,
    runs_folder,
    sweeps_folder,
)
from raybio.runtime.run.spec import Compute, RunSpec
from raybio.runtime.tune.plan import numbered, planned
from raybio.runtime.tune.trial import SweepSpec
from raybio.training.settings import TrainingConfig

if TYPE_CHECKING:
    from raybio.runtime.tune.driver import SweepResult

app = typer.Typer(add_completion=False)


SHOWN_SETTINGS = 10


class SweepCommand(TyperCommand):
    """Prepares a store from --sentences and --benchmark, like the training of Contrastive-Probe."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, with --store replacing both options."""
        # Shell completion also parses arguments; it must not prepare a store.
        if not ctx.resilient_parsing:
            args = help_arguments(args) or prepare_given_store(args)
        return super().parse_args(ctx, args)


@app.command(cls=SweepCommand)
def sweep(
    space: Annotated[
        Path,
        typer.Argument(
            help="name of a search space that comes with raybio, that of its method; or a YAML "
            "file: the method, what varies, the budget"
        ),
    ],
    store: shared.Store = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            help="settings that come with the method, for all trials, such as small; or demo",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML file of settings that all trials share")
    ] = None,
    settings: shared.Settings = None,
    init: shared.Init = None,
    budget: shared.Budget = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="training workers of each trial; default: 1, in the trial's own process"
        ),
    ] = None,
    cpus_per_worker: Annotated[
        float | None,
        typer.Option(
            parser=positive,
            metavar="FLOAT",
            help="logical CPUs of each worker; default: equal parts",
        ),
    ] = None,
    gpus_per_worker: shared.GpusPerWorker = None,
    name: Annotated[
        str | None, typer.Option(help="the sweep's name; the same name resumes that sweep")
    ] = None,
    sweeps: shared.Sweeps = None,
    tracking_uri: Annotated[
        str | None, typer.Option(help="MLflow; default: sqlite, mlflow.db next to the sweeps")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="print the trials, with their time if a similar run has finished; start none",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="accept a sweep of more than a day on CPUs")
    ] = False,
    strict: shared.Strict = False,
    verbose: shared.Verbose = False,
) -> None:
    """Try many settings of one method, stop bad trials early, and write the best settings.

    The same command resumes the sweep: ended trials are not trained again.

    Example: raybio sweep sppt_protein --store STORE --recipe small --name first --dry-run
    """
    source = shared.init_source(init)
    all_settings = [*(settings or ()), *shared.init_settings(source)]
    given = RunOptions(
        store=store,
        recipe=recipe,
        config=config,
        settings=tuple(all_settings),
        verbose=verbose,
        accepts_long_run=yes,
        is_strict=strict,
    )
    loaded = load_search_space(space, base_configs(given), present_name)
    entry = METHODS[loaded.method]
    folder, bucket = sweeps_folder(sweeps, name)
    options = SweepOptions(
        budget=tuple(budget or ()),
        workers=workers,
        cpus_per_worker=cpus_per_worker,
        gpus_per_worker=gpus_per_worker,
        tracking_uri=tracking_uri,
    )
    if name is not None:
        options = options.or_recorded(RunFolder(folder, name))
    chosen = loaded.with_budget(options.budget)
    refuse_decided_settings(chosen, given.settings, entry.config)
    _report_unused(chosen, config)
    if dry_run:
        found_store, base_config = resolve_config(entry, given, Path("runs"))
        if found_store is None:
            # A dry run does not prepare the demo's store, which would name the sweep.
            run = RunSpec(
                method=chosen.method,
                config=base_config,
                store=Path(),
                name=name or "plan",
                runs=folder,
                compute=options.compute,
            )
            _print_plan(SweepSpec(space=chosen, run=run, checks_store=False))
            return
    else:
        check_writable(folder, bucket, "--sweeps")
    base = resolve(chosen.method, given)
    if name is None:
        # ``--budget`` is not part of the name, since it may change when the sweep is resumed.
        first = entry.first_name
        # New names of settings or of the method must not change that of the sweep.
        former = loaded.renamed(partial(first_path, entry.config))
        digest = name_digits(former.model_copy(update={"method": first}))[:4]
        name = f"{name_beginning(space.stem)}-{digest}{base.name.removeprefix(f'{first}-')}"
        folder, bucket = sweeps_folder(sweeps, name)
        options = options.or_recorded(RunFolder(folder, name))
        chosen = loaded.with_budget(options.budget)
    run = replace(
        base,
        name=name,
        runs=folder,
        bucket=bucket,
        tracking=options.tracking_uri,
        compute=options.compute,
    )
    if dry_run:
        _print_plan(SweepSpec(space=chosen, run=run))
        return
    _warn_outside(chosen, base.config)
    from raybio.runtime.spool.spool import announce_copy
    from raybio.runtime.tune.driver import sweep as run_sweep

    announce_copy("sweeps", folder, bucket)
    with shared.errors_name_init(init, source):
        state = run_sweep(SweepSpec(space=chosen, run=run, options=asdict(options)))
    _print_result(state)


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Options that the next start of a sweep repeats, unless it gets other values."""

    budget: tuple[str, ...] = ()
    workers: int | None = None
    cpus_per_worker: float | None = None
    gpus_per_worker: float | None = None
    tracking_uri: str | None = None

    @property
    def compute(self) -> Compute:
        """The workers of a trial, and the CPUs and GPUs of each."""
        return Compute(
            workers=self.workers or 1,
            cpus_per_worker=self.cpus_per_worker,
            gpus_per_worker=self.gpus_per_worker,
        )

    def or_recorded(self, folder: RunFolder) -> "SweepOptions":
        """Return these options, completed by those of the sweep's last start."""
        launch = read_record(folder.launch, "launch") or {}
        recorded = dict(launch.get("given", {}))
        given_names = {_name(text) for text in self.budget}
        budget = [text for text in recorded.pop("budget", []) if _name(text) not in given_names]
        others = {
            name: value
            for name, value in recorded.items()
            if value is not None and getattr(self, name) is None
        }
        shown = [f"--budget {text}" for text in budget]
        shown += [f"--{name.replace('_', '-')} {value}" for name, value in others.items()]
        if shown:
            print(f"as {folder.name} was started before: {' '.join(shown)}")
        return replace(self, budget=(*budget, *self.budget), **others)


def _name(text: str) -> str:
    return text.partition("=")[0].strip()


def _report_unused(space: SearchSpace, config: Path | None) -> None:
    """Print which settings of ``--config`` the space or its budget overrides.

    This is not an error, since a configuration file may be complete.
    """
    if config is None:
        return
    mapping = present_names(METHODS[space.method].config, read_mapping(config))
    unused = []
    for path in (*space.space, STEPS):
        section, _, setting = path.partition(".")
        if section not in mapping:
            continue
        values = mapping[section]
        if not setting or (isinstance(values, dict) and setting in values):
            unused.append(path)
    if unused:
        verb = "is" if len(unused) == 1 else "are"
        print(f"of {config}, {', '.join(unused)} {verb} not used: the space decides")


def _warn_outside(space: SearchSpace, base: TrainingConfig) -> None:
    for described in base_values_outside(space, base):
        print(f"warning: {described}", file=sys.stderr)


def _print_plan(spec: SweepSpec) -> None:
    """Print the trials; check them against the store only if it exists already."""
    space = spec.space
    _warn_outside(space, spec.run.config)
    if spec.checks_store:
        print(f"checking the trials against {spec.run.store}", flush=True)
    trials = planned(space, spec.check)
    if space.search.kind == "optuna":
        print("optuna learns from each trial; without any result, it would try")
    print("\n".join(numbered(spec, trials)))
    budget = space.budget
    summary = f"{len(trials)} trials of {budget.max_steps:,} steps at most"
    if space.scheduler.kind != "none":
        summary += f", stopped by {space.scheduler.kind} from step {budget.grace_steps:,} on"
    if budget.num_repeated:
        summary += f"; then the best {budget.num_repeated} with {budget.num_seeds} seeds each"
    print(summary)
    if spec.checks_store:
        runs, _ = runs_folder(None)
        print(f"looking for similar runs in {runs} and {spec.run.runs}", flush=True)
        # Imported here, since it imports torch and is needed only with a store.
        from raybio.runtime.compare.cost import describe_sweep_time

        for line in describe_sweep_time(spec, runs, names_unknown=True):
            print(line)
    print(f"compared by {space.metric}; the first trial shows whether that is evaluated")


def _print_result(swept: "SweepResult") -> None:
    from rich.table import Table

    from raybio.runtime.tune.report import ranking_remarks

    console = stdout_console()
    space = swept.spec.space
    table = Table(title=f"{swept.folder.name}: the best settings")
    titles = [path.replace(".", ".\n", 1) for path in space.space]
    for title in ("", *titles, space.metric, "at step"):
        table.add_column(title, overflow="fold")
    for number, ranked in enumerate(swept.ranking[:SHOWN_SETTINGS], start=1):
        interval = "" if ranked.low is None else f" [{ranked.low:.4f}, {ranked.high:.4f}]"
        chosen = [format_value(ranked.settings.get(path, "")) for path in space.space]
        table.add_row(str(number), *chosen, f"{ranked.mean:.4f}{interval}", f"{ranked.best_step:,}")
    if swept.ranking and swept.ranking[0].trials[0].initial is not None:
        initial = f"{swept.ranking[0].trials[0].initial:.4f}"
        table.add_row("before training", *[""] * len(titles), initial, "0")
    console.print(table)
    for remark in ranking_remarks(space, swept.ranking):
        console.print(f"{remark}.", highlight=False, markup=False)
    counts = Counter(trial.status for trial in swept.trials)
    described = ", ".join(f"{count} {status}" for status, count in counts.items())
    console.print(f"{len(swept.trials)} trials: {described}")
    path = swept.folder.path
    lines = {"report": f"{path / 'report.html'}", "best": f"{path / 'best.yaml'}"}
    if swept.ranking:
        first = swept.ranking[0].trials[0]
        export = swept.folder_of(first).export
        lines["model"] = f"{export}, of its step {first.best_step:,}"
    if swept.spec.run.bucket is not None:
        lines["bucket"] = f"{swept.spec.run.bucket / swept.folder.name}, with all of it"
    lines["MLflow"] = swept.mlflow_line
    for title, text in lines.items():
        console.print(f"{title:>7}: {text}", highlight=False, soft_wrap=True, markup=False)
