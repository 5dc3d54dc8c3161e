"""Evaluate exports."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from raybio.core.errors import ConfigError
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
    """An exported model of words.

    Attributes:
        config: of the run that trained it.
        encoder: with its heads, in evaluation mode.
    """

    config: Config
    encoder: WordEncoder

    @classmethod
    def load(cls, folder: str | Path, store: WordStore, device: str | None = None) -> Self:
        """Read what a run of ``relation_graphs`` exported.

        Args:
            folder: the export.
            store: what its run had.
            device: where it works; None: on a GPU if there is one.

        Raises:
            ConfigError: if the folder is no such export, or its run had another store.
        """
        config = _config_of(folder, store)
        encoder = trained_encoder(config, Path(folder).expanduser(), store)
        return cls(config, _ready(encoder, device))

    def untrained(self, store: WordStore) -> "WordModel":
        """As it was before its run.

        Raises:
            ConfigError: if the encoder that it began with is no longer there.
        """
        device = next(self.encoder.parameters()).device.type
        return WordModel(self.config, _ready(untrained_encoder(self.config, store), device))

    def words(self, store: WordStore, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Words of sentences: as they are, and where tags are to be found."""
        reader = WordReader(
            store,
            WordTokens(**self.encoder.word_tokens(store.words, self.config.encoder)),
            self.encoder.max_tokens,
        )
        max_tokens = self.config.memory.max_tokens_per_micro_batch
        words = embed_words(self.encoder, reader, rows, SingleProcess(), max_tokens=max_tokens)
        with torch.no_grad():
            return words.word_WD, head_of(self.encoder).tag_space(words.word_WD)


def _config_of(folder: str | Path, store: WordStore) -> Config:
    try:
        told: Mapping[str, Any] = json.loads(
            (Path(folder).expanduser() / SETTINGS).read_text(encoding="utf-8")
        )
        config, trained_on = Config.from_mapping(told["config"]), told["store"]
    except (OSError, KeyError, ValueError, ConfigError) as error:
        raise ConfigError(
            f"{folder}: is no exported model of words ({error}); want the export/ of a run of relation_graphs"
        ) from None
    if trained_on != store.digest:
        raise ConfigError(
            f"{folder}: was trained on another store than {store.path}, whose test sentences it may know; want the "
            "store of its run"
        )
    return config


def chance_of_fold(folder: str | Path, store: WordStore) -> dict[str, float]:
    """Return what the most frequent labels of the fold of an exported model score on its test sentences.

    Raises:
        ConfigError: if the folder is no such export, or its run had another store.
    """
    parts = read_fold(store, _config_of(folder, store).data)
    bank, asked = read_gold(store, np.union1d(parts.train, parts.dev)), read_gold(store, parts.test)
    return {name: one["value"] for name, one in most_frequent_scores(bank, asked, store).items()}


