"""Recipes: settings of a published or tried run, shipped with a method.

A recipe is a file ``recipes/NAME.yaml`` next to the method's ``system.py``. Its first line is a
comment that names the tables whose settings it has.
"""

import copy
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from raybio.core.errors import ConfigError
from raybio.core.plain_yaml import parse_yaml
from raybio.core.text import did_you_mean

SUFFIX = ".yaml"


@dataclass(frozen=True)
class Recipe:
    """A recipe.

    Attributes:
        name: its name, for ``--recipe``.
        about: the tables whose settings it has, in a sentence.
        settings: nested settings; the others are the method's defaults.
    """

    name: str
    about: str
    settings: dict[str, Any]


def recipes_of(package: str) -> dict[str, Recipe]:
    """Return the recipes in a method's package, such as ``raybio.methods.sppt.proteins``."""
    return {recipe.name: copy.deepcopy(recipe) for recipe in _shipped(package)}


def recipe_named(name: str, recipes: dict[str, Recipe]) -> Recipe:
    """Return a recipe.

    Raises:
        ConfigError: if there is none of that name, with those that there are.
    """
    if name not in recipes:
        there = f"there are {', '.join(recipes)} and demo" if recipes else "demo is the only one"
        raise ConfigError(
            f"--recipe {name}: there is no such recipe; {there}.{did_you_mean(name, recipes)}"
        )
    return recipes[name]


@cache
def _shipped(package: str) -> list[Recipe]:
    """Read the recipes of a package once: a comparison asks for them with each run."""
    folder = resources.files(package) / "recipes"
    if not folder.is_dir():
        return []
    files = [file for file in folder.iterdir() if file.name.endswith(SUFFIX)]
    return [_read(file) for file in sorted(files, key=lambda file: file.name)]


def _read(file: Traversable) -> Recipe:
    text = file.read_text(encoding="utf-8")
    about = text.partition("\n")[0].removeprefix("#").strip()
    return Recipe(file.name.removesuffix(SUFFIX), about, parse_yaml(text))
