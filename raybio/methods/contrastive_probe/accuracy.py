"""Probing what an encoder knows: are the right entity names nearest to a cloze query?

Q queries, C names, R relations, P (query, answer) pairs, D width, K predicted names of a query, in order.

The protocol of Contrastive-Probe (facts 4) is the default: Euclidean distance between embeddings as they are, among all
names, the head entity included; a query is right at k if any of its answers is among the first k.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raybio.evaluation.evaluator import exact_scores
from raybio.methods.contrastive_probe.config import ProbeConfig
from raybio.ops.chance import expected_hit
from raybio.ops.segments import expand
from raybio.ops.significance import Interval, PairedTest, paired_test, ratio_interval

CUTOFFS = (1, 5, 10)


NUM_PREDICTED = max(CUTOFFS)


LENGTH_BOUNDS = (0, 5, 10, 15, 20, 25, 30, 40, 60)
"""Characters at which bins of answer lengths begin; the last has no end."""


Integers = NDArray[np.integer[Any]]


Floats = NDArray[np.float64]


Search = Callable[[Tensor, Tensor, int], Tensor]
"""(queries, candidates, k) -> indices (Q, min(k, candidates)) of the nearest candidates, in order."""


class Questions(Protocol):
    """What is read here of a benchmark; see ``raybio.methods.contrastive_probe.benchmark.medlama``."""

    @property
    def relations(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def names(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def is_tail_C(self) -> NDArray[np.bool_]: ...  # noqa: D102
    @property
    def is_tail_RC(self) -> NDArray[np.bool_]: ...  # noqa: D102
    @property
    def relation_Q(self) -> Integers: ...  # noqa: D102
    @property
    def head_Q(self) -> Integers: ...  # noqa: D102
    @property
    def indptr_Q1(self) -> Integers: ...  # noqa: D102
    @property
    def answer_P(self) -> Integers: ...  # noqa: D102
    @property
    def cui_indptr_C1(self) -> Integers: ...  # noqa: D102
    @property
    def cui_E(self) -> Integers: ...  # noqa: D102


class LengthBin(NamedTuple):
    """Accuracy of the queries whose answers have so many characters, ``first <= characters < end`` on average."""

    first: int
    end: float
    num_queries: int
    accuracy: float


@dataclass(frozen=True)
class ProbeOutcome:
    """Which of the predictions of each query was the first right one, from whatever method.

    Attributes:
        relations: (R,) names of the relations.
        relation_Q: of each query.
        first_hit_Q: 0-based place of the first right prediction, any number >= 10 if there is none.
    """

    relations: tuple[str, ...]
    relation_Q: Integers
    first_hit_Q: Integers

    def __post_init__(self) -> None:
        """Check that there is something to take means of."""
        if len(self.first_hit_Q) == 0 or len(self.first_hit_Q) != len(self.relation_Q):
            raise ValueError(
                f"{len(self.first_hit_Q)} outcomes for {len(self.relation_Q)} queries; want one each, at least one"
            )

    @cached_property
    def weight_Q(self) -> Floats:
        """What a query counts in a macro mean: 1 / queries of its relation."""
        return 1 / np.bincount(self.relation_Q, minlength=len(self.relations))[self.relation_Q]

    def hits(self, k: int) -> Floats:
        """(Q,) 1 where a right name is among the first k, else 0."""
        return (self.first_hit_Q < k).astype(np.float64)

    def micro(self, k: int) -> float:
        """Share of all queries that are right at k."""
        return float(self.hits(k).mean())

    def macro(self, k: int) -> float:
        """Mean over the relations that have queries."""
        return float(np.nanmean(self.by_relation(k)))

    def by_relation(self, k: int) -> Floats:
        """(R,) share of right queries of each relation; NaN for one without queries."""
        num_R = np.bincount(self.relation_Q, minlength=len(self.relations))
        right_R = np.bincount(self.relation_Q, self.hits(k), minlength=len(self.relations))
        return np.divide(right_R, num_R, out=np.full(len(num_R), np.nan), where=num_R > 0)

    def by_length(
        self, k: int, length_Q: Floats, bounds: Sequence[int] = LENGTH_BOUNDS
    ) -> list[LengthBin]:
        """Accuracy by length of the answers, bins without queries left out."""
        bins, ends = [], [*bounds[1:], float("inf")]
        for first, end in zip(bounds, ends, strict=True):
            here_Q = (length_Q >= first) & (length_Q < end)
            if here_Q.any():
                bins.append(
                    LengthBin(first, end, int(here_Q.sum()), float(self.hits(k)[here_Q].mean()))
                )
        return bins

    def shares(self, k: int, mean: Literal["micro", "macro"]) -> Floats:
        """(Q,) what each query adds to the accuracy, which is their mean."""
        weight_Q = self._weights(mean)
        return self.hits(k) * weight_Q / weight_Q.mean()

    def interval(
        self, k: int, mean: Literal["micro", "macro"], rng: np.random.Generator
    ) -> Interval:
        """The accuracy with its 95 % bootstrap interval over queries."""
        weight_Q = self._weights(mean)
        return ratio_interval(self.hits(k) * weight_Q, weight_Q, rng)

    def test(
        self,
        other: "ProbeOutcome",
        k: int,
        mean: Literal["micro", "macro"],
        rng: np.random.Generator,
    ) -> PairedTest:
        """How this differs from another outcome on the same queries.

        Raises:
            ValueError: if the queries are not the same.
        """
        if not np.array_equal(self.relation_Q, other.relation_Q):
            raise ValueError(
                "two outcomes over different queries cannot be compared in pairs; want one benchmark"
            )
        weight_Q = self._weights(mean)
        return paired_test(self.hits(k) * weight_Q, other.hits(k) * weight_Q, weight_Q, rng)

    def _weights(self, mean: Literal["micro", "macro"]) -> Floats:
        return np.ones(len(self.relation_Q)) if mean == "micro" else self.weight_Q


def predict(
    questions: Questions, query_QD: Tensor, name_CD: Tensor, config: ProbeConfig, search: Search
) -> NDArray[np.int64]:
    """The names (Q, 10) nearest to each query, in order; -1 where there are no more candidates.

    Args:
        questions: the benchmark.
        query_QD: embeddings of its queries.
        name_CD: embeddings of its names.
        config: among which names.
        search: finds the nearest, by ``config.metric``.

    Raises:
        ValueError: if the embeddings are not one a query and one a name.
    """
    if len(query_QD) != len(questions.relation_Q) or len(name_CD) != len(questions.names):
        raise ValueError(
            f"{len(query_QD)} and {len(name_CD)} embeddings for {len(questions.relation_Q)} queries and "
            f"{len(questions.names)} names; want one each"
        )
    found_QK = np.full((len(query_QD), NUM_PREDICTED + config.exclude_head), -1, dtype=np.int64)
    for row_B, name_M in _parts(questions, config.candidates):
        index_BK = (
            search(query_QD[row_B], name_CD[torch.from_numpy(name_M)], found_QK.shape[1])
            .cpu()
            .numpy()
        )
        found_QK[row_B, : index_BK.shape[1]] = name_M[index_BK]
    if not config.exclude_head:
        return found_QK
    # The head goes behind all others, and then falls off.
    order_QK = np.argsort(found_QK == questions.head_Q[:, None], axis=1, kind="stable")
    found_QK[found_QK == questions.head_Q[:, None]] = -1
    return np.take_along_axis(found_QK, order_QK, axis=1)[:, :NUM_PREDICTED]


def _parts(
    questions: Questions, candidates: str
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Queries that share their candidates, with those candidates as ascending name numbers."""
    everyone = np.arange(len(questions.relation_Q))
    if candidates == "all":
        return [(everyone, np.arange(len(questions.names)))]
    if candidates == "tails":
        return [(everyone, np.flatnonzero(questions.is_tail_C))]
    return [
        (
            np.flatnonzero(questions.relation_Q == relation),
            np.flatnonzero(questions.is_tail_RC[relation]),
        )
        for relation in np.unique(questions.relation_Q)
    ]


