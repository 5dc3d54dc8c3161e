"""How much of an answer's name already stands in the name that is asked about: what makes a probe's query easy.

MedLAMA's hardness filter (facts §2.4; the paper's Appendix). For a head h and its n tails t, in lower case:
``avg_match`` is the share of tails that are part of h, ``avg_rouge_l`` the mean ROUGE-L F1 of h against t, where
F1 = 2PR / (P + R) with P = LCS / words of h, R = LCS / words of t, and LCS is the longest common subsequence of words.

The authors' code differs in three ways, each with an effect on the released scores; ``legacy`` reproduces it:
tails keep the blanks that stood around "||" where there are several, so that few of them are part of h; P and R divide
by the number of *distinct* words; and full stops separate words as blanks do.
"""

from collections.abc import Sequence
from typing import NamedTuple

LARGEST_OVERLAP = 0.1
_DUST = 1e-8
"""The authors' ROUGE adds it to P + R, which is why a score of exactly 1/10 is kept in the released hard sets."""
_SLACK = 1e-9


class Overlap(NamedTuple):
    """Two means over the tails of a query, in [0, 1]; under ``legacy`` a repeated word may lift ROUGE-L above 1."""

    avg_match: float
    avg_rouge_l: float

    @property
    def is_hard(self) -> bool:
        """Whether the name that is asked about gives little away: both scores at most 0.1."""
        return max(self) <= LARGEST_OVERLAP + _SLACK


def name_overlap(head: str, tails: Sequence[str], *, legacy: bool = False) -> Overlap:
    """What ``head`` gives away of ``tails``.

    Args:
        head: the name that is asked about, without the prompt's words.
        tails: names of all answers, at least one.
        legacy: as in the authors' code.

    Raises:
        ValueError: without tails.
    """
    if not tails:
        raise ValueError("a query has no tails, want at least one")
    lower, lower_tails = head.lower(), [tail.lower() for tail in tails]
    last = len(tails) - 1
    sought = lower_tails
    if legacy:
        sought = [" " * (place > 0) + tail + " " * (place < last) for place, tail in enumerate(lower_tails)]
    num_matches = sum(tail in lower for tail in sought)
    total_rouge_l = sum(rouge_l_f1(lower, tail, legacy=legacy) for tail in lower_tails)
    return Overlap(num_matches / len(tails), total_rouge_l / len(tails))


def rouge_l_f1(hypothesis: str, reference: str, *, legacy: bool = False) -> float:
    """ROUGE-L F1 of two texts (Lin and Och, 2004, with beta = 1); 0 where either has no words."""
    words_h, words_r = _words(hypothesis, legacy), _words(reference, legacy)
    if not words_h or not words_r:
        return 0.0
    common = longest_common_subsequence(words_h, words_r)
    precision = common / len(set(words_h) if legacy else words_h)
    recall = common / len(set(words_r) if legacy else words_r)
    total = precision + recall + (_DUST if legacy else 0)
    return 2 * precision * recall / total if common else 0.0


def longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest sequence that is left of both when items are struck out."""
    # The row of the table that belongs to the items of ``first`` seen so far, a column for each prefix of ``second``.
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
