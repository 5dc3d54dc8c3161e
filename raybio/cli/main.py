"""The command ``raybio``. ``--help`` and ``--version`` import no command."""

import sys
from typing import Annotated, NoReturn

import typer

from raybio.cli.app import run_app
from raybio.cli.lazy import Entry, LazyGroup, app_of
from raybio.core.version import VERSION


class Commands(LazyGroup):
    """The commands of ``raybio``."""

    entries = {
        "demo": Entry("Train a method on its built-in corpus.", app_of("raybio.cli.demo")),
        "preflight": Entry(
            "Check machine, cluster, store and settings before a start.",
            app_of("raybio.cli.preflight"),
        ),
        "prepare": Entry(
            "Prepare a store or a benchmark from source files.", app_of("raybio.cli.prepare")
        ),
        "train": Entry(
            "Train a method, and compare it with variants and rivals.", app_of("raybio.cli.train")
        ),
        "sweep": Entry(
            "Try many settings of a method, and keep the best.", app_of("raybio.cli.sweep")
        ),
        "evaluate": Entry(
            "Evaluate trained models on labeled data.", app_of("raybio.cli.evaluate")
        ),
        "benchmark": Entry(
            "Evaluate encoders and rivals on many tasks; one report.",
            app_of("raybio.cli.benchmark"),
        ),
        "compare": Entry(
            "Compare runs: settings, scores with tests, curves, cost.", app_of("raybio.cli.compare")
        ),
        "predict": Entry(
            "Predict for new inputs with a trained model.", app_of("raybio.cli.predict")
        ),
        "embed": Entry("Embed proteins or texts with a trained model.", app_of("raybio.cli.embed")),
        "export": Entry("Export a trained encoder to ONNX.", app_of("raybio.cli.export")),
        "tensorboard": Entry(
            "Write metrics of runs as event files of TensorBoard.",
            app_of("raybio.cli.metrics_files", "tensorboard_app"),
        ),
        "wandb": Entry(
            "Write metrics of runs as offline runs of Weights & Biases.",
            app_of("raybio.cli.metrics_files", "wandb_app"),
        ),
        "push": Entry("Push a trained model to the Hugging Face hub.", app_of("raybio.cli.push")),
        "serve": Entry("Serve a trained model over HTTP.", app_of("raybio.cli.serve")),
        "search": Entry(
            "Build an index of embeddings, and find nearest neighbors in it.",
            app_of("raybio.cli.search"),
        ),
        "explore": Entry(
            "Write a map of embeddings as one HTML page.", app_of("raybio.cli.explore")
        ),
    }


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"raybio {VERSION}")
        raise typer.Exit


@app.callback()
def raybio(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="show the version"),
    ] = False,
) -> None:
    """Pre-train, fine-tune, probe and tune biomedical encoders on a Ray cluster."""


def main(*words: str) -> NoReturn:
    """Run the command line and exit.

    Args:
        words: words before the arguments; a script passes its own command.
    """
    run_app(app, [*words, *sys.argv[1:]])


if __name__ == "__main__":
    main()
