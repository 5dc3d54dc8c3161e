"""The queries of the baselines, with manual and with default prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from raybio.methods.contrastive_probe.accuracy import ProbeOutcome
from raybio.methods.contrastive_probe.benchmark.biolama import is_biolama, read_benchmark
from raybio.methods.contrastive_probe.benchmark.probe_benchmark import ProbeBenchmark
from raybio.methods.contrastive_probe.config import Subset

NUM_EXAMPLE_QUERIES = 5


class ExampleQuery(NamedTuple):
    """A query that the report shows with answers: its text and its gold names."""

    query: str
    gold: Sequence[str]


@dataclass(frozen=True)
class BaselineQueries:
    """A benchmark, or a sample of its queries; the candidates are always all names.

    Attributes:
        benchmark: queries with manual prompts.
        default: the same queries with default prompts, which the paper uses for generative models.
            BioLAMA has no default prompts; there it equals ``benchmark``.
    """

    benchmark: ProbeBenchmark
    default: ProbeBenchmark

    def outcome(self, first_hit_Q: np.ndarray) -> ProbeOutcome:
        """Return the outcome for the ranks of the first correct answers."""
        return ProbeOutcome(self.benchmark.relations, self.benchmark.relation_Q, first_hit_Q)

    def gold(self) -> list[np.ndarray]:
        """Return the indices of the gold names of each query."""
        return np.split(self.benchmark.answer_P, self.benchmark.indptr_Q1[1:-1])

    def example_rows(self) -> list[int]:
        """Return a fixed random sample of queries, ascending."""
        num_queries = len(self.benchmark.relation_Q)
        size = min(NUM_EXAMPLE_QUERIES, num_queries)
        rows: list[int] = np.random.default_rng(0).choice(num_queries, size, replace=False).tolist()
        return sorted(rows)

    def examples(self) -> list[ExampleQuery]:
        """Return the text and gold names of the sample."""
        names = self.benchmark.names
        queries = self.benchmark.queries("[Y]")
        gold = self.gold()
        return [
            ExampleQuery(queries[row], [names[name] for name in gold[row]])
            for row in self.example_rows()
        ]


def read_baseline_queries(
    folder: Path, subset: Subset, queries_per_relation: int | None = None
) -> BaselineQueries:
    """Read the queries of a benchmark, or the sample that training takes of the same size.

    Raises:
        DataError: if the folder holds no benchmark.
    """
    benchmark = read_benchmark(folder, subset, "human")
    # Relations of BioLAMA are named by codes, so their default prompts have no meaning.
    default = benchmark if is_biolama(folder) else read_benchmark(folder, subset, "default")
    if queries_per_relation is not None:
        benchmark = benchmark.sample(queries_per_relation, seed=0)
        default = default.sample(queries_per_relation, seed=0)
    return BaselineQueries(benchmark, default)
