"""The command that trains SPPT on synthetic graphs, with and without its graph loss."""

from typing import Annotated

import typer

from raybio.cli import options as shared
from raybio.cli.training_help import help_all_option, help_option, help_texts
from raybio.core.errors import ConfigError
from raybio.methods.sppt.synthetic.config import KINDS
from raybio.runtime.run.options import RunOptions
from raybio.runtime.run.spec import Compute

NAME = "sppt_synthetic"

ABOUT = (
    "Each graph, draw and noise is trained with λ = 0 and with objective.lambda_spml, as one "
    "sweep. The same command resumes the sweep. Without a store it uses built-in simulated "
    "sentences; raybio prepare topics makes a store."
)

app = typer.Typer(add_completion=False)


def graph_kind(text: str) -> str:
    """Return a kind of graph; a typer ``parser``, since typer has no lists of ``Literal``.

    Raises:
        typer.BadParameter: for anything else.
    """
    if text not in KINDS:
        raise typer.BadParameter(f"got {text}, want {', '.join(KINDS)}")
    return text


@app.command(
    help=help_texts(NAME, ABOUT, options="--graph cliques --repeats 3").description,
    context_settings={"help_option_names": []},
)
def synthetic(
    graph: Annotated[
        list[str] | None,
        typer.Option(parser=graph_kind, metavar="GRAPH", help=f"{', '.join(KINDS)}; repeatable"),
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="all graphs, as in the paper's Table 1")
    ] = False,
    repeats: Annotated[int, typer.Option(min=1, help="draws of each graph and its sentences")] = 1,
    noise: Annotated[
        str,
        typer.Option(
            help="probabilities that an unlinked pair of nodes is linked, comma-separated"
        ),
    ] = "0",
    store: shared.Store = None,
    recipe: shared.RecipeName = None,
    config: shared.ConfigFile = None,
    settings: shared.Settings = None,
    cpus_per_worker: shared.CpusPerWorker = None,
    device: shared.DeviceOption = "auto",
    gpus_per_worker: shared.GpusPerWorker = None,
    name: shared.Name = None,
    sweeps: shared.Sweeps = None,
    tracking_uri: shared.TrackingUri = None,
    dry_run: shared.DryRun = False,
    yes: shared.Yes = False,
    strict: shared.Strict = False,
    verbose: shared.Verbose = False,
    help_: Annotated[bool, help_option(NAME)] = False,
    help_all: Annotated[bool, help_all_option(NAME)] = False,
) -> None:
    """The command line; ``--help`` is the description."""
    if all_ == bool(graph):
        raise ConfigError("want either --graph (repeatable) or --all")
    kinds = tuple(dict.fromkeys(graph or KINDS))
    options = RunOptions(
        store=store,
        recipe=recipe,
        config=config,
        settings=tuple(settings or ()),
        name=name,
        runs=sweeps,
        tracking=tracking_uri,
        compute=Compute(
            cpus_per_worker=cpus_per_worker, gpus_per_worker=gpus_per_worker, device=device
        ),
        accepts_long_run=yes,
        is_strict=strict,
        verbose=verbose,
    )
    from raybio.experiments.synthetic_graphs import Experiments, numbers, run_experiments

    experiments = Experiments(kinds, repeats, numbers(noise, "--noise"))
    run_experiments(options, experiments, is_dry_run=dry_run)
