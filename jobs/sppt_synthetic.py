"""Synthetic graphs: embeddings trained with and without the graph loss of SPPT.

Trains every graph, draw and noise with λ = 0 and with objective.lambda_spml, as one sweep.
The same command resumes the sweep. Without a store it uses embedded simulated sentences;
prepare.py topics makes a store.
"""

from typing import Annotated

import typer

from raybio.cli import options as shared
from raybio.cli.app import run_app
from raybio.cli.train import help_of
from raybio.core.errors import ConfigError
from raybio.methods.sppt.synthetic.config import KINDS
from raybio.runtime.run.options import RunOptions
from raybio.runtime.run.spec import Compute


def command(
    graph: Annotated[list[str] | None, typer.Option(help=f"{', '.join(KINDS)}; repeatable")] = None,
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
    device: Annotated[str, typer.Option(help="auto or cpu")] = "auto",
    gpus_per_worker: Annotated[
        float | None,
        typer.Option(
            parser=shared.non_negative,
            metavar="FLOAT",
            help="GPUs of each trial; a fraction lets trials share one",
        ),
    ] = None,
    name: shared.Name = None,
    tracking_uri: shared.TrackingUri = None,
    verbose: shared.Verbose = False,
    help_: Annotated[
        bool,
        typer.Option(
            "--help",
            is_eager=True,
            callback=help_of("sppt_synthetic"),
            help="show this and all settings",
        ),
    ] = False,
) -> None:
    """The command line; the module's description is the help."""
    if all_ == bool(graph):
        raise ConfigError("want either --graph (repeatable) or --all")
    for kind in graph or ():
        if kind not in KINDS:
            raise ConfigError(f"--graph: got {kind!r}, want one of {', '.join(KINDS)}")
    options = RunOptions(
        store=store,
        recipe=recipe,
        config=config,
        settings=tuple(settings or ()),
        name=name,
        tracking=tracking_uri,
        compute=Compute(
            cpus_per_worker=cpus_per_worker, gpus_per_worker=gpus_per_worker, device=device
        ),
        verbose=verbose,
    )
    from raybio.experiments.synthetic_graphs import Experiments, numbers, run_experiments

    kinds = tuple(dict.fromkeys(graph or KINDS))
    run_experiments(options, Experiments(kinds, repeats, numbers(noise, "--noise")))


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(help=__doc__, context_settings={"help_option_names": []})(command)
    run_app(app)
