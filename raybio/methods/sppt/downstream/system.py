"""Fine-tuning on downstream tasks: what pre-training on a graph is good for (facts §5.2).

McDermott, Yap, Szolovits, Zitnik: "Structure-inducing pre-training", Tables 2 and 3: TAPE's tasks on proteins (Rao et
al., 2019) and SciBERT's on texts (Beltagy et al., 2019). Heads and settings are those of the authors' code.

Different from it: a layer norm for TAPE's batch norm, numbers are standardised by those of training, and the weights
of the best evaluation on dev are kept inside the checkpoints, so that a run that was killed ends alike.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raybio.core.batch import IGNORED_LABEL, PaddedTokens
from raybio.core.final_report import FinalReport, Stage, UnitScores
from raybio.core.interfaces import Collective, Encoded, Encoder, System
from raybio.core.randomness import derive_seed
from raybio.encoders.checkpoints import check_source
from raybio.encoders.config import SCRATCH, ClsTextEncoderConfig
from raybio.encoders.export import export_text_encoder
from raybio.encoders.input_lengths import (
    InputLengths,
    check_rows_differ,
    text_lengths,
    with_equal_texts,
)
from raybio.encoders.text import TextEncoder, build_text_encoder, text_reader
from raybio.encoders.tokenization import TokenizerSource
from raybio.evaluation.evaluator import Evaluator, ModelScores, bootstrap_seed, exact_scores
from raybio.methods.sppt.articles.collate import TextRows
from raybio.methods.sppt.batches import TaskBatch
from raybio.methods.sppt.collate import ReadRows, unmasked
from raybio.methods.sppt.downstream.config import TASKS, Config, HeadKind
from raybio.methods.sppt.downstream.demo import default_task
from raybio.methods.sppt.downstream.model import TaskLabels, TaskModel, build_head, settled_head
from raybio.methods.sppt.downstream.scores import (
    Floats,
    of_classes,
    of_numbers,
    of_tokens,
    units,
    with_intervals,
)
from raybio.methods.sppt.downstream.store import TaskCollate, TaskStore, read_labelled
from raybio.methods.sppt.proteins.checkpoint import check_protein_source
from raybio.methods.sppt.proteins.collate import ProteinRows, TokenTable
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import ProteinEncoder, build_protein_encoder
from raybio.methods.sppt.proteins.export import export_encoder
from raybio.methods.sppt.proteins.input_lengths import protein_lengths, with_equal_proteins
from raybio.ops.spread import spread_metrics
from raybio.store.store import open_store
from raybio.training.embed import embed_rows

MIN_NEW_ROWS = 20
"""Test rows that training has not are scored apart from so many on."""


STORE = TaskStore
"""The class of the stores that it trains on."""


def prepare_demo(directory: str | Path) -> Path:
    """The embedded default task as a prepared store inside ``directory``; made on the first call."""
    return default_task(directory).path


def check(config: Config, store: TaskStore) -> None:
    """Refuse what can be known to fail before anything starts.

    Raises:
        ConfigError: if the encoder's source is not there, encoder or head are not for the task, or most inputs are
            equal to others where they are cut.
    """
    checked = check_source if TASKS[store.task].on_texts else check_protein_source
    checked(config.encoder.source, config.encoder.revision)
    _head_kind(config, store)
    for one in input_lengths(config, store):
        check_rows_differ(one)


def input_lengths(config: Config, store: TaskStore) -> list[InputLengths]:
    """Count the rows, of all splits, that are longer than what the encoder reads; and those that the cut makes equal.

    Raises:
        ConfigError: if the encoder's source cannot be read.
    """
    wanted = config.encoder.max_length
    if TASKS[store.task].on_texts:
        reader = text_reader(_text_config(config), count_by_word=store.count_by_word)
        rows = np.arange(store.num_rows)
        texts = text_lengths("texts", store.texts, rows, reader, max_length=wanted)
        return [with_equal_texts(texts, store.texts, rows, reader)]
    proteins = protein_lengths(store, _protein_config(config), wanted, "encoder.max_length")
    return [with_equal_proteins(proteins, store)]


def build(config: Config, store_path: str | Path) -> System:
    """Wire fine-tuning over a prepared task.

    Raises:
        StoreError: if the store is missing, damaged or of another kind.
        ConfigError: if the encoder cannot be loaded, or the head is not for the task.
    """
    store = open_store(store_path, TaskStore)
    model = _fresh(config, store)
    read, fingerprint = _reader(config, store, model)
    collate = TaskCollate(store, config.plan, read, config.seed)
    train_N = store.target_N[store.split_rows("train")]
    is_number = TASKS[store.task].labels == "number"
    scale = (
        {"centre": float(train_N.mean()), "scale": float(train_N.std()) or 1.0} if is_number else {}
    )
    objective = TaskLabels(model.head, TASKS[store.task].labels, **scale)
    evaluator = TaskEvaluator(config, store, read, objective)
    return System(
        name="finetune",
        model=model,
        objective=objective,
        batch_type=TaskBatch,
        collate=collate,
        steps_per_epoch=collate.steps_per_epoch,
        evaluate=evaluator.evaluate_during_training,
        final_evaluate=evaluator.final_report,
        export=lambda folder, card: _export(model, folder, card, config.encoder.max_length),
        data_digest=f"{store.digest} read as {fingerprint}",
        is_pretrained=config.encoder.source != SCRATCH,
        is_supervised=True,
    )


def _head_kind(config: Config, store: TaskStore) -> HeadKind:
    task = TASKS[store.task]
    return settled_head(
        config.encoder.head, on_tokens=task.labels == "residues", on_texts=task.on_texts
    )


def _fresh(config: Config, store: TaskStore) -> TaskModel:
    """Encoder and head as training begins with them."""
    task, seed = TASKS[store.task], derive_seed(config.seed, "weights")
    encoder: Encoder
    if task.on_texts:
        encoder = build_text_encoder(
            _text_config(config), seed=seed, count_by_word=store.count_by_word
        )
    else:
        encoder = build_protein_encoder(_protein_config(config), seed=seed)
        _leave_language_model(encoder)
    on_tokens = task.labels == "residues"
    head = build_head(
        _head_kind(config, store),
        encoder.width,
        max(1, len(store.class_names)),
        on_tokens=on_tokens,
        seed=derive_seed(config.seed, "head"),
    )
    dropout = config.encoder.dropout if task.on_texts else 0.0  # TAPE's heads have none before them
    return TaskModel(encoder, head, on_tokens=on_tokens, dropout=dropout).train()


def _text_config(config: Config) -> ClsTextEncoderConfig:
    own = config.encoder.to_mapping()
    sizes = {
        "max_length": own["max_length"],
        "vocabulary_size": own["vocabulary_size"],
        "normalise": False,
    }
    return ClsTextEncoderConfig.from_mapping(_shared_settings(own) | sizes)


def _protein_config(config: Config) -> EncoderConfig:
    own = config.encoder.to_mapping()
    return EncoderConfig.from_mapping(_shared_settings(own) | {"max_positions": own["max_length"]})


def _shared_settings(own: Mapping[str, Any]) -> dict[str, Any]:
    names = ("source", "revision", "num_layers", "width", "num_heads", "ffn_width")
    return {name: own[name] for name in (*names, "recompute_activations", "dropout", "pooling")}


def _leave_language_model(encoder: ProteinEncoder) -> None:
    """Its head takes no part in a task; frozen, no optimiser waits for it. Tied word embeddings are the encoder's."""
    used = {id(weight) for weight in encoder.model.base_model.parameters()}
    for weight in encoder.model.parameters():
        if id(weight) not in used:
            weight.requires_grad_(False)


