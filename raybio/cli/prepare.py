"""The commands of ``raybio prepare``: source files become a store or a benchmark."""

import typer

from raybio.cli.commands import biostransformers, mtb_mccl, relation_graphs, sppt
from raybio.cli.download import downloads
from raybio.cli.prepare_benchmarks import benchmarks

app = typer.Typer(
    help="Prepare a store or a benchmark from source files.",
    add_completion=False,
    no_args_is_help=True,
)
for _commands in (
    sppt.prepare,
    biostransformers.prepare,
    mtb_mccl.prepare,
    relation_graphs.prepare,
    benchmarks,
):
    app.add_typer(_commands)
app.add_typer(downloads, name="download", help="Download public data: resumable, verified.")
