"""Groups of commands whose modules are imported when they are called."""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


class Entry(NamedTuple):
    """A command of a group.

    Attributes:
        summary: its line in the list of commands.
        load: imports its app.
    """

    summary: str
    load: Callable[[], typer.Typer]


class LazyGroup(TyperGroup):
    """A group whose help and completion import none of its commands.

    Attributes:
        entries: its commands, by name.
        former_names: former name of a command -> its present one; not shown.
    """

    entries: ClassVar[Mapping[str, Entry]] = {}
    former_names: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _LazyCommands(self.entries, self.former_names)  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return list(self.commands)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help with the summaries of all commands."""
        self._show_summaries()
        super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the commands and options that begin with ``incomplete``."""
        self._show_summaries()
        return super().shell_complete(ctx, incomplete)

    def _show_summaries(self) -> None:
        """Replace the commands by placeholders, since importing all of them would take a second."""
        self.commands = {
            name: TyperCommand(name, help=entry.summary) for name, entry in self.entries.items()
        }


class _LazyCommands(Mapping[str, Any]):
    def __init__(self, entries: Mapping[str, Entry], former_names: Mapping[str, str]) -> None:
        self.entries = entries
        self.former_names = former_names

    def __getitem__(self, name: str) -> Any:
        entry = self.entries[self.former_names.get(name, name)]
        return get_command(entry.load())

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def app_of(module: str, name: str = "app") -> Callable[[], typer.Typer]:
    """Return a function that imports a module and returns its app of that name."""
    return partial(_imported_app, module, name)


def _imported_app(module: str, name: str) -> typer.Typer:
    app = getattr(importlib.import_module(module), name)
    assert isinstance(app, typer.Typer)
    return app


def lazy_app(group: type[LazyGroup], description: str) -> typer.Typer:
    """Return an app with the commands of a group."""

    def no_options() -> None:
        """Do nothing: without a callback, typer makes no group of an app without own commands."""

    return typer.Typer(
        cls=group,
        help=description,
        callback=no_options,
        add_completion=False,
        no_args_is_help=True,
    )


def chosen_app(app: typer.Typer, words: Sequence[str]) -> tuple[typer.Typer, list[str]]:
    """Return the app that the first words select within lazy groups, and the remaining words."""
    rest = list(words)
    while rest:
        group = app.info.cls
        if not (isinstance(group, type) and issubclass(group, LazyGroup)):
            break
        entry = group.entries.get(group.former_names.get(rest[0], rest[0]))
        if entry is None:
            break
        app = entry.load()
        del rest[0]
    return app, rest
