"""What runs of a comparison are called, by their values of the settings that are varied."""

from collections.abc import Mapping
from typing import Any


def label_of(value_by_path: Mapping[str, Any]) -> str:
    """``kind = ce, seed = 1``; empty without settings."""
    return ", ".join(f"{leaf(path)} = {shown(value)}" for path, value in value_by_path.items())


def shown(value: Any) -> str:
    """0 and not 0.0: one text for one value, in labels and names."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def leaf(path: str) -> str:
    """The last part of a dotted path."""
    return path.rsplit(".", 1)[-1]
