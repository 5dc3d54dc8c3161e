"""MedLAMA's hardness filter: the overlap of a head's name with the answers.

Following the appendix of Meng et al. (2022), for a head h and its n tails t, in lower case:

- ``avg_match``: share of the tails that are substrings of h.
- ``avg_rouge_l``: mean ROUGE-L F1 of h against t. F1 = 2PR / (P + R), P = LCS / words of h,
  R = LCS / words of t, and LCS is the length of the longest common subsequence of words.

A query is hard if neither exceeds 0.1. The authors' code differs in three ways, each of which
changes the released scores; ``legacy`` reproduces it:

- Tails keep the spaces around the separator "||" if there are several, so few are substrings of h.
- P and R divide by the number of distinct words.
- Full stops separate words as spaces do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from raybio.core.errors import DataError
from raybio.core.files import replace_text
from raybio.methods.contrastive_probe.benchmark.medlama import (
    COLUMNS,
    SEPARATOR,
    medlama_files,
    medlama_rows,
)

MAX_OVERLAP = 0.1

VERSIONS = ("stored", "legacy", "clean")
"""The scores of ``Hardness``."""

_LEGACY_EPSILON = 1e-8
"""The authors' ROUGE adds it to P + R, so the released hard sets keep a score of exactly 1/10."""

_TOLERANCE = 1e-9


class Overlap(NamedTuple):
    """Two means over the tails of a query, in [0, 1].

    Under ``legacy``, repeated words may raise ROUGE-L above 1.
    """

    avg_match: float
    avg_rouge_l: float

    @property
    def is_hard(self) -> bool:
        """Whether both scores are at most 0.1."""
        return max(self) <= MAX_OVERLAP + _TOLERANCE


@dataclass(frozen=True)
class Hardness:
    """Three versions of the scores of one query of the full set.

    Attributes:
        file: name of the file.
        line: last line of the query in the file.
        relation: relation of the query.
        head: name of the head.
        stored: scores in the file.
        legacy: scores by the authors' code.
        clean: scores as defined above.
    """

    file: str
    line: int
    relation: str
    head: str
    stored: Overlap
    legacy: Overlap
    clean: Overlap

    @property
    def is_disputed(self) -> bool:
        """Whether the three versions disagree on the query."""
        return len({self.stored.is_hard, self.legacy.is_hard, self.clean.is_hard}) > 1


def read_hardness(folder: str | Path) -> Iterator[Hardness]:
    """Yield the scores of every query of the full set, in order of relation and line.

    Raises:
        DataError: for files that are missing or of another layout, with file and line.
    """
    for path in medlama_files(Path(folder))["full"]:
        for line, row in medlama_rows(path, (*COLUMNS, "avg_match", "avg_rouge_l")):
            try:
                stored = Overlap(float(row["avg_match"]), float(row["avg_rouge_l"]))
            except ValueError as error:
                raise DataError(
                    f"{path}, line {line}: {error}; want numbers for avg_match and avg_rouge_l"
                ) from None
            head = row["head_name"]
            tails = row["tail_names"].split(SEPARATOR)
            yield Hardness(
                file=path.name,
                line=line,
                relation=row["rel"],
                head=head,
                stored=stored,
                legacy=name_overlap(head, tails, legacy=True),
                clean=name_overlap(head, tails),
            )


def write_disputed(path: Path, queries: Sequence[Hardness]) -> None:
    """Write queries with the verdict of each version, as a tab-separated table."""
    lines = ["\t".join(["file", "line", "head", *VERSIONS])]
    for query in queries:
        verdicts = ["hard" if getattr(query, version).is_hard else "easy" for version in VERSIONS]
        lines.append("\t".join([query.file, str(query.line), query.head, *verdicts]))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, "\n".join(lines) + "\n")


def name_overlap(head: str, tails: Sequence[str], *, legacy: bool = False) -> Overlap:
    """Return the overlap of the name ``head`` with the names ``tails``.

    Args:
        head: name of the head, without the words of the prompt.
        tails: names of all answers, at least one.
        legacy: as in the authors' code.

    Raises:
        ValueError: without tails.
    """
    if not tails:
        raise ValueError("a query has no tails, want at least one")
    head = head.lower()
    tails = [tail.lower() for tail in tails]
    patterns = _with_separator_spaces(tails) if legacy else tails
    num_matches = sum(pattern in head for pattern in patterns)
    total_rouge_l = sum(rouge_l_f1(head, tail, legacy=legacy) for tail in tails)
    return Overlap(num_matches / len(tails), total_rouge_l / len(tails))


def _with_separator_spaces(tails: Sequence[str]) -> list[str]:
    """Return the tails with the spaces that a split on "||" leaves around them."""
    last = len(tails) - 1
    padded = []
    for index, tail in enumerate(tails):
        before = " " if index > 0 else ""
        after = " " if index < last else ""
        padded.append(before + tail + after)
    return padded


def rouge_l_f1(hypothesis: str, reference: str, *, legacy: bool = False) -> float:
    """Return ROUGE-L F1 of two texts (Lin and Och, 2004, beta = 1); 0 if either has no words."""
    hypothesis_words = _words(hypothesis, legacy)
    reference_words = _words(reference, legacy)
    if not hypothesis_words or not reference_words:
        return 0.0
    common = longest_common_subsequence(hypothesis_words, reference_words)
    precision = common / len(set(hypothesis_words) if legacy else hypothesis_words)
    recall = common / len(set(reference_words) if legacy else reference_words)
    total = precision + recall + (_LEGACY_EPSILON if legacy else 0)
    return 2 * precision * recall / total if common else 0.0


def longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence of two sequences."""
    # The row of the dynamic programme for the items of ``first`` so far; a column for each prefix
    # of ``second``.
    row = [0] * (len(second) + 1)
    for item in first:
        diagonal = 0
        for column, other in enumerate(second, start=1):
            above = row[column]
            row[column] = diagonal + 1 if item == other else max(above, row[column - 1])
            diagonal = above
    return row[-1]


def _words(text: str, legacy: bool) -> list[str]:
    return (text.replace(".", " ") if legacy else text).split()
