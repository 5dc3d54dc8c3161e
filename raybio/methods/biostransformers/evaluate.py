"""Evaluation of a run: term retrieval over the store's validation articles."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybio.core.batch import TokenBatch
from raybio.core.final_report import Stage
from raybio.core.interfaces import Collective, Encoder
from raybio.encoders.text import initial_encoder
from raybio.encoders.tokenization import Tokenize, read_texts
from raybio.evaluation.evaluator import (
    RIVAL_SEED,
    Evaluator,
    ModelScores,
    bootstrap_seed,
    chosen_on,
)
from raybio.methods.biostransformers.config import Config
from raybio.methods.biostransformers.rivals import (
    MAX_TRAINING_TEXTS,
    NEAREST,
    retrieve_by_nearest,
    retrieve_by_rivals,
)
from raybio.methods.biostransformers.store import ArticleStore
from raybio.methods.biostransformers.term_retrieval import (
    TermQueries,
    draw_term_queries,
    query_scores,
    retrieve_terms,
    term_chance,
    term_metrics,
    term_scores,
    true_positives,
)
from raybio.ops.embedding_geometry import spread_metrics
from raybio.ops.retrieval import Retrieval
from raybio.training.embed import embed_rows


def has_term_queries(config: Config, store: ArticleStore) -> bool:
    """Return whether any validation article has a text and a term."""
    return len(_draw_queries(config, store, 1).row_Q) > 0


def _draw_queries(config: Config, store: ArticleStore, num_articles: int) -> TermQueries:
    return draw_term_queries(
        _validation_rows(config, store),
        store.term_indptr_N1,
        store.term_E,
        len(store.term_names),
        num_articles,
        seed=0,
    )


def _validation_rows(config: Config, store: ArticleStore) -> np.ndarray:
    """Return the rows (A,) of validation articles with the text that is the query."""
    has_text_N = store.has_text_N(config.query_field)
    return np.flatnonzero(store.is_validation_N & has_text_N)


@dataclass(frozen=True)
class TermRetrievalEvaluator(Evaluator):
    """Evaluates term retrieval over the store's validation articles.

    Attributes:
        config: the run's settings.
        store: articles and terms.
        tokenize: the encoder's tokenizer.
    """

    rivals_read = "the texts of the store"

    config: Config
    store: ArticleStore
    tokenize: Tokenize

    def evaluate_during_training(
        self, model: Encoder, collective: Collective
    ) -> Mapping[str, float]:
        """Return ``val/*`` on the sampled articles."""
        queries = self._sampled_queries
        embeddings = self._embed(model, collective, queries)
        retrievals = retrieve_terms(
            queries, *embeddings, self.config.evaluation.block_rows, collective
        )
        return term_metrics(retrievals) | spread_metrics(torch.cat(embeddings))

    def initial_encoder(self) -> Encoder:
        """Return the encoder at the start of training."""
        return initial_encoder(
            self.config.encoder, seed=self.config.seed, count_by_word=self.store.count_by_word
        )

    def rivals(self, device: Any, collective: Collective) -> Iterator[tuple[Stage, ModelScores]]:
        """Score the rankings that need no encoder, unless the settings exclude them."""
        if not self.config.evaluation.rivals:
            return
        queries = self._final_queries
        texts = self._texts(queries.row_Q)
        block_rows = self.config.evaluation.block_rows
        rivals = retrieve_by_rivals(
            queries,
            texts,
            self._terms(np.arange(queries.num_terms)),
            self.store.num_training_articles_T(),
            block_rows,
            collective,
        )
        for name, retrievals in rivals:
            yield name, _scores_of(retrievals, queries, RIVAL_SEED)
        row_R = self.store.training_rows(self.config.query_field, MAX_TRAINING_TEXTS)
        if len(row_R):
            training = (self._texts(row_R), self.store.terms_of(row_R))
            nearest = retrieve_by_nearest(queries, texts, *training, block_rows, collective)
            yield NEAREST, _scores_of(nearest, queries, RIVAL_SEED)

    def score(self, model: Encoder, collective: Collective, stage: Stage) -> ModelScores:
        """Score the terms of the validation articles of the final evaluation."""
        queries = self._final_queries
        embeddings = self._embed(model, collective, queries)
        retrievals = retrieve_terms(
            queries, *embeddings, self.config.evaluation.block_rows, collective
        )
        return replace(
            _scores_of(retrievals, queries, bootstrap_seed(self.config.seed)),
            spread=spread_metrics(torch.cat(embeddings)),
        )

    def details(self) -> Mapping[str, Any]:
        """Return the number of articles, and the field whose texts are the queries."""
        return {
            "num_query_articles": len(self._final_queries.row_Q),
            "queries": {"field": self.config.query_field},
        }

    def remarks(self) -> Sequence[str]:
        """Return the numbers of articles that were evaluated and that chose a step, if not all."""
        evaluation = self.config.evaluation
        num_articles = len(_validation_rows(self.config, self.store))
        remarks = []
        if 0 < evaluation.num_articles_at_the_end < num_articles:
            num_evaluated = len(self._final_queries.row_Q)
            remarks.append(
                f"{num_evaluated:,} of {num_articles:,} validation articles were evaluated "
                "(evaluation.num_articles_at_the_end)"
            )
        if self.config.schedule.best_metric and 0 < evaluation.num_articles < num_articles:
            num_sampled = len(self._sampled_queries.row_Q)
            setting = "evaluation.num_articles"
            remarks.append(chosen_on(num_sampled, num_articles, "validation articles", setting))
        field = self.config.query_field
        if evaluation.rivals and (
            len(self.store.training_rows(field, MAX_TRAINING_TEXTS + 1)) > MAX_TRAINING_TEXTS
        ):
            remarks.append(f"{NEAREST}: of a sample of {MAX_TRAINING_TEXTS:,} training articles")
        return remarks

    @cached_property
    def _final_queries(self) -> TermQueries:
        return _draw_queries(
            self.config, self.store, self.config.evaluation.num_articles_at_the_end
        )

    @cached_property
    def _sampled_queries(self) -> TermQueries:
        """Queries during training; one draw, so that steps and runs over a store are comparable."""
        return _draw_queries(self.config, self.store, self.config.evaluation.num_articles)

    def _embed(
        self, model: Encoder, collective: Collective, queries: TermQueries
    ) -> tuple[Tensor, Tensor]:
        """Return the embeddings of the queries' texts (Q, D) and of all terms (C, D)."""
        embed = partial(embed_rows, model, max_tokens=self.config.memory.max_tokens_per_micro_batch)
        text_QD = embed(self._read_texts, queries.row_Q, collective)
        term_CD = embed(self._read_terms, np.arange(queries.num_terms), collective)
        return text_QD, term_CD

    def _read_texts(self, row_M: np.ndarray) -> TokenBatch:
        return read_texts(self._texts(row_M), self.tokenize)

    def _read_terms(self, term_M: np.ndarray) -> TokenBatch:
        return read_texts(self._terms(term_M), self.tokenize)

    def _texts(self, row_M: np.ndarray) -> list[str]:
        """Return the texts of articles, cut as the encoder gets them."""
        max_characters = self.config.text.max_characters
        texts = self.store.texts(self.config.query_field, row_M)
        return [text[:max_characters] for text in texts]

    def _terms(self, term_M: np.ndarray) -> list[str]:
        return [self.store.term_names[term].as_py() for term in term_M.tolist()]


def _scores_of(retrievals: Mapping[str, Retrieval], queries: TermQueries, seed: int) -> ModelScores:
    return ModelScores(
        scores=term_scores(retrievals, np.random.default_rng(seed)),
        chance=term_chance(retrievals),
        unit_scores=query_scores(retrievals, queries),
        details={"true_positives": true_positives(retrievals)},
    )