def outcome(
    questions: Questions, predicted_QK: Integers, match: Literal["name", "cui"] = "name"
) -> ProbeOutcome:
    """Where the first right one is among predicted names, which may be fewer than 10 a query (-1 for none)."""
    is_right_QK = right(questions, predicted_QK, match)
    first_Q = np.where(is_right_QK.any(axis=1), is_right_QK.argmax(axis=1), NUM_PREDICTED)
    return ProbeOutcome(questions.relations, questions.relation_Q, first_Q)


def right(
    questions: Questions, predicted_QK: Integers, match: Literal["name", "cui"] = "name"
) -> NDArray[np.bool_]:
    """Whether each predicted name (Q, K) answers its query."""
    num_names = len(questions.names)
    query_P = np.repeat(np.arange(len(questions.relation_Q)), np.diff(questions.indptr_Q1))
    query_QK = np.broadcast_to(np.arange(len(predicted_QK))[:, None], predicted_QK.shape)
    is_name_QK = predicted_QK >= 0
    key_QK = query_QK * num_names + predicted_QK
    is_right_QK = np.isin(key_QK, query_P * num_names + questions.answer_P) & is_name_QK
    if match == "cui":
        num_cuis = int(questions.cui_E.max(initial=0)) + 1
        gold_cui, gold_place = _cuis_of(questions, questions.answer_P)
        gold_keys = query_P[gold_place] * num_cuis + gold_cui
        cui, place = _cuis_of(questions, predicted_QK[is_name_QK])
        shares = np.zeros(int(is_name_QK.sum()), dtype=bool)
        shares[place[np.isin(query_QK[is_name_QK][place] * num_cuis + cui, gold_keys)]] = True
        is_right_QK[is_name_QK] |= shares
    return is_right_QK


