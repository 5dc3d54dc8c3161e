"""Ranking tasks: queries, documents, gold, and how a ranking is counted.

For each query the k nearest documents count, k being the number of its gold documents. Precision,
recall and F1 are then equal: the R-precision. Equal scores are ranked in the order of the
documents; those of TF-IDF and BM25 are made unequal at random (``with_random_ties``).

Shape letters: Q queries, C documents, P gold pairs, U units (queries or pairs) of intervals and
tests.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from raybio.core.arrays import Integers
from raybio.core.errors import DataError
from raybio.ops.retrieval import Scores, retrieve


class Chance(NamedTuple):
    """Expected scores over all orders of the documents; ``macro`` is None for a single ranking."""

    micro: float
    macro: float | None


class UnitHits(NamedTuple):
    """Hits of a scorer by unit.

    Attributes:
        hits_U: ``hits_U.sum() / total_U.sum()`` is the micro R-precision or F1.
        total_U: gold of each unit.
        has_macro: whether the mean of ``hits_U / total_U`` is meaningful too.
    """

    hits_U: np.ndarray
    total_U: np.ndarray
    has_macro: bool


@dataclass(frozen=True)
class RankingTask(ABC):
    """A task in which scorers rank documents for queries.

    Attributes:
        name: short name, such as "pubmedqa-answers".
        dataset: name of the data set, as in the paper's tables.
        queries: texts of the queries.
        documents: texts that are ranked.
        protocol: description of queries, documents and counting, printed with the numbers.
        pmids: articles of the texts, as far as known.
    """

    name: str
    dataset: str
    queries: tuple[str, ...]
    documents: tuple[str, ...]
    protocol: str
    pmids: frozenset[int] = field(default=frozenset(), kw_only=True)

    @property
    @abstractmethod
    def num_gold(self) -> int:
        """Number of gold pairs of a query and a document."""

    @property
    @abstractmethod
    def gold_pairs(self) -> tuple[Integers, Integers]:
        """The query (P,) and the document (P,) of each gold pair."""

    @abstractmethod
    def count_hits(self, scores: Scores, block_rows: int) -> UnitHits:
        """Rank by the scores and count hits."""

    @abstractmethod
    def chance(self) -> Chance:
        """Return the expected scores of a random ranking, exactly."""


@dataclass(frozen=True)
class RetrievalTask(RankingTask):
    """Queries with their gold documents among all documents.

    Attributes:
        indptr: pointers (Q + 1,) into ``indices``.
        indices: gold documents of each query.
    """

    indptr: np.ndarray
    indices: np.ndarray

    @classmethod
    def of(
        cls,
        name: str,
        dataset: str,
        queries: Sequence[str],
        documents: Sequence[str],
        gold: Sequence[Iterable[int]],
        protocol: str,
        pmids: frozenset[int] = frozenset(),
    ) -> "RetrievalTask":
        """Build a task from the gold documents of each query.

        Raises:
            DataError: if there is no gold, or not one set of gold for each query.
        """
        sets = [sorted(set(documents_of_query)) for documents_of_query in gold]
        if len(sets) != len(queries) or not any(sets):
            raise DataError(
                f"task {name}: {len(queries)} queries with {len(sets)} sets of gold, want one "
                "each, not all empty"
            )
        indptr = np.cumsum([0, *map(len, sets)])
        indices = np.concatenate(
            [np.array(documents_of_query, np.int64) for documents_of_query in sets]
        )
        return cls(
            name, dataset, tuple(queries), tuple(documents), protocol, indptr, indices, pmids=pmids
        )

    @property
    def num_gold(self) -> int:
        """Number of gold pairs."""
        return len(self.indices)

    @property
    def gold_pairs(self) -> tuple[Integers, Integers]:
        """The query and the document of each gold pair."""
        return np.repeat(np.arange(len(self.queries)), np.diff(self.indptr)), self.indices

    def count_hits(self, scores: Scores, block_rows: int) -> UnitHits:
        """Count gold among the first |G_q| documents; the units are the queries with gold."""
        retrieval = retrieve(scores, self.indptr, self.indices, block_rows=block_rows)
        has_gold_Q = retrieval.num_gold_Q > 0
        return UnitHits(
            retrieval.r_hits_Q[has_gold_Q], retrieval.num_gold_Q[has_gold_Q], has_macro=True
        )

    def chance(self) -> Chance:
        """Return micro = sum |G|^2 / (C sum |G|) and macro = mean |G| / C.

        Among the first |G_q| documents of a random order, |G_q|^2 / C are gold in expectation.
        """
        num_gold_Q = np.diff(self.indptr)
        num_gold_U = num_gold_Q[num_gold_Q > 0].astype(np.float64)
        num_documents = len(self.documents)
        micro = (num_gold_U**2).sum() / num_documents / num_gold_U.sum()
        return Chance(float(micro), float(num_gold_U.mean() / num_documents))


@dataclass(frozen=True)
class YesNoTask(RankingTask):
    """Yes/no questions with one text each; the K pairs with the highest scores are answered "yes".

    K is the number of questions whose answer is yes, so the F1 of "yes" is the R-precision of a
    single ranking.

    Attributes:
        is_yes_Q: whether a question's answer is yes.
    """

    is_yes_Q: np.ndarray

    def __post_init__(self) -> None:
        """Check the sizes, and that there is a yes."""
        num_questions = len(self.queries)
        have_equal_sizes = num_questions == len(self.documents) == len(self.is_yes_Q)
        if not have_equal_sizes or not np.any(self.is_yes_Q):
            raise DataError(
                f"task {self.name}: {num_questions} questions, {len(self.documents)} texts, "
                f"{len(self.is_yes_Q)} answers; want one each, and at least one yes"
            )

    @property
    def num_gold(self) -> int:
        """Number of questions whose answer is yes (K)."""
        return int(np.sum(self.is_yes_Q))

    @property
    def gold_pairs(self) -> tuple[Integers, Integers]:
        """The questions whose answer is yes, and their texts."""
        yes_K = np.flatnonzero(self.is_yes_Q)
        return yes_K, yes_K

    def count_hits(self, scores: Scores, block_rows: int) -> UnitHits:
        """Return the terms of the F1 of "yes", 2 TP / (predicted + gold), by pair."""
        num = len(self.queries)
        pair_1Q = torch.empty((1, num), dtype=torch.float64)
        for start in range(0, num, block_rows):
            end = min(start + block_rows, num)
            pair_1Q[0, start:end] = scores.block(start, end).diagonal(offset=start)
        ranking = Scores(lambda _first, _end: pair_1Q, num_queries=1, num_candidates=num)
        rank_Q = retrieve(ranking, np.array([0, num]), np.arange(num)).rank_P
        is_predicted_Q = rank_Q < self.num_gold
        hits_Q = 2 * (is_predicted_Q & self.is_yes_Q)
        return UnitHits(hits_Q, is_predicted_Q.astype(int) + self.is_yes_Q, has_macro=False)

    def chance(self) -> Chance:
        """Return the prior: of K random pairs, a fraction K / Q is yes."""
        return Chance(self.num_gold / len(self.queries), None)
