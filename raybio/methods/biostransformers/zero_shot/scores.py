"""Zero-shot retrieval: does an encoder that was never told about a task put the right documents nearest to a query?

The protocol of BioSTransformers, read so that it can be repeated: for each query take the k nearest documents, k = the
number of its gold documents; precision, recall and F1 are then one number, the R-precision. Every scorer (encoders,
words, chance) is ranked by the same code with the same rule for ties: the order of the documents.

Q queries, C documents, U units (queries or pairs) over which intervals and tests go.

Scores of documents for queries by the words they share: what an encoder has to beat.

Q queries, C documents, V words, B queries of a block. Words are scikit-learn's: two or more letters or digits, in lower
case; no stop words are left out.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from raybio.core.errors import DataError
from raybio.ops.retrieval import Scores, cosine_scores, retrieve
from raybio.ops.significance import Interval, PairedTest, paired_test, ratio_interval

Embed = Callable[[Sequence[str]], Tensor]
"""Texts -> embeddings, a row each."""


TextScorer = Callable[[Sequence[str], Sequence[str]], Scores]
"""(queries, documents) -> scores of all documents for all queries."""


def bm25_scores(
    queries: Sequence[str], documents: Sequence[str], *, k1: float = 1.2, b: float = 0.75
) -> Scores:
    """Okapi BM25 (Robertson and Zaragoza, 2009), a sum over the query's words, each as often as it stands there.

    A word adds idf x count (k1 + 1) / (count + k1 (1 - b + b length / mean length)), with
    idf = log(1 + (C - C_word + 1/2) / (C_word + 1/2)), which unlike the original one is never negative.

    Raises:
        DataError: if no document has a word.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer()
    count_CV = sparse.csr_matrix(_fit(vectorizer, documents), dtype=np.float64)
    length_C = np.asarray(count_CV.sum(axis=1)).ravel()
    num_with_V = np.bincount(count_CV.indices, minlength=count_CV.shape[1])
    idf_V = np.log1p((len(documents) - num_with_V + 0.5) / (num_with_V + 0.5))
    damping_C = k1 * (1 - b + b * length_C / length_C.mean())
    count_E, row_E = count_CV.data, np.repeat(np.arange(len(documents)), np.diff(count_CV.indptr))
    count_CV.data = idf_V[count_CV.indices] * count_E * (k1 + 1) / (count_E + damping_C[row_E])
    return _products(vectorizer.transform(queries).astype(np.float64), count_CV)


def tfidf_scores(queries: Sequence[str], documents: Sequence[str]) -> Scores:
    """Cosines of TF-IDF vectors: (1 + log count) x idf, the idf from the documents alone, rows of length 1.

    Raises:
        DataError: if no document has a word.
    """
    # Only now: it takes a second to import, and all training workers would wait for it.
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(sublinear_tf=True)
    document_CV = _fit(vectorizer, documents)
    return _products(vectorizer.transform(queries), document_CV)


BASELINES: Mapping[str, TextScorer] = {"TF-IDF": tfidf_scores, "BM25": bm25_scores}


class Chance(NamedTuple):
    """Expectations over all orders of the documents; no macro mean where there is one ranking alone."""

    micro: float
    macro: float | None


class Outcome(NamedTuple):
    """What a scorer got right, by unit: ``hits_U.sum() / total_U.sum()`` is the micro R-precision or F1.

    ``has_macro``: whether the mean of ``hits_U / total_U`` says something too.
    """

    hits_U: np.ndarray
    total_U: np.ndarray
    has_macro: bool


