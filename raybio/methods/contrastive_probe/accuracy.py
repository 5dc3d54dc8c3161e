"""Accuracy of predictions: is a gold answer among the names nearest to a query?

Q queries, C names, R relations, P (query, answer) pairs, D width, K predicted names of a query in
order, M candidates, B queries that share their candidates.

The defaults are the protocol of Meng et al. (2022): Euclidean distance between unscaled embeddings,
all names as candidates, the head entity included. A query is correct at k if any of its answers is
among the first k names.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raybio.core.arrays import Floats, Integers
from raybio.evaluation.evaluator import exact_scores
from raybio.methods.contrastive_probe.benchmark.probe_benchmark import ProbeBenchmark
from raybio.methods.contrastive_probe.config import Match, ProbeConfig
from raybio.ops.chance import expected_hit
from raybio.ops.segments import expand
from raybio.ops.significance import Interval, PairedTest, paired_test, ratio_interval

CUTOFFS = (1, 5, 10)
NUM_PREDICTED = max(CUTOFFS)

LENGTH_BOUNDS = (0, 5, 10, 15, 20, 25, 30, 40, 60)
"""Characters at which bins of answer lengths begin; the last bin is open."""

Mean = Literal["micro", "macro"]

Search = Callable[[Tensor, Tensor, int], Tensor]
"""(queries, candidates, k) -> indices (Q, min(k, M)) of the nearest candidates, in order."""

RowSearch = Callable[[Integers, Integers, int], Integers]
"""(rows of queries, names, k) -> indices (B, min(k, M)) of the best of these names, in order."""


class LengthBin(NamedTuple):
    """Accuracy of the queries with ``first <= mean characters of the answers < end``."""

    first: int
    end: float
    num_queries: int
    accuracy: float


@dataclass(frozen=True)
class ProbeOutcome:
    """The rank of the first correct prediction of each query, for any method of prediction.

    Attributes:
        relations: names of the relations (R,).
        relation_Q: relation of each query.
        first_hit_Q: 0-based rank of the first correct prediction; any number >= 10 for none.
    """

    relations: tuple[str, ...]
    relation_Q: Integers
    first_hit_Q: Integers

    def __post_init__(self) -> None:
        """Check that there is one rank a query, and at least one query."""
        if len(self.first_hit_Q) == 0 or len(self.first_hit_Q) != len(self.relation_Q):
            raise ValueError(
                f"{len(self.first_hit_Q)} outcomes for {len(self.relation_Q)} queries; "
                "want one each, at least one"
            )

    @cached_property
    def weight_Q(self) -> Floats:
        """Weight of a query in the macro mean: 1 / number of queries of its relation."""
        return 1 / np.bincount(self.relation_Q, minlength=len(self.relations))[self.relation_Q]

    def hits(self, k: int) -> Floats:
        """Return 1 for each query (Q,) with an answer among the first k names, else 0."""
        return (self.first_hit_Q < k).astype(np.float64)

    def micro(self, k: int) -> float:
        """Return acc@k over all queries."""
        return float(self.hits(k).mean())

    def macro(self, k: int) -> float:
        """Return the mean of acc@k over the relations that have queries."""
        return float(np.nanmean(self.by_relation(k)))

    def by_relation(self, k: int) -> Floats:
        """Return acc@k of each relation (R,); NaN for one without queries."""
        num_relations = len(self.relations)
        num_queries_R = np.bincount(self.relation_Q, minlength=num_relations)
        num_hits_R = np.bincount(self.relation_Q, self.hits(k), minlength=num_relations)
        unknown_R = np.full(num_relations, np.nan)
        return np.divide(num_hits_R, num_queries_R, out=unknown_R, where=num_queries_R > 0)

    def by_length(self, k: int, length_Q: Floats) -> list[LengthBin]:
        """Return acc@k by length of the answers, without empty bins.

        Args:
            k: cutoff.
            length_Q: ``answer_lengths`` of the queries.
        """
        hit_Q = self.hits(k)
        bins = []
        ends = [*LENGTH_BOUNDS[1:], float("inf")]
        for first, end in zip(LENGTH_BOUNDS, ends, strict=True):
            is_in_bin_Q = (length_Q >= first) & (length_Q < end)
            if is_in_bin_Q.any():
                accuracy = float(hit_Q[is_in_bin_Q].mean())
                bins.append(LengthBin(first, end, int(is_in_bin_Q.sum()), accuracy))
        return bins

    def shares(self, k: int, mean: Mean) -> Floats:
        """Return the contribution of each query (Q,); their mean is the accuracy."""
        weight_Q = self._weights(mean)
        return self.hits(k) * weight_Q / weight_Q.mean()

    def interval(self, k: int, mean: Mean, rng: np.random.Generator) -> Interval:
        """Return the accuracy with its 95 % bootstrap interval over queries."""
        weight_Q = self._weights(mean)
        return ratio_interval(self.hits(k) * weight_Q, weight_Q, rng)

    def test(
        self, other: "ProbeOutcome", k: int, mean: Mean, rng: np.random.Generator
    ) -> PairedTest:
        """Return the paired test of the difference to another outcome on the same queries.

        Raises:
            ValueError: if the queries differ.
        """
        if not np.array_equal(self.relation_Q, other.relation_Q):
            raise ValueError(
                "two outcomes over different queries cannot be compared in pairs; "
                "want one benchmark"
            )
        weight_Q = self._weights(mean)
        return paired_test(self.hits(k) * weight_Q, other.hits(k) * weight_Q, weight_Q, rng)

    def _weights(self, mean: Mean) -> Floats:
        return np.ones(len(self.relation_Q)) if mean == "micro" else self.weight_Q


def predict_names(
    benchmark: ProbeBenchmark,
    query_QD: Tensor,
    name_CD: Tensor,
    config: ProbeConfig,
    search: Search,
) -> NDArray[np.int64]:
    """Return the names (Q, 10) nearest to each query, in order; -1 for missing candidates.

    Args:
        benchmark: the queries and names.
        query_QD: embeddings of the queries.
        name_CD: embeddings of the names.
        config: which names are candidates.
        search: nearest neighbors by ``config.metric``.

    Raises:
        ValueError: if there is not one embedding for each query and each name.
    """
    num_queries = len(benchmark.relation_Q)
    num_names = len(benchmark.names)
    if len(query_QD) != num_queries or len(name_CD) != num_names:
        raise ValueError(
            f"{len(query_QD)} and {len(name_CD)} embeddings for {num_queries} queries and "
            f"{num_names} names; want one each"
        )

    def search_rows(row_B: Integers, name_M: Integers, k: int) -> Integers:
        candidate_MD = name_CD[torch.from_numpy(name_M)]
        return search(query_QD[row_B], candidate_MD, k).cpu().numpy()

    return best_names(benchmark, config, search_rows)


def best_names(
    benchmark: ProbeBenchmark, config: ProbeConfig, search: RowSearch
) -> NDArray[np.int64]:
    """Return the best names (Q, 10) for each query, in order; -1 for missing candidates.

    Args:
        benchmark: the queries and names.
        config: which names are candidates.
        search: ranks the candidates of some queries.
    """
    # Search one more name if the head is removed afterwards.
    num_searched = NUM_PREDICTED + config.exclude_head
    predicted_QK = np.full((len(benchmark.relation_Q), num_searched), -1, dtype=np.int64)
    for row_B, name_M in _candidate_groups(benchmark, config.candidates):
        index_BK = search(row_B, name_M, num_searched)
        predicted_QK[row_B, : index_BK.shape[1]] = name_M[index_BK]
    if not config.exclude_head:
        return predicted_QK
    # A stable sort moves the head behind all others, where it is cut off.
    is_head_QK = predicted_QK == benchmark.head_Q[:, None]
    order_QK = np.argsort(is_head_QK, axis=1, kind="stable")
    return np.take_along_axis(predicted_QK, order_QK, axis=1)[:, :NUM_PREDICTED]


def _candidate_groups(
    benchmark: ProbeBenchmark, candidates: str
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield queries that share their candidates, and these as ascending indices of names."""
    query_Q = np.arange(len(benchmark.relation_Q))
    if candidates == "all":
        yield query_Q, np.arange(len(benchmark.names))
    elif candidates == "tails":
        yield query_Q, np.flatnonzero(benchmark.is_tail_C)
    else:
        for relation in np.unique(benchmark.relation_Q):
            rows = np.flatnonzero(benchmark.relation_Q == relation)
            yield rows, np.flatnonzero(benchmark.is_tail_RC[relation])


