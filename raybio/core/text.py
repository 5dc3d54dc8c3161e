"""Words of messages."""

from collections.abc import Mapping
from typing import Any


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size_text(num_bytes: float) -> str:
    """Return a size in bytes, kB, MB, GB or TB of powers of 1,000, with three digits."""
    size = float(num_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"


def skipped_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return a line for each reason to skip records, with their count.

    Args:
        summary: ``Quarantine.summary``, which the manifest of a store has, too.
    """
    return [f"skipped: {reason}: {facts['count']:,}" for reason, facts in summary.items()]
