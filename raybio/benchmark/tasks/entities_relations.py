"""Entities and relations by nearest words: figures of ``raybio train relation_graphs``.

The figures are those of its rows "initial - chosen settings" and "initial" on test sentences, with
the model as ``encoder.source``. An export of ``relation_graphs`` reads words as in its run; its
figures are those of ``raybio evaluate entities-relations``.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from raybio.benchmark.models import BenchmarkModel, on_device
from raybio.benchmark.saved_embeddings import Embedded
from raybio.benchmark.stores import StoreLocation, missing_store, prepared, store_files
from raybio.benchmark.task import (
    NOT_MEASURED,
    BenchmarkEncoder,
    BenchmarkTask,
    TaskFacts,
    TaskScores,
    missing_files,
)
from raybio.core.errors import ConfigError
from raybio.evaluation.unit_scores import linear_share
from raybio.methods.relation_graphs.annotations.folds import FoldRows, read_fold
from raybio.methods.relation_graphs.config import Config, FoldConfig, KnnConfig, WordEncoderConfig
from raybio.methods.relation_graphs.encoders.word_model import (
    WordModel,
    head_of,
    read_export_settings,
)
from raybio.methods.relation_graphs.evaluation.fold_scores import chosen_and_fixed
from raybio.methods.relation_graphs.evaluation.sentence_scores import (
    SentenceScores,
    VectorScores,
    chance_scores,
)
from raybio.methods.relation_graphs.inference.embedding_model import WordEmbedder
from raybio.methods.relation_graphs.prepare import prepare_words
from raybio.methods.relation_graphs.rivals import lexical_rivals
from raybio.methods.relation_graphs.store import WordStore
from raybio.store.store import open_store

_MEASURES = {
    "ner_f1": "entity F1",
    "re_f1": "strict relation F1",
    "re_minus_f1": "pair F1",
    "probe_f1": "pair F1 by a linear probe",
}

_PRIMARY = {"entities": "ner_f1", "relations": "re_f1"}

_PROTOCOL = (
    "Theodoropoulos et al. (2021): the nearest training words vote on a word's tag, the nearest "
    "training pairs of words on a pair's relation. The encoder stays frozen; validation sentences "
    "choose the numbers of neighbors. A relation is strictly right with both of its entities. "
    "Score: macro F1 over the types of test sentences, fold {fold}."
)

_LEAKAGE = (
    "Over all folds, {test_sentences_in_training:,} test sentences are training sentences too, and "
    "{dev_sentences_in_test:,} validation sentences are test sentences."
)


class EntitiesRelationsTask(BenchmarkTask):
    """Entities, or relations, of sentences in SpERT's layout, such as ADE's."""

    family: ClassVar[str] = "Entities and relations by neighbors"
    also_reads: ClassVar[Collection[str]] = ("sentences",)

    scored: Literal["entities", "relations"] = Field("relations", description="primary measure")
    store: StoreLocation | None = Field(None, description="prepared store of sentences")
    sentences: Path | None = Field(None, description="instead of a store: sentences of SpERT")
    splits: Path | None = Field(None, description="folds of the sentences")
    dev: Path | None = Field(None, description="instead of splits: sentences to choose settings")
    test: Path | None = Field(None, description="instead of splits: sentences that are scored")
    fold: int = Field(1, ge=1, description="number of the fold, from 1")
    candidates: Literal["all", "chunk_ends"] = Field(
        "all", description="pairs that may be related: all, or those of ends of predicted entities"
    )

    @property
    def measure(self) -> str:
        """Name of the score."""
        return _MEASURES[_PRIMARY[self.scored]]

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest possible score."""
        return (0.0, 1.0)

    @property
    def group(self) -> str:
        """Both measures are computed from the same predictions."""
        return f"words of {self.store or self.sentences}"

    def check(self) -> str:
        """Return why the task cannot run.

        Raises:
            ConfigError: unless exactly one of store and sentences is given, or if files that belong
                to sentences are given with a store.
        """
        if (self.store is None) == (self.sentences is None):
            raise ConfigError(f"task {self.name}: want either store or sentences")
        if self.store is not None:
            self.refuse(("splits", "dev", "test"), "with a store")
            return missing_store(self.store, WordStore)
        wanted = "want sentences, as `raybio prepare spert` reads them"
        return missing_files(self._sources.values(), wanted)

    def files(self) -> Mapping[str, Path]:
        """Return the source files, or the store's manifest."""
        return self._sources if self.store is None else store_files(self.store)

    def facts(self) -> TaskFacts:
        """Return protocol and sizes."""
        fold = self._fold
        size = (
            f"{len(fold.train):,} training, {len(fold.dev):,} validation and {len(fold.test):,} "
            "test sentences"
        )
        chance = chance_scores(self._words, fold, "test")
        known = self._words.manifest.get("leakage")
        return TaskFacts(
            _PROTOCOL.format(fold=self.fold),
            size,
            _LEAKAGE.format(**known) if known else NOT_MEASURED,
            chance={title: float(chance[name]) for name, title in _MEASURES.items()},
        )

    def score(self, model: BenchmarkEncoder) -> TaskScores:
        """Let the words of training sentences vote on those of test sentences."""
        assert isinstance(model, BenchmarkModel)
        chosen, fixed = _evaluated(model, self._shared)
        others: dict[str, float] = {}
        if fixed is not None:
            settings = fixed.settings
            by = f"{settings.num_pair_neighbors} and {settings.num_tag_neighbors} neighbors"
            others = {f"{self.measure}, {by}": fixed.values[_PRIMARY[self.scored]]}
        return self._scores(chosen, others, _SavedWords(model, self._words).remarks)

    def rivals(self, model: BenchmarkEncoder | None) -> Mapping[str, TaskScores]:
        """Look words up, and compare their characters."""
        return {name: self._scores(found) for name, found in _rivals(self._shared).items()}

    def _scores(
        self,
        found: SentenceScores,
        others: Mapping[str, float] = {},
        remarks: Sequence[str] = (),
    ) -> TaskScores:
        primary = _PRIMARY[self.scored]
        units = found.unit_scores()
        measures = {
            title: found.values[name] for name, title in _MEASURES.items() if name != primary
        }
        return TaskScores.of_means(
            units.unit_U.tolist(),
            _linearized(units.value_by_measure[primary]),
            {**measures, **others},
            value=found.values[primary],
            remarks=remarks,
        )

    @property
    def _shared(self) -> "EntitiesRelationsTask":
        """The task without fields that do not affect its predictions."""
        return self.model_copy(update={"name": "shared", "scored": "relations"})

    @property
    def _config(self) -> KnnConfig:
        return KnnConfig(candidates=self.candidates)

    @property
    def _sources(self) -> dict[str, Path]:
        given = {
            "sentences": self.sentences,
            "splits": self.splits,
            "dev": self.dev,
            "test": self.test,
        }
        return {name: path for name, path in given.items() if path is not None}

    @property
    def _fold(self) -> FoldRows:
        return read_fold(self._words, FoldConfig(fold=self.fold))

    @cached_property
    def _words(self) -> WordStore:
        if self.store is not None:
            return open_store(self.store, WordStore)
        assert self.sentences is not None
        sentences = [self.sentences]
        dev = [] if self.dev is None else [self.dev]
        test = [] if self.test is None else [self.test]
        return prepared(
            "words",
            self._sources,
            WordStore,
            lambda path: prepare_words(path, sentences, splits=self.splits, dev=dev, test=test),
        )


