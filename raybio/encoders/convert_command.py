"""The commands that convert one model folder into another."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from raybio.errors import DataError


def convert_command(convert: Callable[[str, str], Path], arguments: Sequence[str]) -> str | None:
    """The command ``[program, source, output]``: convert a folder; returns what went wrong, if anything did."""
    program, *places = arguments
    if len(places) != 2:
        return f"usage: python -m raybio.encoders.{Path(program).stem} SOURCE_FOLDER OUTPUT_FOLDER"
    try:
        sys.stdout.write(f"{convert(*places)}\n")
    except (DataError, OSError) as error:
        return f"error: {error}"
    return None