def chance_scores(questions: Questions, config: ProbeConfig) -> dict[str, dict[str, float]]:
    """Return the accuracies, macro ``acc_at_k`` and ``micro_acc_at_k``, of names in random order, exactly.

    A query with A right ones among its C candidates is right at k with probability 1 - C(C - A, k) / C(C, k).
    """
    right_Q, candidates_Q = _num_right(questions, config)
    num_queries_R = np.bincount(questions.relation_Q, minlength=len(questions.relations))
    weight_Q = 1 / num_queries_R[questions.relation_Q]
    scores = {}
    for k in CUTOFFS:
        hit_Q = expected_hit(k, right_Q, candidates_Q)
        scores[f"acc_at_{k}"] = float(np.average(hit_Q, weights=weight_Q))
        scores[f"micro_acc_at_{k}"] = float(hit_Q.mean())
    return exact_scores(scores)


def _num_right(
    questions: Questions, config: ProbeConfig
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each query the number (Q,) of right names among its candidates, and that of its candidates."""
    names_by_cui: dict[int, list[int]] = {}
    if config.match == "cui":
        name_E = np.repeat(np.arange(len(questions.names)), np.diff(questions.cui_indptr_C1))
        for cui, name in zip(questions.cui_E.tolist(), name_E.tolist(), strict=True):
            names_by_cui.setdefault(cui, []).append(name)
    right_Q, candidates_Q = np.zeros((2, len(questions.relation_Q)), dtype=np.int64)
    for row_B, name_M in _parts(questions, config.candidates):
        is_candidate_C = np.zeros(len(questions.names), dtype=bool)
        is_candidate_C[name_M] = True
        for query in row_B.tolist():
            answers = questions.answer_P[
                questions.indptr_Q1[query] : questions.indptr_Q1[query + 1]
            ]
            names = set(answers.tolist())
            if config.match == "cui":
                cuis, _ = _cuis_of(questions, answers)
                names.update(name for cui in cuis.tolist() for name in names_by_cui[cui])
            head = int(questions.head_Q[query])
            is_left_out = config.exclude_head and bool(is_candidate_C[head])
            if is_left_out:
                names.discard(head)
            right_Q[query] = is_candidate_C[list(names)].sum() if names else 0
            candidates_Q[query] = len(name_M) - is_left_out
    return right_Q, candidates_Q


def answer_lengths(questions: Questions) -> Floats:
    """(Q,) mean characters of each query's answers."""
    length_C = np.fromiter(map(len, questions.names), np.float64, count=len(questions.names))
    return np.add.reduceat(length_C[questions.answer_P], questions.indptr_Q1[:-1]) / np.diff(
        questions.indptr_Q1
    )


def _cuis_of(questions: Questions, name_N: Integers) -> tuple[Integers, Integers]:
    """The concepts of names end to end, and which of ``name_N`` each belongs to."""
    start_N = questions.cui_indptr_C1[name_N].astype(np.int64)
    position, owner = expand(
        start_N, questions.cui_indptr_C1[name_N.astype(np.int64) + 1] - start_N
    )
    return questions.cui_E[position].astype(np.int64), owner
