"""Collation of (text, term) pairs: one worker's shard of texts and terms as tokens, and what they must not meet.

Shape letters: N pairs of the shard, G pairs of the global batch, R = 2 N sequences, T tokens end to end.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from raybio.core.batch import IGNORED_LABEL
from raybio.encoders.tokenization import Tokenise
from raybio.methods.biostransformers.config import PairPlanConfig, TextConfig
from raybio.methods.biostransformers.plan import PairPlan, StepPairs, plan_of
from raybio.methods.biostransformers.store import ArticleStore
from raybio.ops.segments import expand


@dataclass(frozen=True)
class PairCollate:
    """(step, rank, world) -> the arrays of a ``PairBatch``.

    Attributes:
        store: texts and terms.
        plan_config: which pairs.
        text_config: how much of a text is read.
        tokenise: the encoder's tokenizer.
        seed: the run's seed.
        with_reverse: whether terms are contrasted with texts as well.
    """

    store: ArticleStore
    plan_config: PairPlanConfig
    text_config: TextConfig
    tokenise: Tokenise
    seed: int
    with_reverse: bool

    @property
    def plan(self) -> PairPlan:
        """The plan over the store's training pairs."""
        return plan_of(self.store, self.plan_config, self.seed)

    def __call__(self, step: int, rank: int, world: int) -> Mapping[str, np.ndarray]:
        """The arrays of worker ``rank``'s shard of ``step``."""
        everything = self.plan.rows(step)
        shard = everything.shard(rank, world)
        token_T, indptr_R1 = self.tokenise(self._texts(shard) + self._terms(shard))
        first = len(everything) * rank // world
        own_NG = np.arange(len(everything)) == first + np.arange(len(shard))[:, None]
        nothing = np.zeros((len(shard), 0), dtype=bool)
        return {
            "token_T": token_T,
            "indptr_R1": indptr_R1,
            "label_T": np.full(len(token_T), IGNORED_LABEL, dtype=np.int16),
            "ignore_NG": has_term(self.store, shard.article_B, everything.term_B) & ~own_NG,
            "ignore_reverse_NG": has_term(self.store, everything.article_B, shard.term_B).T
            & ~own_NG
            if self.with_reverse
            else nothing,
            "num_deferred": np.asarray(shard.was_deferred_B.sum()),
            "num_forced": np.asarray(shard.is_forced_B.sum()),
        }

    def _texts(self, pairs: StepPairs) -> list[str]:
        found = np.empty(len(pairs), dtype=object)
        for number, name in enumerate(self.plan_config.fields):
            here = np.flatnonzero(pairs.field_B == number)
            found[here] = self.store.texts(name, pairs.article_B[here])
        return [text[: self.text_config.max_characters] for text in found]

    def _terms(self, pairs: StepPairs) -> list[str]:
        return [str(self.store.term_names[term].as_py()) for term in pairs.term_B.tolist()]


def has_term(store: ArticleStore, article_A: np.ndarray, term_G: np.ndarray) -> np.ndarray:
    """Whether each article has each term, bool (A, G)."""
    start_A = store.term_indptr_N1[article_A].astype(np.int64)
    position, owner = expand(start_A, store.term_indptr_N1[article_A + 1] - start_A)
    distinct, place_G = np.unique(term_G, return_inverse=True)
    found = store.term_E[position]
    slot = np.searchsorted(distinct, found).clip(max=len(distinct) - 1)
    is_asked = distinct[slot] == found
    has = np.zeros((len(article_A), len(distinct)), dtype=bool)
    has[owner[is_asked], slot[is_asked]] = True
    return has[:, place_G]
