"""How a row is measured: both sides in one process, in the order A B B A, after a warm-up; only ratios are kept."""

import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any


def compare(
    row: str, peer_name: str, ours: Callable[[], Any], peer: Callable[[], Any], *, pairs: int = 5, note: str = ""
) -> dict[str, Any]:
    """Print and return one result line: the peer's time over ours, above 1 where we are faster.

    A pair is ours, peer, peer, ours, so that a machine that slows down meanwhile slows both. Whether the outputs are
    equal is the caller's to check before.
    """
    ours()
    peer()
    ratios = []
    for _ in range(pairs):
        ours_first, peer_first = seconds_of(ours), seconds_of(peer)
        peer_last, ours_last = seconds_of(peer), seconds_of(ours)
        ratios.append((peer_first + peer_last) / (ours_first + ours_last))
    return report(row, peer_name, median(ratios), min(ratios), note)


def report(row: str, peer: str, median_ratio: float | None, min_ratio: float | None, note: str) -> dict[str, Any]:
    """Print one JSON line that ``run_all.py`` collects."""
    result = {
        "row": row,
        "peer": peer,
        "median_ratio": _three_digits(median_ratio),
        "min_ratio": _three_digits(min_ratio),
        "note": note,
    }
    print(json.dumps(result), flush=True)
    return result


def seconds_of(work: Callable[[], Any]) -> float:
    """Seconds of one call, by the wall clock."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _three_digits(ratio: float | None) -> float | None:
    return None if ratio is None else float(f"{ratio:.3g}")