@dataclass(frozen=True)
class Task(ABC):
    """A question put to scorers.

    Attributes:
        name: short name, such as "pubmedqa-answers".
        dataset: name of the data set, as in the tables of the paper.
        queries: texts that ask.
        documents: texts that are ranked.
        protocol: what is asked and how it is counted, in sentences that are printed with the numbers.
        pmids: the articles that the texts are taken from, as far as they are known.
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
        """Gold pairs of a query and a document."""

    @abstractmethod
    def outcome(self, scores: Scores, block_rows: int) -> Outcome:
        """Rank by scores and count."""

    @abstractmethod
    def chance(self) -> Chance:
        """What random scores would give, exactly."""


@dataclass(frozen=True)
class ZeroShotTask(Task):
    """Queries with their gold documents among all documents.

    Attributes:
        indptr: (Q + 1,) where each query's gold begins.
        indices: its gold documents.
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
    ) -> "ZeroShotTask":
        """Build from the gold documents of each query.

        Raises:
            DataError: if there is no gold, or not one set a query.
        """
        sets = [sorted(set(one)) for one in gold]
        if len(sets) != len(queries) or not any(sets):
            raise DataError(
                f"task {name}: {len(queries)} queries with {len(sets)} sets of gold, want one each, not all empty"
            )
        indptr = np.cumsum([0, *map(len, sets)])
        indices = np.array([document for one in sets for document in one], dtype=np.int64)
        return cls(
            name, dataset, tuple(queries), tuple(documents), protocol, indptr, indices, pmids=pmids
        )

    @property
    def num_gold(self) -> int:
        """Gold pairs."""
        return len(self.indices)

    def outcome(self, scores: Scores, block_rows: int) -> Outcome:
        """Hits among the first |G_q|; the units are the queries with gold."""
        found = retrieve(scores, self.indptr, self.indices, block_rows=block_rows)
        has_gold_Q = found.num_gold_Q > 0
        return Outcome(found.r_hits_Q[has_gold_Q], found.num_gold_Q[has_gold_Q], has_macro=True)

    def chance(self) -> Chance:
        """Of the first |G_q| of a random order, |G_q| / C are gold: sum |G|^2 / C / sum |G|, and mean |G| / C."""
        num_gold_U = np.diff(self.indptr)[np.diff(self.indptr) > 0].astype(np.float64)
        num_documents = len(self.documents)
        micro = (num_gold_U**2).sum() / num_documents / num_gold_U.sum()
        return Chance(float(micro), float(num_gold_U.mean() / num_documents))


@dataclass(frozen=True)
class YesNoTask(Task):
    """Questions, each with the one text that answers it: "yes" is said of the K pairs with the highest scores.

    K is the number of questions whose answer is yes, so the F1 of "yes" is the R-precision of a single ranking.

    Attributes:
        is_yes_Q: whether a question's answer is yes.
    """

    is_yes_Q: np.ndarray

    def __post_init__(self) -> None:
        """Check that there is a yes to find."""
        if not len(self.queries) == len(self.documents) == len(self.is_yes_Q) or not np.any(
            self.is_yes_Q
        ):
            raise DataError(
                f"task {self.name}: {len(self.queries)} questions, {len(self.documents)} texts, {len(self.is_yes_Q)} "
                "answers; want one each, and at least one yes"
            )

    @property
    def num_gold(self) -> int:
        """K, questions whose answer is yes."""
        return int(np.sum(self.is_yes_Q))

    def outcome(self, scores: Scores, block_rows: int) -> Outcome:
        """The parts of the F1 of "yes", 2 TP / (said + true); the units are the pairs."""
        num = len(self.queries)
        pair_1Q = torch.empty((1, num), dtype=torch.float64)
        for start in range(0, num, block_rows):
            end = min(start + block_rows, num)
            pair_1Q[0, start:end] = scores.block(start, end).diagonal(offset=start)
        one_ranking = Scores(lambda _first, _end: pair_1Q, num_queries=1, num_candidates=num)
        is_said_Q = retrieve(one_ranking, np.array([0, num]), np.arange(num)).rank_P < self.num_gold
        return Outcome(
            2 * (is_said_Q & self.is_yes_Q), is_said_Q.astype(int) + self.is_yes_Q, has_macro=False
        )

    def chance(self) -> Chance:
        """Of K random pairs, K / Q are yes: the prior."""
        return Chance(self.num_gold / len(self.queries), None)


