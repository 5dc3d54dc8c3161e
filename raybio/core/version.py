"""The version of raybio, and of its code, which is edited between versions."""

import hashlib
import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

VERSION = "0.2.0"


@cache
def code_digest() -> str:
    """Return the sha256 of raybio's code, in hex."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def arithmetic_versions() -> dict[str, str]:
    """Return the versions that the last bits of a run depend on, by name; nothing is imported."""
    versions = {"raybio": f"{VERSION}, code {code_digest()[:12]}"}
    for package in ("torch", "transformers", "numpy"):
        versions[package] = metadata.version(package)
    return versions | {"python": platform.python_version()}


def changed_values(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Return lines ``name: old -> new`` of what has changed; none if nothing was recorded."""
    return [
        f"{name}: {old.get(name)} -> {new.get(name)}"
        for name in sorted(old.keys() | new.keys())
        if old and old.get(name) != new.get(name)
    ]
