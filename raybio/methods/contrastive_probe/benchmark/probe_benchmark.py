"""A benchmark of factual knowledge: queries (head entity, relation), each with gold answers.

Q queries, C names, R relations, P (query, answer) pairs by query, E (name, CUI) pairs by name.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from raybio.core.errors import DataError
from raybio.methods.contrastive_probe.benchmark.prompts import default_prompt, prompt_problem


@dataclass(frozen=True)
class ProbeBenchmark:
    """Queries with gold answers among names.

    Attributes:
        relations: names of the relations (R,), ascending.
        prompts: prompt of each relation (R,), with one "[X]" and one "[Y]".
        names: all heads and tails (C,), distinct, ascending by code point.
        is_tail_C: whether a name answers some query.
        relation_Q: int16, relation of each query; within a relation in the order of the file.
        head_Q: int32, index of the head among the names.
        indptr_Q1: int64 (Q + 1,), where the answers of each query begin.
        answer_P: int32, indices of names, ascending and distinct within a query.
        cuis: all CUIs, ascending.
        cui_indptr_C1: int64 (C + 1,), where the CUIs of each name begin; a name may have several.
        cui_E: int32, indices of CUIs, ascending and distinct within a name.
        complete: the complete benchmark if this is a sample of its queries, else None.
        index_in_complete_Q: index of each query in ``complete``; None if this is not a sample.
        default_prompts: default prompt of each relation (R,); None: the words of its name.
    """

    relations: tuple[str, ...]
    prompts: tuple[str, ...]
    names: tuple[str, ...]
    is_tail_C: NDArray[np.bool_]
    relation_Q: NDArray[np.int16]
    head_Q: NDArray[np.int32]
    indptr_Q1: NDArray[np.int64]
    answer_P: NDArray[np.int32]
    cuis: tuple[str, ...]
    cui_indptr_C1: NDArray[np.int64]
    cui_E: NDArray[np.int32]
    complete: "ProbeBenchmark | None" = None
    index_in_complete_Q: NDArray[np.int64] | None = None
    default_prompts: tuple[str, ...] | None = None

    @cached_property
    def is_tail_RC(self) -> NDArray[np.bool_]:
        """Whether a name answers some query of a relation, in the complete benchmark."""
        complete = self.complete or self
        is_tail_RC = np.zeros((len(self.relations), len(self.names)), dtype=bool)
        relation_P = np.repeat(complete.relation_Q, np.diff(complete.indptr_Q1))
        is_tail_RC[relation_P, complete.answer_P] = True
        return is_tail_RC

    def answers(self, query: int) -> NDArray[np.int32]:
        """Return the indices of the names that answer a query."""
        return self.answer_P[self.indptr_Q1[query] : self.indptr_Q1[query + 1]]

    def queries(self, mask_token: str) -> list[str]:
        """Return the text of each query: [X] is the head's name, [Y] the mask token."""
        # [Y] first: the name of a head may contain "[Y]", a mask token does not.
        masked = [prompt.replace("[Y]", mask_token) for prompt in self.prompts]
        texts = []
        for relation, head in zip(self.relation_Q.tolist(), self.head_Q.tolist(), strict=True):
            texts.append(masked[relation].replace("[X]", self.names[head]))
        return texts

    @cached_property
    def with_default_prompts(self) -> "ProbeBenchmark":
        """The same queries with the default prompt of each relation."""
        prompts = self.default_prompts or tuple(map(default_prompt, self.relations))
        return replace(self, prompts=prompts)

    def sample(self, queries_per_relation: int, seed: int) -> "ProbeBenchmark":
        """Return up to ``queries_per_relation`` random queries of each relation, and all names."""
        rng = np.random.default_rng(seed)
        shuffled = rng.permutation(len(self.relation_Q))
        # Rank of each query among the shuffled queries of its relation.
        rank_Q = np.empty(len(shuffled), dtype=np.int64)
        for relation in range(len(self.relations)):
            members = shuffled[self.relation_Q[shuffled] == relation]
            rank_Q[members] = np.arange(len(members))
        chosen = np.flatnonzero(rank_Q < queries_per_relation)
        indptr_Q1, answer_P = _ragged([self.answers(query).tolist() for query in chosen.tolist()])
        index_in_complete_Q = chosen
        if self.index_in_complete_Q is not None:
            index_in_complete_Q = self.index_in_complete_Q[chosen]
        return replace(
            self,
            relation_Q=self.relation_Q[chosen],
            head_Q=self.head_Q[chosen],
            indptr_Q1=indptr_Q1,
            answer_P=answer_P,
            complete=self.complete or self,
            index_in_complete_Q=index_in_complete_Q,
        )


class ProbeQuery(NamedTuple):
    """One query of a file; ``cuis`` are (name, CUI) pairs of the head and the answers."""

    relation: str
    head: str
    answers: Sequence[str]
    cuis: Sequence[tuple[str, str]]


def build_benchmark(
    queries: Sequence[ProbeQuery], prompt_by_relation: Mapping[str, str]
) -> ProbeBenchmark:
    """Index names, relations and CUIs; a relation without a prompt gets its default prompt.

    Raises:
        DataError: for a prompt without one [X] and one [Y], or more relations than int16 holds.
    """
    relations = tuple(sorted({query.relation for query in queries}))
    if len(relations) > np.iinfo(np.int16).max:
        raise DataError(f"{len(relations):,} relations, want at most {np.iinfo(np.int16).max:,}")
    prompts = tuple(
        prompt_by_relation.get(relation, default_prompt(relation)) for relation in relations
    )
    for relation, prompt in zip(relations, prompts, strict=True):
        problem = prompt_problem(prompt)
        if problem:
            raise DataError(f"prompt of {relation}: {problem}")
    queries = sorted(queries, key=lambda query: query.relation)
    tails = {name for query in queries for name in query.answers}
    names = tuple(sorted(tails | {query.head for query in queries}))
    cuis = tuple(sorted({cui for query in queries for _, cui in query.cuis}))
    index_by_relation = _index_by_value(relations)
    index_by_name = _index_by_value(names)
    index_by_cui = _index_by_value(cuis)
    answers = [sorted({index_by_name[name] for name in query.answers}) for query in queries]
    cuis_by_name: list[set[int]] = [set() for _ in names]
    for query in queries:
        for name, cui in query.cuis:
            cuis_by_name[index_by_name[name]].add(index_by_cui[cui])
    indptr_Q1, answer_P = _ragged(answers)
    cui_indptr_C1, cui_E = _ragged([sorted(indices) for indices in cuis_by_name])
    relation_Q = [index_by_relation[query.relation] for query in queries]
    return ProbeBenchmark(
        relations=relations,
        prompts=prompts,
        names=names,
        is_tail_C=np.array([name in tails for name in names], dtype=bool),
        relation_Q=np.array(relation_Q, dtype=np.int16),
        head_Q=np.array([index_by_name[query.head] for query in queries], dtype=np.int32),
        indptr_Q1=indptr_Q1,
        answer_P=answer_P,
        cuis=cuis,
        cui_indptr_C1=cui_indptr_C1,
        cui_E=cui_E,
    )


def _index_by_value(values: Iterable[str]) -> dict[str, int]:
    return {value: index for index, value in enumerate(values)}


def _ragged(rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    indptr = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=indptr[1:])
    flat: list[Any] = [index for row in rows for index in row]
    return indptr, np.array(flat, dtype=np.int32)
