"""The version of raybio, and a digest of its code, which may be edited between versions."""

import hashlib
import json
import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

VERSION = "0.2.0"

_THEN = " then "
"""Joins the values that were used one after the other."""


@cache
def code_digest(*more: Path) -> str:
    """Return the sha256 of raybio's code, and of that in more folders, in hex."""
    digest = hashlib.sha256()
    for root in (Path(__file__).parents[1], *more):
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def arithmetic_versions() -> dict[str, str]:
    """Return the package versions that the last bits of a run depend on, without importing them."""
    versions = {"raybio": f"{VERSION}, code {code_digest()[:12]}"}
    for package in ("torch", "transformers", "numpy"):
        versions[package] = metadata.version(package)
    return versions | {"python": platform.python_version()}


def changed_values(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Return lines ``name: old -> new`` of what has changed; none if nothing was recorded."""
    return [
        f"{name}: {old.get(name)} -> {new.get(name)}"
        for name in sorted(old.keys() | new.keys())
        if old and not _is_same(old.get(name), new.get(name))
    ]


def used_values(old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, Any]:
    """Return all values that a run has used: ``first then second`` where they have changed.

    Args:
        old: what this function returned before; empty if nothing was recorded.
        new: the values of this start.
    """
    if not old or not new:
        return dict(new)
    used: dict[str, Any] = dict(old)
    last = last_values(old)
    for name in old.keys() | new.keys():
        if not _is_same(last.get(name), new.get(name)):
            used[name] = f"{_text(old.get(name))}{_THEN}{_text(new.get(name))}"
    return {name: used[name] for name in sorted(used)}


def last_values(used: Mapping[str, object]) -> dict[str, Any]:
    """Return the last values of ``used_values``."""
    return {
        name: value.rpartition(_THEN)[2] if isinstance(value, str) else value
        for name, value in used.items()
    }


def have_changed(used: Mapping[str, object]) -> bool:
    """Return whether a run has used more than one value of a name."""
    return any(isinstance(value, str) and _THEN in value for value in used.values())


def _is_same(one: object, other: object) -> bool:
    """Compare two values; one may be text, as ``used_values`` returns it."""
    return _text(one) == _text(other)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
