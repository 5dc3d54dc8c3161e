"""How every job's command line ends. It imports nothing heavy, so that ``--help`` and refusals come at once."""

import sys
from collections.abc import Callable
from typing import Any, NoReturn

from raybio.errors import RaybioError


def run_app(app: Callable[[], Any]) -> NoReturn:
    """Call a Typer app; a ``RaybioError`` becomes one message and exit code 2, or 130/143 after a signal."""
    try:
        app()
    except RaybioError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 2))
    sys.exit(0)