def _reader(config: Config, store: TaskStore, model: TaskModel) -> tuple[ReadRows, str]:
    """What makes tokens of rows, and what tells it from others."""
    encoder = model.encoder
    if isinstance(encoder, ProteinEncoder):
        longest = min(config.encoder.max_length, encoder.max_tokens)
        return ProteinRows(
            store, TokenTable.of(encoder.vocabulary), longest
        ), encoder.vocabulary.fingerprint
    assert isinstance(encoder, TextEncoder)
    source = TokenizerSource.of(encoder.tokenizer)
    tokenise = partial(source.tokenise, max_length=encoder.max_tokens)
    return TextRows(
        store, tokenise, -1, source.special_ids, np.empty(0, np.int64)
    ), source.fingerprint


def _export(model: TaskModel, folder: Path, card: Mapping[str, Any], max_length: int) -> Path:
    """The encoder, for programs that do not know raybio; its head is not part of it.

    Of a finished run ``TaskEvaluator.final_report`` has put the best weights there; training goes on after the export of a trial.
    """
    if isinstance(model.encoder, ProteinEncoder):
        return export_encoder(model.encoder, folder, card=card, max_tokens=max_length)
    assert isinstance(model.encoder, TextEncoder)
    return export_text_encoder(model.encoder, folder, card=card)


