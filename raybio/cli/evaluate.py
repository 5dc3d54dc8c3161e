"""The commands of ``jobs/evaluate.py``: trained models, evaluated on labeled data."""

import typer

from raybio.cli.commands import biostransformers, mtb_mccl, relation_graphs, sppt

app = typer.Typer(
    help="Evaluate trained models.",
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
for _commands in (
    biostransformers.evaluate,
    mtb_mccl.evaluate,
    relation_graphs.evaluate,
    sppt.evaluate,
):
    app.add_typer(_commands)
