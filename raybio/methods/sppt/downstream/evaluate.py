"""Evaluation of a fine-tuned model on the rows of dev and test.

Shape letters: N rows, R rows of a micro-batch, T tokens, L padded length, C classes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raybio.core.arrays import Floats
from raybio.core.batch import IGNORED_LABEL, PaddedTokens, Tokens
from raybio.core.final_report import Stage, UnitScores
from raybio.core.interfaces import Collective, Encoded, Encoder
from raybio.evaluation.evaluator import (
    RIVAL_SEED,
    Evaluator,
    ModelScores,
    bootstrap_seed,
    exact_scores,
)
from raybio.evaluation.unit_scores import sample_units
from raybio.methods.sppt.collate import ReadRows, unmasked
from raybio.methods.sppt.downstream.collate import read_labeled
from raybio.methods.sppt.downstream.config import TASKS, THRESHOLD, Config
from raybio.methods.sppt.downstream.encoder import TaskModel, initial_task_model
from raybio.methods.sppt.downstream.loss import TaskLoss
from raybio.methods.sppt.downstream.residue_rivals import residue_rivals, residue_states
from raybio.methods.sppt.downstream.rivals import TaskRival, sequence_rivals
from raybio.methods.sppt.downstream.scores import (
    NAMES,
    chance_scores,
    row_scores,
    token_scores,
)
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.methods.sppt.scores import LIMITS, with_intervals
from raybio.ops.embedding_geometry import spread_metrics
from raybio.training.embed import embed_rows

MIN_NEW_ROWS = 20
"""Test rows that are not in training get a separate split if there are at least this many."""


class RowScores(NamedTuple):
    """Scores of a model on some rows.

    Attributes:
        value_by_measure: contribution of each row (N,); ``score`` is the task's measure.
        log_likelihood: mean over rows, or over labeled tokens; as ``TaskLoss.losses``.
        spread: spread of the embeddings; empty in a task on residues, which trains none.
    """

    value_by_measure: dict[str, Floats]
    log_likelihood: float
    spread: dict[str, float]


@dataclass(frozen=True)
class TaskEvaluator(Evaluator):
    """Evaluates a model on the rows of dev and test.

    Attributes:
        config: the run's settings.
        store: the task.
        read: reader of rows as tokens.
        loss: the training loss, for its labels and scale.
    """

    config: Config
    store: TaskStore
    read: ReadRows
    loss: TaskLoss

    def evaluate_during_training(
        self, model: Encoder, collective: Collective
    ) -> Mapping[str, float]:
        """Return ``val/score``, ``val/log_likelihood`` and more on dev."""
        assert isinstance(model, TaskModel)
        scores = self._score_rows(model, self.store.split_rows("dev"), collective)
        metrics = {
            f"val/{name}": float(value_N.mean())
            for name, value_N in scores.value_by_measure.items()
        }
        return metrics | {"val/log_likelihood": scores.log_likelihood} | scores.spread

    def initial_encoder(self) -> Encoder:
        """Return the initial encoder with a new head."""
        return initial_task_model(self.config, self.store)

    def score(self, model: Encoder, collective: Collective, stage: Stage) -> ModelScores:
        """Score dev, test and, if enough test rows are not in training, those as ``new_test``."""
        assert isinstance(model, TaskModel)
        seed = bootstrap_seed(self.config.seed)
        scores: dict[str, Any] = {}
        chance: dict[str, Any] = {}
        unit_scores: dict[str, UnitScores] = {}
        spread: dict[str, float] = {}
        for split, row_N in self._rows_by_split.items():
            row_scores = self._score_rows(model, row_N, collective)
            value_by_measure = row_scores.value_by_measure
            scores[split] = with_intervals(value_by_measure, seed, self._limits)
            chance[split] = self._chance(row_N)
            unit_scores[split] = sample_units(row_N, value_by_measure)
            spread = row_scores.spread
        return ModelScores(scores=scores, chance=chance, spread=spread, unit_scores=unit_scores)

    def rivals(self, device: Any, collective: Collective) -> Iterator[tuple[Stage, ModelScores]]:
        """Score rivals that need no training of an encoder, unless the settings exclude them."""
        if not self.config.evaluation.rivals:
            return
        chance = {split: self._chance(row_N) for split, row_N in self._rows_by_split.items()}
        for rival in self._rivals(device, collective):
            scores = {}
            unit_scores = {}
            for split, row_N in self._rows_by_split.items():
                value_by_measure = self._with_score(rival.values(row_N))
                unit_scores[split] = sample_units(row_N, value_by_measure)
                scores[split] = with_intervals(value_by_measure, RIVAL_SEED, self._limits)
            details = {"rivals": dict(rival.settings)}
            yield (
                rival.name,
                ModelScores(scores=scores, chance=chance, details=details, unit_scores=unit_scores),
            )

    def sizes(self) -> Mapping[str, str]:
        """Return the measure and the number of rows, for the titles of tables."""
        return {
            split: f"{self._measure_name} of {len(row_N):,} rows"
            for split, row_N in self._rows_by_split.items()
        }

    def details(self) -> Mapping[str, Any]:
        """Return the task's measure and the number of truncated labels of test rows."""
        return {
            "measure": TASKS[self.store.task].measure,
            "test_labels_not_read": self._num_truncated_test_labels(),
        }

    def remarks(self) -> Sequence[str]:
        """Return a remark on the measure that is the task's score."""
        return (f"score of {self.store.task}: {self._measure_name}",)

    @property
    def _measure_name(self) -> str:
        return NAMES[TASKS[self.store.task].measure]

    def _rivals(self, device: Any, collective: Collective) -> Iterator[TaskRival]:
        model = initial_task_model(self.config, self.store).to(device)
        max_tokens = self.config.memory.max_tokens_per_micro_batch
        if model.on_tokens:

            def states(row_R: np.ndarray) -> np.ndarray:
                return residue_states(
                    self.store, self.read, model.encoder, row_R, max_tokens, collective
                )

            return residue_rivals(self.store, self.read, states)
        embedding_ND = embed_rows(
            model,
            partial(unmasked, self.read),
            np.arange(self.store.num_rows),
            collective,
            max_tokens=max_tokens,
        )
        return sequence_rivals(self.store, embedding_ND.cpu().numpy())

    @cached_property
    def _rows_by_split(self) -> dict[str, np.ndarray]:
        rows = {split: self.store.split_rows(split) for split in ("dev", "test")}
        new = self.store.new_rows("test")
        if MIN_NEW_ROWS <= len(new) < len(rows["test"]):
            rows["new_test"] = new
        return rows

    def _score_rows(self, model: TaskModel, row_N: np.ndarray, collective: Collective) -> RowScores:
        was_training = model.training
        model.eval()
        if model.on_tokens:
            scores = self._score_tokens(model, row_N, collective)
        else:
            scores = self._score_sequences(model, row_N, collective)
        model.train(was_training)
        return scores._replace(value_by_measure=self._with_score(scores.value_by_measure))

    @property
    def _limits(self) -> dict[str, tuple[float, float]]:
        return LIMITS | {"score": LIMITS[TASKS[self.store.task].measure]}

    def _with_score(self, value_by_measure: dict[str, Floats]) -> dict[str, Floats]:
        """Return the scores with the task's measure as ``score``, too."""
        return value_by_measure | {"score": value_by_measure[TASKS[self.store.task].measure]}

    def _score_tokens(
        self, model: TaskModel, row_N: np.ndarray, collective: Collective
    ) -> RowScores:
        counts_N3 = embed_rows(
            _TokenCounts(model),
            partial(read_labeled, self.store, self.read),
            row_N,
            collective,
            max_tokens=self.config.memory.max_tokens_per_micro_batch,
        )
        correct_N, labeled_N, loss_N = counts_N3.cpu().double().T
        likelihood = -float(loss_N.sum() / labeled_N.sum().clamp(min=1))
        return RowScores(token_scores(correct_N.numpy(), labeled_N.numpy()), likelihood, {})

    def _score_sequences(
        self, model: TaskModel, row_N: np.ndarray, collective: Collective
    ) -> RowScores:
        gold = self.store.targets(row_N)
        with torch.no_grad():
            embedding_ND = embed_rows(
                model,
                partial(unmasked, self.read),
                row_N,
                collective,
                max_tokens=self.config.memory.max_tokens_per_micro_batch,
            )
            spread = spread_metrics(embedding_ND)
            scores_NC = model.head(embedding_ND)
            target = torch.from_numpy(gold.copy()).to(scores_NC.device)
            losses_N = replace(self.loss, head=model.head).losses(scores_NC, target)
        likelihood = -float(losses_N.double().mean())
        value_by_measure = row_scores(self.loss.labels, self._predictions(scores_NC), gold)
        return RowScores(value_by_measure, likelihood, spread)

    def _predictions(self, scores_NC: Tensor) -> np.ndarray:
        """Return predictions in the format of ``TaskStore.targets``."""
        if self.loss.labels == "class":
            return scores_NC.argmax(1).cpu().numpy()
        scores_NC = scores_NC.double().cpu()
        if self.loss.labels == "class_set":
            return (scores_NC.sigmoid() >= THRESHOLD).numpy()
        return scores_NC[:, 0].numpy() * self.loss.scale + self.loss.center

    def _chance(self, row_N: np.ndarray) -> dict[str, dict[str, float]]:
        """Return the scores of a constant prediction."""
        task = TASKS[self.store.task]
        train_N = self.store.split_rows("train")
        if task.labels == "residues":
            value_by_measure = self._token_chance(row_N, train_N)
        else:
            train = self.store.targets(train_N)
            value_by_measure = chance_scores(task.labels, train, self.store.targets(row_N))
        means = {name: float(value_N.mean()) for name, value_N in value_by_measure.items()}
        return exact_scores(means | {"score": means[task.measure]})

    def _token_chance(self, row_N: np.ndarray, train_N: np.ndarray) -> dict[str, Floats]:
        """Return the scores of predicting training's most frequent class for all residues."""
        most_frequent = np.bincount(self.store.residue_classes(train_N)).argmax()
        batch = read_labeled(self.store, self.read, row_N)
        label_T = batch.label_T.numpy()
        number_T = np.repeat(np.arange(len(row_N)), np.diff(batch.indptr_R1.numpy()))
        correct_N = np.bincount(number_T, label_T == most_frequent, minlength=len(row_N))
        labeled_N = np.bincount(number_T, label_T != IGNORED_LABEL, minlength=len(row_N))
        return token_scores(correct_N.astype(np.float64), labeled_N.astype(np.float64))

    def _num_truncated_test_labels(self) -> int:
        """Return the number of labeled test residues beyond the encoder's maximum length."""
        if TASKS[self.store.task].labels != "residues":
            return 0
        row_N = self.store.split_rows("test")
        is_labeled_T = self.store.class_T >= 0
        num_labels = int((is_labeled_T & np.isin(self._row_of_residue_T, row_N)).sum())
        label_T = read_labeled(self.store, self.read, row_N).label_T
        return num_labels - int((label_T != IGNORED_LABEL).sum())

    @property
    def _row_of_residue_T(self) -> np.ndarray:
        return np.repeat(np.arange(self.store.num_rows), np.diff(self.store.indptr_N1))


class _TokenCounts(Encoder):
    """Returns as embedding of a sequence: correct tokens, labeled tokens, sum of their losses.

    This lets ``embed_rows`` divide the rows among workers and micro-batches.
    """

    packing = False

    def __init__(self, model: TaskModel) -> None:
        super().__init__()
        self.model = model
        self.width = 3
        self.pad_id = model.pad_id

    def forward(self, tokens: Tokens) -> Encoded:
        assert isinstance(tokens, PaddedTokens)
        scores_RLC = self.model(tokens).hidden_RLD
        is_label_RL = tokens.label_RL != IGNORED_LABEL
        is_correct_RL = (scores_RLC.argmax(2) == tokens.label_RL) & is_label_RL
        loss_RL = F.cross_entropy(scores_RLC.transpose(1, 2), tokens.label_RL, reduction="none")
        counts_R3 = torch.stack([is_correct_RL.sum(1), is_label_RL.sum(1), loss_RL.sum(1)], 1)
        return Encoded(scores_RLC, counts_R3.float())

    def token_logits(self, hidden_KD: Tensor) -> Tensor:
        return hidden_KD
