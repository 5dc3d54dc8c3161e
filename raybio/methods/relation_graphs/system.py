"""System."""

from pathlib import Path

from raybio.core.errors import ConfigError
from raybio.core.interfaces import System
from raybio.encoders.config import SCRATCH
from raybio.encoders.input_lengths import InputLengths
from raybio.methods.relation_graphs.batches import RelationGraphBatch
from raybio.methods.relation_graphs.collate import RelationGraphCollate
from raybio.methods.relation_graphs.config import Config
from raybio.methods.relation_graphs.demo import default_words
from raybio.methods.relation_graphs.encoder import check_word_encoder
from raybio.methods.relation_graphs.evaluate import EntityRelationEvaluator, _encoder, head_of
from raybio.methods.relation_graphs.folds import Fold, read_fold
from raybio.methods.relation_graphs.objective import RelationGraphObjective
from raybio.methods.relation_graphs.store import WordStore
from raybio.methods.relation_graphs.untrained_features import untrained_features
from raybio.methods.relation_graphs.word_reader import WordReader, WordTokens
from raybio.store.store import open_store

_BATCH_ROWS = {"cldr": 8, "clgs": 8, "clner": 16, "joint": 8}


STORE = WordStore
"""The class of the stores that it trains on."""


def prepare_demo(directory: str | Path) -> Path:
    """The embedded default corpus as a prepared store inside ``directory``; made on the first call."""
    return default_words(directory).path


def check(config: Config, store: WordStore) -> None:
    """Refuse what can be known to fail before anything starts.

    Raises:
        ConfigError: if the encoder's source or the fold is not there, no layer is trained, or the fold has nothing to
            learn from or to judge by.
    """
    check_word_encoder(config.encoder)
    if config.encoder.source == "scratch" and config.encoder.num_frozen_layers:
        raise ConfigError(
            f"encoder.num_frozen_layers is {config.encoder.num_frozen_layers}, and layers from scratch would stay as "
            "they were drawn; want 0"
        )
    fold = read_fold(store, config.data)
    if not len(fold.train):
        raise ConfigError(
            f"{store.path}: fold {config.data.fold} has no training sentence; want some to learn from"
        )
    if config.model != "clner" and len(store.relation_names) < 2:
        raise ConfigError(
            f"{store.path}: its sentences have no relation to learn from; want some, or model=clner"
        )
    if config.model in ("clner", "joint") and not store.entity_types:
        raise ConfigError(
            f"{store.path}: its sentences have no entity to learn from; want some, or model=cldr"
        )
    if config.model != "clner":
        _demand_relations(config, store, fold)
    if not len(fold.dev) and (config.schedule.evaluate_every_steps or config.evaluation.has_choice):
        raise ConfigError(
            f"{store.path}: of the {len(fold.train):,} training sentences of fold {config.data.fold} none is kept for "
            f"validation (data.validation_share={config.data.validation_share:g}), and evaluations and numbers of "
            "neighbours are chosen by those. Want a larger share, --dev when the store is prepared, or "
            "schedule.evaluate_every_steps=0 and one number of neighbours each"
        )


def _demand_relations(config: Config, store: WordStore, fold: Fold) -> None:
    """Refuse graphs of a fold in which no sentence has any."""
    asked = {"training": fold.train} | (
        {"validation": fold.dev} if config.schedule.evaluate_every_steps else {}
    )
    for what, rows in asked.items():
        if len(rows) and not any(len(store.relations(row)[0]) for row in rows.tolist()):
            raise ConfigError(
                f"{store.path}: none of the {len(rows):,} {what} sentences of fold {config.data.fold} has a relation; "
                "want some, or model=clner"
                + (", or schedule.evaluate_every_steps=0" if what == "validation" else "")
            )


def input_lengths(config: Config, store: WordStore) -> list[InputLengths]:
    """Return nothing: ``check`` refuses sentences that are too long."""
    return []


def build(config: Config, store_path: str | Path) -> System:
    """Wire CLDR, CLGS, CLNER or CLDR and CLNER over a prepared store of sentences.

    Raises:
        StoreError: if the store is missing, damaged or of another kind, or its folder cannot be written.
        ConfigError: if the encoder cannot be loaded, or the fold is not there.
    """
    store = open_store(store_path, WordStore)
    fold = read_fold(store, config.data)
    encoder = _encoder(config, store)
    tokens = WordTokens(**encoder.word_tokens(store.words, config.encoder))
    reader = WordReader(store, tokens, encoder.max_tokens)
    has_graphs, has_tags = config.model != "clner", config.model in ("clner", "joint")
    max_tokens = config.memory.max_tokens_per_micro_batch
    features = untrained_features(encoder, reader, max_tokens=max_tokens) if has_graphs else None
    collate = RelationGraphCollate(
        reader,
        fold.train,
        config.plan.global_batch_rows or _BATCH_ROWS[config.model],
        config.seed,
        kind=None if not has_graphs else "whole" if config.model == "clgs" else "pairs",
        graphs=config.graphs,
        features=features,
        samples=config.samples if has_tags else None,
    )
    objective = RelationGraphObjective(config.objective, config.model, head_of(encoder))
    evaluator = EntityRelationEvaluator(config, collate, objective, fold)
    return System(
        name="relation_graphs",
        model=encoder,
        objective=objective,
        batch_type=RelationGraphBatch,
        collate=collate,
        steps_per_epoch=collate.steps_per_epoch,
        evaluate=evaluator.evaluate_during_training
        if len(fold.dev) and not config.data.train_on_validation
        else None,
        final_evaluate=evaluator.final_report if len(fold.test) else None,
        export=lambda folder, card: evaluator.export(encoder, folder, card),
        data_digest=f"{store.digest} read as {reader.digest}"
        + (f" over {features.path.stem}" if features else ""),
        is_pretrained=config.encoder.source != SCRATCH,
    )