def evaluate_predictions(
    benchmark: ProbeBenchmark, predicted_QK: Integers, match: Match = "name"
) -> ProbeOutcome:
    """Return the rank of the first correct name; fewer than 10 names a query are allowed."""
    is_correct_QK = is_correct(benchmark, predicted_QK, match)
    first_Q = np.where(is_correct_QK.any(axis=1), is_correct_QK.argmax(axis=1), NUM_PREDICTED)
    return ProbeOutcome(benchmark.relations, benchmark.relation_Q, first_Q)


def is_correct(
    benchmark: ProbeBenchmark, predicted_QK: Integers, match: Match = "name"
) -> NDArray[np.bool_]:
    """Return whether each predicted name (Q, K) answers its query; False for -1.

    Args:
        benchmark: the queries.
        predicted_QK: indices of names, -1 for none.
        match: "name": the name must be an answer; "cui": it may also share a concept with one.
    """
    num_names = len(benchmark.names)
    query_P = np.repeat(np.arange(len(benchmark.relation_Q)), np.diff(benchmark.indptr_Q1))
    query_QK = np.broadcast_to(np.arange(len(predicted_QK))[:, None], predicted_QK.shape)
    is_name_QK = predicted_QK >= 0
    # Encode each (query, name) pair as one number.
    pair_QK = query_QK * num_names + predicted_QK
    gold_pair_P = query_P * num_names + benchmark.answer_P
    is_correct_QK = np.isin(pair_QK, gold_pair_P) & is_name_QK
    if match == "cui":
        num_cuis = int(benchmark.cui_E.max(initial=0)) + 1
        gold_cui, gold_owner = _cuis_of(benchmark, benchmark.answer_P)
        gold_cui_pair = query_P[gold_owner] * num_cuis + gold_cui
        cui, owner = _cuis_of(benchmark, predicted_QK[is_name_QK])
        cui_pair = query_QK[is_name_QK][owner] * num_cuis + cui
        shares_concept = np.zeros(int(is_name_QK.sum()), dtype=bool)
        shares_concept[owner[np.isin(cui_pair, gold_cui_pair)]] = True
        is_correct_QK[is_name_QK] |= shares_concept
    return is_correct_QK


