"""The page of ``raybio explore``: data in a template that needs nothing else."""

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from raybio.core.files import replace_text

PLACE = "@@DATA@@"
"""Placeholder of the data in the template."""


def write_page(path: Path, data: Mapping[str, Any]) -> None:
    """Write the page, replacing a file of that name in one step.

    Ids and texts come from users' files: no character in them ends the block of data, and the page
    shows them as text nodes.

    Args:
        path: the HTML file.
        data: what the template reads, as JSON.
    """
    template = (files(__package__) / "page.html").read_text(encoding="utf-8")
    before, after = template.split(PLACE)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, before + script_json(data) + after)


def script_json(data: Mapping[str, Any]) -> str:
    """Return JSON for a script element: no ``<`` in it, which could end the element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
