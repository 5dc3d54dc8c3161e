"""Predict tags and relations by the nearest training words and word pairs (Section 4.2).

Shape letters: S sentences, W words, P pairs of words of one sentence, R gold pairs, K neighbors.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from raybio.methods.relation_graphs.annotations.gold import EmbeddedSentences, Gold, Related
from raybio.methods.relation_graphs.annotations.tags import chunks, tag_names
from raybio.methods.relation_graphs.classifiers.majority_vote import majority_vote
from raybio.methods.relation_graphs.classifiers.nearest_pairs import nearest_pairs
from raybio.methods.relation_graphs.config import KnnConfig, WordKnnSettings
from raybio.methods.relation_graphs.scores import (
    EntityRelationScores,
    TaggedPairs,
    score_entities_relations,
)
from raybio.ops.nearest import nearest


class HasNames(Protocol):
    """A store of sentences, or the record of a model that was trained on one."""

    @property
    def entity_types(self) -> tuple[str, ...]:
        """Names of the types of entities."""
        ...

    @property
    def relation_names(self) -> tuple[str, ...]:
        """Names of the relations, "NA" first."""
        ...


@dataclass(frozen=True)
class KnnPredictions:
    """Predictions for sentences, for every candidate number of neighbors.

    Attributes:
        queries: the sentences.
        pairs_by_k: predicted related pairs.
        tag_W_by_k: predicted tags.
        names: names of the store's entity types, and of its relations.
        at_chunk_ends: keep only pairs whose words both end a predicted chunk.
    """

    queries: EmbeddedSentences
    pairs_by_k: dict[int, Related]
    tag_W_by_k: dict[int, np.ndarray]
    names: tuple[tuple[str, ...], tuple[str, ...]]
    at_chunk_ends: bool = False

    def predicted(self, settings: WordKnnSettings) -> tuple[Related, np.ndarray]:
        """Return the related pairs and the tags (W,) for some numbers of neighbors."""
        tag_W = self.tag_W_by_k[settings.num_tag_neighbors]
        return self._candidates(self.pairs_by_k[settings.num_pair_neighbors], tag_W), tag_W

    def scores(self, settings: WordKnnSettings) -> EntityRelationScores:
        """Return the scores for some numbers of neighbors."""
        return self._scores(*self.predicted(settings))

    def best_settings(self, first: WordKnnSettings) -> WordKnnSettings:
        """Return ``first`` with the numbers of neighbors of the best F1; ties go to the smallest.

        First the number for tags is chosen by entity F1, then, with those tags, the number for
        pairs by pair F1.
        """
        any_pairs = next(iter(self.pairs_by_k.values()))
        ner_f1_by_k = {
            k: self._scores(any_pairs, tag_W).values["ner_f1"]
            for k, tag_W in sorted(self.tag_W_by_k.items())
        }
        best = first._replace(num_tag_neighbors=max(ner_f1_by_k, key=lambda k: ner_f1_by_k[k]))
        candidates = [best._replace(num_pair_neighbors=k) for k in sorted(self.pairs_by_k)]
        return max(candidates, key=lambda settings: self.scores(settings).values["re_minus_f1"])

    def _candidates(self, pairs: Related, tag_W: np.ndarray) -> Related:
        """Return the pairs that are candidates with these tags."""
        if not self.at_chunk_ends:
            return pairs
        is_end_W = _chunk_ends(tag_W, self.queries.gold.indptr_S1)
        is_kept_P = is_end_W[pairs.first_P] & is_end_W[pairs.second_P]
        return Related(*(part[is_kept_P] for part in pairs))

    def _scores(self, pairs: Related, tag_W: np.ndarray) -> EntityRelationScores:
        return score_against_gold(
            self.queries.gold,
            pairs,
            tag_W,
            num_types=len(self.names[0]),
            num_relations=len(self.names[1]) - 1,
        )


def predict_by_knn(
    reference: EmbeddedSentences,
    queries: EmbeddedSentences,
    store: HasNames,
    config: KnnConfig,
) -> KnnPredictions:
    """Predict words and pairs of the queries by votes of the reference sentences."""
    names = (store.entity_types, store.relation_names)
    tag_W_by_k = _predict_tags(reference, queries, config, store)
    at_chunk_ends = config.candidates == "chunk_ends"
    is_candidate_W = np.ones(len(queries.gold.tag_W), dtype=bool)
    if at_chunk_ends:
        # Chunk ends for any candidate number of neighbors; each number filters its own pairs later.
        ends = [_chunk_ends(tag_W, queries.gold.indptr_S1) for tag_W in tag_W_by_k.values()]
        is_candidate_W = np.any(ends, axis=0)
    pairs_by_k = _predict_pairs(reference, queries, is_candidate_W, config)
    return KnnPredictions(queries, pairs_by_k, tag_W_by_k, names, at_chunk_ends)


def score_against_gold(
    gold: Gold, pairs: Related, tag_W: np.ndarray, *, num_types: int, num_relations: int
) -> EntityRelationScores:
    """Return the scores of predicted pairs and tags."""
    return score_entities_relations(
        TaggedPairs(tag_W, *pairs),
        TaggedPairs(gold.tag_W, *gold.pairs),
        indptr_S1=gold.indptr_S1,
        num_types=num_types,
        num_relations=num_relations,
    )


def pair_labels(gold: Gold, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the gold labels of pairs of words in text order; 0 for unrelated pairs."""
    num_words = int(gold.indptr_S1[-1])
    low_R = np.minimum(gold.pairs.first_P, gold.pairs.second_P)
    high_R = np.maximum(gold.pairs.first_P, gold.pairs.second_P)
    key_R, index_R = np.unique(low_R * num_words + high_R, return_index=True)
    if not len(key_R):
        return np.zeros(first.shape, dtype=np.int64)
    key = first.astype(np.int64) * num_words + second
    slot = np.searchsorted(key_R, key).clip(max=len(key_R) - 1)
    return np.where(key_R[slot] == key, gold.pairs.label_P[index_R][slot], 0)