def _linearized(count_SA3: np.ndarray) -> np.ndarray:
    """Return values (S,) of sentences whose mean is a mean of ratios over the present classes.

    The scores of a task have one ratio, so each class is linearized (the delta method).
    """
    present = np.flatnonzero(count_SA3[..., 2].any(axis=0))
    by_class = [linear_share(count_SA3[:, each, 0], count_SA3[:, each, 1]) for each in present]
    return np.mean(by_class, axis=0) if by_class else np.zeros(len(count_SA3))


@lru_cache(maxsize=1)
def _evaluated(
    model: BenchmarkModel, task: EntitiesRelationsTask
) -> tuple[VectorScores, VectorScores | None]:
    """Return the scores with chosen numbers of neighbors, and with those of the paper."""
    words = _SavedWords(model, task._words)
    fold = task._fold
    num_known = words.num_known(fold.test)
    if num_known:
        raise ConfigError(
            f"MODEL {model.name}: was trained on {num_known:,} test sentences of fold {task.fold}; "
            "want a run of this fold"
        )
    has_dev = len(fold.dev) > 0 and not words.num_known(fold.dev)
    return chosen_and_fixed(words, words, fold, task._config, has_dev=has_dev)


@lru_cache(maxsize=1)
def _rivals(task: EntitiesRelationsTask) -> dict[str, SentenceScores]:
    fold = task._fold
    found = lexical_rivals(
        task._words, fold, task._config, has_dev=len(fold.dev) > 0, has_dev_scores=False
    )
    return {name: scores["test"] for name, scores in found}


class _SavedWords:
    """The words of a frozen encoder, whose embeddings are saved with those of the benchmark."""

    def __init__(self, model: BenchmarkModel, store: WordStore) -> None:
        self._model = model
        self._is_export = isinstance(model.embedding, WordEmbedder)
        self.store = store

    @cached_property
    def trained_on(self) -> np.ndarray | None:
        """Sentences of the store that an export was trained on; None: it had another store."""
        if not self._is_export:
            return np.empty(0, np.int64)
        config, digest = read_export_settings(self._model.folder)
        return read_fold(self.store, config.data).train if digest == self.store.digest else None

    @property
    def remarks(self) -> list[str]:
        """What a reader of the scores should know."""
        if self.trained_on is None:
            return ["trained on another store, which may have sentences of this one"]
        return []

    def num_known(self, rows: np.ndarray) -> int:
        """Return how many of these sentences an export is known to have been trained on."""
        return 0 if self.trained_on is None else len(np.intersect1d(rows, self.trained_on))

    @cached_property
    def _encoder(self) -> WordModel:
        if self._is_export:
            return WordModel.of_any_store(self._model.folder, self.store)
        encoder = WordEncoderConfig(source=self._model.folder, num_frozen_layers=0)
        return WordModel.before_training(Config(model="clner", encoder=encoder), self.store)

    def embed(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the words (W, D) of sentences, for pairs and for tags."""
        words = [
            f"{row} {word}"
            for row in rows.tolist()
            for word in range(len(self.store.sentence(row)))
        ]
        what = f"words of the store {self.store.content_digest[:12]}"

        def make() -> Embedded:
            return Embedded(self._encoder.embed(rows)[0].cpu().numpy(), len(rows))

        word_WD = on_device(self._model.saved(what, words, make, load=lambda: self._encoder))
        if not self._is_export:
            return word_WD, word_WD
        with torch.no_grad():
            return word_WD, head_of(self._encoder.encoder).tag_space(word_WD)