class _TokenScores(Encoder):
    """Of each sequence: tokens told right, labelled tokens, and the sum of their losses."""

    def __init__(self, model: TaskModel) -> None:
        super().__init__()
        self.model, self.width, self.pad_id = model, 3, model.pad_id

    def forward(self, tokens: PaddedTokens) -> Encoded:
        scores_RLC = self.model(tokens).hidden_RLD
        is_label_RL = tokens.label_RL != IGNORED_LABEL
        right_RL = (scores_RLC.argmax(2) == tokens.label_RL) & is_label_RL
        loss_RL = F.cross_entropy(scores_RLC.transpose(1, 2), tokens.label_RL, reduction="none")
        told_R3 = torch.stack([right_RL.sum(1), is_label_RL.sum(1), loss_RL.sum(1)], 1)
        return Encoded(scores_RLC, told_R3.float())

    def token_logits(self, hidden_KD: Tensor) -> Tensor:
        return hidden_KD


@dataclass(frozen=True)
class TaskEvaluator(Evaluator):
    """A model on the rows of dev and test."""

    config: Config
    store: TaskStore
    read: ReadRows
    objective: TaskLabels

    def evaluate_during_training(
        self, model: Encoder, collective: Collective
    ) -> Mapping[str, float]:
        """Return ``val/score``, ``val/log_likelihood`` and more on dev; keep weights of the best likelihood."""
        assert isinstance(model, TaskModel)
        found, log_likelihood, spread = self._told(model, self.store.split_rows("dev"), collective)
        model.keep_if_best(log_likelihood)
        means = {f"val/{name}": float(value_N.mean()) for name, value_N in found.items()}
        return means | {"val/log_likelihood": log_likelihood} | spread

    def initial_encoder(self) -> Encoder:
        """Return the initial encoder with a fresh head."""
        return _fresh(self.config, self.store)

    def final_report(self, model: Encoder, collective: Collective) -> FinalReport:
        """Evaluate the weights that were best on dev, and leave them in the model."""
        assert isinstance(model, TaskModel)
        model.take_best()
        return super().final_report(model, collective)

    def score(self, model: Encoder, collective: Collective, stage: Stage) -> ModelScores:
        """Score dev, test and, where enough test rows are not in training too, those alone (``new_test``)."""
        assert isinstance(model, TaskModel)
        seed = bootstrap_seed(self.config.seed)
        are_shares = self.objective.labels != "number"
        scores: dict[str, Any] = {}
        chance: dict[str, Any] = {}
        unit_scores: dict[str, UnitScores] = {}
        spread: dict[str, float] = {}
        for split, row_N in self._rows.items():
            found, _, spread = self._told(model, row_N, collective)
            scores[split] = with_intervals(found, seed, are_shares=are_shares)
            chance[split] = self._chance(row_N)
            unit_scores[split] = units(row_N, found)
        return ModelScores(scores=scores, chance=chance, spread=spread, unit_scores=unit_scores)

    def details(self) -> Mapping[str, Any]:
        """Return the measure of the task, and how many labels of test rows lie beyond the encoder's input."""
        return {
            "measure": TASKS[self.store.task].measure,
            "test_labels_not_read": self._not_read("test"),
        }

    @cached_property
    def _rows(self) -> dict[str, np.ndarray]:
        """Store rows of each split."""
        rows = {split: self.store.split_rows(split) for split in ("dev", "test")}
        new = self.store.new_rows("test")
        if MIN_NEW_ROWS <= len(new) < len(rows["test"]):
            rows["new_test"] = new
        return rows

    def _chance(self, row_N: np.ndarray) -> dict[str, dict[str, float]]:
        """Return the scores of a constant prediction: the most frequent class, or the mean number, of training."""
        task, train_N = TASKS[self.store.task], self.store.split_rows("train")
        if task.labels == "number":
            mean = float(self.store.target_N[train_N].mean())
            found = of_numbers(np.full(len(row_N), mean), self.store.target_N[row_N])
        elif task.labels == "class":
            commonest = np.bincount(self.store.target_N[train_N].astype(np.int64)).argmax()
            gold_N = self.store.target_N[row_N].astype(np.int64)
            found = of_classes(np.full_like(gold_N, commonest), gold_N)
        else:
            of_row_T = np.repeat(np.arange(self.store.num_rows), np.diff(self.store.indptr_N1))
            label_T = self.store.class_T[np.isin(of_row_T, train_N)].astype(np.int64)
            commonest = np.bincount(label_T[label_T >= 0]).argmax()
            batch = read_labelled(self.store, self.read, row_N)
            read_T = batch.label_T.numpy()
            number_T = np.repeat(np.arange(len(row_N)), np.diff(batch.indptr_R1.numpy()))
            right_N = np.bincount(number_T, read_T == commonest, minlength=len(row_N)).astype(
                np.float64
            )
            labelled_N = np.bincount(
                number_T, read_T != IGNORED_LABEL, minlength=len(row_N)
            ).astype(np.float64)
            found = of_tokens(right_N, labelled_N)
        means = {name: float(value_N.mean()) for name, value_N in found.items()}
        return exact_scores(means | {"score": means[task.measure]})

    def _not_read(self, split: str) -> int:
        """Labelled residues that lie beyond what the encoder reads of their proteins."""
        if TASKS[self.store.task].labels != "residues":
            return 0
        row_N = self.store.split_rows(split)
        of_row = np.repeat(np.arange(self.store.num_rows), np.diff(self.store.indptr_N1))
        labelled = int(((self.store.class_T >= 0) & np.isin(of_row, row_N)).sum())
        return labelled - int(
            (read_labelled(self.store, self.read, row_N).label_T != IGNORED_LABEL).sum()
        )

    def _told(
        self, model: TaskModel, row_N: np.ndarray, collective: Collective
    ) -> tuple[dict[str, Floats], float, dict[str, float]]:
        """Return what each row adds to the scores, the mean log-likelihood, and the spread of the embeddings.

        The log-likelihood is that of ``TaskLabels.losses``. Where tokens have classes, no embedding is trained, and
        nothing is said of its spread.
        """
        spread: dict[str, float] = {}
        max_tokens = self.config.memory.max_tokens_per_micro_batch
        embed: Callable[..., Tensor] = partial(
            embed_rows, collective=collective, max_tokens=max_tokens
        )
        was_training = model.training
        model.eval()
        if model.on_tokens:
            told_N3 = (
                embed(_TokenScores(model), partial(read_labelled, self.store, self.read), row_N)
                .cpu()
                .double()
            )
            found = of_tokens(told_N3[:, 0].numpy(), told_N3[:, 1].numpy())
            likelihood = -float(told_N3[:, 2].sum() / told_N3[:, 1].sum().clamp(min=1))
        else:
            with torch.no_grad():
                embedding_ND = embed(model, partial(unmasked, self.read), row_N)
                spread = spread_metrics(embedding_ND)
                scores_NC = model.head(embedding_ND)
                target_N = torch.from_numpy(self.store.target_N[row_N].copy()).to(scores_NC.device)
                losses_N = self._losses(model)(scores_NC, target_N)
            likelihood = -float(losses_N.double().mean())
            gold_N = self.store.target_N[row_N]
            if self.objective.labels == "class":
                found = of_classes(scores_NC.argmax(1).cpu().numpy(), gold_N.astype(np.int64))
            else:
                told_N = (
                    scores_NC[:, 0].double().cpu().numpy() * self.objective.scale
                    + self.objective.centre
                )
                found = of_numbers(told_N, gold_N)
        model.train(was_training)
        return found | {"score": found[TASKS[self.store.task].measure]}, likelihood, spread

    def _losses(self, model: TaskModel) -> Callable[[Tensor, Tensor], Tensor]:
        return TaskLabels(
            model.head, self.objective.labels, self.objective.centre, self.objective.scale
        ).losses
