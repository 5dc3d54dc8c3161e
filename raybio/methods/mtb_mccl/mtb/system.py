"""MTB: wiring of pre-training on documents with known entities (Zhou et al., 2023, Section 3.2)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raybio.core.errors import ConfigError
from raybio.core.interfaces import System
from raybio.core.location import Location
from raybio.core.randomness import derive_seed
from raybio.encoders.config import SCRATCH
from raybio.encoders.input_lengths import InputLengths
from raybio.encoders.tokenization import OffsetTokenizer
from raybio.methods.mtb_mccl.batches import TwinDocumentBatch
from raybio.methods.mtb_mccl.documents.collate import DocumentReader
from raybio.methods.mtb_mccl.documents.demo import SIMULATED_DOCUMENTS
from raybio.methods.mtb_mccl.documents.input_lengths import document_lengths
from raybio.methods.mtb_mccl.documents.markers import Markers
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.encoder import RelationEncoder, check_relation_encoder
from raybio.methods.mtb_mccl.export import export_relation_encoder
from raybio.methods.mtb_mccl.mtb.collate import BlankCollate
from raybio.methods.mtb_mccl.mtb.config import Config
from raybio.methods.mtb_mccl.mtb.evaluate import (
    PairRetrievalEvaluator,
    initial_encoder,
    split_queries,
)
from raybio.methods.mtb_mccl.mtb.loss import MatchingTheBlanks
from raybio.methods.mtb_mccl.mtb.plan import DocumentPairPlan
from raybio.store.store import open_store

DEMO_CORPUS = SIMULATED_DOCUMENTS
"""The corpus it trains on if no store is given."""


def published_recipe(config: Config, store: DocumentStore) -> str:
    """Return the name of the recipe for the store's kind of documents: DocRED has ordered pairs."""
    return "paper_docred" if store.is_directed else "paper_biored"


def check(config: Config, store: DocumentStore) -> None:
    """Check settings and store before anything starts.

    Raises:
        ConfigError: if the encoder's source is unusable, there is no projection to train, all pairs
            are held out, or evaluations have no pair to retrieve.
        DataError: if no two entities occur together often enough.
    """
    check_relation_encoder(config.encoder, needs_mask_head=config.objective.mlm_weight > 0)
    if config.encoder.projection == "none":
        raise ConfigError("encoder.projection is none, but pre-training trains it; want linear")
    plan = _plan(config, store)
    num_held_out = len(plan.held_out)
    held_out = (
        f"{store.location}: of its {len(plan.recurring):,} recurring entity pairs, "
        f"{num_held_out:,} are held out (pairs.held_out_share={config.pairs.held_out_share:g})"
    )
    if not len(plan.trained):
        raise ConfigError(f"{held_out}, and none is left to train on; want a smaller share")
    has_queries = len(split_queries(config, plan, "val").row_Q) > 0
    if config.schedule.has_evaluations and not has_queries:
        raise ConfigError(
            f"{held_out}, and none of these can be retrieved: each needs a query document and a "
            "searched one. Want a larger share or a lower pairs.min_documents, or train without "
            "evaluations: schedule.evaluate_every_steps=0"
        )


def input_lengths(config: Config, store: DocumentStore) -> list[InputLengths]:
    """Count the documents that are truncated."""
    return [document_lengths(store, config.encoder)]


def steps_per_epoch(config: Config, store: DocumentStore) -> float:
    """Return the number of steps that draw as many document pairs as the entity pairs have."""
    return _plan(config, store).steps_per_epoch


def build(config: Config, store_path: str | Location) -> System:
    """Wire MTB over a prepared store of documents.

    Raises:
        StoreError: if the store is missing, damaged or of another kind.
        ConfigError: if the encoder cannot be loaded.
        DataError: if no two entities occur together often enough.
    """
    store = open_store(store_path, DocumentStore)
    encoder = initial_encoder(config, store)
    if config.objective.mlm_weight:
        encoder.add_mask_head(config.encoder, seed=derive_seed(config.seed, "mask head"))
    tokenizer = OffsetTokenizer.of(encoder.text.tokenizer)
    reader = DocumentReader(
        store, tokenizer, Markers(**encoder.markers), config.encoder.max_document_tokens
    )
    plan = _plan(config, store)
    evaluator = PairRetrievalEvaluator(config, reader, plan)
    has_queries = evaluator.has_queries("val")
    return System(
        name="mtb_pretrain",
        model=encoder,
        objective=MatchingTheBlanks(config.objective),
        batch_type=TwinDocumentBatch,
        collate=BlankCollate(reader, plan, config.blanks, tokenizer.ordinary_ids, config.seed),
        steps_per_epoch=plan.steps_per_epoch,
        evaluate=evaluator.evaluate_during_training if has_queries else None,
        final_evaluate=evaluator.final_report,
        export=lambda folder, card: _export(config, encoder, folder, card),
        data_digest=f"{store.digest} read as {tokenizer.fingerprint}",
        is_pretrained=config.encoder.source != SCRATCH,
    )


def _plan(config: Config, store: DocumentStore) -> DocumentPairPlan:
    return DocumentPairPlan(store, config.pairs, config.plan, config.seed)


def _export(
    config: Config, encoder: RelationEncoder, folder: Path, card: Mapping[str, Any]
) -> Path:
    settings = {
        "trained_by": "mtb_pretrain",
        "max_document_tokens": config.encoder.max_document_tokens,
    }
    return export_relation_encoder(encoder, folder, card=card, settings=settings)
