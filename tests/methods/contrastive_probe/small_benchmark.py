"""Small benchmarks for tests, written out or random."""

from collections.abc import Mapping, Sequence

import numpy as np

from raybio.methods.contrastive_probe.benchmark.probe_benchmark import ProbeBenchmark

RELATIONS = ("has_part", "may_treat", "not_queried", "occurs_after")


def benchmark_of(
    queries: Sequence[tuple[str, str, Sequence[str]]],
    names: Sequence[str],
    cuis_by_name: Mapping[str, Sequence[str]] | None = None,
    relations: Sequence[str] = RELATIONS,
) -> ProbeBenchmark:
    """Return the benchmark of (relation, head, answers); each name has a concept by default."""
    if cuis_by_name is None:
        cuis_by_name = {name: [f"C{index:03d}"] for index, name in enumerate(names)}
    cuis = sorted({cui for of_name in cuis_by_name.values() for cui in of_name})
    answers = [sorted(names.index(answer) for answer in gold) for _, _, gold in queries]
    concepts = [sorted(cuis.index(cui) for cui in cuis_by_name[name]) for name in names]
    answer_P = np.array([answer for gold in answers for answer in gold], np.int32)
    return ProbeBenchmark(
        relations=tuple(relations),
        prompts=tuple(f"[X] {relation.replace('_', ' ')} [Y] ." for relation in relations),
        names=tuple(names),
        is_tail_C=np.isin(np.arange(len(names)), answer_P),
        relation_Q=np.array([relations.index(relation) for relation, _, _ in queries], np.int16),
        head_Q=np.array([names.index(head) for _, head, _ in queries], np.int32),
        indptr_Q1=np.cumsum([0, *map(len, answers)]),
        answer_P=answer_P,
        cuis=tuple(cuis),
        cui_indptr_C1=np.cumsum([0, *map(len, concepts)]),
        cui_E=np.array([cui for of_name in concepts for cui in of_name], np.int32),
    )


def random_benchmark(num_queries: int = 60, num_names: int = 40, seed: int = 0) -> ProbeBenchmark:
    """Return queries of three of four relations.

    Some queries have their head among the answers, and some names share a concept.
    """
    rng = np.random.default_rng(seed)
    names = sorted({"a" * int(rng.integers(1, 30)) + f" {index:03d}" for index in range(num_names)})
    queries = []
    for _ in range(num_queries):
        gold = rng.choice(num_names, int(rng.integers(1, 5)), replace=False)
        relation = ("has_part", "may_treat", "occurs_after")[int(rng.integers(3) ** 2 / 2)]
        head = names[int(rng.integers(num_names))]
        queries.append((relation, head, [names[index] for index in gold]))
    cuis = {
        name: [f"C{int(cui):03d}" for cui in set(rng.integers(0, 25, int(rng.integers(0, 3))))]
        for name in names
    }
    return benchmark_of(queries, names, cuis | {names[0]: ["C001", "C002"]})
