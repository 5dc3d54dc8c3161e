"""How much of its input a method reads: rows that are longer than the limit, counted before training.

Shape letters: N rows, T tokens of some rows end to end.

How much of its rows a system reads, counted in the driver before training; see ``data.input_lengths``.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from raybio.core.errors import ConfigError
from raybio.encoders.text import TextReader
from raybio.encoders.tokenization import TokenizerSource

MAX_COUNTED_TEXTS = 5_000
"""Texts that are tokenised to be counted: seconds. Of a larger corpus an even sample is."""


WHOLE = 1 << 20
"""A limit that no row reaches."""


Tokenise = Callable[[Sequence[str], int], tuple[np.ndarray, np.ndarray]]
"""(texts, most tokens of each) -> tokens (T,) and row pointers, special tokens included."""


@dataclass(frozen=True)
class InputLengths:
    """How many rows of one kind of input are longer than what is read of them.

    Attributes:
        what: the rows, such as "sequences" or "abstracts".
        unit: what their length is counted in: "residues", "tokens" (special ones included) or "characters".
        num_rows: rows that there are.
        num_counted: rows that were counted: all of them, or an even sample.
        num_cut: of the counted rows, those that are longer than ``limit``.
        limit: units of a row that are read.
        longest: units of the longest counted row.
        setting: dotted path of the length that the user sets.
        wanted: value of that setting in tokens; None where it is "auto", or not counted in tokens.
        readable: most tokens that the encoder has positions for; None where no encoder limits the setting.
        num_alike: distinct rows that the cut makes equal to another one; 0 where that was not counted.
        num_distinct: distinct rows among those counted; 0 where that was not counted.
        is_window: whether a window at random is read, another one each time, by design.
    """

    what: str
    unit: str
    num_rows: int
    num_counted: int
    num_cut: int
    limit: int
    longest: int
    setting: str
    wanted: int | None = None
    readable: int | None = None
    num_alike: int = 0
    num_distinct: int = 0
    is_window: bool = False

    @classmethod
    def of(
        cls,
        what: str,
        unit: str,
        length_N: np.ndarray,
        limit: int,
        *,
        setting: str,
        num_rows: int | None = None,
        wanted: int | None = None,
        readable: int | None = None,
        is_window: bool = False,
    ) -> Self:
        """Count rows of these lengths; arguments as the attributes, ``num_rows`` None: all rows are counted."""
        num_counted = len(length_N)
        return cls(
            what,
            unit,
            num_counted if num_rows is None else num_rows,
            num_counted,
            int((length_N > limit).sum()),
            limit,
            int(length_N.max(initial=0)),
            setting,
            wanted,
            readable,
            is_window=is_window,
        )

    @property
    def remark(self) -> str:
        """One line that says what is cut; empty if nothing is."""
        if not self.num_cut:
            return ""
        counted = f"{self.num_cut:,} of {self.num_counted:,}"
        if self.num_counted < self.num_rows:
            counted += f" sampled ({self.num_rows:,} in all)"
        if self.is_window:
            return (
                f"{self.what}: {counted} cut to a window of {self.limit:,} {self.unit}, drawn anew at each "
                f"reading; the longest has {self.longest:,}"
            )
        alike = f"; {self.num_alike:,} of them no longer differ" if self.num_alike else ""
        return (
            f"{self.what}: {counted} cut at {self.limit:,} of {self.longest:,} {self.unit}{alike}"
        )


def counted_rows(row_N: np.ndarray) -> np.ndarray:
    """Return the rows to tokenise: all, or ``MAX_COUNTED_TEXTS`` evenly spaced ones."""
    if len(row_N) <= MAX_COUNTED_TEXTS:
        return row_N
    return row_N[np.arange(MAX_COUNTED_TEXTS) * len(row_N) // MAX_COUNTED_TEXTS]


def token_lengths(texts: Sequence[str], tokenise: Tokenise) -> np.ndarray:
    """Return the number of tokens of each whole text, special ones included."""
    return np.diff(tokenise(texts, WHOLE)[1])


def with_alike(
    lengths: InputLengths, whole_and_read: Iterable[tuple[bytes, bytes]]
) -> InputLengths:
    """Add how many distinct rows there are, and how many of them are read as another one is.

    Args:
        lengths: of the rows.
        whole_and_read: of each row its whole content, and the part that is read.
    """
    read_by_whole = dict(whole_and_read)
    num_by_read = Counter(read_by_whole.values())
    num_alike = sum(num for num in num_by_read.values() if num > 1)
    return replace(lengths, num_distinct=len(read_by_whole), num_alike=num_alike)


ReadTexts = Callable[[np.ndarray], Sequence[str]]
"""Rows -> their texts."""


def text_lengths(
    what: str,
    texts: ReadTexts,
    row_N: np.ndarray,
    reader: TextReader,
    *,
    wanted: int | str,
    limit: int | None = None,
) -> InputLengths:
    """Count the texts that are longer than what the encoder reads, all of them or an even sample.

    Args:
        what: what the texts are called.
        texts: reads some of them.
        row_N: the rows that the system reads.
        reader: how the encoder reads.
        wanted: value of ``encoder.max_length``.
        limit: most tokens of a text, if the system reads fewer than the encoder could.
    """
    row_C = counted_rows(row_N)
    return InputLengths.of(
        what,
        "tokens",
        token_lengths(texts(row_C), TokenizerSource.of(reader.tokenizer).tokenise),
        min(limit or reader.max_tokens, reader.max_tokens),
        setting="encoder.max_length",
        num_rows=len(row_N),
        wanted=wanted if isinstance(wanted, int) else None,
        readable=reader.readable,
    )


def with_alike_texts(
    lengths: InputLengths, texts: ReadTexts, row_N: np.ndarray, reader: TextReader
) -> InputLengths:
    """Add how many distinct texts are the same tokens as another one, as far as they are read."""
    if not lengths.num_cut:
        return lengths
    read_texts = texts(counted_rows(row_N))
    tokenise = TokenizerSource.of(reader.tokenizer).tokenise
    # By their tokens, not their letters: texts that differ in case alone may have been equal before the cut.
    wholes, parts = (
        _rows_of_tokens(*tokenise(read_texts, most)) for most in (WHOLE, lengths.limit)
    )
    return with_alike(lengths, zip(wholes, parts, strict=True))


def _rows_of_tokens(token_T: np.ndarray, indptr_N1: np.ndarray) -> list[bytes]:
    return [
        token_T[start:end].tobytes()
        for start, end in zip(indptr_N1[:-1], indptr_N1[1:], strict=True)
    ]


def check_rows_differ(lengths: InputLengths) -> None:
    """Refuse a cut after which most rows are the same inputs as others: nothing can be learned from them.

    Raises:
        ConfigError: if more than half of the distinct rows are equal to another one.
    """
    if 2 * lengths.num_alike > lengths.num_distinct:
        raise ConfigError(
            f"{lengths.setting} is {lengths.wanted}: {lengths.what} are cut at {lengths.limit:,} of "
            f"{lengths.longest:,} {lengths.unit}, and then {lengths.num_alike:,} of {lengths.num_distinct:,} different "
            f"ones are equal to another; want inputs that differ. Raise {lengths.setting}, choose an encoder with more "
            "positions, or crop the rows to where they differ"
        )
