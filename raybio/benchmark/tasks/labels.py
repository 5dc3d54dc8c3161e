"""Labels of proteins or texts, predicted by a linear head on frozen embeddings.

The figures are those of the rows "ridge on ..." and "kNN on ..." of ``raybio train finetune``.

Shape letters: N rows of the store, Q test rows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

from raybio.benchmark.models import RandomVectors
from raybio.benchmark.stores import StoreLocation, missing_store, prepared, store_files
from raybio.benchmark.task import (
    BenchmarkEncoder,
    BenchmarkTask,
    Reads,
    TaskFacts,
    TaskScores,
    by_relative_path,
    missing_files,
    nearest_name,
)
from raybio.core.errors import ConfigError
from raybio.core.final_report import UnitScores
from raybio.methods.sppt.downstream.config import TASKS, DownstreamTask
from raybio.methods.sppt.downstream.demo import SIMULATED_FOLDS
from raybio.methods.sppt.downstream.formats.read import read_task_files
from raybio.methods.sppt.downstream.prepare import prepare_task
from raybio.methods.sppt.downstream.rivals import (
    Features,
    TaskRival,
    frozen_features,
    neighbor_rival,
    one_hot,
    ridge_rival,
    tfidf,
)
from raybio.methods.sppt.downstream.scores import class_scores
from raybio.methods.sppt.downstream.store import SPLITS, TaskStore
from raybio.methods.sppt.scores import LIMITS
from raybio.runtime.run.options import default_folder
from raybio.store.store import open_store

_MEASURES = {"accuracy": "accuracy", "macro_f1": "macro F1", "spearman": "Spearman's rho"}

_PROTOCOL = (
    "The encoder stays frozen. {head} on standardized embeddings is fitted to the training rows; "
    "dev chooses its penalty; test is scored once. kNN on embeddings is the further measure."
)


class LabelsTask(BenchmarkTask):
    """A class or a number for each protein or text."""

    family: ClassVar[str] = "Labels by a frozen head"

    labels: str = Field(
        description="kind of task, as for `raybio train finetune`: protein_classification, "
        "protein_regression, text_classification, text_regression, or a published one"
    )
    data: Path | None = Field(None, description="table or files of the task")
    store: StoreLocation | None = Field(None, description="prepared store, instead of data")
    demo: bool = Field(False, description="the built-in simulated folds, instead of data")

    @property
    def reads(self) -> Reads:
        """Kind of inputs."""
        return "texts" if self._kind.on_texts else "proteins"

    @property
    def measure(self) -> str:
        """Name of the score."""
        return _MEASURES[self._kind.measure]

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest possible score."""
        return LIMITS[self._kind.measure]

    def check(self) -> str:
        """Return why the task cannot run.

        Raises:
            ConfigError: for an unknown kind of task, or one with a class a residue.
        """
        if self._kind.labels == "residues":
            raise ConfigError(
                f"task {self.name}: labels {self.labels} has a class for each residue, want one "
                "for each row; `raybio train finetune residue_tagging` evaluates these"
            )
        given = [self.data is not None, self.store is not None, self.demo]
        if sum(given) != 1:
            raise ConfigError(f"task {self.name}: want one of data, store and demo")
        if self.store is not None:
            return missing_store(self.store, TaskStore)
        paths = [] if self.data is None else [self.data]
        return missing_files(paths, f"want the files of {self.labels}")

    def files(self) -> Mapping[str, Path]:
        """Return the source files, or the manifest of the store."""
        if self.data is not None:
            return by_relative_path(self.data, read_task_files(self.labels, self.data).files)
        return store_files(self._store.location)

    def facts(self) -> TaskFacts:
        """Return protocol and sizes."""
        store = self._store
        sizes = {split: len(store.split_rows(split)) for split in SPLITS}
        size = ", ".join(f"{number:,} {split} rows" for split, number in sizes.items())
        if store.class_names:
            size += f", {len(store.class_names)} classes"
        leakage = ""
        num_known = store.known_from_training()["test"]
        if num_known:
            leakage = f"{num_known:,} of {sizes['test']:,} test rows are training rows too."
        head = "A ridge classifier" if store.class_names else "Ridge regression"
        return TaskFacts(_PROTOCOL.format(head=head), size, leakage, self._chance())

    def score(self, model: BenchmarkEncoder) -> TaskScores:
        """Fit a ridge classifier, or ridge regression, on embeddings; choose its penalty on dev."""
        inputs = self._store.texts(np.arange(self._store.num_rows))
        features = frozen_features(model.embed(inputs), self._store.split_rows("train"))
        remarks = model.cut_remarks({"rows": inputs})
        return replace(self._fitted(features)[0], remarks=tuple(remarks))

    def rivals(self, model: BenchmarkEncoder | None) -> Mapping[str, TaskScores]:
        """Fit the same on residues or words, and on random vectors."""
        found = {}
        for features in self._descriptions():
            ridge, neighbors = self._fitted(features)
            found[f"ridge on {features.name}"] = ridge
            found[f"kNN on {features.name}"] = neighbors
        random = RandomVectors()
        return found | {random.name: self.score(random)}

    def _fitted(self, features: Features) -> tuple[TaskScores, TaskScores]:
        """Return the scores of ridge and of kNN."""
        neighbors = self._scores(neighbor_rival(self._store, features))
        ridge = self._scores(
            ridge_rival(self._store, features), {f"kNN {self.measure}": neighbors.score}
        )
        return ridge, neighbors

    def _scores(self, rival: TaskRival, others: Mapping[str, float] = {}) -> TaskScores:
        row_Q = self._store.split_rows("test")
        units = UnitScores(row_Q, rival.values(row_Q))
        means = {
            _MEASURES[name]: float(value_Q.mean())
            for name, value_Q in units.value_by_measure.items()
            if name in _MEASURES and name != self._kind.measure
        }
        value_Q = units.value_by_measure[self._kind.measure]
        return TaskScores.of_means(row_Q.tolist(), value_Q, {**means, **others})

    def _descriptions(self) -> Iterator[Features]:
        if not self._kind.on_texts:
            residues = one_hot(self._store)
            if residues is not None:
                yield residues
        yield tfidf(self._store)

    def _chance(self) -> dict[str, float]:
        """Return the score of the most frequent class; a constant number has no correlation."""
        if self._kind.labels != "class":
            return {}
        target_N = self._store.target_N.astype(np.int64)
        most_frequent = np.bincount(target_N[self._store.split_rows("train")]).argmax()
        gold_Q = target_N[self._store.split_rows("test")]
        value_by_measure = class_scores(np.full_like(gold_Q, most_frequent), gold_Q)
        return {
            _MEASURES[name]: float(value_Q.mean()) for name, value_Q in value_by_measure.items()
        }

    @property
    def _kind(self) -> DownstreamTask:
        if self.labels not in TASKS:
            near = nearest_name(self.labels, list(TASKS))
            raise ConfigError(
                f"task {self.name}: labels {self.labels}, want one of {', '.join(TASKS)}.{near}"
            )
        return TASKS[self.labels]

    @cached_property
    def _store(self) -> TaskStore:
        if self.demo:
            return SIMULATED_FOLDS.prepare(default_folder("stores", "RAYBIO_STORES"))
        if self.store is not None:
            store = open_store(self.store, TaskStore)
            if store.task != self.labels:
                raise ConfigError(
                    f"task {self.name}: {self.store} is a store of {store.task}, want {self.labels}"
                )
            return store
        assert self.data is not None
        files, examples = read_task_files(self.labels, self.data)
        return prepared(
            self.labels,
            by_relative_path(self.data, files),
            TaskStore,
            lambda path: prepare_task(path, self.labels, files, examples),
        )
