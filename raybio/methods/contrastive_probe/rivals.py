"""Rivals of the probe: predictions that need no encoder.

- ``character 2-4-grams``: names by their similarity to the query's text without its mask
  (``raybio.evaluation.lexical.character_scores``). The head is a candidate, as for encoders.
- ``oracle prior``: first the names that answer many other queries of the relation. It ignores the
  head and reads the gold answers of these queries, which no model gets. It shows how far the usual
  answers of a relation go. It is not an upper bound, since the head adds information.

Equal scores are ranked in random order.

Shape letters: Q queries, C names, R relations, K predicted names of a query, B queries of a group,
M their candidates, P (query, answer) pairs.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from raybio.core.final_report import CHARACTERS
from raybio.core.interfaces import Collective
from raybio.evaluation.lexical import character_scores, with_random_ties
from raybio.methods.contrastive_probe.accuracy import best_names
from raybio.methods.contrastive_probe.benchmark.probe_benchmark import ProbeBenchmark
from raybio.methods.contrastive_probe.config import ProbeConfig
from raybio.ops.retrieval import Scores
from raybio.ops.scores import row_blocks

ORACLE_PRIOR = "oracle prior"

BLOCK_ROWS = 256


def predict_by_rivals(
    benchmark: ProbeBenchmark, config: ProbeConfig, collective: Collective | None = None
) -> dict[str, NDArray[np.int64]]:
    """Return the names (Q, 10) that each rival predicts, in order; -1 for missing candidates.

    Args:
        benchmark: the queries and names.
        config: which names are candidates.
        collective: workers that divide the queries.
    """
    return {
        name: _best_by_scores(with_random_ties(scores), benchmark, config, collective)
        for name, scores in _rivals(benchmark)
    }


def _rivals(benchmark: ProbeBenchmark) -> Iterator[tuple[str, Scores]]:
    yield CHARACTERS, character_scores(benchmark.queries(""), benchmark.names)
    yield ORACLE_PRIOR, prior_scores(benchmark)


def prior_scores(benchmark: ProbeBenchmark) -> Scores:
    """Score a name for a query by the number of other queries of its relation that it answers.

    Queries are counted in the complete benchmark, also for a sample of it.
    """
    complete = benchmark.complete or benchmark
    num_names = len(benchmark.names)
    relation_P = np.repeat(complete.relation_Q, np.diff(complete.indptr_Q1)).astype(np.int64)
    cell_P = relation_P * num_names + complete.answer_P
    shape = (len(benchmark.relations), num_names)
    count_RC = np.bincount(cell_P, minlength=shape[0] * shape[1]).reshape(shape)

    def block(first: int, end: int) -> torch.Tensor:
        score_BC = count_RC[benchmark.relation_Q[first:end]].astype(np.float64)
        num_answers_B = np.diff(benchmark.indptr_Q1[first : end + 1])
        row_P = np.repeat(np.arange(end - first), num_answers_B)
        own_P = benchmark.answer_P[benchmark.indptr_Q1[first] : benchmark.indptr_Q1[end]]
        score_BC[row_P, own_P] -= 1
        return torch.from_numpy(score_BC)

    return Scores(block, num_queries=len(benchmark.relation_Q), num_candidates=num_names)


def _best_by_scores(
    scores: Scores,
    benchmark: ProbeBenchmark,
    config: ProbeConfig,
    collective: Collective | None,
) -> NDArray[np.int64]:
    def search(row_B: np.ndarray, name_M: np.ndarray, k: int) -> NDArray[np.int64]:
        num_found = min(k, len(name_M))
        # Rows of other workers stay 0, so that the sum over workers assembles them.
        index_BK = torch.zeros(len(row_B), num_found, dtype=torch.int64)
        for start, end in row_blocks(
            len(row_B), scores.num_candidates, BLOCK_ROWS, collective, scores.device
        ):
            done = start
            for run in _runs(row_B[start:end]):
                score_BC = scores.block(int(run[0]), int(run[-1]) + 1)
                best = score_BC[:, torch.from_numpy(name_M)].topk(num_found, dim=1)
                index_BK[done : done + len(run)] = best.indices
                done += len(run)
        if collective is not None:
            index_BK = collective.all_sum(index_BK)
        return index_BK.numpy()

    return best_names(benchmark, config, search)


def _runs(row_B: np.ndarray) -> list[np.ndarray]:
    """Divide ascending rows into runs of consecutive ones, which are scored at once."""
    return np.split(row_B, np.flatnonzero(np.diff(row_B) != 1) + 1)
