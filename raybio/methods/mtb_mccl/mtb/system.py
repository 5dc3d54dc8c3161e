"""MTB, improved: pre-train an encoder of entity pairs on documents whose entities are known, and nothing else.

Zhou, Zhang, Naumann, Chen, Poon: "Continual Contrastive Finetuning Improves Low-Resource Relation Extraction" (ACL
2023). The same two entities in two documents are drawn together, whatever their names (most mentions are blanked), and
away from pairs of other types; two readings of a pair under dropout are drawn together; words are guessed.

Reproduced: choice of pairs (document frequency, PMI), entity blanking, type filter, the three losses, ATLOP's encoder
with overlapping windows. The authors published no code; what the paper leaves open is a setting here: batches are
couples of documents that share a recurring pair, one coin an entity and document decides about its blanking, pairs of
a document are compared up to a limit. So are the paper's ablations: ``objective.relation_loss`` has binary
classification (vanilla MTB) and MCCL in place of the contrast between pairs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raybio.core.errors import ConfigError
from raybio.core.final_report import Stage, UnitScores
from raybio.core.interfaces import Collective, Encoder, System
from raybio.core.randomness import derive_seed, hash_uniform
from raybio.encoders.config import SCRATCH
from raybio.encoders.input_lengths import InputLengths
from raybio.encoders.text import check_text_encoder
from raybio.encoders.tokenization import OffsetTokenizer
from raybio.evaluation.evaluator import Evaluator, ModelScores, bootstrap_seed
from raybio.methods.mtb_mccl.batches import Pairs, TwinDocumentBatch
from raybio.methods.mtb_mccl.documents.collate import DocumentReader
from raybio.methods.mtb_mccl.documents.demo import default_documents
from raybio.methods.mtb_mccl.documents.input_lengths import document_lengths
from raybio.methods.mtb_mccl.documents.markers import Markers
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.embed_pairs import EmbeddedPairs, embed_pairs
from raybio.methods.mtb_mccl.encoder import RelationEncoder, build_relation_encoder
from raybio.methods.mtb_mccl.export import export_relation_encoder
from raybio.methods.mtb_mccl.mtb.collate import BlankCollate
from raybio.methods.mtb_mccl.mtb.config import Config
from raybio.methods.mtb_mccl.mtb.evaluate import (
    pair_chance,
    pair_metrics,
    pair_scores,
    pair_unit_scores,
    retrieve_pairs,
)
from raybio.methods.mtb_mccl.mtb.loss import MatchingTheBlanks
from raybio.methods.mtb_mccl.mtb.plan import DocumentPairPlan, oriented_pairs
from raybio.methods.mtb_mccl.mtb.queries import PairQueries, pair_queries
from raybio.ops.retrieval import Retrieval
from raybio.ops.spread import spread_metrics
from raybio.store.store import open_store

STORE = DocumentStore
"""The class of the stores that it trains on."""


def prepare_demo(directory: str | Path) -> Path:
    """The embedded default corpus as a prepared store inside ``directory``; made on the first call."""
    return default_documents(directory).path


def check(config: Config, store: DocumentStore) -> None:
    """Refuse what can be known to fail before anything starts.

    Raises:
        ConfigError: if the encoder's source does not fit, or pairs are to be compared that have no projection.
        DataError: if no two entities occur together often enough.
    """
    check_text_encoder(config.encoder)
    if config.encoder.projection == "none":
        raise ConfigError(
            "encoder.projection is none, and pre-training is what trains it; want linear"
        )
    _plan(config, store).recurring  # noqa: B018


def input_lengths(config: Config, store: DocumentStore) -> list[InputLengths]:
    """Count the documents that are longer than what is read of them."""
    return [document_lengths(store, config.encoder)]


def build(config: Config, store_path: str | Path) -> System:
    """Wire MTB over a prepared store of documents.

    Raises:
        StoreError: if the store is missing, damaged or of another kind.
        ConfigError: if the encoder cannot be loaded.
        DataError: if no two entities occur together often enough.
    """
    store = open_store(store_path, DocumentStore)
    encoder = _encoder(config, store)
    if config.objective.mlm_weight:
        encoder.add_mask_head(config.encoder, seed=derive_seed(config.seed, "mask head"))
    tokenizer = OffsetTokenizer.of(encoder.text.tokenizer)
    reader = DocumentReader(
        store, tokenizer, Markers(**encoder.markers), config.encoder.max_document_tokens
    )
    plan = _plan(config, store)
    evaluator = PairRetrievalEvaluator(config, reader, plan)
    return System(
        name="mtb_pretrain",
        model=encoder,
        objective=MatchingTheBlanks(config.objective),
        batch_type=TwinDocumentBatch,
        collate=BlankCollate(reader, plan, config.blanks, tokenizer.ordinary_ids, config.seed),
        steps_per_epoch=plan.steps_per_epoch,
        evaluate=evaluator.evaluate_during_training
        if len(evaluator.questions("val").row_Q)
        else None,
        final_evaluate=evaluator.final_report,
        export=lambda folder, card: _export(config, encoder, folder, card),
        data_digest=f"{store.digest} read as {tokenizer.fingerprint}",
        is_pretrained=config.encoder.source != SCRATCH,
    )


def _plan(config: Config, store: DocumentStore) -> DocumentPairPlan:
    return DocumentPairPlan(store, config.pairs, config.plan, config.seed)


def _encoder(config: Config, store: DocumentStore) -> RelationEncoder:
    """The encoder as training begins with it."""
    seed = derive_seed(config.seed, "weights")
    return build_relation_encoder(config.encoder, seed=seed, count_by_word=store.count_by_word)


def _export(
    config: Config, encoder: RelationEncoder, folder: Path, card: Mapping[str, Any]
) -> Path:
    settings = {
        "trained_by": "mtb_pretrain",
        "max_document_tokens": config.encoder.max_document_tokens,
    }
    return export_relation_encoder(encoder, folder, card=card, settings=settings)


@dataclass(frozen=True)
class PairRetrievalEvaluator(Evaluator):
    """Retrieval of recurring pairs, with entities blanked as in training, in other documents of the corpus."""

    config: Config
    reader: DocumentReader
    plan: DocumentPairPlan

    def evaluate_during_training(
        self, model: Encoder, collective: Collective
    ) -> Mapping[str, float]:
        """Return ``val/pair_*`` of the pairs that were held out."""
        retrieval, spread = self._ask(model, "val", collective)
        return {f"val/{name}": value for name, value in pair_metrics(retrieval).items()} | spread

    def initial_encoder(self) -> Encoder:
        """Return the encoder as training begins with it."""
        return _encoder(self.config, self.reader.store)

    def score(self, model: Encoder, collective: Collective, stage: Stage) -> ModelScores:
        """Score pairs of training (``train``) and held-out ones (``val``)."""
        rng = np.random.default_rng(bootstrap_seed(self.config.seed))
        scores: dict[str, Any] = {}
        chance: dict[str, Any] = {}
        unit_scores: dict[str, UnitScores] = {}
        spread: dict[str, float] = {}
        for split in ("train", "val"):
            if not len(self.questions(split).row_Q):
                continue
            retrieval, spread = self._ask(model, split, collective)
            scores[split] = pair_scores(retrieval, rng)
            chance[split] = pair_chance(retrieval)
            unit_scores[split] = pair_unit_scores(retrieval)
        return ModelScores(scores=scores, chance=chance, spread=spread, unit_scores=unit_scores)

    def questions(self, split: str) -> PairQueries:
        """What is asked: the first of the pairs with the most mutual information."""
        number_K = self.plan.held_out if split == "val" else self.plan.trained
        return pair_queries(
            self.plan.recurring, number_K[: self.config.evaluation.num_pairs], seed=0
        )

    def _ask(
        self, model: Encoder, split: str, collective: Collective
    ) -> tuple[Retrieval, dict[str, float]]:
        """Return the ranks of the pairs, and the spread of all pairs that are searched."""
        assert isinstance(model, RelationEncoder)
        asked, store = self.questions(split), self.reader.store
        searched = {row: oriented_pairs(store, row) for row in asked.row_S.tolist()}
        queries = {
            row: self._queries(row, asked.key_Q2[asked.row_Q == row])
            for row in np.unique(asked.row_Q).tolist()
        }
        query, candidate = (
            self._embedded(model, pairs, collective) for pairs in (queries, searched)
        )
        id_Q, id_C = (self._ids(one) for one in (query, candidate))
        retrieval = retrieve_pairs(
            query.embedding_PD, id_Q, candidate.embedding_PD, id_C, collective
        )
        return retrieval, spread_metrics(candidate.embedding_PD)

    def _queries(self, row: int, key_K2: np.ndarray) -> Pairs:
        head_P, tail_P = oriented_pairs(self.reader.store, row)
        key_E = self.reader.store.keys(row)
        low_P, high_P = (
            np.minimum(key_E[head_P], key_E[tail_P]),
            np.maximum(key_E[head_P], key_E[tail_P]),
        )
        asked = {tuple(keys) for keys in key_K2.tolist()}
        chosen = [pair in asked for pair in zip(low_P.tolist(), high_P.tolist(), strict=True)]
        return head_P[chosen], tail_P[chosen]

    def _ids(self, found: EmbeddedPairs) -> np.ndarray:
        store = self.reader.store
        keys = {row: store.keys(row) for row in np.unique(found.row_P).tolist()}
        sides = [(found.row_P.tolist(), side.tolist()) for side in (found.head_P, found.tail_P)]
        head_P, tail_P = (
            np.array([keys[row][e] for row, e in zip(*side, strict=True)], np.int64)
            for side in sides
        )
        return head_P * len(store.entity_keys) + tail_P

    def _embedded(
        self, model: RelationEncoder, pairs: Mapping[int, Pairs], collective: Collective
    ) -> EmbeddedPairs:
        def is_blank(row: int) -> np.ndarray:
            number_E = np.arange(len(self.reader.store.types(row)))
            return (
                hash_uniform(derive_seed("evaluation"), row, number_E)
                < self.config.blanks.blank_rate
            )

        max_tokens = self.config.memory.max_tokens_per_micro_batch
        return embed_pairs(
            model, self.reader, pairs, collective, max_tokens=max_tokens, is_blank=is_blank
        )
