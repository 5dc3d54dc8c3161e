"""Quarantine: invalid records are skipped and reported with file, line and reason.

Memory is bounded: a count per reason and its first few examples. If too large a share of the
records is invalid, the whole input is refused, because it is probably not in the expected format.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

from raybio.core.errors import DataError
from raybio.core.text import cut_text

MAX_DETAIL = 80
"""Maximum number of characters of the text that identifies a skipped record."""


class SkippedRecord(NamedTuple):
    """One skipped record; ``line`` counts from 1."""

    file: str
    line: int
    detail: str

    def __str__(self) -> str:
        """Return ``file:line (detail)``, as error messages show it."""
        return f"{self.file}:{self.line}" + (f" ({self.detail})" if self.detail else "")


class Quarantine:
    """Counts and examples of skipped records, by reason.

    Args:
        max_bad_share: maximum fraction of invalid records within each kind.

    Attributes:
        num_examples: number of examples kept per reason.
    """

    num_examples: ClassVar[int] = 5

    def __init__(self, max_bad_share: float = 0.1) -> None:
        """Start empty."""
        self.max_bad_share = max_bad_share
        self.count_by_reason: Counter[str] = Counter()
        self.examples_by_reason: dict[str, list[SkippedRecord]] = {}
        self._num_seen: Counter[str] = Counter()
        self._num_bad: Counter[str] = Counter()
        self._bad_reasons: dict[str, set[str]] = {}

    def saw(self, kind: str, num: int) -> None:
        """Count ``num`` more records of ``kind`` (such as "protein") as read, valid or not."""
        self._num_seen[kind] += num

    def num_seen(self, kind: str) -> int:
        """Return the number of records of ``kind`` that were read, valid or not."""
        return self._num_seen[kind]

    def num_bad(self, kind: str) -> int:
        """Return the number of records of ``kind`` that are invalid."""
        return self._num_bad[kind]

    def add(
        self, kind: str, reason: str, file: str, line: int, detail: str = "", *, is_bad: bool = True
    ) -> None:
        """Skip one record.

        Args:
            kind: kind of the record.
            reason: why it is skipped, in the same few words for all such records.
            file: name of the file.
            line: line in the file, from 1.
            detail: what identifies the record, such as its id.
            is_bad: False for records that valid files contain too (a link listed in both
                directions). They are counted and shown, but do not count as invalid.
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
        """Skip ``num`` records; ``examples`` holds (line, detail) of the first few."""
        if num == 0:
            return
        self.count_by_reason[reason] += num
        kept = self.examples_by_reason.setdefault(reason, [])
        for line, detail in examples:
            if len(kept) >= self.num_examples:
                break
            kept.append(SkippedRecord(file, int(line), cut_text(str(detail), MAX_DETAIL)))
        if is_bad:
            self._num_bad[kind] += num
            self._bad_reasons.setdefault(kind, set()).add(reason)

    def check(self, kind: str, advice: str = "", *, has_option: bool = True) -> None:
        """Refuse the input if too many records of ``kind`` are invalid.

        Args:
            kind: kind of the records.
            advice: a sentence for the error on what would make them valid.
            has_option: whether the command has ``--max-bad-share``.

        Raises:
            DataError: with the count and first example of each reason, and what to do.
        """
        num_bad = self._num_bad[kind]
        num_seen = self._num_seen[kind]
        if num_bad <= self.max_bad_share * num_seen:
            return
        reasons = sorted(self._bad_reasons[kind], key=lambda reason: -self.count_by_reason[reason])
        shown = []
        for reason in reasons:
            first = self.examples_by_reason[reason][0]
            shown.append(f"{reason}: {self.count_by_reason[reason]:,}, first {first}")
        more = ", or allow more with --max-bad-share" if has_option else ""
        raise DataError(
            f"{num_bad:,} of {num_seen:,} {kind} records are bad "
            f"({num_bad / max(num_seen, 1):.1%}), want at most {self.max_bad_share:.1%}: "
            f"{'; '.join(shown)}. {f'{advice}. ' if advice else ''}Repair the input{more}."
        )

    def summary(self) -> dict[str, Any]:
        """Return counts and examples by reason, as the manifest of a store records them."""
        summary = {}
        for reason, count in sorted(self.count_by_reason.items()):
            examples = self.examples_by_reason.get(reason, [])
            summary[reason] = {
                "count": count,
                "examples": [example._asdict() for example in examples],
            }
        return summary
