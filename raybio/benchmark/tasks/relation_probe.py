"""Relations by classifiers on frozen pairs: the figures of ``raybio evaluate relation-probe``."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

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
from raybio.methods.mtb_mccl.documents.prepare import prepare_documents
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.frozen_encoder import truncation_remarks
from raybio.methods.mtb_mccl.mccl.frozen_probe import FrozenProbe, FrozenProbeResult
from raybio.store.store import open_store

_CLASSIFIER = "classwise kNN"

_PROTOCOL = (
    "Continual contrastive finetuning (Zhou et al. 2023, Table 1): pairs of entities are embedded "
    "by the frozen encoder as head, tail and context. Classwise kNN over the training pairs "
    "predicts relations; dev chooses k. Score: micro F1 of the facts of test documents. Softmax "
    "and nearest centroid are further measures."
)

_LEAKAGE = (
    "{test_documents_in_training:,} test documents are training documents too. "
    "{test_relations_in_training:,} test relations are of entities that are related in training, "
    "by any relation."
)


class RelationProbeTask(BenchmarkTask):
    """Relations of documents with entities."""

    family: ClassVar[str] = "Relations by a frozen head"
    rivals_read_the_model: ClassVar[bool] = True
    also_reads: ClassVar[Collection[str]] = ("documents",)

    store: StoreLocation | None = Field(
        None, description="prepared store of documents, with all splits"
    )
    train: Path | None = Field(None, description="instead of a store: PubTator, BioC or DocRED")
    dev: Path | None = Field(None, description="documents to choose settings")
    test: Path | None = Field(None, description="documents that are scored")

    @property
    def measure(self) -> str:
        """Name of the score."""
        return "micro F1"

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest possible score."""
        return (0.0, 1.0)

    def check(self) -> str:
        """Return why the task cannot run.

        Raises:
            ConfigError: unless either a store or all of train, dev and test are given.
        """
        sources = self._sources
        if (self.store is None) == (not sources) or len(sources) not in (0, 3):
            raise ConfigError(f"task {self.name}: want either store, or train, dev and test")
        if self.store is not None:
            return missing_store(self.store, DocumentStore) or self._missing_split()
        wanted = "want documents, as `raybio prepare documents` reads them"
        return missing_files(sources.values(), wanted)

    def _missing_split(self) -> str:
        """Return which split has no documents; an empty text if both have some."""
        assert self.store is not None
        documents = open_store(self.store, DocumentStore)
        for split in ("dev", "test"):
            if not len(documents.split_rows(split)):
                return f"{self.store}: has no {split} documents; prepare it with --{split}"
        return ""

    def files(self) -> Mapping[str, Path]:
        """Return the source files, or the store's manifest."""
        return self._sources if self.store is None else store_files(self.store)

    def facts(self) -> TaskFacts:
        """Return protocol and sizes."""
        counts = self._documents.manifest["counts"]
        names = ("train_documents", "dev_documents", "test_documents")
        size = ", ".join(
            f"{counts[name]:,} {name.replace('_', ' ')}" for name in names if name in counts
        )
        known = self._documents.manifest.get("leakage")
        leakage = _LEAKAGE.format(**known) if known else NOT_MEASURED
        return TaskFacts(_PROTOCOL, size, leakage)

    def score(self, model: BenchmarkEncoder) -> TaskScores:
        """Classify pairs by their nearest training pairs."""
        probe, seconds = _probe(model.folder, self)
        started = time.process_time()
        results = {result.name: result for result in probe.classifiers()}
        seconds += time.process_time() - started
        others = {
            f"F1 by {name}": result.test.values["f1"]
            for name, result in results.items()
            if name != _CLASSIFIER
        }
        remarks = truncation_remarks(model.folder, self._documents)
        scores = self._scores(results[_CLASSIFIER], others, remarks)
        return replace(scores, processor_seconds=seconds)

    def rivals(self, model: BenchmarkEncoder | None) -> Mapping[str, TaskScores]:
        """Predict by words, in the model's tokens, and the most frequent relation."""
        assert model is not None
        probe, _ = _probe(model.folder, self)
        return {result.name: self._scores(result) for result in probe.rivals()}

    def _scores(
        self,
        result: FrozenProbeResult,
        others: Mapping[str, float] = {},
        remarks: Sequence[str] = (),
    ) -> TaskScores:
        units = result.test.unit_scores()
        numerator_U, denominator_U = units.value_by_measure["f1"].T.astype(np.float64)
        rates = {name: result.test.values[name] for name in ("precision", "recall", "macro_f1")}
        return TaskScores(
            tuple(map(str, units.unit_U.tolist())),
            numerator_U,
            denominator_U,
            value=result.test.values["f1"],
            others={**rates, **others},
            remarks=tuple(remarks),
        )

    @property
    def _sources(self) -> dict[str, Path]:
        given = {"train": self.train, "dev": self.dev, "test": self.test}
        return {name: path for name, path in given.items() if path is not None}

    @cached_property
    def _documents(self) -> DocumentStore:
        if self.store is not None:
            return open_store(self.store, DocumentStore)
        train, dev, test = self._sources.values()
        return prepared(
            "documents",
            self._sources,
            DocumentStore,
            lambda path: prepare_documents(path, [train], [dev], [test]),
        )


@lru_cache(maxsize=1)
def _probe(folder: str, task: RelationProbeTask) -> tuple[FrozenProbe, float]:
    """Return the embedded pairs of a model, and the seconds of processor time that they took.

    Rivals read the labels of these pairs and the model's tokens, so the last result is cached.
    """
    documents = task._documents
    started = time.process_time()
    probe = FrozenProbe(folder, documents)
    return probe, time.process_time() - started
