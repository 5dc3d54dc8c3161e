"""Functions that all command lines share, without heavy imports, so that ``--help`` is fast."""

import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NoReturn, get_args, get_type_hints

import typer
from typer.main import get_command
from typer.models import ArgumentInfo, OptionInfo

from raybio.cli.lazy import chosen_app
from raybio.cli.options import FREE_TEXT, URI_PARSERS
from raybio.cli.output import guarded_output
from raybio.core.errors import InterruptedRunError, RaybioError, one_line
from raybio.core.files import check_local, disk_problem
from raybio.core.location import is_uri, location
from raybio.core.terminal import printable

NON_PATH_OPTIONS = ("--tracking-uri", "--url")
"""Options whose value is an address of a server."""


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

_ENCODER_SOURCE = re.compile(r"\s*encoder\.source\s*=(?P<values>.*)", re.DOTALL)
"""Matches the setting that takes URIs."""


def run_app(app: typer.Typer, arguments: Sequence[str]) -> NoReturn:
    """Call the app of ``raybio`` with the arguments of a command line, and exit.

    A ``RaybioError`` or an ``OSError`` becomes one message and exit code 2, or 129, 130 or
    143 after a signal. With ``--verbose``, the tracebacks of the error and its causes come first,
    except after a signal or a stop file.
    """
    with guarded_output():
        try:
            chosen, rest = chosen_app(app, arguments)
            check_uris(rest, uri_options_of(chosen, rest), text_options_of(chosen, rest))
            command: Any = get_command(app)
            if any(word != printable(word) for word in arguments):
                # Typer would frame a usage error by its own console.
                command.rich_markup_mode = None
            command.main(args=[*arguments], prog_name="raybio")
        except RaybioError as error:
            if "--verbose" in arguments and not isinstance(error, InterruptedRunError):
                print_chain(error)
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            sys.exit(error.exit_code)
        except Exception as error:
            if not isinstance(error, OSError):
                # Print it here: the interpreter would not escape the traceback, and might color it.
                traceback.print_exc()
                sys.exit(1)
            if "--verbose" in arguments:
                print_chain(error)
            problem = disk_problem(error)
            kind = "DiskError"
            if problem is None:
                kind = type(error).__name__
                problem = one_line(error)
                if "--verbose" not in arguments:
                    problem += ". --verbose shows where it happened"
            print(f"{kind}: {problem}", file=sys.stderr)
            sys.exit(2)
    sys.exit(0)


def print_chain(error: BaseException) -> None:
    """Print the tracebacks of an error and all its causes, also those hidden by ``from None``."""
    shown: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in shown:
        shown.append(cause)
        if cause.__cause__ is None:
            # The message of the error replaces its cause, but here the cause is wanted.
            cause.__suppress_context__ = False
        cause = cause.__cause__ or cause.__context__
    traceback.print_exception(error)


def uri_options_of(app: typer.Typer, arguments: Sequence[str]) -> set[str]:
    """Return the names of the options that take URIs in the command that the arguments choose.

    An option takes URIs if its parser reads them. If an argument of the command takes URIs, the
    result contains "" and the command's flags, since the word after a flag may be that argument.
    """
    names = set()
    flags = set()
    for callback in _callbacks(app, arguments):
        # Training commands read some options before typer parses.
        names |= set(getattr(callback, "uri_options", ()))
        for name, kind, info in _parameters(callback):
            if isinstance(info, ArgumentInfo) and info.parser in URI_PARSERS:
                names.add("")
            elif isinstance(info, OptionInfo) and info.parser in URI_PARSERS:
                names |= _names(name, info)
            elif isinstance(info, OptionInfo) and bool in (kind, *get_args(kind)):
                flags |= _names(name, info)
    return names | flags if "" in names else names


def text_options_of(app: typer.Typer, arguments: Sequence[str]) -> set[str]:
    """Return the names of the options that take free text in the command that the arguments choose.

    Their parameters are annotated with ``FREE_TEXT``. If an argument takes free text, the result
    contains "".
    """
    names = set()
    for callback in _callbacks(app, arguments):
        annotations = list(_parameters(callback))
        texts = {name for name, _, info in annotations if info is FREE_TEXT}
        for name, _, info in annotations:
            if name in texts and isinstance(info, ArgumentInfo):
                names.add("")
            elif name in texts and isinstance(info, OptionInfo):
                names |= _names(name, info)
    return names


def _parameters(callback: Callable[..., Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, type, annotation) for each annotation of the parameters of a command."""
    for name, hint in get_type_hints(callback, include_extras=True).items():
        kind, *infos = get_args(hint) or (None,)
        for info in infos:
            yield name, kind, info


def _names(parameter: str, info: OptionInfo) -> set[str]:
    """Return the names of an option as they are typed."""
    # Typer keeps the first name of an annotation as the default.
    declared = [info.default, *(info.param_decls or ())]
    names = {name for name in declared if isinstance(name, str) and name.startswith("--")}
    return names or {"--" + parameter.strip("_").replace("_", "-")}


def _callbacks(app: typer.Typer, arguments: Sequence[str]) -> Iterator[Callable[..., Any]]:
    """Yield the function of the command that the arguments choose.

    If an app has only one command, its name is not typed.
    """
    commands = app.registered_commands
    if len(commands) == 1 and not app.registered_groups:
        assert commands[0].callback is not None
        yield commands[0].callback
    else:
        yield from _named(app, arguments)
    for group in app.registered_groups:
        inner = group.typer_instance
        assert inner is not None
        if group.name is None or not isinstance(group.name, str):
            yield from _named(inner, arguments)
        elif group.name in arguments[:1]:
            yield from _named(inner, arguments[1:])


def _named(app: typer.Typer, arguments: Sequence[str]) -> Iterator[Callable[..., Any]]:
    """Yield the function of the command that the first argument names."""
    for command in app.registered_commands:
        callback = command.callback
        assert callback is not None
        if (command.name or callback.__name__.replace("_", "-")) in arguments[:1]:
            yield callback


def check_uris(
    arguments: Sequence[str],
    uri_options: Collection[str] = (),
    text_options: Collection[str] = (),
) -> None:
    """Refuse URIs in place of local paths, and URIs that are not supported.

    This runs before anything is created. All arguments except free text and ``NON_PATH_OPTIONS``
    are checked, so options need no checks of their own.

    Args:
        arguments: the command line.
        uri_options: options that take URIs; "" for arguments.
        text_options: options that take free text, which may hold any link; "" for arguments.

    Raises:
        ConfigError: with the option and the URI.
    """
    option = ""
    not_paths = {*NON_PATH_OPTIONS, *text_options}
    for argument in arguments:
        is_option = argument.startswith("--")
        value = argument
        if is_option:
            option, _, value = argument.partition("=")
        uri = _URI_IN_VALUE.search(value)
        if option in ("--set", "--compare") and (sources := _ENCODER_SOURCE.match(value)):
            for source in sources["values"].split(","):
                if is_uri(source := source.strip(" '\"[]")):
                    location(source, option)
        elif uri is not None and option in uri_options:
            location(value.strip(), option or "argument")
        elif uri is not None and option not in not_paths:
            check_local(uri["start"] or uri["inside"], option or "argument")
        if not is_option:
            option = ""
