"""CLDR, CLGS and CLNER: words whose vectors tell what a sentence relates, and entities and relations by neighbours.

Theodoropoulos, Henderson, Coman, Moens: "Imposing Relation Structure in Language-Model Embeddings Using Contrastive
Learning" (CoNLL 2021). CLDR draws the text of a related pair of words to the graph of that pair, and away from graphs
in which one of the two is another word; CLGS does so with whole sentences; CLNER draws words of one tag together. Then
plain nearest neighbours among training pairs and words find relations and entities.

Reproduced: the graph convolutions over the states of the untrained encoder, both forms of the loss (Equation 5 and that
of the authors' code), negatives by the paper's rule and by the code's, balanced samples of tags, frozen first layers,
and the authors' validation sentences. Different: negatives of validation sentences are drawn once; strict relation
scores count what neighbours found and tags lost as missed (the authors' way stands beside it); a run that stops early
keeps its last weights, and a sweep over folds (``--all-folds``) those of each fold's best step; decay is AdamW's, and
spares biases; an evaluation that equals the best one is no rise. Beyond: both losses over one encoder ("joint"), true
graphs of other sentences as negatives, pairs in both orders.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raybio.core.errors import ConfigError
from raybio.core.final_report import Stage
from raybio.core.interfaces import Collective, Encoder, System
from raybio.core.randomness import derive_seed
from raybio.encoders.config import SCRATCH
from raybio.encoders.input_lengths import InputLengths
from raybio.encoders.transformer import seeded_weights
from raybio.evaluation.evaluator import Evaluator, ModelScores
from raybio.methods.relation_graphs.batches import RelationGraphBatch
from raybio.methods.relation_graphs.collate import (
    Fold,
    RelationGraphCollate,
    WordReader,
    WordTokens,
    fold_of,
)
from raybio.methods.relation_graphs.config import Config
from raybio.methods.relation_graphs.demo import default_words
from raybio.methods.relation_graphs.encoder import (
    GraphEncoder,
    WordEncoder,
    build_word_encoder,
    check_word_encoder,
    export_word_encoder,
    read_heads,
)
from raybio.methods.relation_graphs.graph_accuracy import (
    Validation,
    embed_words,
    untrained_features,
    validate,
)
from raybio.methods.relation_graphs.knn import (
    Judged,
    Spaces,
    chance_scores,
    choose_rule,
    find,
    gold_of,
    judge,
)
from raybio.methods.relation_graphs.loss import RelationGraphHead, RelationGraphs
from raybio.methods.relation_graphs.store import WordStore
from raybio.store.store import open_store

SHOWN_IN_TRAINING = ("ner_f1", "re_minus_f1", "re_f1")


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
    fold = fold_of(store, config.data)
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
    fold = fold_of(store, config.data)
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
    objective = RelationGraphs(config.objective, config.model, head_of(encoder))
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


def _encoder(config: Config, store: WordStore) -> WordEncoder:
    """Encoder and head as training begins with them."""
    encoder = build_word_encoder(
        config.encoder, seed=derive_seed(config.seed, "weights"), count_by_word=store.count_by_word
    )
    is_whole = config.model == "clgs"
    with seeded_weights(derive_seed(config.seed, "head")):
        graph = None
        if config.model != "clner":
            self_loop = None if is_whole else config.objective.self_loop
            graph = GraphEncoder(
                encoder.width, self_loop=self_loop, activation="tanh" if is_whole else "relu"
            )
        encoder.head = RelationGraphHead(
            graph,
            encoder.width,
            has_tags=config.model in ("clner", "joint"),
            projection_width=config.objective.projection_width if is_whole else None,
        )
    return encoder


def trained_encoder(config: Config, folder: Path, store: WordStore) -> WordEncoder:
    """Encoder and head as a run of this configuration exported them to ``folder``.

    Raises:
        ConfigError: if they cannot be loaded.
    """
    changed = {"source": str(folder), "num_layers_kept": None, "num_frozen_layers": 0}
    encoder = _encoder(
        config.model_copy(update={"encoder": config.encoder.model_copy(update=changed)}), store
    )
    saved = {name.removeprefix("head."): part for name, part in read_heads(str(folder)).items()}
    try:
        head_of(encoder).load_state_dict(saved)
    except RuntimeError as error:
        raise ConfigError(
            f"{folder}: its heads do not fit its settings ({error}); export it again"
        ) from None
    return encoder


def untrained_encoder(config: Config, store: WordStore) -> WordEncoder:
    """Encoder and head before training; words are in the space of tags as they are.

    Raises:
        ConfigError: if the encoder cannot be loaded.
    """
    encoder = _encoder(config, store)
    head_of(encoder).entity = None  # a map that nothing has trained
    return encoder


def head_of(encoder: WordEncoder) -> RelationGraphHead:
    """What is trained beside the encoder."""
    assert isinstance(encoder.head, RelationGraphHead)
    return encoder.head


@dataclass(frozen=True)
class EntityRelationEvaluator(Evaluator):
    """Entities and relations predicted in sentences that were held out."""

    config: Config
    collate: RelationGraphCollate
    objective: RelationGraphs
    fold: Fold

    def evaluate_during_training(
        self, model: Encoder, collective: Collective
    ) -> Mapping[str, float]:
        """Return ``val/*`` on the validation sentences, by the best number of neighbours."""
        validation = self._validation(model, self.fold.dev, collective)
        metrics = dict(validation.metrics())
        some = self.fold.dev[: self.config.evaluation.num_sentences_in_training]
        if len(some):
            bank, asked = (
                self._spaces(model, rows, collective) for rows in (self.fold.train, some)
            )
            found = find(bank, asked, self._store, self.config.evaluation)
            rule = found.best_rule(self.config.evaluation.first_rule)
            values = found.scores(rule).values
            metrics |= {name: values[name] for name in SHOWN_IN_TRAINING}
            metrics |= {
                "pair_neighbours": rule.pair_neighbours,
                "tag_neighbours": rule.tag_neighbours,
            }
        return {f"val/{name}": float(value) for name, value in metrics.items()} | validation.spread

    def initial_encoder(self) -> Encoder:
        """Return the encoder before training, without a tag head."""
        initial = untrained_encoder(self.config, self._store)
        # CharacterBERT learns the letters of all words.
        initial.word_tokens(self._store.words, self.config.encoder)
        return initial

    def score(self, model: Encoder, collective: Collective, stage: Stage) -> ModelScores:
        """Score the sentences of dev and test.

        Test sentences have the validation sentences too among their neighbours.
        """
        evaluation, store, fold = self.config.evaluation, self._store, self.fold
        has_dev = len(fold.dev) > 0 and not self.config.data.train_on_validation
        bank = self._spaces(model, np.union1d(fold.train, fold.dev), collective)
        test = self._spaces(model, fold.test, collective)
        rule = evaluation.first_rule
        results: dict[str, Judged] = {}
        chance: dict[str, Any] = {}
        if has_dev:
            train = self._spaces(model, fold.train, collective)
            dev = self._spaces(model, fold.dev, collective)
            rule = choose_rule(train, dev, store, evaluation)
            results["dev"] = judge(train, dev, store, evaluation, rule)
            chance["dev"] = chance_scores(train.gold, dev.gold, store)
        results["test"] = judge(bank, test, store, evaluation, rule)
        chance["test"] = chance_scores(bank.gold, test.gold, store)
        validation = self._validation(model, fold.test, collective)
        return ModelScores(
            scores={split: result.intervals() for split, result in results.items()},
            chance=chance,
            spread=validation.spread,
            unit_scores={split: result.unit_scores() for split, result in results.items()},
            details={"rules": rule._asdict(), "graphs": validation.metrics()},
        )

    def export(self, encoder: WordEncoder, folder: Path, card: Mapping[str, Any]) -> Path:
        """The encoder with all that it takes to find relations and entities."""
        settings = {
            "trained_by": "relation_graphs",
            "config": self.config.to_mapping(),
            "store": self._store.digest,  # its folds are no other store's
        }
        return export_word_encoder(encoder, folder, card=card, settings=settings)

    @property
    def _store(self) -> WordStore:
        return self.collate.reader.store

    def _spaces(self, model: Encoder, rows: np.ndarray, collective: Collective) -> Spaces:
        assert isinstance(model, WordEncoder)
        words = embed_words(
            model, self.collate.reader, rows, collective, max_tokens=self._max_tokens
        )
        with torch.no_grad():
            tag_WD = head_of(model).tag_space(words.word_WD)
        return Spaces(words.word_WD, tag_WD, gold_of(self._store, rows))

    def _validation(self, model: Encoder, rows: np.ndarray, collective: Collective) -> Validation:
        assert isinstance(model, WordEncoder)
        objective = replace(self.objective, head=head_of(model))
        return validate(
            model, objective, self.collate, rows, collective, max_tokens=self._max_tokens
        )

    @property
    def _max_tokens(self) -> int:
        return self.config.memory.max_tokens_per_micro_batch
