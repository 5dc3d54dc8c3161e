"""The commands of ``raybio evaluate``: trained models, evaluated on labeled data."""

import typer

from raybio.cli import evaluate_models
from raybio.cli.commands import (
    biostransformers,
    contrastive_probe,
    mtb_mccl,
    relation_graphs,
    sppt,
)

app = typer.Typer(
    help="Evaluate trained models on labeled data.",
    add_completion=False,
    no_args_is_help=True,
)
for _commands in (
    evaluate_models.evaluate,
    biostransformers.evaluate,
    mtb_mccl.evaluate,
    relation_graphs.evaluate,
    sppt.evaluate,
    contrastive_probe.evaluate,
):
    app.add_typer(_commands)