@dataclass(frozen=True)
class Judgement:
    """What one scorer reached, and how it differs from the first model (None for that model itself)."""

    scorer: str
    micro: Interval
    macro: Interval | None
    micro_test: PairedTest | None
    macro_test: PairedTest | None


@dataclass(frozen=True)
class TaskResult:
    """A task with all judgements, the first of which is that of the first model; and chance.

    ``num_trained_on``: how many of the task's articles a model was trained on, for the models of which that is known.
    ``cuts``: remarks on texts that a model does not read to their end, for the models that cut any.
    """

    task: Task
    judgements: tuple[Judgement, ...]
    chance: Chance
    num_trained_on: Mapping[str, int] = field(default_factory=dict)
    cuts: Mapping[str, Sequence[str]] = field(default_factory=dict)


def encoder_scorer(embed: Embed) -> TextScorer:
    """Cosines of an encoder's embeddings."""
    return lambda queries, documents: cosine_scores(embed(queries), embed(documents))


def judge(
    task: Task,
    scorers: Mapping[str, TextScorer],
    rng: np.random.Generator,
    *,
    block_rows: int = 1024,
) -> TaskResult:
    """R-precision of each scorer, micro and macro, with 95 % intervals and a paired test against the first scorer.

    All scorers meet the same resamples and permutations, so an interval does not depend on who else is judged.

    Args:
        task: what is asked.
        scorers: by name; the first is what the others are tested against. Baselines are in ``BASELINES``.
        rng: seeds the bootstrap over units and the permutation test.
        block_rows: queries scored at once.

    Raises:
        ValueError: if there is no scorer, or embeddings are not finite.
    """
    if not scorers:
        raise ValueError(
            "there is nothing to judge: want at least one scorer, such as those of BASELINES"
        )
    outcomes = {
        name: task.outcome(score(task.queries, task.documents), block_rows)
        for name, score in scorers.items()
    }
    seed, first = int(rng.integers(2**63)), next(iter(outcomes.values()))
    judgements = tuple(_judgement(name, own, first, seed) for name, own in outcomes.items())
    return TaskResult(task, judgements, task.chance())


def _judgement(name: str, own: Outcome, first: Outcome, seed: int) -> Judgement:
    micro = ratio_interval(own.hits_U, own.total_U, np.random.default_rng(seed))
    # What was said is as much for every scorer, in sum, so the sums of totals agree.
    micro_test = (
        None
        if own is first
        else paired_test(own.hits_U, first.hits_U, first.total_U, np.random.default_rng(seed))
    )
    if not own.has_macro:
        return Judgement(name, micro, None, micro_test, None)
    ones_U = np.ones(len(own.total_U))
    share_U, first_U = own.hits_U / own.total_U, first.hits_U / first.total_U
    macro = ratio_interval(share_U, ones_U, np.random.default_rng(seed))
    macro_test = (
        None if own is first else paired_test(share_U, first_U, ones_U, np.random.default_rng(seed))
    )
    return Judgement(name, micro, macro, micro_test, macro_test)


# Rounded, so that scores which are equal on paper tie, however the products were summed.
_DECIMALS = 9


def _fit(vectorizer: Any, documents: Sequence[str]) -> Any:
    try:
        return vectorizer.fit_transform(documents)
    except ValueError as error:
        raise DataError(
            f"{len(documents)} documents, the first {documents[:1]!r}: {error}; want texts"
        ) from None


def _products(query_QV: Any, document_CV: Any) -> Scores:
    query_QV, document_VC = sparse.csr_matrix(query_QV), sparse.csr_matrix(document_CV).T.tocsr()
    return Scores(
        lambda first, end: torch.from_numpy(
            (query_QV[first:end] @ document_VC).toarray().round(_DECIMALS)
        ),
        num_queries=query_QV.shape[0],
        num_candidates=document_VC.shape[1],
    )
