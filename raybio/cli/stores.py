"""Options, file patterns and the table that all commands of ``jobs/prepare.py`` share."""

import glob
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from raybio.cli.console import stdout_console
from raybio.cli.options import fraction
from raybio.core.errors import ConfigError

if TYPE_CHECKING:
    from raybio.store.store import Store

Out = Annotated[Path, typer.Option(help="folder of the store")]
Force = Annotated[bool, typer.Option("--force", help="replace an existing store")]
Input = Annotated[list[str], typer.Option("--input", help="files or patterns; quote patterns")]
MaxBadShare = Annotated[
    float,
    typer.Option(parser=fraction, metavar="FLOAT", help="maximum fraction of invalid records"),
]

NO_VALIDATION = (
    "[yellow]no article is kept for validation[/]: training evaluates on such articles and will "
    "refuse this store. Prepare it again with a larger --validation-share, or train with "
    "--set schedule.evaluate_every_steps=0"
)


def matching(patterns: Sequence[str], option: str = "--input") -> list[Path]:
    """Return the files that match, by pattern in order and by name within a pattern.

    Raises:
        ConfigError: for a pattern without a file.
    """
    files: dict[Path, None] = {}
    for pattern in patterns:
        names = sorted(glob.glob(pattern, recursive=True))
        # A file whose name looks like a pattern.
        if not names and os.path.exists(pattern):
            names = [pattern]
        if not names:
            hint = ""
            if glob.has_magic(pattern):
                hint = ". Quote a pattern, so that the shell leaves it alone"
            raise ConfigError(f"{option} {pattern}: no such file{hint}")
        for name in names:
            files[Path(name)] = None
    return list(files)


LEAKAGE = {
    "with_twin": "held-out links with a twin in training",
    "c1": "held-out links, both ends seen in training (C1)",
    "c2": "held-out links, one end seen (C2)",
    "c3": "held-out links, no end seen (C3)",
    "validation_titles_in_training": "validation titles that are in training too",
    "dev_documents_in_training": "dev documents whose text is in training too",
    "dev_relations_in_training": "dev relations of entities that are related in training",
    "test_documents_in_training": "test documents whose text is in training too",
    "test_relations_in_training": "test relations of entities that are related in training",
    "dev_sentences_in_training": "dev sentences that are in training too",
    "dev_sentences_in_test": "dev sentences that are in test too",
    "test_sentences_in_training": "test sentences that are in training too",
}
"""Entries of a manifest's leakage -> their names in the table of a store."""


def show_store(store: "Store", started: float) -> None:
    """Print what a store holds, and which records were skipped.

    Args:
        store: the prepared store.
        started: ``time.perf_counter()`` when its preparation began.
    """
    from raybio.store.quarantine import SkippedRecord
    from raybio.store.store import MANIFEST

    seconds = time.perf_counter() - started
    manifest = store.manifest
    more_counts = {
        name: value for name, value in manifest.items() if name.endswith(("_citations", "_records"))
    }
    counts = manifest["counts"] | more_counts
    table = Table("what", "count", title=f"{escape(str(store.path))} ({seconds:.1f} s)")
    for name, count in counts.items():
        table.add_row(name.replace("_", " "), f"{count:,}")
    for name, count in manifest.get("leakage", {}).items():
        if name in LEAKAGE:
            table.add_row(LEAKAGE[name], f"{count:,}")
    if "training_until" in manifest:
        table.add_row("newest training links", manifest["training_until"])
    for reason, facts in manifest["quarantine"].items():
        table.add_row(f"[yellow]skipped:[/] {reason}", f"{facts['count']:,}")
    console = stdout_console()
    console.print(table)
    for reason, facts in manifest["quarantine"].items():
        if facts["examples"]:
            example = SkippedRecord(**facts["examples"][0])
            line = f"skipped: {reason}: first {example}, more in {store.path / MANIFEST}"
            console.print(line, soft_wrap=True, markup=False, highlight=False)
    is_without_validation = manifest["counts"].get("validation_articles") == 0
    if is_without_validation and manifest["parameters"]["validation_share"]:
        console.print(NO_VALIDATION, soft_wrap=True, highlight=False)
    for broken in manifest.get("broken_files", []):
        line = f"broken: {broken['file']}: {broken['reason']}"
        console.print(line, soft_wrap=True, markup=False, highlight=False)
