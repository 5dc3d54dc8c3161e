"""Collation of (text, term) pairs: texts and terms of a shard as tokens, terms of their articles.

Shape letters: N pairs of the shard, R = 2 N sequences, T their tokens, concatenated, E terms of the
pairs' articles.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np

from raybio.core.batch import IGNORED_LABEL, deal
from raybio.encoders.tokenization import Tokenize
from raybio.methods.biostransformers.config import PairPlanConfig, TextConfig
from raybio.methods.biostransformers.plan import PairPlan, StepPairs, cached_plan
from raybio.methods.biostransformers.store import ArticleStore
from raybio.ops.segments import entries_of_rows, indptr_from_lengths, take_segments
from raybio.store.prefetch import byte_lengths
from raybio.store.token_cache import CachedTokens


@dataclass(frozen=True)
class PairCollate:
    """Function (step, rank, world) -> arrays of a ``PairBatch``.

    Attributes:
        store: texts and terms.
        plan_config: choice of the pairs.
        texts: tokens of the texts of each of the plan's fields.
        terms: tokens of the names of terms.
        max_characters: characters to which texts are cut.
        seed: the run's seed.
    """

    store: ArticleStore
    plan_config: PairPlanConfig
    texts: tuple[CachedTokens, ...]
    terms: CachedTokens
    max_characters: int
    seed: int

    @classmethod
    def of(
        cls,
        store: ArticleStore,
        plan_config: PairPlanConfig,
        text_config: TextConfig,
        tokenize: Tokenize,
        seed: int,
        *,
        reading: str,
        num_steps: int,
    ) -> Self:
        """Return the collation of a store's pairs.

        Args:
            store: texts and terms.
            plan_config: choice of the pairs.
            text_config: maximum length of a text in characters.
            tokenize: the encoder's tokenizer.
            seed: the run's seed.
            reading: determines the tokens of a text, see ``TokenizerSource.identity``.
            num_steps: steps of the run.
        """
        num_reads = num_steps * plan_config.global_batch_rows
        max_characters = text_config.max_characters
        texts = tuple(
            CachedTokens(
                partial(first_characters, store, field, max_characters),
                tokenize,
                num_rows=store.num_rows,
                identity=f"{store.digest}, {field}, {max_characters} characters, {reading}",
                num_reads=num_reads / len(plan_config.fields),
            )
            for field in plan_config.fields
        )
        terms = CachedTokens(
            partial(term_names, store),
            tokenize,
            num_rows=len(store.term_names),
            identity=f"{store.digest}, terms, {reading}",
            num_reads=num_reads,
        )
        return cls(store, plan_config, texts, terms, max_characters, seed)

    @property
    def plan(self) -> PairPlan:
        """The plan of the store's training pairs."""
        return cached_plan(self.store, self.plan_config, self.seed)

    def __call__(self, step: int, rank: int, world: int) -> Mapping[str, np.ndarray]:
        """Return the arrays of worker ``rank``'s shard of ``step``."""
        pairs = self.plan.rows(step, is_shared=world > 1)
        shard = pairs.take(deal(self.lengths(pairs), world) == rank)
        token_T, indptr_R1 = self._tokens(shard)
        entry_E, pair_E = entries_of_rows(self.store.term_indptr_N1, shard.article_B)
        term_E = self.store.term_E[entry_E]
        self.plan.release()
        return {
            "token_T": token_T,
            "indptr_R1": indptr_R1,
            "label_T": np.full(len(token_T), IGNORED_LABEL, dtype=np.int16),
            "term_N": shard.term_B,
            "pair_E": pair_E,
            "term_E": term_E,
            "num_deferred": np.asarray(shard.was_deferred_B.sum()),
            "num_forced": np.asarray(shard.is_forced_B.sum()),
            "num_dropped": np.asarray(shard.num_dropped_B.sum()),
        }

    def lengths(self, pairs: StepPairs) -> np.ndarray:
        """Return the bytes of each pair's text, cut as it is read, and term (B,)."""
        length_B = byte_lengths(self.store.term_names, pairs.term_B)
        for number, field in enumerate(self.plan_config.fields):
            place_M = np.flatnonzero(pairs.field_B == number)
            length_M = self.store.text_lengths(field, pairs.article_B[place_M])
            length_B[place_M] += np.minimum(length_M, self.max_characters)
        return length_B

    def _tokens(self, pairs: StepPairs) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of texts and terms, end to end, and row pointers (R + 1,)."""
        tokens = []
        lengths = []
        rows = []
        for number, texts in enumerate(self.texts):
            row_M = np.flatnonzero(pairs.field_B == number)
            if not len(row_M):
                continue
            token_T, indptr_M1 = texts(pairs.article_B[row_M])
            tokens.append(token_T)
            lengths.append(np.diff(indptr_M1))
            rows.append(row_M)
        token_T, indptr_N1 = self.terms(pairs.term_B)
        tokens.append(token_T)
        lengths.append(np.diff(indptr_N1))
        rows.append(len(pairs) + np.arange(len(pairs)))
        token_T = np.concatenate(tokens)
        indptr_R1 = indptr_from_lengths(np.concatenate(lengths))
        if len(self.texts) == 1:
            return token_T, indptr_R1
        # From the order of fields to the order of pairs.
        return take_segments(token_T, indptr_R1, np.argsort(np.concatenate(rows)))


def first_characters(
    store: ArticleStore, field: str, max_characters: int, row_R: np.ndarray
) -> list[str]:
    """Return the beginnings of the texts of articles."""
    return [text[:max_characters] for text in store.texts(field, row_R)]


def term_names(store: ArticleStore, term_R: np.ndarray) -> list[str]:
    """Return the names of terms."""
    return [str(store.term_names[term].as_py()) for term in term_R.tolist()]
