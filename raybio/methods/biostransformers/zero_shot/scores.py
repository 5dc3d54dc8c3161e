"""Scores of encoders and baselines on ranking tasks, with intervals and paired tests.

Every scorer (encoders, words, chance) is ranked by the same code with the same rule for ties.

Shape letters: U units (queries or pairs) of intervals and tests.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from raybio.evaluation.lexical import TextScorer
from raybio.methods.biostransformers.zero_shot.ranking import Chance, RankingTask, UnitHits
from raybio.ops.retrieval import cosine_scores
from raybio.ops.significance import Interval, PairedTest, paired_test, ratio_interval

Embed = Callable[[Sequence[str]], Tensor]
"""Texts -> embeddings, one row each."""


@dataclass(frozen=True)
class ScorerResult:
    """Scores of one scorer, and tests against the first scorer (None for the first itself)."""

    scorer: str
    micro: Interval
    macro: Interval | None
    micro_test: PairedTest | None
    macro_test: PairedTest | None


@dataclass(frozen=True)
class TaskResult:
    """Results of all scorers on a task.

    Attributes:
        task: the task.
        scorers: one result a scorer; all are tested against the first.
        chance: expected scores of a random ranking.
        num_trained_on: number of the task's articles in each model's training set, or why it is
            unknown; without models that are not runs of BioSTransformers.
        cuts: remarks on truncated texts, for models that truncate any.
    """

    task: RankingTask
    scorers: tuple[ScorerResult, ...]
    chance: Chance
    num_trained_on: Mapping[str, int | str] = field(default_factory=dict)
    cuts: Mapping[str, Sequence[str]] = field(default_factory=dict)


def encoder_scorer(embed: Embed) -> TextScorer:
    """Return the scorer by cosines of an encoder's embeddings."""
    return lambda queries, documents: cosine_scores(embed(queries), embed(documents))


def evaluate_task(
    task: RankingTask,
    scorers: Mapping[str, TextScorer],
    rng: np.random.Generator,
    *,
    block_rows: int = 1024,
) -> TaskResult:
    """Return the R-precision of each scorer with 95 % intervals, and paired tests.

    All scorers get the same resamples and permutations, so an interval does not depend on the other
    scorers.

    Args:
        task: the task.
        scorers: by name; all are tested against the first.
        rng: seeds the bootstrap over units and the permutation test.
        block_rows: queries scored at once.

    Raises:
        ValueError: if there is no scorer, or embeddings are not finite.
    """
    if not scorers:
        raise ValueError(
            "there is nothing to evaluate: want at least one scorer, such as those of BASELINES"
        )
    hits_by_scorer = {
        name: task.count_hits(score(task.queries, task.documents), block_rows)
        for name, score in scorers.items()
    }
    seed = int(rng.integers(2**63))
    first = next(iter(hits_by_scorer.values()))
    results = [_scorer_result(name, hits, first, seed) for name, hits in hits_by_scorer.items()]
    return TaskResult(task, tuple(results), task.chance())


def _scorer_result(name: str, own: UnitHits, first: UnitHits, seed: int) -> ScorerResult:
    micro = ratio_interval(own.hits_U, own.total_U, np.random.default_rng(seed))
    micro_test = None
    if own is not first:
        # All scorers predict equally many, so the sums of their totals are equal.
        micro_test = paired_test(
            own.hits_U, first.hits_U, first.total_U, np.random.default_rng(seed)
        )
    if not own.has_macro:
        return ScorerResult(name, micro, None, micro_test, None)
    ones_U = np.ones(len(own.total_U))
    share_U = own.hits_U / own.total_U
    macro = ratio_interval(share_U, ones_U, np.random.default_rng(seed))
    macro_test = None
    if own is not first:
        first_U = first.hits_U / first.total_U
        macro_test = paired_test(share_U, first_U, ones_U, np.random.default_rng(seed))
    return ScorerResult(name, micro, macro, micro_test, macro_test)
