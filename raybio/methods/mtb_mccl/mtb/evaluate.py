"""Evaluation of MTB: retrieve recurring entity pairs in other documents.

Entities are blanked with a fixed seed, so that names do not give a pair away. The rate is
``evaluation.blank_rate``, not the rate of training: runs with different ``blanks.blank_rate``
retrieve in the same texts, and a hyperparameter search cannot win by making the task easier.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raybio.core.final_report import Stage, UnitScores
from raybio.core.interfaces import Collective, Encoder
from raybio.core.randomness import derive_seed, hash_uniform
from raybio.evaluation.evaluator import RIVAL_SEED, Evaluator, ModelScores, bootstrap_seed
from raybio.methods.mtb_mccl.batches import Pairs
from raybio.methods.mtb_mccl.documents.collate import DocumentReader
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.embed_pairs import EmbeddedPairs, embed_pairs
from raybio.methods.mtb_mccl.encoder import RelationEncoder, build_relation_encoder
from raybio.methods.mtb_mccl.mtb.config import Config
from raybio.methods.mtb_mccl.mtb.plan import DocumentPairPlan, oriented_pairs
from raybio.methods.mtb_mccl.mtb.queries import PairQueries, pair_queries
from raybio.methods.mtb_mccl.mtb.rivals import pair_rivals
from raybio.methods.mtb_mccl.mtb.scores import (
    pair_chance,
    pair_metrics,
    pair_scores,
    pair_unit_scores,
    query_units,
    retrieve_pairs,
)
from raybio.methods.mtb_mccl.pair_words import PairWords
from raybio.ops.embedding_geometry import spread_metrics
from raybio.ops.retrieval import Retrieval, cosine_scores


def split_queries(config: Config, plan: DocumentPairPlan, split: str) -> PairQueries:
    """Return the queries of a split: its pairs with the highest mutual information.

    Args:
        config: settings of the run.
        plan: selects trained and held-out pairs.
        split: ``train``, the trained pairs, or ``val``, the held-out ones.
    """
    number_K = plan.held_out if split == "val" else plan.trained
    return pair_queries(plan.recurring, number_K[: config.evaluation.num_pairs], seed=0)


def initial_encoder(config: Config, store: DocumentStore) -> RelationEncoder:
    """Build the encoder with its initial weights."""
    seed = derive_seed(config.seed, "weights")
    return build_relation_encoder(config.encoder, seed=seed, count_by_word=store.count_by_word)


@dataclass(frozen=True)
class PairRetrievalEvaluator(Evaluator):
    """Retrieves trained (``train``) and held-out (``val``) recurring pairs.

    Attributes:
        config: settings of the run.
        reader: reads documents for the encoder.
        plan: selects trained and held-out pairs.
    """

    config: Config
    reader: DocumentReader
    plan: DocumentPairPlan

    def evaluate_during_training(
        self, model: Encoder, collective: Collective
    ) -> Mapping[str, float]:
        """Return ``val/pair_*`` of the held-out pairs."""
        retrieval, _, spread = self._retrieve(model, "val", collective)
        return {f"val/{name}": value for name, value in pair_metrics(retrieval).items()} | spread

    def initial_encoder(self) -> Encoder:
        """Return the encoder with its initial weights."""
        return initial_encoder(self.config, self.reader.store)

    def rivals(self, device: Any, collective: Collective) -> Iterator[tuple[Stage, ModelScores]]:
        """Score the rankings that need no encoder, unless the settings exclude them."""
        if not self.config.evaluation.rivals:
            return
        scores: dict[str, dict[str, Any]] = {}
        unit_scores: dict[str, dict[str, UnitScores]] = {}
        chance: dict[str, Any] = {}
        for split in ("train", "val"):
            if not self.has_queries(split):
                continue
            query_pairs, candidate_pairs = self._pairs_to_retrieve(split)
            query = PairWords.read(self.reader, query_pairs, self._is_blank)
            candidate = PairWords.read(self.reader, candidate_pairs, self._is_blank)
            id_Q = self._ids(query_pairs)
            id_C = self._ids(candidate_pairs)
            units = query_units(id_Q, len(self.reader.store.entity_keys))
            for name, ranking in pair_rivals(query, candidate):
                retrieval = retrieve_pairs(ranking, id_Q, id_C, collective)
                rng = np.random.default_rng(RIVAL_SEED)
                scores.setdefault(name, {})[split] = pair_scores(retrieval, units, rng)
                unit_scores.setdefault(name, {})[split] = pair_unit_scores(retrieval, units)
                chance[split] = pair_chance(retrieval)
        for name, by_split in scores.items():
            yield name, ModelScores(scores=by_split, chance=chance, unit_scores=unit_scores[name])

    def score(self, model: Encoder, collective: Collective, stage: Stage) -> ModelScores:
        """Score the splits that have queries."""
        rng = np.random.default_rng(bootstrap_seed(self.config.seed))
        scores: dict[str, Any] = {}
        chance: dict[str, Any] = {}
        unit_scores: dict[str, UnitScores] = {}
        spread: dict[str, float] = {}
        for split in ("train", "val"):
            if not self.has_queries(split):
                continue
            retrieval, id_Q, spread = self._retrieve(model, split, collective)
            units = query_units(id_Q, len(self.reader.store.entity_keys))
            scores[split] = pair_scores(retrieval, units, rng)
            chance[split] = pair_chance(retrieval)
            unit_scores[split] = pair_unit_scores(retrieval, units)
        return ModelScores(scores=scores, chance=chance, spread=spread, unit_scores=unit_scores)

    def remarks(self) -> Sequence[str]:
        """Return the number of pairs that are retrieved, if these are not all."""
        num_pairs = self.config.evaluation.num_pairs
        number_by_noun = {
            "trained": len(self.plan.trained),
            "held-out": len(self.plan.held_out),
        }
        parts = [
            f"{num_pairs:,} of {number:,} {noun} pairs"
            for noun, number in number_by_noun.items()
            if number > num_pairs
        ]
        if not parts:
            return []
        return [
            f"{' and '.join(parts)} were retrieved: those with the highest mutual information "
            "(evaluation.num_pairs)"
        ]

    def has_queries(self, split: str) -> bool:
        """Return whether a recurring pair of the split can be retrieved."""
        return len(self._queries(split).row_Q) > 0

    def _queries(self, split: str) -> PairQueries:
        return split_queries(self.config, self.plan, split)

    def _retrieve(
        self, model: Encoder, split: str, collective: Collective
    ) -> tuple[Retrieval, np.ndarray, dict[str, float]]:
        """Return the ranks of the queries' pairs, the pairs, and the spread of all candidates."""
        assert isinstance(model, RelationEncoder)
        query_pairs, candidate_pairs = self._pairs_to_retrieve(split)
        query = self._embed(model, query_pairs, collective)
        candidate = self._embed(model, candidate_pairs, collective)
        id_Q = self._ids(query_pairs)
        retrieval = retrieve_pairs(
            cosine_scores(query.embedding_PD, candidate.embedding_PD),
            id_Q,
            self._ids(candidate_pairs),
            collective,
        )
        return retrieval, id_Q, spread_metrics(candidate.embedding_PD)

    def _pairs_to_retrieve(self, split: str) -> tuple[dict[int, Pairs], dict[int, Pairs]]:
        """Return the pairs of the queries and of the searched documents, by document."""
        queries = self._queries(split)
        query_pairs = {
            row: self._pairs_with_keys(row, queries.key_Q2[queries.row_Q == row])
            for row in np.unique(queries.row_Q).tolist()
        }
        candidate_pairs = {
            row: oriented_pairs(self.reader.store, row) for row in queries.row_S.tolist()
        }
        return query_pairs, candidate_pairs

    def _pairs_with_keys(self, row: int, key_K2: np.ndarray) -> Pairs:
        """Return the pairs of a document whose entities have the given keys."""
        head_P, tail_P = oriented_pairs(self.reader.store, row)
        key_E = self.reader.store.keys(row)
        low_P = np.minimum(key_E[head_P], key_E[tail_P])
        high_P = np.maximum(key_E[head_P], key_E[tail_P])
        wanted = {tuple(keys) for keys in key_K2.tolist()}
        chosen = [pair in wanted for pair in zip(low_P.tolist(), high_P.tolist(), strict=True)]
        return head_P[chosen], tail_P[chosen]

    def _ids(self, pairs: Mapping[int, Pairs]) -> np.ndarray:
        """Return one number for each entity pair, equal across documents."""
        store = self.reader.store
        parts = [np.zeros(0, np.int64)]
        for row, (head_P, tail_P) in pairs.items():
            key_E = store.keys(row)
            parts.append(key_E[head_P] * len(store.entity_keys) + key_E[tail_P])
        return np.concatenate(parts)

    def _is_blank(self, row: int) -> np.ndarray:
        """Return which entities of a document are blanked, bool (E,)."""
        number_E = np.arange(len(self.reader.store.types(row)))
        draw_E = hash_uniform(derive_seed("evaluation"), row, number_E)
        return draw_E < self.config.evaluation.blank_rate

    def _embed(
        self, model: RelationEncoder, pairs: Mapping[int, Pairs], collective: Collective
    ) -> EmbeddedPairs:
        return embed_pairs(
            model,
            self.reader,
            pairs,
            collective,
            max_tokens=self.config.memory.max_tokens_per_micro_batch,
            is_blank=self._is_blank,
        )
