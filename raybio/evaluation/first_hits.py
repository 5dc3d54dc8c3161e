"""Accuracy at k of answers to queries in relations, whatever gave the answers: ranked names, tokens or written texts.

Q queries, R relations.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raybio.functional.bootstrap import Interval
from raybio.functional.retrieval import Retrieval
from raybio.functional.significance import ratio_interval

NEVER = np.iinfo(np.int64).max
"""The rank of a right answer that was not given."""


@dataclass(frozen=True)
class FirstHits:
    """At which rank each query's first right answer came.

    Attributes:
        model: who answered.
        method: and how.
        first_Q: 0-based rank, ``NEVER`` where no answer was right.
        relation_Q: number of each query's relation.
        ks: k of the accuracies that mean something: the method gives at least so many answers.
        remark: what a reader of its numbers must know.
    """

    model: str
    method: str
    first_Q: NDArray[np.int64]
    relation_Q: NDArray[np.integer]
    ks: tuple[int, ...]
    remark: str = ""

    def by_relation(self, k: int, num_relations: int) -> NDArray[np.float64]:
        """(R,) acc@k: the share of a relation's queries with a right answer among the first k; NaN without queries."""
        num_R = np.bincount(self.relation_Q, minlength=num_relations).astype(np.float64)
        hits_R = np.bincount(self.relation_Q, weights=self.first_Q < k, minlength=num_relations)
        share_R = np.full(num_relations, np.nan)
        np.divide(hits_R, num_R, out=share_R, where=num_R > 0)
        return share_R

    def macro(self, k: int) -> float:
        """Mean of acc@k over the relations that have queries."""
        return float(np.nanmean(self.by_relation(k, int(self.relation_Q.max()) + 1)))

    def micro(self, k: int, rng: np.random.Generator) -> Interval:
        """acc@k over all queries, with a 95 % bootstrap interval."""
        return ratio_interval((self.first_Q < k).astype(np.int64), np.ones(len(self.first_Q)), rng)


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
