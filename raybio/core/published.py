"""Figures that a paper has published, from the ``published.yaml`` of its package."""

from functools import cache
from importlib import resources
from typing import Any

import yaml

FILE = "published.yaml"


@cache
def published(package: str) -> dict[str, Any]:
    """Return the figures by table, such as ``{"table_1": {...}}``.

    The file names the paper, and the table or section of each entry.

    Args:
        package: a method's package, such as ``raybio.methods.sppt``.
    """
    text = (resources.files(package) / FILE).read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    return content
