"""The version of raybio, and of its code, which is edited between versions."""

import hashlib
from functools import cache
from pathlib import Path

VERSION = "0.1.0"


@cache
def code_digest() -> str:
    """Return the sha256 of raybio's code, in hex."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
