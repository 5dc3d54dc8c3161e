"""Evaluate exported models: relations by one model, entities by the same or another one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch

from raybio.core.errors import ConfigError, RecordError
from raybio.core.records import read_record
from raybio.methods.relation_graphs import system as relation_graphs
from raybio.methods.relation_graphs.collate import RelationGraphCollate
from raybio.methods.relation_graphs.config import Config
from raybio.methods.relation_graphs.embed_words import embed_words
from raybio.methods.relation_graphs.encoder import WordEncoder
from raybio.methods.relation_graphs.evaluate import head_of, trained_encoder, untrained_encoder
from raybio.methods.relation_graphs.export import SETTINGS
from raybio.methods.relation_graphs.folds import read_fold
from raybio.methods.relation_graphs.gold import EmbeddedSentences, read_gold
from raybio.methods.relation_graphs.graph_accuracy import validate_graphs
from raybio.methods.relation_graphs.objective import RelationGraphObjective
from raybio.methods.relation_graphs.sentence_scores import (
    SentenceScores,
    choose_settings,
    most_frequent_scores,
    score_sentences,
)
from raybio.methods.relation_graphs.store import WordStore
from raybio.methods.relation_graphs.word_reader import WordReader, WordTokens
from raybio.store.store import open_store
from raybio.training.collective import SingleProcess


@dataclass(frozen=True)
class WordModel:
    """An exported model.

    Attributes:
        config: settings of its run.
        encoder: the encoder with its heads, in evaluation mode.
    """

    config: Config
    encoder: WordEncoder

    @classmethod
    def load(cls, folder: str | Path, store: WordStore, device: str | None = None) -> Self:
        """Load an export of ``relation_graphs``.

        Args:
            folder: the export.
            store: the store of its run.
            device: where the model runs; None: on a GPU if there is one.

        Raises:
            ConfigError: if the folder is no such export, or its run had another store.
        """
        config = _config_of(folder, store)
        encoder = trained_encoder(config, Path(folder).expanduser(), store)
        return cls(config, _ready(encoder, device))

    def untrained(self, store: WordStore) -> "WordModel":
        """Return the model before its run.

        Raises:
            ConfigError: if the source of its encoder no longer exists.
        """
        device = next(self.encoder.parameters()).device.type
        return WordModel(self.config, _ready(untrained_encoder(self.config, store), device))

    def words(self, store: WordStore, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the words of sentences: as they are, and after the tag head."""
        tokens = WordTokens(**self.encoder.word_tokens(store.words, self.config.encoder))
        reader = WordReader(store, tokens, self.encoder.max_tokens)
        max_tokens = self.config.memory.max_tokens_per_micro_batch
        words = embed_words(self.encoder, reader, rows, SingleProcess(), max_tokens=max_tokens)
        with torch.no_grad():
            return words.word_WD, head_of(self.encoder).tag_space(words.word_WD)


def chance_of_fold(folder: str | Path, store: WordStore) -> dict[str, float]:
    """Return the scores of the most frequent labels on the test sentences of a model's fold.

    Raises:
        ConfigError: if the folder is no such export, or its run had another store.
    """
    fold = read_fold(store, _config_of(folder, store).data)
    reference = read_gold(store, np.union1d(fold.train, fold.dev))
    scores = most_frequent_scores(reference, read_gold(store, fold.test), store)
    return {name: score["value"] for name, score in scores.items()}


