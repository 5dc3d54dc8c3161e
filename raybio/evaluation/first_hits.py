"""At which rank each query's first right answer came, whatever gave the answers: ranked names, tokens, written texts.

Q queries.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from raybio.evaluation.probe import ProbeOutcome
from raybio.functional.retrieval import Retrieval

NEVER = np.iinfo(np.int64).max
"""The rank of a right answer that was not given."""


class Example(NamedTuple):
    """A query whose answers are shown: its words, and the names that are right."""

    query: str
    gold: Sequence[str]


class Baseline(NamedTuple):
    """What one model achieved by one method.

    Attributes:
        model: who answered.
        method: and how.
        outcome: the same as a probe's.
        ks: k of the accuracies that mean something: the method gives at least so many answers.
        remark: what a reader of its numbers must know.
        examples: first answers to each of the example queries, the best first.
        is_single_Q: which queries have a right answer of one token of the language model; None if that was not asked.
    """

    model: str
    method: str
    outcome: ProbeOutcome
    ks: tuple[int, ...]
    remark: str
    examples: Sequence[Sequence[str]]
    is_single_Q: NDArray[np.bool_] | None = None


def first_of_ranked(retrieval: Retrieval) -> NDArray[np.int64]:
    """(Q,) the rank of each query's best gold candidate, ``NEVER`` without gold."""
    first_Q = np.full(len(retrieval.num_gold_Q), NEVER)
    np.minimum.at(first_Q, np.repeat(np.arange(len(first_Q)), retrieval.num_gold_Q), retrieval.rank_P)
    return first_Q


def first_of_written(
    answers: Sequence[Sequence[str]],
    gold: Sequence[Collection[str]],
    same: Callable[[str], str] = lambda text: text,
) -> NDArray[np.int64]:
    """(Q,) the rank of the first written answer that is a gold name; ``same`` makes equal what is to count as equal."""
    first_Q = np.full(len(answers), NEVER)
    for query, (given, names) in enumerate(zip(answers, gold, strict=True)):
        wanted = {same(name) for name in names}
        first_Q[query] = next((rank for rank, answer in enumerate(given) if same(answer) in wanted), NEVER)
    return first_Q


def fold(text: str) -> str:
    """A text without blanks around it and without case."""
    return text.strip().casefold()
