"""Collation of (text, term) pairs: texts and terms of a shard as tokens, masks of false negatives.

Shape letters: N pairs of the shard, G pairs of the global batch, R = 2 N sequences, T their tokens,
concatenated, A articles, U distinct terms of the global batch, E (article, term) entries.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from raybio.core.batch import IGNORED_LABEL
from raybio.encoders.tokenization import Tokenize
from raybio.methods.biostransformers.config import PairPlanConfig, TextConfig
from raybio.methods.biostransformers.plan import PairPlan, StepPairs, cached_plan
from raybio.methods.biostransformers.store import ArticleStore
from raybio.ops.segments import expand


@dataclass(frozen=True)
class PairCollate:
    """Function (step, rank, world) -> arrays of a ``PairBatch``.

    Attributes:
        store: texts and terms.
        plan_config: choice of the pairs.
        text_config: maximum length of a text in characters.
        tokenize: the encoder's tokenizer.
        seed: the run's seed.
        with_reverse: whether the loss also ranks texts for terms.
    """

    store: ArticleStore
    plan_config: PairPlanConfig
    text_config: TextConfig
    tokenize: Tokenize
    seed: int
    with_reverse: bool

    @property
    def plan(self) -> PairPlan:
        """The plan of the store's training pairs."""
        return cached_plan(self.store, self.plan_config, self.seed)

    def __call__(self, step: int, rank: int, world: int) -> Mapping[str, np.ndarray]:
        """Return the arrays of worker ``rank``'s shard of ``step``."""
        batch = self.plan.rows(step)
        shard = batch.shard(rank, world)
        token_T, indptr_R1 = self.tokenize(self._texts(shard) + self._terms(shard))
        first = len(batch) * rank // world
        is_own_NG = np.arange(len(batch)) == first + np.arange(len(shard))[:, None]
        ignore_NG = has_term(self.store, shard.article_B, batch.term_B) & ~is_own_NG
        ignore_reverse_NG = np.zeros((len(shard), 0), dtype=bool)
        if self.with_reverse:
            has_term_GN = has_term(self.store, batch.article_B, shard.term_B)
            ignore_reverse_NG = has_term_GN.T & ~is_own_NG
        return {
            "token_T": token_T,
            "indptr_R1": indptr_R1,
            "label_T": np.full(len(token_T), IGNORED_LABEL, dtype=np.int16),
            "ignore_NG": ignore_NG,
            "ignore_reverse_NG": ignore_reverse_NG,
            "num_deferred": np.asarray(shard.was_deferred_B.sum()),
            "num_forced": np.asarray(shard.is_forced_B.sum()),
            "num_dropped": np.asarray(shard.num_dropped_B.sum()),
        }

    def _texts(self, pairs: StepPairs) -> list[str]:
        texts_N = np.empty(len(pairs), dtype=object)
        for number, name in enumerate(self.plan_config.fields):
            is_field_N = pairs.field_B == number
            texts_N[is_field_N] = self.store.texts(name, pairs.article_B[is_field_N])
        return [text[: self.text_config.max_characters] for text in texts_N]

    def _terms(self, pairs: StepPairs) -> list[str]:
        return [str(self.store.term_names[term].as_py()) for term in pairs.term_B.tolist()]


def has_term(store: ArticleStore, article_A: np.ndarray, term_G: np.ndarray) -> np.ndarray:
    """Return whether each article has each term, bool (A, G)."""
    start_A = store.term_indptr_N1[article_A].astype(np.int64)
    position_E, owner_E = expand(start_A, store.term_indptr_N1[article_A + 1] - start_A)
    distinct_U, slot_G = np.unique(term_G, return_inverse=True)
    term_E = store.term_E[position_E]
    slot_E = np.searchsorted(distinct_U, term_E).clip(max=len(distinct_U) - 1)
    is_in_batch_E = distinct_U[slot_E] == term_E
    has_term_AU = np.zeros((len(article_A), len(distinct_U)), dtype=bool)
    has_term_AU[owner_E[is_in_batch_E], slot_E[is_in_batch_E]] = True
    return has_term_AU[:, slot_G]