def evaluate_exports(
    relations: str | Path,
    entities: str | Path,
    store_path: str | Path,
    *,
    is_untrained: bool = False,
    device: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> SentenceScores:
    """Score the test sentences of the models' fold: pairs by one model, tags by the other.

    The fold's training and validation sentences are the reference set. Numbers of neighbors are
    those of the models' runs or, if they had several candidates, the best on the validation
    sentences.

    Args:
        relations: export of a run; may be the same as ``entities``.
        entities: export of a run with a tag head (CLNER, joint).
        store_path: prepared sentences.
        is_untrained: evaluate the initial encoder of the first run instead of both models.
        device: where models run; None: on a GPU if there is one.
        say: called with progress messages.

    Raises:
        ConfigError: if a folder is no export, the models were trained on different folds or on
            another store, or the second one has no tag head.
        StoreError: if the store is missing, damaged or of another kind.
    """
    store = open_store(store_path, WordStore)
    pair_model = WordModel.load(relations, store, device)
    tag_model = pair_model
    if entities != relations:
        tag_model = WordModel.load(entities, store, device)
    _check_tag_head(entities, tag_model)
    if pair_model.config.data.fold != tag_model.config.data.fold:
        raise ConfigError(
            f"{relations} was trained on fold {pair_model.config.data.fold} and {entities} on fold "
            f"{tag_model.config.data.fold}: one of them knows test sentences of the other. Want "
            "two of one fold"
        )
    if is_untrained:
        pair_model = tag_model = pair_model.untrained(store)
    fold = read_fold(store, pair_model.config.data)
    evaluation = pair_model.config.evaluation.model_copy(
        update={"num_tag_neighbors": tag_model.config.evaluation.num_tag_neighbors}
    )

    def embed(rows: np.ndarray) -> EmbeddedSentences:
        say(f"embedding {len(rows):,} sentences")
        pair_WD, tag_WD = pair_model.words(store, rows)
        if tag_model is not pair_model:
            _, tag_WD = tag_model.words(store, rows)
        return EmbeddedSentences(pair_WD, tag_WD, read_gold(store, rows))

    settings = evaluation.first_settings
    if evaluation.has_choice:
        for name, model in ((relations, pair_model), (entities, tag_model)):
            _check_unseen(name, read_fold(store, model.config.data).train, fold.dev)
        train = embed(np.setdiff1d(fold.train, fold.dev))
        settings = choose_settings(train, embed(fold.dev), store, evaluation)
    reference = embed(np.union1d(fold.train, fold.dev))
    return score_sentences(reference, embed(fold.test), store, evaluation, settings)


def graph_accuracy_of_sentences(
    folder: str | Path,
    store_path: str | Path,
    device: str | None = None,
    num_negatives: int | None = None,
) -> np.ndarray:
    """Return how often the true graph is the nearest, for each test sentence of the model's fold.

    With CLGS there is one graph per sentence, with CLDR one per related pair. False graphs are
    drawn from the run's seed.

    Args:
        folder: export of a run.
        store_path: prepared sentences.
        device: where the model runs; None: on a GPU if there is one.
        num_negatives: maximum number of false graphs per true one; None: as in training.

    Returns:
        The fraction for each sentence with true and false graphs, float64; at least one sentence.

    Raises:
        ConfigError: if the folder is no export, its model has no graphs, or the source of its
            initial encoder no longer exists.
        StoreError: if the store is missing, damaged or of another kind.
    """
    store = open_store(store_path, WordStore)
    model = WordModel.load(folder, store, device)
    if head_of(model.encoder).graph is None:
        raise ConfigError(
            f"{folder}: is a {model.config.model}, which has no graphs; want cldr, clgs or joint"
        )
    system = relation_graphs.build(model.config, store_path)
    collate = system.collate
    assert isinstance(collate, RelationGraphCollate)
    assert isinstance(system.objective, RelationGraphObjective)
    # CharacterBERT must be given the characters of all words.
    model.words(store, np.zeros(0, dtype=np.int64))
    if num_negatives is not None:
        graphs = collate.graphs.model_copy(update={"num_negatives": num_negatives})
        collate = replace(collate, graphs=graphs)
    validation = validate_graphs(
        model.encoder,
        replace(system.objective, head=head_of(model.encoder)),
        collate,
        read_fold(store, model.config.data).test,
        SingleProcess(),
        max_tokens=model.config.memory.max_tokens_per_micro_batch,
    )
    if not len(validation.accuracy_S):
        raise ConfigError(
            f"{store_path}: no test sentence of fold {model.config.data.fold} has true and false "
            "graphs"
        )
    return validation.accuracy_S


def _config_of(folder: str | Path, store: WordStore) -> Config:
    try:
        settings = read_record(Path(folder).expanduser() / SETTINGS, "export settings")
        if settings is None:
            raise ConfigError(f"there is no {SETTINGS}")
        config = Config.from_mapping(settings["config"])
        trained_on = settings["store"]
    except (RecordError, OSError, KeyError, ValueError, ConfigError) as error:
        raise ConfigError(
            f"{folder}: is no exported model of words ({error}); want the export/ of a run of "
            "relation_graphs"
        ) from None
    if trained_on != store.digest:
        raise ConfigError(
            f"{folder}: was trained on another store than {store.path}, whose test sentences it "
            "may know; want the store of its run"
        )
    return config


def _check_tag_head(name: str | Path, model: WordModel) -> None:
    if head_of(model.encoder).entity is None:
        raise ConfigError(
            f"{name}: model={model.config.model} has no tag head; want clner or joint"
        )


def _check_unseen(name: str | Path, train: np.ndarray, dev: np.ndarray) -> None:
    """Check that a model was not trained on the validation sentences that choose settings."""
    num_known = len(np.intersect1d(train, dev))
    if num_known:
        raise ConfigError(
            f"{name} was trained on {num_known:,} of the {len(dev):,} validation sentences that "
            "choose the numbers of neighbors; want two runs of one data.validation_share, or one "
            "number each"
        )


def _ready(encoder: WordEncoder, device: str | None) -> WordEncoder:
    return encoder.eval().to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
