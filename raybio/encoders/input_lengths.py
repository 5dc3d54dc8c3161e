"""Share of the input that a method reads: rows longer than the limit, counted before training.

Shape letters: N rows, C rows that are counted, T tokens of some rows end to end.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from raybio.core.errors import ConfigError
from raybio.encoders.text import TextReader
from raybio.encoders.tokenization import TokenizerSource

MAX_COUNTED_TEXTS = 5_000
"""Texts that are tokenized for counting: seconds. A larger corpus is sampled evenly."""

WHOLE = 1 << 20
"""A limit that no row reaches."""

Tokenize = Callable[[Sequence[str], int], tuple[np.ndarray, np.ndarray]]
"""(texts, maximum tokens of each) -> tokens (T,) and row pointers, special tokens included."""

ReadTexts = Callable[[np.ndarray], Sequence[str]]
"""Rows -> their texts."""


@dataclass(frozen=True)
class InputLengths:
    """Number of rows of one kind of input that are longer than the part that is read.

    Attributes:
        name: of the rows, such as "sequences" or "abstracts".
        unit: of their length: "residues", "tokens" (special ones included) or "characters".
        num_rows: number of rows.
        num_counted: rows that were counted: all of them, or an even sample.
        num_cut: counted rows that are longer than ``limit``.
        limit: units of a row that are read.
        longest: units of the longest counted row.
        setting: dotted path of the length that the user sets.
        setting_value: its value in tokens; None where it is "auto", or not counted in tokens.
        num_positions: tokens that the encoder has positions for; None where no encoder limits the
            setting.
        num_equal: distinct rows that the cut makes equal to another one; 0 where not counted.
        num_distinct: distinct rows among those counted; 0 where not counted.
        is_window: whether each reading takes another random window of the row, by design.
    """

    name: str
    unit: str
    num_rows: int
    num_counted: int
    num_cut: int
    limit: int
    longest: int
    setting: str
    setting_value: int | None = None
    num_positions: int | None = None
    num_equal: int = 0
    num_distinct: int = 0
    is_window: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        unit: str,
        length_C: np.ndarray,
        limit: int,
        *,
        setting: str,
        num_rows: int | None = None,
        setting_value: int | None = None,
        num_positions: int | None = None,
        is_window: bool = False,
    ) -> Self:
        """Count rows of these lengths.

        The arguments are as the attributes. ``num_rows`` None: all rows are counted.
        """
        num_counted = len(length_C)
        return cls(
            name,
            unit,
            num_counted if num_rows is None else num_rows,
            num_counted,
            int((length_C > limit).sum()),
            limit,
            int(length_C.max(initial=0)),
            setting,
            setting_value,
            num_positions,
            is_window=is_window,
        )

    @property
    def remark(self) -> str:
        """One line that states what is cut; empty if nothing is."""
        if not self.num_cut:
            return ""
        counted = f"{self.num_cut:,} of {self.num_counted:,}"
        if self.num_counted < self.num_rows:
            counted += f" sampled ({self.num_rows:,} in all)"
        if self.is_window:
            return (
                f"{self.name}: {counted} cut to a window of {self.limit:,} {self.unit}, drawn anew "
                f"at each reading; the longest has {self.longest:,}"
            )
        equal = ""
        if self.num_equal:
            equal = f"; {self.num_equal:,} of them no longer differ: {self.remedy}"
        return (
            f"{self.name}: {counted} cut at {self.limit:,} of {self.longest:,} {self.unit}{equal}"
        )

    @property
    def is_bounded_by_encoder(self) -> bool:
        """Whether a larger setting changes nothing: the encoder has no more positions."""
        if self.num_positions is None:
            return False
        return self.setting_value is None or self.setting_value > self.num_positions

    @property
    def remedy(self) -> str:
        """What makes the encoder read more of a row."""
        if self.is_bounded_by_encoder:
            return "choose an encoder with more positions"
        return f"raise {self.setting}"


def text_lengths(
    name: str,
    texts: ReadTexts,
    row_N: np.ndarray,
    reader: TextReader,
    *,
    max_length: int | str,
    limit: int | None = None,
) -> InputLengths:
    """Count the texts that are longer than what the encoder reads, all of them or an even sample.

    Args:
        name: of the texts.
        texts: reads some of them.
        row_N: the rows that the system reads.
        reader: how the encoder reads.
        max_length: value of ``encoder.max_length``.
        limit: maximum tokens of a text, if the system reads fewer than the encoder could.
    """
    row_C = counted_rows(row_N)
    return InputLengths.of(
        name,
        "tokens",
        token_lengths(texts(row_C), TokenizerSource.of(reader.tokenizer).tokenize),
        min(limit or reader.max_tokens, reader.max_tokens),
        setting="encoder.max_length",
        num_rows=len(row_N),
        setting_value=max_length if isinstance(max_length, int) else None,
        num_positions=reader.num_positions,
    )


def lengths_of_texts(
    name: str,
    texts: Sequence[str],
    reader: TextReader,
    *,
    max_length: int | str,
    limit: int | None = None,
) -> InputLengths:
    """Count as ``text_lengths``, of texts in memory."""
    row_N = np.arange(len(texts))
    return text_lengths(
        name,
        lambda row_C: [texts[row] for row in row_C.tolist()],
        row_N,
        reader,
        max_length=max_length,
        limit=limit,
    )


def counted_rows(row_N: np.ndarray) -> np.ndarray:
    """Return the rows to tokenize: all, or ``MAX_COUNTED_TEXTS`` evenly spaced ones."""
    if len(row_N) <= MAX_COUNTED_TEXTS:
        return row_N
    return row_N[np.arange(MAX_COUNTED_TEXTS) * len(row_N) // MAX_COUNTED_TEXTS]


def token_lengths(texts: Sequence[str], tokenize: Tokenize) -> np.ndarray:
    """Return the number of tokens of each whole text, special ones included."""
    _, indptr_N1 = tokenize(texts, WHOLE)
    return np.diff(indptr_N1)


def with_equal_texts(
    lengths: InputLengths, texts: ReadTexts, row_N: np.ndarray, reader: TextReader
) -> InputLengths:
    """Add the number of distinct texts whose tokens equal another text's tokens after the cut."""
    if not lengths.num_cut:
        return lengths
    counted_texts = texts(counted_rows(row_N))
    tokenize = TokenizerSource.of(reader.tokenizer).tokenize
    # Compare tokens, not letters: texts that differ only in case may be equal before the cut.
    whole = _rows_of_tokens(*tokenize(counted_texts, WHOLE))
    cut = _rows_of_tokens(*tokenize(counted_texts, lengths.limit))
    return with_equal_rows(lengths, zip(whole, cut, strict=True))