def evaluate_exports(
    relations: str | Path,
    entities: str | Path,
    store_path: str | Path,
    *,
    is_untrained: bool = False,
    device: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> SentenceScores:
    """Scores of the test sentences of the models' fold: pairs in the space of one, tags in that of the other.

    Neighbours are the fold's training and validation sentences. How many of them vote is what the models' runs were
    given or, of several numbers, the one that is best on the validation sentences.

    Args:
        relations: export of a run; may be the same as ``entities``.
        entities: export of a run with tags (CLNER, or both).
        store_path: prepared sentences.
        is_untrained: judge what the first one's run began with, in place of both.
        device: where models work; None: on a GPU if there is one.
        say: told what is being done.

    Raises:
        ConfigError: if a folder is no export, the models were trained on different folds or on another store, or the
            second one knows no tags.
        StoreError: if the store is missing, damaged or of another kind.
    """
    store = open_store(store_path, WordStore)
    models = [WordModel.load(relations, store, device)] * 2
    if entities != relations:
        models[1] = WordModel.load(entities, store, device)
    if head_of(models[1].encoder).entity is None:
        raise ConfigError(
            f"{entities}: model={models[1].config.model} has no space of tags; want clner or joint"
        )
    folds = {model.config.data.fold for model in models}
    if len(folds) > 1:
        raise ConfigError(
            f"{relations} was trained on fold {models[0].config.data.fold} and {entities} on fold "
            f"{models[1].config.data.fold}: one of them knows test sentences of the other. Want two of one fold"
        )
    if is_untrained:
        models = [models[0].untrained(store)] * 2
    config = models[0].config
    parts = read_fold(store, config.data)
    evaluation = config.evaluation.model_copy(
        update={"tag_neighbours": models[1].config.evaluation.tag_neighbours}
    )

    def spaces(rows: np.ndarray) -> EmbeddedSentences:
        say(f"embedding {len(rows):,} sentences")
        pair_WD, tag_WD = models[0].words(store, rows)
        if models[1] is not models[0]:
            tag_WD = models[1].words(store, rows)[1]
        return EmbeddedSentences(pair_WD, tag_WD, read_gold(store, rows))

    rule = evaluation.first_settings
    if evaluation.has_choice:
        for name, model in zip((relations, entities), models, strict=True):
            _demand_unseen(name, read_fold(store, model.config.data).train, parts.dev)
        rule = choose_settings(
            spaces(np.setdiff1d(parts.train, parts.dev)), spaces(parts.dev), store, evaluation
        )
    return score_sentences(
        spaces(np.union1d(parts.train, parts.dev)), spaces(parts.test), store, evaluation, rule
    )


def _demand_unseen(name: str | Path, train: np.ndarray, dev: np.ndarray) -> None:
    """Refuse to choose by sentences that a model was trained on."""
    if known := len(np.intersect1d(train, dev)):
        raise ConfigError(
            f"{name} was trained on {known:,} of the {len(dev):,} validation sentences by which the numbers of "
            "neighbours are to be chosen; want two runs of one data.validation_share, or one number each"
        )


def graph_accuracy_of_sentences(
    folder: str | Path,
    store_path: str | Path,
    device: str | None = None,
    num_negatives: int | None = None,
) -> np.ndarray:
    """How often each test sentence of the model's fold (CLGS), or its related pairs (CLDR), has its true graph nearest.

    False graphs beside it are drawn from the run's seed.

    Args:
        folder: export of a run.
        store_path: prepared sentences.
        device: where the model works; None: on a GPU if there is one.
        num_negatives: false graphs beside each true one, or all that there are; None: as many as in training.

    Returns:
        The share of each sentence that has true and false graphs, float64 in 0 to 1; at least one.

    Raises:
        ConfigError: if the folder is no export, its model has no graphs, or what its run began with is not there.
        StoreError: if the store is missing, damaged or of another kind.
    """
    store = open_store(store_path, WordStore)
    model = WordModel.load(folder, store, device)
    if head_of(model.encoder).graph is None:
        raise ConfigError(
            f"{folder}: is a {model.config.model}, which has no graphs; want cldr, clgs or joint"
        )
    system = relation_graphs.build(model.config, store_path)
    assert isinstance(system.collate, RelationGraphCollate) and isinstance(
        system.objective, RelationGraphObjective
    )
    model.words(store, np.zeros(0, dtype=np.int64))  # CharacterBERT learns the letters
    objective = replace(system.objective, head=head_of(model.encoder))
    collate = system.collate
    if num_negatives is not None:
        graphs = collate.graphs.model_copy(update={"num_negatives": num_negatives})
        collate = replace(collate, graphs=graphs)
    rows = read_fold(store, model.config.data).test
    max_tokens = model.config.memory.max_tokens_per_micro_batch
    found = validate_graphs(
        model.encoder, objective, collate, rows, SingleProcess(), max_tokens=max_tokens
    )
    if not len(found.accuracy_S):
        raise ConfigError(
            f"{store_path}: no test sentence of fold {model.config.data.fold} has true and false graphs"
        )
    return found.accuracy_S


def _ready(encoder: WordEncoder, device: str | None) -> WordEncoder:
    return encoder.eval().to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