def _predict_pairs(
    reference: EmbeddedSentences,
    queries: EmbeddedSentences,
    is_candidate_W: np.ndarray,
    config: KnnConfig,
) -> dict[int, Related]:
    """Return the pairs of candidate words that are predicted to be related, by k."""
    if not reference.pairs.num_pairs:
        # Sentences of one word have no pairs, so nothing votes.
        none = np.zeros(0, dtype=np.int64)
        return dict.fromkeys(config.num_pair_neighbors, Related(none, none, none))
    pairs = queries.pairs.of_words(torch.from_numpy(is_candidate_W).to(queries.pair_WD.device))
    _, first_PK, second_PK = nearest_pairs(
        pairs, reference.pairs, k=max(config.num_pair_neighbors), both_orders=config.both_orders
    )
    label_PK = pair_labels(reference.gold, first_PK.cpu().numpy(), second_PK.cpu().numpy())
    word_C = np.flatnonzero(is_candidate_W)
    first_P, second_P = (word_C[end_P.cpu().numpy()] for end_P in pairs.pairs())
    num_labels = int(reference.gold.pairs.label_P.max(initial=0)) + 1
    pairs_by_k = {}
    for k in config.num_pair_neighbors:
        label_P = majority_vote(torch.from_numpy(label_PK[:, :k]), num_labels).numpy()
        is_related_P = label_P > 0
        pairs_by_k[k] = Related(
            first_P[is_related_P], second_P[is_related_P], label_P[is_related_P]
        )
    return pairs_by_k


def _predict_tags(
    reference: EmbeddedSentences, queries: EmbeddedSentences, config: KnnConfig, store: HasNames
) -> dict[int, np.ndarray]:
    neighbors = nearest(
        queries.tag_WD, reference.tag_WD, max(config.num_tag_neighbors), metric="euclidean"
    )
    tag_WK = torch.from_numpy(reference.gold.tag_W)[neighbors.index_QK.cpu()]
    num_tags = len(tag_names(store.entity_types))
    return {k: majority_vote(tag_WK[:, :k], num_tags).numpy() for k in config.num_tag_neighbors}


def _chunk_ends(tag_W: np.ndarray, indptr_S1: np.ndarray) -> np.ndarray:
    """Return which words end a chunk, bool (W,)."""
    is_end_W = np.zeros(len(tag_W), dtype=bool)
    is_end_W[chunks(tag_W, indptr_S1).end_C - 1] = True
    return is_end_W
