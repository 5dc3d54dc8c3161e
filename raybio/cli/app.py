"""Functions that all command lines share. It imports nothing heavy: ``--help`` takes no second."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from raybio.core.config import BaseConfig, C, fields
from raybio.core.errors import RaybioError
from raybio.core.files import check_local

URI_OPTIONS = ("--tracking-uri", "--url")
"""The only options whose value may be a URI."""


_URI_IN_VALUE = re.compile(
    r"""
    ^\s* (?P<start> [A-Za-z][A-Za-z0-9+.-]+ :/ [^\s,]* )
    | [^\w\s.?;] \s* (?P<inside> [A-Za-z][A-Za-z0-9+.-]+ :// [^\s,"'\])}]* )
    """,
    re.VERBOSE,
)
"""Matches a URI at the start (even with one slash) or after a mark such as ``=``, ``,`` or ``[``.

A URI that follows the words of a sentence is text.
"""


def run_app(app: Callable[[], Any]) -> NoReturn:
    """Call a Typer app and exit.

    A ``RaybioError`` becomes one message and exit code 2, or 130 or 143 after a signal.
    """
    try:
        check_local_paths(sys.argv[1:])
        app()
    except RaybioError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 2))
    sys.exit(0)


def check_local_paths(arguments: Sequence[str]) -> None:
    """Refuse URIs in place of paths, before anything is created.

    All arguments except ``URI_OPTIONS`` are checked, so path options need no checks of their own.

    Raises:
        ConfigError: with the option and the URI.
    """
    option = ""
    for argument in arguments:
        is_option = argument.startswith("--")
        value = argument
        if is_option:
            option, _, value = argument.partition("=")
        uri = _URI_IN_VALUE.search(value)
        if uri is not None and option not in URI_OPTIONS:
            check_local(uri["start"] or uri["inside"], option or "argument")
        if not is_option:
            option = ""


def meanings(config: type[BaseConfig]) -> dict[str, str]:
    """Return meaning and range of each setting, as the help of an option of that name."""
    return {field.path: f"{field.meaning} {field.range}".strip() for field in fields(config)}


def settings_of(model: type[C], arguments: Mapping[str, Any]) -> C:
    """Return the settings among the arguments of a command.

    Raises:
        ConfigError: for a value out of range.
    """
    return model.from_mapping(
        {name: value for name, value in arguments.items() if name in model.model_fields}
    )
