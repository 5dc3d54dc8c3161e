"""Words of messages."""

from collections.abc import Mapping
from typing import Any


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def skipped_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return a line for each reason to skip records, with their count.

    Args:
        summary: ``Quarantine.summary``, which the manifest of a store has, too.
    """
    return [f"skipped: {reason}: {facts['count']:,}" for reason, facts in summary.items()]
