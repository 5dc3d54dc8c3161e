"""The ``--out`` option of the commands of ``raybio evaluate`` that write scores."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from raybio.cli.options import writable_file
from raybio.core.records import write_record

ScoresFile = Annotated[
    Path | None,
    typer.Option(callback=writable_file, help="write the scores to this JSON file"),
]


def write_scores(out: Path | None, data: Mapping[str, Any]) -> None:
    """Write scores as JSON, unless ``out`` is None."""
    if out is None:
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    write_record(out, "report", data)
