"""MTB, improved: pre-train an encoder of entity pairs on documents whose entities are known, and nothing else.

Zhou, Zhang, Naumann, Chen, Poon: "Continual Contrastive Finetuning Improves Low-Resource Relation Extraction" (ACL
2023). The same two entities in two documents are drawn together, whatever their names (most mentions are blanked), and
away from pairs of other types; two readings of a pair under dropout are drawn together; words are guessed.

Reproduced: choice of pairs (document frequency, PMI), entity blanking, type filter, the three losses, ATLOP's encoder
with overlapping windows. The authors published no code; what the paper leaves open is a setting here: batches are
couples of documents that share a recurring pair, one coin an entity and document decides about its blanking, pairs of
a document are compared up to a limit.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raybio.batches import TwinDocumentBatch
from raybio.data.blanks import BlankCollate, BlankConfig, CouplePlan, CouplePlanConfig
from raybio.data.document_collate import DocumentReader
from raybio.data.document_marks import Markers
from raybio.data.document_store import DocumentStore
from raybio.data.entity_pairs import EntityPairConfig
from raybio.data.simulate_documents import default_documents
from raybio.data.store import open_store
from raybio.encoders.relation import (
    RelationEncoder,
    RelationEncoderConfig,
    build_relation_encoder,
)
from raybio.encoders.relation_export import export_relation_encoder
from raybio.encoders.sources import check_source
from raybio.encoders.tokens import OffsetTokenizer
from raybio.errors import ConfigError
from raybio.functional.hashing import derive_seed
from raybio.objectives.matching_blanks import BlanksObjectiveConfig, MatchingTheBlanks
from raybio.protocols import System
from raybio.training.optim import OptimConfig
from raybio.training.settings import ScheduleConfig, TrainingConfig


class Config(TrainingConfig):
    """Settings of MTB; the defaults are the paper's for the biomedical corpus."""

    encoder: RelationEncoderConfig = RelationEncoderConfig(
        source="microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract"
    )
    pairs: EntityPairConfig = EntityPairConfig()
    blanks: BlankConfig = BlankConfig()
    objective: BlanksObjectiveConfig = BlanksObjectiveConfig()
    plan: CouplePlanConfig = CouplePlanConfig()
    schedule: ScheduleConfig = ScheduleConfig(max_steps=2000, evaluate_every_steps=0)
    optim: OptimConfig = OptimConfig(peak_lr=5e-6, warmup_ratio=0.06, schedule="linear", weight_decay=0.01)


DEMO = Config(
    encoder=RelationEncoderConfig(
        source="scratch", num_layers=2, width=64, num_heads=4, ffn_width=128, max_length=128, dropout=0.1
    ),
    pairs=EntityPairConfig(min_documents=2),
    schedule=ScheduleConfig(max_steps=150, checkpoint_every_steps=50, evaluate_every_steps=0),
    optim=OptimConfig(peak_lr=1e-3, warmup_ratio=0.06, schedule="linear", weight_decay=0.01),
)
"""Settings for the embedded simulated documents on two CPU cores: a minute."""


def prepare_demo(directory: str | Path) -> Path:
    """The embedded default corpus as a prepared store inside ``directory``; made on the first call."""
    return default_documents(directory).path


def check(config: Config, store: DocumentStore) -> None:
    """Refuse what can be known to fail before anything starts.

    Raises:
        ConfigError: if the encoder's source is not there, or pairs are to be compared that have no projection.
        DataError: if no two entities occur together often enough.
    """
    check_source(config.encoder.source, config.encoder.revision)
    if config.encoder.projection == "none":
        raise ConfigError("encoder.projection is none, and pre-training is what trains it; want linear")
    _plan(config, store).recurring  # noqa: B018


def build(config: Config, store_path: str | Path) -> System:
    """Wire MTB over a prepared store of documents.

    Raises:
        StoreError: if the store is missing, damaged or of another kind.
        ConfigError: if the encoder cannot be loaded.
        DataError: if no two entities occur together often enough.
    """
    store = open_store(store_path, DocumentStore)
    encoder = build_relation_encoder(
        config.encoder, seed=derive_seed(config.seed, "weights"), count_by_word=store.count_by_word
    )
    if config.objective.mlm_weight:
        encoder.learn_words(derive_seed(config.seed, "mask head"))
    tokenizer = OffsetTokenizer.of(encoder.text.tokenizer)
    reader = DocumentReader(store, tokenizer, Markers(**encoder.markers), config.encoder.max_document_tokens)
    plan = _plan(config, store)
    return System(
        name="matching_blanks",
        model=encoder,
        objective=MatchingTheBlanks(config.objective),
        batch_type=TwinDocumentBatch,
        collate=BlankCollate(reader, plan, config.blanks, tokenizer.ordinary_ids, config.seed),
        steps_per_epoch=plan.steps_per_epoch,
        evaluate=None,
        final_evaluate=None,
        export=lambda folder, card: _export(encoder, folder, card),
        data_digest=f"{store.digest} read as {tokenizer.fingerprint}",
    )


def _plan(config: Config, store: DocumentStore) -> CouplePlan:
    return CouplePlan(store, config.pairs, config.plan, config.seed)


def _export(encoder: RelationEncoder, folder: Path, card: Mapping[str, Any]) -> Path:
    return export_relation_encoder(encoder, folder, card=card, settings={"trained_by": "matching_blanks"})
