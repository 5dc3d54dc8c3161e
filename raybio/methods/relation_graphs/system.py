"""CLDR, CLGS and CLNER: wiring (Theodoropoulos et al., 2021)."""

from raybio.core.errors import ConfigError
from raybio.core.interfaces import System
from raybio.core.location import Location
from raybio.encoders.config import SCRATCH
from raybio.encoders.input_lengths import InputLengths
from raybio.methods.relation_graphs.annotations.folds import FoldRows, read_fold
from raybio.methods.relation_graphs.batches import RelationGraphBatch
from raybio.methods.relation_graphs.collate import GraphKind, RelationGraphCollate
from raybio.methods.relation_graphs.config import Config, Model
from raybio.methods.relation_graphs.demo import SIMULATED_WORDS
from raybio.methods.relation_graphs.encoder import WordEncoder, check_word_encoder
from raybio.methods.relation_graphs.encoders.graph_encoder import graph_convolution
from raybio.methods.relation_graphs.encoders.untrained_features import untrained_features
from raybio.methods.relation_graphs.encoders.word_model import head_of, initial_encoder
from raybio.methods.relation_graphs.encoders.word_reader import WordReader
from raybio.methods.relation_graphs.evaluate import EntityRelationEvaluator
from raybio.methods.relation_graphs.objective import RelationGraphObjective
from raybio.methods.relation_graphs.store import WordStore
from raybio.store.store import open_store

_BATCH_ROWS: dict[Model, int] = {"cldr": 8, "clgs": 8, "clner": 16, "joint": 8}

_GRAPHS: dict[Model, GraphKind | None] = {
    "cldr": "pairs",
    "clgs": "whole",
    "clner": None,
    "joint": "pairs",
}

DEMO_CORPUS = SIMULATED_WORDS
"""The corpus it trains on if no store is given."""


def check(config: Config, store: WordStore) -> None:
    """Check settings and store before anything starts.

    Raises:
        ConfigError: if the encoder's source or the fold does not exist, no layer is trained, the
            fold has nothing to learn from or to evaluate, the encoder cannot read all words and
            sentences, or torch-geometric is not installed.
    """
    encoder = check_word_encoder(config.encoder)
    if encoder is not None:
        _read_words(config, store, encoder)
    if config.encoder.source == "scratch" and config.encoder.num_frozen_layers:
        raise ConfigError(
            f"encoder.num_frozen_layers is {config.encoder.num_frozen_layers}, and layers from "
            "scratch would stay random; want 0"
        )
    fold = read_fold(store, config.data)
    if not len(fold.train):
        raise ConfigError(
            f"{store.location}: fold {config.data.fold} has no training sentence; want some to "
            "learn from"
        )
    if config.model != "clner" and len(store.relation_names) < 2:
        raise ConfigError(
            f"{store.location}: its sentences have no relation to learn from; want some, or "
            "model=clner"
        )
    if config.model in ("clner", "joint") and not store.entity_types:
        raise ConfigError(
            f"{store.location}: its sentences have no entity to learn from; want some, or "
            "model=cldr"
        )
    if config.model != "clner":
        graph_convolution()
        _check_relations(config, store, fold)
    if not len(fold.dev) and (config.schedule.has_evaluations or config.evaluation.has_choice):
        raise ConfigError(
            f"{store.location}: of the {len(fold.train):,} training sentences of fold "
            f"{config.data.fold} none is kept for validation "
            f"(data.validation_share={config.data.validation_share:g}), which evaluations and the "
            "choice of numbers of neighbors need. Want a larger share, --dev when the store is "
            "prepared, or schedule.evaluate_every_steps=0 and one number of neighbors each"
        )


def _check_relations(config: Config, store: WordStore, fold: FoldRows) -> None:
    """Check that some sentence of each split that is used has a relation."""
    rows_by_split = {"training": fold.train}
    if config.schedule.has_evaluations:
        rows_by_split["validation"] = fold.dev
    for split, rows in rows_by_split.items():
        if len(rows) and not any(len(store.relations(row)[0]) for row in rows.tolist()):
            other = ", or schedule.evaluate_every_steps=0" if split == "validation" else ""
            raise ConfigError(
                f"{store.location}: none of the {len(rows):,} {split} sentences of fold "
                f"{config.data.fold} has a relation; want some, or model=clner{other}"
            )


def input_lengths(config: Config, store: WordStore) -> list[InputLengths]:
    """Return nothing: sentences that are too long are refused."""
    return []


def steps_per_epoch(config: Config, store: WordStore) -> float:
    """Return the steps in which every training sentence of the fold occurs once."""
    return len(read_fold(store, config.data).train) / _num_batch_rows(config)


def _num_batch_rows(config: Config) -> int:
    return config.plan.global_batch_rows or _BATCH_ROWS[config.model]


def build(config: Config, store_path: str | Location) -> System:
    """Wire CLDR, CLGS, CLNER or the joint model over a prepared store of sentences.

    Raises:
        StoreError: if the store is missing, damaged or of another kind, or its folder is not
            writable.
        ConfigError: if the encoder cannot be loaded, or the fold does not exist.
    """
    store = open_store(store_path, WordStore)
    encoder = initial_encoder(config, store)
    evaluator = build_evaluator(config, store, encoder)
    collate = evaluator.collate
    data_digest = f"{store.digest} read as {collate.reader.digest}"
    if collate.features is not None:
        data_digest += f" over {collate.features.recorded_name}"
    return System(
        name="relation_graphs",
        model=encoder,
        objective=evaluator.objective,
        batch_type=RelationGraphBatch,
        collate=collate,
        steps_per_epoch=collate.steps_per_epoch,
        evaluate=evaluator.evaluate_during_training if evaluator.has_dev else None,
        final_evaluate=evaluator.final_report if len(evaluator.fold.test) else None,
        export=lambda folder, card: evaluator.export(encoder, folder, card),
        data_digest=data_digest,
        is_pretrained=config.encoder.source != SCRATCH,
    )


def build_evaluator(
    config: Config, store: WordStore, encoder: WordEncoder
) -> EntityRelationEvaluator:
    """Wire batches, loss and evaluation of a fold.

    Args:
        config: settings of the run.
        store: prepared sentences.
        encoder: the encoder before training; its words are the features of graph nodes.

    Raises:
        StoreError: if the store's folder is not writable.
        ConfigError: if the fold does not exist.
    """
    fold = read_fold(store, config.data)
    reader = _read_words(config, store, encoder)
    kind = _GRAPHS[config.model]
    features = None
    if kind is not None:
        max_tokens = config.memory.max_tokens_per_micro_batch
        features = untrained_features(encoder, reader, max_tokens=max_tokens)
    collate = RelationGraphCollate(
        reader,
        fold.train,
        _num_batch_rows(config),
        config.seed,
        kind=kind,
        graphs=config.graphs,
        features=features,
        samples=config.samples if config.model in ("clner", "joint") else None,
    )
    objective = RelationGraphObjective(config.objective, config.model, head_of(encoder))
    return EntityRelationEvaluator(config, collate, objective, fold)


def _read_words(config: Config, store: WordStore, encoder: WordEncoder) -> WordReader:
    """Return the reader of a store's sentences.

    Raises:
        ConfigError: if the encoder has no token for a word, or a sentence is longer than it reads.
    """
    tokens = encoder.word_tokens(store.words, config.encoder)
    return WordReader(store, tokens, encoder.max_tokens)
