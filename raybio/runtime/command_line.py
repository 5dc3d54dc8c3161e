"""What the jobs' command lines share. It imports nothing heavy, so that ``--help`` and refusals come at once."""

import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from raybio.config import C, Config, fields
from raybio.errors import RaybioError


def run_app(app: Callable[[], Any]) -> NoReturn:
    """Call a Typer app; a ``RaybioError`` becomes one message and exit code 2, or 130/143 after a signal."""
    try:
        app()
    except RaybioError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 2))
    sys.exit(0)


def meanings(config: type[Config]) -> dict[str, str]:
    """What each setting means, and its range: the help of an option of that name."""
    return {field.path: f"{field.meaning} {field.range}".strip() for field in fields(config)}


def settings_of(model: type[C], arguments: Mapping[str, Any]) -> C:
    """Those of a command's arguments that are settings.

    Raises:
        ConfigError: for a value out of range.
    """
    return model.from_mapping({name: value for name, value in arguments.items() if name in model.model_fields})
