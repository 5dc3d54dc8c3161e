"""BioSTransformers: a siamese text encoder that places an article's text near its MeSH terms.

Menad, Laddada, Abdeddaïm, Soualmia: "BioSTransformers for biomedical ontologies alignment" and its French precursor,
"BioSTransformers: modèles de langage siamois" (EGC). One encoder with mean pooling reads texts and terms; multiple
negatives ranking (τ = 0.05) draws a text to its term and away from the terms of other articles' pairs; a text is never
contrasted with a term of its own article. BioS-MiniLM is ``encoder.source=sentence-transformers/all-MiniLM-L6-v2``.

Reproduced: the pairs, the greedy batches (``plan.conflicts=reject``), the loss, 128 tokens and 500 characters, TP@k.
Different from the authors' code: the rule holds over the batch of all workers; a rejected pair is put off instead of
lost, and one that fits nowhere is masked; the split goes by PMID; validation counts every article of a term (theirs
forgets the first) and reports recall as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybio.core.batch import TokenBatch
from raybio.core.errors import ConfigError, DataError
from raybio.core.final_report import Stage
from raybio.core.interfaces import Collective, Encoder, System
from raybio.core.randomness import derive_seed
from raybio.encoders.config import SCRATCH
from raybio.encoders.export import export_text_encoder
from raybio.encoders.input_lengths import InputLengths, counted_rows, text_lengths
from raybio.encoders.text import TextEncoder, build_text_encoder, check_text_encoder, text_reader
from raybio.encoders.tokenization import Tokenise, TokenizerSource, read_texts
from raybio.evaluation.evaluator import Evaluator, ModelScores, bootstrap_seed
from raybio.methods.biostransformers.batches import PairBatch
from raybio.methods.biostransformers.collate import PairCollate
from raybio.methods.biostransformers.config import FIELDS, Config
from raybio.methods.biostransformers.demo import default_literature
from raybio.methods.biostransformers.loss import MultipleNegativesRanking
from raybio.methods.biostransformers.store import ArticleStore
from raybio.methods.biostransformers.term_retrieval import (
    TermQuestions,
    ask_terms,
    query_scores,
    term_chance,
    term_metrics,
    term_questions,
    term_scores,
    true_positives,
)
from raybio.ops.spread import spread_metrics
from raybio.store.store import open_store
from raybio.training.embed import embed_rows

STORE = ArticleStore
"""The class of the stores that it trains on."""


def prepare_demo(directory: str | Path) -> Path:
    """The embedded default corpus as a prepared store inside ``directory``; made on the first call."""
    return default_literature(directory).path


def check(config: Config, store: ArticleStore) -> None:
    """Refuse what can be known to fail before anything starts.

    Raises:
        ConfigError: if the encoder's source does not fit, or the store has no text of a kind that is asked for.
    """
    check_text_encoder(config.encoder)
    _check_fields(config, store)


def input_lengths(config: Config, store: ArticleStore) -> list[InputLengths]:
    """Count the texts of each field, and the terms, that are longer than what is read of them."""
    reader = text_reader(config.encoder, count_by_word=store.count_by_word)
    most, wanted = config.text.max_characters, config.encoder.max_length
    found = []
    for field in dict.fromkeys((*config.plan.fields, config.asked_field)):
        row_N = np.flatnonzero(store.has_text_N(field))
        whole = store.texts(field, counted_rows(row_N))
        num_letters_N = np.array([len(text) for text in whole], np.int64)
        found.append(
            InputLengths.of(
                # Another name than that of the tokens: MLflow has one metric for each name.
                f"{field}s by characters",
                "characters",
                num_letters_N,
                most,
                setting="text.max_characters",
                num_rows=len(row_N),
            )
        )
        texts = partial(_first_letters, store, field, most)
        found.append(text_lengths(f"{field}s", texts, row_N, reader, max_length=wanted))
    terms = np.arange(len(store.term_names))
    return [
        *found,
        text_lengths("terms", partial(_names_of_terms, store), terms, reader, max_length=wanted),
    ]


def _first_letters(store: ArticleStore, field: str, most: int, row_R: np.ndarray) -> list[str]:
    return [text[:most] for text in store.texts(field, row_R)]


def _names_of_terms(store: ArticleStore, term_R: np.ndarray) -> list[str]:
    return [str(store.term_names[term].as_py()) for term in term_R.tolist()]


def _check_fields(config: Config, store: ArticleStore) -> None:
    for setting, fields in {
        "plan.fields": config.plan.fields,
        "evaluation.field": (config.asked_field,),
    }.items():
        for field in fields:
            if not store.has_text_N(field).any():
                raise ConfigError(
                    f"{setting}: got {field}, but no article of {store.path} has one, want texts that are there: "
                    f"{', '.join(name for name in FIELDS if store.has_text_N(name).any())}"
                )


def build(config: Config, store_path: str | Path) -> System:
    """Wire BioSTransformers over a prepared store of articles.

    Raises:
        StoreError: if the store is missing, damaged or of another kind.
        ConfigError: if the encoder cannot be loaded, or settings do not fit each other.
        DataError: if the store has no training pair or no validation article.
    """
    store = open_store(store_path, ArticleStore)
    _check_fields(config, store)
    encoder = _encoder(config, store)
    if config.objective.learn_temperature:
        encoder.learn_temperature(config.objective.temperature)
    tokenizer = TokenizerSource.of(encoder.tokenizer)
    tokenise = partial(tokenizer.tokenise, max_length=encoder.max_tokens)
    with_reverse = config.objective.symmetric
    collate = PairCollate(store, config.plan, config.text, tokenise, config.seed, with_reverse)
    evaluator = TermRetrievalEvaluator(config, store, tokenise)
    if not evaluator.can_ask and config.schedule.evaluate_every_steps:
        raise DataError(
            f"{store.path}: no validation article has a {config.asked_field} and a term. Prepare it with a larger "
            "--validation-share, or train without evaluation (schedule.evaluate_every_steps=0)"
        )
    return System(
        name="biostransformers",
        model=encoder,
        objective=MultipleNegativesRanking(config.objective, encoder.log_temperature),
        batch_type=PairBatch,
        collate=collate,
        steps_per_epoch=collate.plan.steps_per_epoch,
        evaluate=evaluator.evaluate_during_training if evaluator.can_ask else None,
        final_evaluate=evaluator.final_report if evaluator.can_ask else None,
        export=lambda folder, card: export_text_encoder(encoder, folder, card=card),
        data_digest=f"{store.digest} read as {tokenizer.fingerprint}",
        is_pretrained=config.encoder.source != SCRATCH,
    )


def _encoder(config: Config, store: ArticleStore) -> TextEncoder:
    """The encoder as training begins with it."""
    seed = derive_seed(config.seed, "weights")
    return build_text_encoder(config.encoder, seed=seed, count_by_word=store.count_by_word)


@dataclass(frozen=True)
class TermRetrievalEvaluator(Evaluator):
    """Term retrieval of a model over the store's validation articles."""

    config: Config
    store: ArticleStore
    tokenise: Tokenise

    def evaluate_during_training(
        self, model: Encoder, collective: Collective
    ) -> Mapping[str, float]:
        """Return ``val/*`` on the sampled articles."""
        questions = self._sampled_questions
        embeddings = self._embed(model, collective, questions)
        metrics = term_metrics(
            ask_terms(questions, *embeddings, self.config.evaluation.block_rows, collective)
        )
        return metrics | spread_metrics(torch.cat(embeddings))

    def initial_encoder(self) -> Encoder:
        """Return the encoder as training begins with it."""
        return _encoder(self.config, self.store)

    def score(self, model: Encoder, collective: Collective, stage: Stage) -> ModelScores:
        """Score the terms of all validation articles."""
        questions = self._all_questions
        embeddings = self._embed(model, collective, questions)
        found = ask_terms(questions, *embeddings, self.config.evaluation.block_rows, collective)
        rng = np.random.default_rng(bootstrap_seed(self.config.seed))
        return ModelScores(
            scores=term_scores(found, rng),
            chance=term_chance(found),
            spread=spread_metrics(torch.cat(embeddings)),
            unit_scores=query_scores(found, questions),
            details={"true_positives": true_positives(found)},
        )

    def details(self) -> Mapping[str, Any]:
        """Return the number of articles, and the field whose texts are the queries."""
        return {
            "articles_asked": len(self._all_questions.row_Q),
            "asked": {"field": self.config.asked_field},
        }

    @property
    def can_ask(self) -> bool:
        """Whether there is a validation article to ask about."""
        return len(self._questions(1).row_Q) > 0

    def _questions(self, num_articles: int) -> TermQuestions:
        store = self.store
        row_A = np.flatnonzero(store.is_validation_N & store.has_text_N(self.config.asked_field))
        return term_questions(
            row_A, store.term_indptr_N1, store.term_E, len(store.term_names), num_articles, seed=0
        )

    @cached_property
    def _all_questions(self) -> TermQuestions:
        return self._questions(0)

    @cached_property
    def _sampled_questions(self) -> TermQuestions:
        """Drawn once, so that evaluations of a run, and runs over one store, are comparable."""
        return self._questions(self.config.evaluation.num_articles)

    def _embed(
        self, model: Encoder, collective: Collective, questions: TermQuestions
    ) -> tuple[Tensor, Tensor]:
        embed = partial(embed_rows, model, max_tokens=self.config.memory.max_tokens_per_micro_batch)
        terms = np.arange(questions.num_terms)
        return (
            embed(self._read_texts, questions.row_Q, collective),
            embed(self._read_terms, terms, collective),
        )

    def _read_texts(self, row_M: np.ndarray) -> TokenBatch:
        texts = self.store.texts(self.config.asked_field, row_M)
        return read_texts(
            [text[: self.config.text.max_characters] for text in texts], self.tokenise
        )

    def _read_terms(self, term_M: np.ndarray) -> TokenBatch:
        return read_texts(
            [self.store.term_names[term].as_py() for term in term_M.tolist()], self.tokenise
        )
