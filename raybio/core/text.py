"""Helpers for the wording of messages."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_ABOUT_AS_NEAR = 0.1
"""Difference of similarity to a misspelt name up to which a second name is suggested too."""


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


def cut_text(text: str, length: int) -> str:
    """Return a text of at most ``length`` letters; one that is cut ends with an ellipsis."""
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"


def first_names(names: Sequence[str], most: int) -> str:
    """Return names separated by commas: the first ``most``, and an ellipsis if there are more."""
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the names nearest to a misspelt one; empty if none is near.

    It begins with a space, to follow the sentence that refuses the name.
    """
    return suggestion(near_names(name, known))


def suggestion(near: Sequence[str]) -> str:
    """Return the sentence of ``did_you_mean`` for names that are near; empty for none."""
    return f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Return the nearest name, and the next one if it is about as near; none if none is near."""
    near = difflib.get_close_matches(name, list(known), n=2, cutoff=0.5)
    ratios = [difflib.SequenceMatcher(None, candidate, name).ratio() for candidate in near]
    return [near[i] for i, ratio in enumerate(ratios) if ratio > ratios[0] - _ABOUT_AS_NEAR]


def skipped_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return a line for each reason to skip records, with their count.

    Args:
        summary: ``Quarantine.summary``, which the manifest of a store has, too.
    """
    return [f"skipped: {reason}: {facts['count']:,}" for reason, facts in summary.items()]
