"""What the commands of ``jobs/prepare.py`` share: which files a pattern names, and what came of them."""

import glob
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from raybio.core.errors import ConfigError
from raybio.store.quarantine import Example

if TYPE_CHECKING:
    from raybio.store.store import Store

Out = Annotated[Path, typer.Option(help="folder of the store")]


Force = Annotated[bool, typer.Option("--force", help="replace a store that is there already")]


NO_VALIDATION = (
    "[yellow]no article is kept for validation[/]: training evaluates on such articles and will refuse this store. "
    "Prepare it again with a larger --validation-share, or train with --set schedule.evaluate_every_steps=0"
)


def matching(patterns: Sequence[str], option: str = "--input") -> list[Path]:
    """The files that the patterns of an option name, in the order of the patterns and then of their names.

    Raises:
        ConfigError: for a pattern without a file.
    """
    files: dict[Path, None] = {}
    for pattern in patterns:
        found = sorted(glob.glob(pattern, recursive=True)) or (
            [pattern] if os.path.exists(pattern) else []
        )
        if not found:
            hint = (
                ". Quote a pattern, so that the shell leaves it alone"
                if glob.has_magic(pattern)
                else ""
            )
            raise ConfigError(f"{option} {pattern}: no such file{hint}")
        files |= dict.fromkeys(Path(path) for path in found)
    return list(files)


def show_store(store: "Store", started: float) -> None:
    """A table of what a store holds and what was set aside; ``started``: when its preparation began."""
    from raybio.store.store import MANIFEST

    shown = Table(
        "what", "count", title=f"{escape(str(store.path))} ({time.perf_counter() - started:.1f} s)"
    )
    counts = {
        name: value
        for name, value in store.manifest.items()
        if name.endswith(("_citations", "_records"))
    }
    for name, count in (store.manifest["counts"] | counts).items():
        shown.add_row(name.replace("_", " "), f"{count:,}")
    for reason, facts in store.manifest["quarantine"].items():
        shown.add_row(f"[yellow]set aside:[/] {reason}", f"{facts['count']:,}")
    console = Console()
    console.print(shown)
    for reason, facts in store.manifest["quarantine"].items():
        if facts["examples"]:
            told = f"set aside: {reason}: first {Example(**facts['examples'][0])}, more in {store.path / MANIFEST}"
            console.print(told, soft_wrap=True, markup=False, highlight=False)
    if (
        store.manifest["counts"].get("validation_articles") == 0
        and store.manifest["parameters"]["validation_share"]
    ):
        console.print(NO_VALIDATION, soft_wrap=True, highlight=False)
    for one in store.manifest.get("broken_files", []):
        console.print(
            f"broken: {one['file']}: {one['reason']}", soft_wrap=True, markup=False, highlight=False
        )
