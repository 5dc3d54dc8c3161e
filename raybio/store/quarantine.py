"""Quarantine: bad records are set aside with file, line and reason, never one traceback each.

Memory is bounded: counts for each reason and its first few examples. Past a share of bad records the input as a whole
is refused, because then it is probably not what the reader takes it for.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from raybio.core.errors import DataError


class Example(NamedTuple):
    """One quarantined record; ``line`` counts from 1."""

    file: str
    line: int
    detail: str

    def __str__(self) -> str:
        """``file:line (detail)``, as error messages show it."""
        return f"{self.file}:{self.line}" + (f" ({self.detail})" if self.detail else "")


class Quarantine:
    """Collects records that are left out, by reason.

    Args:
        max_bad_share: the largest share of records, within each kind, that may be bad.
        num_examples: how many examples of each reason are kept.
    """

    def __init__(self, max_bad_share: float = 0.1, num_examples: int = 5) -> None:
        """Start empty."""
        self.max_bad_share = max_bad_share
        self.num_examples = num_examples
        self.count_by_reason: Counter[str] = Counter()
        self.examples_by_reason: dict[str, list[Example]] = {}
        self._num_seen: Counter[str] = Counter()
        self._num_bad: Counter[str] = Counter()
        self._bad_reasons: dict[str, set[str]] = {}

    def saw(self, kind: str, num: int) -> None:
        """``num`` more records of ``kind`` (such as "protein" or "link") were read, good and bad together."""
        self._num_seen[kind] += num

    def num_seen(self, kind: str) -> int:
        """How many records of ``kind`` were read, good and bad together."""
        return self._num_seen[kind]

    def add(
        self, kind: str, reason: str, file: str, line: int, detail: str = "", *, is_bad: bool = True
    ) -> None:
        """Set one record aside.

        Args:
            kind: what sort of record it is.
            reason: why, in a few words that are the same for all such records.
            file: the file's name.
            line: line in it, from 1.
            detail: what was found, such as the record's id.
            is_bad: False for what is expected in sound files (a link listed in both directions): counted and shown,
                but not held against the input.
        """
        self.add_many(kind, reason, file, 1, [(line, detail)], is_bad=is_bad)

    def add_many(
        self,
        kind: str,
        reason: str,
        file: str,
        num: int,
        examples: Iterable[tuple[int, str]],
        *,
        is_bad: bool = True,
    ) -> None:
        """Set ``num`` records aside; ``examples`` need hold (line, detail) of the first few only."""
        if num == 0:
            return
        self.count_by_reason[reason] += num
        kept = self.examples_by_reason.setdefault(reason, [])
        for line, detail in examples:
            if len(kept) >= self.num_examples:
                break
            kept.append(Example(file, int(line), str(detail)[:80]))
        if is_bad:
            self._num_bad[kind] += num
            self._bad_reasons.setdefault(kind, set()).add(reason)

    def check(self, kind: str) -> None:
        """Refuse the input if too many records of ``kind`` were bad.

        Raises:
            DataError: with the count of each reason, its first example, and what to do.
        """
        num_bad, num_seen = self._num_bad[kind], self._num_seen[kind]
        if num_bad <= self.max_bad_share * num_seen:
            return
        reasons = sorted(self._bad_reasons[kind], key=lambda reason: -self.count_by_reason[reason])
        shown = "; ".join(
            f"{reason}: {self.count_by_reason[reason]:,}, first {self.examples_by_reason[reason][0]}"
            for reason in reasons
        )
        raise DataError(
            f"{num_bad:,} of {num_seen:,} {kind} records are bad ({num_bad / max(num_seen, 1):.1%}), want at most "
            f"{self.max_bad_share:.1%}: {shown}. Repair the input, or allow more with --max-bad-share."
        )

    def summary(self) -> dict[str, Any]:
        """Counts and examples by reason, as the store's manifest keeps them."""
        return {
            reason: {
                "count": count,
                "examples": [
                    example._asdict() for example in self.examples_by_reason.get(reason, [])
                ],
            }
            for reason, count in sorted(self.count_by_reason.items())
        }
