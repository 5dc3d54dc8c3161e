"""BioSTransformers: a siamese text encoder that places an article's texts near its MeSH terms.

Menad, Laddada, Abdeddaïm, Soualmia, "BioSTransformers: modèles de langage siamois" (EGC), and its
English successor, "BioSTransformers for biomedical ontologies alignment". One encoder with mean
pooling reads texts and terms. Multiple negatives ranking (τ = 0.05) pulls a text towards its term
and away from the terms of other pairs. A text is never contrasted with a term of its own article.

Implemented and different: see the README of this folder.
"""

from functools import partial

import numpy as np

from raybio.core.errors import ConfigError, DataError
from raybio.core.interfaces import System
from raybio.core.location import Location
from raybio.encoders.config import SCRATCH
from raybio.encoders.export import export_text_encoder
from raybio.encoders.input_lengths import InputLengths, counted_rows, text_lengths
from raybio.encoders.text import check_text_encoder, initial_encoder, text_reader
from raybio.encoders.tokenization import TokenizerSource
from raybio.methods.biostransformers.batches import PairBatch
from raybio.methods.biostransformers.collate import PairCollate, first_characters, term_names
from raybio.methods.biostransformers.config import FIELDS, Config
from raybio.methods.biostransformers.demo import SIMULATED_LITERATURE
from raybio.methods.biostransformers.evaluate import (
    TermRetrievalEvaluator,
    has_term_queries,
)
from raybio.methods.biostransformers.loss import MultipleNegativesRanking
from raybio.methods.biostransformers.plan import PairPlan
from raybio.methods.biostransformers.store import ArticleStore
from raybio.store.store import open_store
from raybio.store.token_cache import preparation

DEMO_CORPUS = SIMULATED_LITERATURE
"""The corpus it trains on if no store is given."""


def check(config: Config, store: ArticleStore) -> None:
    """Check, before anything starts, that encoder and texts exist.

    Raises:
        ConfigError: if the encoder's source is unsuitable, or the store has no text of a configured
            field, or fewer pairs than a step.
        DataError: if there is no training pair, or no validation article where one is needed.
    """
    check_text_encoder(config.encoder)
    _check_fields(config, store)
    _check_queries(config, store)
    plan = PairPlan(store, config.plan, config.seed)
    if config.plan.conflicts == "drop":
        # Refuses a batch that an epoch cannot fill.
        plan.rows(0)


def _check_queries(config: Config, store: ArticleStore) -> None:
    if config.schedule.has_evaluations and not has_term_queries(config, store):
        raise DataError(
            f"{store.location}: no validation article has a {config.query_field} and a term. "
            "Prepare it with a larger --validation-share, or train without evaluation "
            "(schedule.evaluate_every_steps=0)"
        )


def input_lengths(config: Config, store: ArticleStore) -> list[InputLengths]:
    """Count the texts of each field, and the terms, that are truncated."""
    reader = text_reader(config.encoder, count_by_word=store.count_by_word)
    max_characters = config.text.max_characters
    max_length = config.encoder.max_length
    lengths = []
    for field in dict.fromkeys((*config.plan.fields, config.query_field)):
        row_N = np.flatnonzero(store.has_text_N(field))
        texts = store.texts(field, counted_rows(row_N))
        num_characters_N = np.array([len(text) for text in texts], np.int64)
        lengths.append(
            InputLengths.of(
                # Not the name of the token count, since metric names in MLflow are unique.
                f"{field}s by characters",
                "characters",
                num_characters_N,
                max_characters,
                setting="text.max_characters",
                num_rows=len(row_N),
            )
        )
        read = partial(first_characters, store, field, max_characters)
        lengths.append(text_lengths(f"{field}s", read, row_N, reader, max_length=max_length))
    terms = np.arange(len(store.term_names))
    read = partial(term_names, store)
    lengths.append(text_lengths("terms", read, terms, reader, max_length=max_length))
    return lengths


def steps_per_epoch(config: Config, store: ArticleStore) -> float:
    """Return the steps with as many pairs as an epoch; each occurs once, except with ``drop``."""
    return PairPlan(store, config.plan, config.seed).steps_per_epoch


def build(config: Config, store_path: str | Location) -> System:
    """Wire BioSTransformers over a prepared store of articles.

    Raises:
        StoreError: if the store is missing, damaged or of another kind.
        ConfigError: if the encoder cannot be loaded, or settings do not fit each other.
        DataError: if the store has no training pair or no validation article.
    """
    store = open_store(store_path, ArticleStore)
    _check_fields(config, store)
    _check_queries(config, store)
    encoder = initial_encoder(config.encoder, seed=config.seed, count_by_word=store.count_by_word)
    if config.objective.learn_temperature:
        encoder.learn_temperature(config.objective.temperature)
    tokenizer = TokenizerSource.of(encoder.tokenizer)
    tokenize = partial(tokenizer.tokenize, max_length=encoder.max_tokens)
    collate = PairCollate.of(
        store,
        config.plan,
        config.text,
        tokenize,
        config.seed,
        reading=tokenizer.identity(encoder.max_tokens),
        num_steps=config.schedule.max_steps,
    )
    evaluator = TermRetrievalEvaluator(config, store, tokenize)
    has_queries = has_term_queries(config, store)
    return System(
        name="biostransformers",
        model=encoder,
        objective=MultipleNegativesRanking(config.objective, encoder.log_temperature),
        batch_type=PairBatch,
        collate=collate,
        steps_per_epoch=collate.plan.steps_per_epoch,
        evaluate=evaluator.evaluate_during_training if has_queries else None,
        final_evaluate=evaluator.final_report if has_queries else None,
        export=lambda folder, card: export_text_encoder(encoder, folder, card=card),
        data_digest=f"{store.digest} read as {tokenizer.fingerprint}",
        is_pretrained=config.encoder.source != SCRATCH,
        prepare_node=preparation([*collate.texts, collate.terms]),
    )


def _check_fields(config: Config, store: ArticleStore) -> None:
    fields_by_setting = {
        "plan.fields": config.plan.fields,
        "evaluation.field": (config.query_field,),
    }
    for setting, fields in fields_by_setting.items():
        for field in fields:
            if not store.has_text_N(field).any():
                present = [name for name in FIELDS if store.has_text_N(name).any()]
                raise ConfigError(
                    f"{setting}: got {field}, but no article of {store.location} has one, want "
                    f"texts that are there: {', '.join(present)}"
                )
