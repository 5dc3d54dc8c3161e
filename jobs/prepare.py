"""Prepare a store from source files: ``python jobs/prepare.py proteins --help``."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from raybio.config import fields
from raybio.data.interactomes import TreeOfLife
from raybio.data.prepare import PrepareConfig, prepare_proteins
from raybio.data.tables import Tables
from raybio.errors import ConfigError, RaybioError

app = typer.Typer(help=__doc__, add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
app.callback()(lambda: None)  # keeps "proteins" a command of its own: corpora of other kinds will stand beside it
DEFAULT = PrepareConfig()
HELP = {field.path: f"{field.meaning} {field.range}".strip() for field in fields(PrepareConfig)}


@app.command()
def proteins(
    out: Annotated[Path, typer.Option(help="folder of the store")],
    interactomes: Annotated[Path | None, typer.Option(help="folder with <taxid>.txt (SNAP Tree-of-life)")] = None,
    species: Annotated[Path | None, typer.Option(help="treeoflife.species.tsv")] = None,
    sequences: Annotated[Path | None, typer.Option(help="FASTA file, or folder with <taxid>.fa[.gz]")] = None,
    edges: Annotated[Path | None, typer.Option(help="table: protein_a, protein_b")] = None,
    proteins: Annotated[Path | None, typer.Option(help="table: protein_id, species_taxid, sequence")] = None,
    heldout_share: Annotated[float, typer.Option(help=HELP["heldout_share"])] = DEFAULT.heldout_share,
    seed: Annotated[int, typer.Option(help=HELP["seed"])] = DEFAULT.seed,
    strip_stop: Annotated[bool, typer.Option(help=HELP["strip_stop"])] = DEFAULT.strip_stop,
    max_length: Annotated[int, typer.Option(help=HELP["max_length"])] = DEFAULT.max_length,
    max_bad_share: Annotated[float, typer.Option(help=HELP["max_bad_share"])] = DEFAULT.max_bad_share,
    force: Annotated[bool, typer.Option("--force", help="replace a store that is there already")] = False,
) -> None:
    """Protein sequences and their links: a Tree-of-life download, or two tables (.gz too)."""
    config = PrepareConfig.from_mapping({name: value for name, value in locals().items() if name in HELP})
    tree_of_life, tables, started = (interactomes, species, sequences), (edges, proteins), time.perf_counter()
    if all(tree_of_life) == all(tables) or (any(tree_of_life) and any(tables)):
        raise ConfigError("want either --interactomes, --species and --sequences, or --edges and --proteins")
    source = TreeOfLife(*tree_of_life) if all(tree_of_life) else Tables(*tables)  # type: ignore[arg-type]
    store = prepare_proteins(out, source, config, force=force)
    shown = Table("what", "count", title=f"{store.path} ({time.perf_counter() - started:.1f} s)")
    for name, count in store.manifest["counts"].items():
        shown.add_row(name.replace("_", " "), f"{count:,}")
    for reason, facts in store.manifest["quarantine"].items():
        shown.add_row(f"[yellow]set aside:[/] {reason}", f"{facts['count']:,}")
    Console().print(shown)


if __name__ == "__main__":
    try:
        app()
    except RaybioError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)
