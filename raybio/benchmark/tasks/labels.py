"""Labels of proteins or texts, predicted by a head on frozen embeddings or by a tuned encoder.

The figures are those of ``raybio train finetune``: of its rows "ridge on ..." and "kNN on ...", and
of its trained model.

Shape letters: N rows of the store, Q test rows.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from raybio.benchmark.models import BenchmarkModel, RandomVectors
from raybio.benchmark.stores import StoreLocation, missing_store, prepared, store_files
from raybio.benchmark.task import (
    BenchmarkEncoder,
    BenchmarkTask,
    Reads,
    TaskFacts,
    TaskScores,
    by_relative_path,
    missing_files,
)
from raybio.core.errors import ConfigError
from raybio.core.final_report import UnitScores
from raybio.core.text import did_you_mean
from raybio.methods.sppt.downstream.config import (
    TASKS,
    Config,
    DownstreamTask,
    TaskEncoderConfig,
    TaskEvaluationConfig,
)
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
from raybio.methods.sppt.downstream.scores import chance_scores
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.methods.sppt.downstream.system import build
from raybio.methods.sppt.scores import LIMITS
from raybio.runtime.run.options import default_folder
from raybio.store.store import SPLITS, open_store
from raybio.training.collective import SingleProcess
from raybio.training.loop import fit
from raybio.training.precision import default_device
from raybio.training.settings import OptimConfig, ScheduleConfig

_MEASURES = {
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "spearman": "Spearman's rho",
}

_DEMO_LABELS = ("remote_homology", "protein_classification")
"""Kinds of tasks that the simulated folds can be."""

_PROTOCOL = (
    "The encoder stays frozen. {head} on standardized embeddings is fitted to the training rows; "
    "dev chooses its {chosen}; test is scored once. kNN on embeddings is the further measure."
)

_TUNED_PROTOCOL = (
    "The encoder and a head on it are trained by {steps:,} steps of 32 training rows, as by "
    "`raybio train finetune` with a constant learning rate of {peak_lr:g} and seed 0. The last "
    "weights predict test once; dev chooses nothing. Rivals are ridge and kNN on what needs no "
    "training."
)


class LabelsTask(BenchmarkTask):
    """A class, a set of classes or a number for each protein or text."""

    family: ClassVar[str] = "Labels"

    labels: str = Field(
        description="kind of task, as for `raybio train finetune`: protein_classification, "
        "protein_multilabel, protein_regression, text_classification, text_multilabel, "
        "text_regression, or a published one"
    )
    data: Path | None = Field(None, description="table or files of the task")
    store: StoreLocation | None = Field(None, description="prepared store, instead of data")
    demo: bool = Field(False, description="the built-in simulated folds, instead of data")
    head: Literal["frozen", "tuned"] = Field(
        "frozen", description="frozen: ridge on embeddings; tuned: the encoder is trained, too"
    )
    steps: int = Field(300, ge=1, description="tuned only: steps of the training")
    peak_lr: float = Field(5e-5, gt=0, description="tuned only: learning rate")

    @property
    def title(self) -> str:
        """Name in words."""
        return self.name if self.head == "frozen" else f"{self.name}: tuned encoder"

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
            ConfigError: for an unknown kind of task, a kind with one class per residue, another
                kind than the demo's, or settings of a training if there is no training.
        """
        if self._kind.labels == "residues":
            raise ConfigError(
                f"task {self.name}: labels {self.labels} has a class for each residue, want one "
                "for each row; `raybio train finetune residue_tagging` evaluates these"
            )
        given = [self.data is not None, self.store is not None, self.demo]
        if sum(given) != 1:
            raise ConfigError(f"task {self.name}: want one of data, store and demo")
        if self.demo and self.labels not in _DEMO_LABELS:
            raise ConfigError(
                f"task {self.name}: the demo has simulated folds of proteins, want labels: "
                f"{' or '.join(_DEMO_LABELS)}, got {self.labels}"
            )
        if self.head == "frozen":
            self.refuse(("steps", "peak_lr"), "with head: frozen")
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
        num_known = store.known_from_training()["test"]
        leakage = f"{num_known:,} of {sizes['test']:,} test rows are training rows too."
        head = "A ridge classifier" if self._kind.labels == "class" else "Ridge regression"
        chosen = "penalty and threshold" if self._kind.labels == "class_set" else "penalty"
        protocol = _PROTOCOL.format(head=head, chosen=chosen)
        if self.head == "tuned":
            protocol = _TUNED_PROTOCOL.format(steps=self.steps, peak_lr=self.peak_lr)
        return TaskFacts(protocol, size, leakage, self._chance())

    def score(self, model: BenchmarkEncoder) -> TaskScores:
        """Fit a ridge classifier, or ridge regression, on embeddings; or train the encoder."""
        remarks = model.truncation_remarks({"rows": self._inputs})
        scores = self._tuned(model) if self.head == "tuned" else self._frozen(model)
        return replace(scores, remarks=tuple(remarks))

    def rivals(self, model: BenchmarkEncoder | None) -> Mapping[str, TaskScores]:
        """Fit the same on residues or words, and on random vectors."""
        found = {}
        for features in self._descriptions():
            ridge, neighbors = self._fitted(features)
            found[f"ridge on {features.name}"] = ridge
            found[f"kNN on {features.name}"] = neighbors
        random = RandomVectors()
        return found | {random.name: self._frozen(random)}

    def _frozen(self, model: BenchmarkEncoder) -> TaskScores:
        train = self._store.split_rows("train")
        return self._fitted(frozen_features(model.embed(self._inputs), train))[0]

    def _tuned(self, model: BenchmarkEncoder) -> TaskScores:
        assert isinstance(model, BenchmarkModel)
        config = self.tuning_config(model)
        started = time.process_time()
        system = build(config, self._store.location)
        for _ in fit(system, config, device=default_device(), precision="fp32"):
            pass
        assert system.final_evaluate is not None
        report = system.final_evaluate(system.model, SingleProcess())
        measured = report.scores["trained"]
        scores = self._scores(
            report.unit_scores["trained"]["test"],
            {f"{self.measure} on dev": measured["dev"]["score"]["value"]},
            measured["test"]["score"]["value"],
        )
        return replace(scores, processor_seconds=time.process_time() - started)

    def tuning_config(self, model: BenchmarkModel) -> Config:
        """Return the settings of ``raybio train finetune`` with a tuned head."""
        inputs = model.whole_inputs
        return Config(
            encoder=TaskEncoderConfig(
                source=model.folder,
                pooling=inputs.pooling,
                max_length=inputs.max_tokens or TaskEncoderConfig().max_length,
            ),
            evaluation=TaskEvaluationConfig(rivals=False),
            optim=OptimConfig(
                peak_lr=self.peak_lr, schedule="constant", num_warmup_steps=0, weight_decay=0.0
            ),
            schedule=ScheduleConfig(max_steps=self.steps, evaluate_every_steps=0),
        )

    def _fitted(self, features: Features) -> tuple[TaskScores, TaskScores]:
        """Return the scores of ridge and of kNN."""
        neighbors = self._scores(self._units(neighbor_rival(self._store, features)))
        ridge = self._scores(
            self._units(ridge_rival(self._store, features)),
            {f"kNN {self.measure}": neighbors.score},
        )
        return ridge, neighbors

    def _units(self, rival: TaskRival) -> UnitScores:
        row_Q = self._store.split_rows("test")
        return UnitScores(row_Q, rival.values(row_Q))

    def _scores(
        self, units: UnitScores, others: Mapping[str, float] = {}, value: float | None = None
    ) -> TaskScores:
        means = {
            _MEASURES[name]: float(value_Q.mean())
            for name, value_Q in units.value_by_measure.items()
            if name in _MEASURES and name != self._kind.measure
        }
        value_Q = units.value_by_measure[self._kind.measure]
        row_Q = units.unit_U.tolist()
        return TaskScores.of_means(row_Q, value_Q, {**means, **others}, value=value)

    @cached_property
    def _inputs(self) -> Sequence[str]:
        return self._store.texts(np.arange(self._store.num_rows))

    def _descriptions(self) -> Iterator[Features]:
        if not self._kind.on_texts:
            residues = one_hot(self._store)
            if residues is not None:
                yield residues
        yield tfidf(self._store)

    def _chance(self) -> dict[str, float]:
        """Return the score of a constant prediction; a constant number has no correlation."""
        if self._kind.labels == "number":
            return {}
        train, test = (
            self._store.targets(self._store.split_rows(split)) for split in ("train", "test")
        )
        value_by_measure = chance_scores(self._kind.labels, train, test)
        return {
            _MEASURES[name]: float(value_Q.mean()) for name, value_Q in value_by_measure.items()
        }

    @property
    def _kind(self) -> DownstreamTask:
        if self.labels not in TASKS:
            raise ConfigError(
                f"task {self.name}: labels {self.labels}, want one of {', '.join(TASKS)}."
                f"{did_you_mean(self.labels, TASKS)}"
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
