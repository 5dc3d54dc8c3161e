"""Fine-tuning of SPPT encoders on downstream tasks.

McDermott, Yap, Szolovits, Zitnik, "Structure-inducing pre-training", Tables 2 and 3: TAPE's tasks
on proteins (Rao et al. 2019) and SciBERT's tasks on texts (Beltagy et al. 2019). Heads and settings
are those of the authors' code.

Differences: a layer norm instead of TAPE's batch norm; numbers are standardized by training's mean
and deviation.
"""

import numpy as np
import torch
from torch import Tensor

from raybio.core.interfaces import System
from raybio.core.location import Location
from raybio.encoders.config import SCRATCH
from raybio.encoders.input_lengths import (
    InputLengths,
    check_rows_differ,
    text_lengths,
    with_equal_texts,
)
from raybio.encoders.text import check_text_encoder, text_reader
from raybio.methods.sppt.batches import TaskBatch
from raybio.methods.sppt.downstream.collate import TaskCollate
from raybio.methods.sppt.downstream.config import TASKS, Config
from raybio.methods.sppt.downstream.demo import SIMULATED_FOLDS
from raybio.methods.sppt.downstream.encoder import (
    TaskModel,
    head_kind,
    initial_task_model,
    protein_config,
    row_reader,
    text_config,
)
from raybio.methods.sppt.downstream.evaluate import TaskEvaluator
from raybio.methods.sppt.downstream.export import TaskHead, export_task_model
from raybio.methods.sppt.downstream.loss import TaskLoss
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.methods.sppt.proteins.encoder import check_protein_encoder
from raybio.methods.sppt.proteins.input_lengths import protein_lengths, with_equal_proteins
from raybio.store.store import open_store

DEMO_CORPUS = SIMULATED_FOLDS
"""The corpus it trains on if no store is given."""


def published_recipe(config: Config, store: TaskStore) -> str | None:
    """Return the name of the recipe with the paper's settings; None for a user's own task."""
    return None if TASKS[store.task].is_own else f"paper_{store.task}"


def check(config: Config, store: TaskStore) -> None:
    """Check, before anything starts, that encoder, head and input lengths fit the task.

    Raises:
        ConfigError: if the encoder's source is missing, encoder or head do not fit the task, or
            truncation makes most inputs equal.
    """
    if TASKS[store.task].on_texts:
        check_text_encoder(text_config(config))
    else:
        check_protein_encoder(protein_config(config))
    head_kind(config, store)
    for lengths in input_lengths(config, store):
        check_rows_differ(lengths)


def input_lengths(config: Config, store: TaskStore) -> list[InputLengths]:
    """Count the rows of all splits that the encoder truncates, and those that become equal.

    Raises:
        ConfigError: if the encoder's source cannot be read.
    """
    max_length = config.encoder.max_length
    if TASKS[store.task].on_texts:
        reader = text_reader(text_config(config), count_by_word=store.count_by_word)
        rows = np.arange(store.num_rows)
        texts = text_lengths("texts", store.texts, rows, reader, max_length=max_length)
        return [with_equal_texts(texts, store.texts, rows, reader)]
    proteins = protein_lengths(store, protein_config(config), max_length, "encoder.max_length")
    return [with_equal_proteins(proteins, store)]


def steps_per_epoch(config: Config, store: TaskStore) -> float:
    """Return the steps in which every training row occurs once."""
    return len(store.split_rows("train")) / config.plan.global_batch_rows


def build(config: Config, store_path: str | Location) -> System:
    """Wire fine-tuning over a prepared task.

    Raises:
        StoreError: if the store is missing, damaged or of another kind.
        ConfigError: if the encoder cannot be loaded, or the head does not fit the task.
    """
    store = open_store(store_path, TaskStore)
    model = initial_task_model(config, store)
    read, fingerprint = row_reader(config, store, model)
    collate = TaskCollate(store, config.plan, read, config.seed)
    loss = _loss(model, store)
    evaluator = TaskEvaluator(config, store, read, loss)
    head = TaskHead(
        task=store.task,
        labels=loss.labels,
        kind=head_kind(config, store),
        class_names=tuple(store.class_names),
        center=loss.center,
        scale=loss.scale,
        on_texts=TASKS[store.task].on_texts,
        max_length=config.encoder.max_length,
    )
    return System(
        name="finetune",
        model=model,
        objective=loss,
        batch_type=TaskBatch,
        collate=collate,
        steps_per_epoch=collate.steps_per_epoch,
        evaluate=evaluator.evaluate_during_training,
        final_evaluate=evaluator.final_report,
        export=lambda folder, card: export_task_model(model, head, folder, card=card),
        data_digest=f"{store.digest} read as {fingerprint}",
        is_pretrained=config.encoder.source != SCRATCH,
        is_supervised=True,
    )


def _loss(model: TaskModel, store: TaskStore) -> TaskLoss:
    labels = TASKS[store.task].labels
    constant_scores_C = _constant_scores(store)
    if labels != "number":
        return TaskLoss(model.head, labels, constant_scores_C=constant_scores_C)
    train_N = store.targets(store.split_rows("train"))
    center = float(train_N.mean())
    scale = float(train_N.std()) or 1.0
    return TaskLoss(model.head, labels, center, scale, constant_scores_C)


def _constant_scores(store: TaskStore) -> Tensor:
    """Return the constant scores (C,) with the least loss for the training labels, on the CPU."""
    labels = TASKS[store.task].labels
    train_N = store.split_rows("train")
    if labels == "number":
        return torch.zeros(1)  # the center
    if labels == "class_set":
        share_C = torch.from_numpy(store.targets(train_N).mean(axis=0))
        # A class of no row, or of all rows, would have infinite scores.
        return share_C.logit(eps=1e-9).float()
    class_N = store.residue_classes(train_N) if labels == "residues" else store.targets(train_N)
    num_C = np.bincount(class_N, minlength=len(store.class_names))
    # The logarithms of the shares, up to a constant.
    return torch.from_numpy(num_C).log()