def with_equal_rows(
    lengths: InputLengths, whole_and_cut: Iterable[tuple[bytes, bytes]]
) -> InputLengths:
    """Add the number of distinct rows, and of those that equal another one once they are cut.

    Args:
        lengths: of the rows.
        whole_and_cut: for each row its whole content, and the part that is read.
    """
    cut_by_whole = dict(whole_and_cut)
    num_by_cut = Counter(cut_by_whole.values())
    num_equal = sum(num for num in num_by_cut.values() if num > 1)
    return replace(lengths, num_distinct=len(cut_by_whole), num_equal=num_equal)


def check_rows_differ(lengths: InputLengths) -> None:
    """Refuse a cut that makes most rows equal to others: nothing can be learned from them.

    Raises:
        ConfigError: if more than half of the distinct rows are equal to another one.
    """
    if 2 * lengths.num_equal <= lengths.num_distinct:
        return
    setting = f"{lengths.setting} is {lengths.setting_value}"
    advice = f"Raise {lengths.setting}, choose an encoder with more positions"
    if lengths.is_bounded_by_encoder:
        setting = f"the encoder reads at most {lengths.num_positions:,} tokens"
        advice = "Choose an encoder with more positions"
    raise ConfigError(
        f"{setting}: {lengths.name} are cut at {lengths.limit:,} of {lengths.longest:,} "
        f"{lengths.unit}, and then {lengths.num_equal:,} of {lengths.num_distinct:,} different "
        f"ones are equal to another; want inputs that differ. {advice}, or crop the rows to where "
        "they differ"
    )


def _rows_of_tokens(token_T: np.ndarray, indptr_N1: np.ndarray) -> list[bytes]:
    rows = []
    for start, end in itertools.pairwise(indptr_N1):
        rows.append(token_T[start:end].tobytes())
    return rows