def chance_scores(benchmark: ProbeBenchmark, config: ProbeConfig) -> dict[str, dict[str, float]]:
    """Return the exact accuracies of names in random order: ``acc_at_k`` and ``micro_acc_at_k``.

    A query with A correct names among C candidates is correct at k with probability
    1 - C(C - A, k) / C(C, k).
    """
    num_correct_Q, num_candidates_Q = _count_correct(benchmark, config)
    num_queries_R = np.bincount(benchmark.relation_Q, minlength=len(benchmark.relations))
    weight_Q = 1 / num_queries_R[benchmark.relation_Q]
    scores = {}
    for k in CUTOFFS:
        hit_Q = expected_hit(k, num_correct_Q, num_candidates_Q)
        scores[f"acc_at_{k}"] = float(np.average(hit_Q, weights=weight_Q))
        scores[f"micro_acc_at_{k}"] = float(hit_Q.mean())
    return exact_scores(scores)


def _count_correct(
    benchmark: ProbeBenchmark, config: ProbeConfig
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of correct candidates (Q,) and of candidates (Q,) of each query."""
    names_by_cui: dict[int, list[int]] = {}
    if config.match == "cui":
        name_E = np.repeat(np.arange(len(benchmark.names)), np.diff(benchmark.cui_indptr_C1))
        for cui, name in zip(benchmark.cui_E.tolist(), name_E.tolist(), strict=True):
            names_by_cui.setdefault(cui, []).append(name)
    num_queries = len(benchmark.relation_Q)
    num_correct_Q = np.zeros(num_queries, dtype=np.int64)
    num_candidates_Q = np.zeros(num_queries, dtype=np.int64)
    for row_B, name_M in _candidate_groups(benchmark, config.candidates):
        is_candidate_C = np.zeros(len(benchmark.names), dtype=bool)
        is_candidate_C[name_M] = True
        for query in row_B.tolist():
            answers = benchmark.answers(query)
            correct = set(answers.tolist())
            if config.match == "cui":
                cuis, _ = _cuis_of(benchmark, answers)
                for cui in cuis.tolist():
                    correct.update(names_by_cui[cui])
            head = int(benchmark.head_Q[query])
            is_head_removed = config.exclude_head and bool(is_candidate_C[head])
            if is_head_removed:
                correct.discard(head)
            num_correct_Q[query] = is_candidate_C[list(correct)].sum() if correct else 0
            num_candidates_Q[query] = len(name_M) - is_head_removed
    return num_correct_Q, num_candidates_Q


def answer_lengths(benchmark: ProbeBenchmark) -> Floats:
    """Return the mean number of characters of the answers of each query (Q,)."""
    length_C = np.fromiter(map(len, benchmark.names), np.float64, count=len(benchmark.names))
    total_Q = np.add.reduceat(length_C[benchmark.answer_P], benchmark.indptr_Q1[:-1])
    return total_Q / np.diff(benchmark.indptr_Q1)


def _cuis_of(benchmark: ProbeBenchmark, name_N: Integers) -> tuple[Integers, Integers]:
    """Return the concepts of names end to end, and the position in ``name_N`` of each."""
    start_N = benchmark.cui_indptr_C1[name_N].astype(np.int64)
    end_N = benchmark.cui_indptr_C1[name_N.astype(np.int64) + 1]
    position, owner = expand(start_N, end_N - start_N)
    return benchmark.cui_E[position].astype(np.int64), owner
