"""The help of the commands that train: short by ``--help``, complete by ``--help-all``."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import typer
from rich.table import Table
from typer.core import TyperOption

from raybio.core.config import value_at
from raybio.core.fields import Field, fields
from raybio.methods import METHODS
from raybio.runtime.console import PrintableConsole

FIRST_OPTIONS = {
    "store",
    "recipe",
    "settings",
    "init",
    "name",
    "seeds",
    "workers",
    "device",
    "graph",
    "all_",
    "dry_run",
    "help_",
    "help_all",
}
"""Parameters that ``--help`` shows; ``--help-all`` shows the others too."""


class HelpTexts(NamedTuple):
    """The texts before the options in the help of a training command.

    Attributes:
        description: description of the command, with an example.
        usage: text after the command in the usage line.
    """

    description: str
    usage: str = "[OPTIONS]"


def help_arguments(arguments: Sequence[str]) -> list[str]:
    """Return only the first ``--help`` or ``--help-all``; empty if there is none.

    Help reads and prepares nothing, whatever else is among the arguments.
    """
    return [text for text in arguments if text in ("--help", "--help-all")][:1]


CORPUS = (
    "Without --store it trains on a built-in simulated corpus, by the recipe demo; the defaults "
    "below are those with --store. The same command resumes the run."
)


def help_texts(
    method: str,
    more: str = CORPUS,
    options: str = "--store STORE --name first",
    setting: str | None = None,
) -> HelpTexts:
    """Return the texts of a method.

    Args:
        method: key in ``METHODS``.
        more: text to add to the description.
        options: options of the example.
        setting: setting that the example changes; None: the method's first one, to the demo's
            value.
    """
    entry = METHODS[method]
    example = f"raybio train {method} {options}"
    if setting is None and entry.first_settings:
        path = entry.first_settings[0]
        setting = f"{path}={value_at(entry.demo, path)}"
    if setting:
        example += f" --set {setting}"
    parts = [entry.about, more, f"Example: {example}"]
    return HelpTexts("\n\n".join(part for part in parts if part))


def help_option(method: str) -> Any:
    """Return the declaration of ``--help``, which shows the first options and settings."""
    return typer.Option(
        "--help", is_eager=True, callback=_help_of(method, is_complete=False), help="show this"
    )


def help_all_option(method: str) -> Any:
    """Return the declaration of ``--help-all``, which shows all options and settings."""
    return typer.Option(
        "--help-all",
        is_eager=True,
        callback=_help_of(method, is_complete=True),
        help="show all options and settings",
    )


def _help_of(method: str, *, is_complete: bool) -> Callable[[typer.Context, bool], None]:
    def show(context: typer.Context, value: bool) -> None:
        """Print the help, without rare options unless it is complete, and end."""
        if not value:
            return
        num_hidden = 0
        for option in context.command.params:
            assert isinstance(option, TyperOption)
            if not is_complete and option.name not in FIRST_OPTIONS and not option.hidden:
                option.hidden = True
                num_hidden += 1
        typer.echo(context.get_help())
        _print_recipes(method)
        _print_settings(method, is_complete=is_complete, num_hidden_options=num_hidden)
        raise typer.Exit

    return show


def _print_recipes(method: str) -> None:
    recipes = METHODS[method].recipes
    if recipes:
        print("\nRecipes (--recipe)")
        for recipe in recipes.values():
            print(f"  {recipe.name}: {recipe.about}")


def _print_settings(method: str, *, is_complete: bool, num_hidden_options: int) -> None:
    settings = list(fields(METHODS[method].config))
    shown = settings
    title = "Settings"
    if not is_complete:
        by_path = {field.path: field for field in settings}
        shown = [by_path[path] for path in METHODS[method].first_settings]
        title = "First settings"
    if shown and sys.stdout.isatty():
        _print_table(f"{title}, for --set or a YAML file", shown)
    elif shown:
        print(f"\n{title} (--set or YAML): path, type, default, range, meaning")
        for field in shown:
            print(f"  {field.path}  {field.type}  {field.default}  {field.range}")
            print(f"      {field.meaning}")
    if not is_complete:
        num_more = len(settings) - len(shown)
        print(
            f"\n{num_hidden_options} more options and {num_more} more settings: "
            f"raybio train {method} --help-all"
        )


def _print_table(title: str, settings: list[Field]) -> None:
    table = Table("setting", "type", "default", "range", "meaning", title=title)
    for field in settings:
        table.add_row(*field)
    PrintableConsole().print(table, markup=False)
