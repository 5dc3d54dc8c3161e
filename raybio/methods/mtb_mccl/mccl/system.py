"""Relation extraction: wiring of fine-tuning with MCCL, CE or SupCon (Zhou et al., 2023)."""

import torch
from torch import Tensor

from raybio.core.errors import ConfigError
from raybio.core.interfaces import System
from raybio.core.location import Location
from raybio.encoders.config import SCRATCH
from raybio.encoders.input_lengths import InputLengths
from raybio.encoders.tokenization import OffsetTokenizer
from raybio.methods.mtb_mccl.batches import LabeledDocumentBatch
from raybio.methods.mtb_mccl.documents.collate import DocumentReader
from raybio.methods.mtb_mccl.documents.demo import SIMULATED_DOCUMENTS
from raybio.methods.mtb_mccl.documents.input_lengths import document_lengths
from raybio.methods.mtb_mccl.documents.markers import Markers
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.encoder import check_relation_encoder
from raybio.methods.mtb_mccl.mccl.collate import RelationCollate
from raybio.methods.mtb_mccl.mccl.config import Config
from raybio.methods.mtb_mccl.mccl.evaluate import (
    RelationEvaluator,
    head_of,
    initial_encoder,
)
from raybio.methods.mtb_mccl.mccl.labeled_pairs import LabeledPairs, labeled_pairs
from raybio.methods.mtb_mccl.mccl.objective import RelationObjective
from raybio.store.store import SPLITS, open_store

DEMO_CORPUS = SIMULATED_DOCUMENTS
"""The corpus it trains on if no store is given."""


def published_recipe(config: Config, store: DocumentStore) -> str:
    """Return the name of the recipe for the store's kind of documents: DocRED has ordered pairs."""
    return "paper_docred" if store.is_directed else "paper_biored"


def check(config: Config, store: DocumentStore) -> None:
    """Check settings and store before anything starts.

    Raises:
        ConfigError: if the encoder's source is unusable, or training or evaluated documents have no
            relation.
    """
    check_relation_encoder(config.encoder)
    if len(store.relation_names) < 2:
        raise ConfigError(
            f"{store.location}: its training documents have no relation; want some to learn from"
        )
    if config.schedule.has_evaluations and not len(store.split_rows("dev")):
        raise ConfigError(
            f"{store.location}: has no validation documents, which choose the number of neighbors. "
            "Prepare it with --dev or --dev-share, or train with schedule.evaluate_every_steps=0"
        )
    # Without validation documents, nothing is evaluated.
    splits = SPLITS if len(store.split_rows("dev")) else ("train",)
    for split in splits:
        if len(store.split_rows(split)):
            labeled_pairs(store, split, config.data.label_fraction, config.seed).check()
    if config.schedule.has_evaluations:
        dev = labeled_pairs(store, "dev", config.data.label_fraction, config.seed)
        dev.sampled(config.evaluation.max_documents).check()


def input_lengths(config: Config, store: DocumentStore) -> list[InputLengths]:
    """Count the documents that are truncated."""
    return [document_lengths(store, config.encoder)]


def steps_per_epoch(config: Config, store: DocumentStore) -> float:
    """Return the steps in which every document with a labeled pair occurs once."""
    labeled = labeled_pairs(store, "train", config.data.label_fraction, config.seed)
    return len(labeled.rows) / config.plan.global_batch_rows


def build(config: Config, store_path: str | Location) -> System:
    """Wire relation extraction over a prepared store of documents.

    Raises:
        StoreError: if the store is missing, damaged or of another kind.
        ConfigError: if the encoder cannot be loaded, or no training pair keeps its label.
    """
    store = open_store(store_path, DocumentStore)
    encoder = initial_encoder(config, store)
    tokenizer = OffsetTokenizer.of(encoder.text.tokenizer)
    reader = DocumentReader(
        store, tokenizer, Markers(**encoder.markers), config.encoder.max_document_tokens
    )
    evaluator = RelationEvaluator(config, reader)
    is_coarse = config.data.is_coarse
    labeled = evaluator.labeled("train")
    collate = RelationCollate(reader, labeled, config.plan, config.seed, is_coarse)
    has_dev = len(store.split_rows("dev")) > 0
    # Coarse labels are single labels, however many relations a pair has.
    is_multi_label = store.is_multi_label and not is_coarse
    head = head_of(encoder)
    constant_logits_C = None
    if head.classifier is not None:
        constant_logits_C = _constant_logits(labeled, is_coarse)
    return System(
        name="relation_finetune",
        model=encoder,
        objective=RelationObjective(config.objective, head, is_multi_label, constant_logits_C),
        batch_type=LabeledDocumentBatch,
        collate=collate,
        steps_per_epoch=collate.steps_per_epoch,
        evaluate=evaluator.evaluate_during_training if has_dev else None,
        final_evaluate=evaluator.final_report if has_dev else None,
        export=lambda folder, card: evaluator.export(encoder, folder, card),
        data_digest=f"{store.digest} read as {tokenizer.fingerprint}",
        is_pretrained=config.encoder.source != SCRATCH,
        is_supervised=True,
    )


def _constant_logits(labeled: LabeledPairs, is_coarse: bool) -> Tensor:
    """Return the constant logits (C,) with the least loss for the training labels, on the CPU.

    These are the logarithms of the classes' shares, up to a constant. With several relations a
    pair, their loss is only near the least one: above it by 0.3 % if half of the pairs are NA, by
    less than 0.01 % if nine in ten are, and by 4 to 27 % with fewer than a fifth.
    """
    num_C = torch.from_numpy(labeled.class_counts())
    if is_coarse:
        num_C = torch.stack([num_C[0], labeled.num_pairs - num_C[0]])
    return num_C.log()
