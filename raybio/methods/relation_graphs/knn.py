"""kNN."""

from dataclasses import dataclass

import numpy as np
import torch

from raybio.methods.relation_graphs.config import KnnConfig, KnnSettings
from raybio.methods.relation_graphs.gold import EmbeddedSentences, Gold, Related
from raybio.methods.relation_graphs.majority_vote import majority_vote
from raybio.methods.relation_graphs.scores import (
    EntityRelationScores,
    TaggedPairs,
    score_entities_relations,
)
from raybio.methods.relation_graphs.store import WordStore
from raybio.methods.relation_graphs.tags import chunks, tag_names
from raybio.methods.relation_graphs.word_pairs import nearest_pairs
from raybio.ops.nearest import nearest


@dataclass(frozen=True)
class KnnPredictions:
    """What is found in sentences by every number of neighbours that may be chosen.

    Attributes:
        asked: the sentences.
        pairs_by_k: related words.
        tag_W_by_k: tags.
        names: of the store's entity types, and of its relations.
        at_chunk_ends: only pairs count whose words both end a chunk of the tags.
    """

    asked: EmbeddedSentences
    pairs_by_k: dict[int, Related]
    tag_W_by_k: dict[int, np.ndarray]
    names: tuple[tuple[str, ...], tuple[str, ...]]
    at_chunk_ends: bool = False

    def scores(self, rule: KnnSettings) -> EntityRelationScores:
        """Compared with gold."""
        return self._scores(
            self.pairs_by_k[rule.pair_neighbours], self.tag_W_by_k[rule.tag_neighbours]
        )

    def best_settings(self, first: KnnSettings) -> KnnSettings:
        """``first``, but with the numbers of neighbours that have the best F1, each the least of equals.

        That of tags by entities, and then that of pairs, with those tags, by pairs.
        """
        any_pairs = next(iter(self.pairs_by_k.values()))
        ner = {
            k: self._scores(any_pairs, tag_W).values["ner_f1"]
            for k, tag_W in sorted(self.tag_W_by_k.items())
        }
        best = first._replace(tag_neighbours=max(ner, key=lambda k: ner[k]))
        rules = [best._replace(pair_neighbours=k) for k in sorted(self.pairs_by_k)]
        return max(rules, key=lambda rule: self.scores(rule).values["re_minus_f1"])

    def _scores(self, pairs: Related, tag_W: np.ndarray) -> EntityRelationScores:
        if self.at_chunk_ends:
            is_end_W = _chunk_ends(tag_W, self.asked.gold.indptr_S1)
            is_kept_P = is_end_W[pairs.first_P] & is_end_W[pairs.second_P]
            pairs = Related(*(part[is_kept_P] for part in pairs))
        return _compared(
            self.asked.gold,
            pairs,
            tag_W,
            num_types=len(self.names[0]),
            num_relations=len(self.names[1]) - 1,
        )


def predict_by_knn(
    bank: EmbeddedSentences, asked: EmbeddedSentences, store: WordStore, config: KnnConfig
) -> KnnPredictions:
    """Let training words and pairs vote."""
    names = (store.entity_types, store.relation_names)
    tag_W_by_k = _tags_found(bank, asked, config, store)
    at_chunk_ends = config.candidates == "chunk_ends"
    # What a number of neighbours finds to end no chunk may do so by another.
    ends_W = [_chunk_ends(tag_W, asked.gold.indptr_S1) for tag_W in tag_W_by_k.values()]
    is_asked_W = (
        np.any(ends_W, axis=0) if at_chunk_ends else np.ones(len(asked.gold.tag_W), dtype=bool)
    )
    return KnnPredictions(
        asked, _pairs_found(bank, asked, is_asked_W, config), tag_W_by_k, names, at_chunk_ends
    )


def _pairs_found(
    bank: EmbeddedSentences, asked: EmbeddedSentences, is_asked_W: np.ndarray, config: KnnConfig
) -> dict[int, Related]:
    most = max(config.pair_neighbours)
    pairs = asked.pairs.of_words(torch.from_numpy(is_asked_W).to(asked.pair_WD.device))
    _, *ends = nearest_pairs(pairs, bank.pairs, k=most, both_orders=config.both_orders)
    label_PK = _labels(bank.gold, *(end_PK.cpu().numpy() for end_PK in ends))
    first_P, second_P = (np.flatnonzero(is_asked_W)[end.cpu().numpy()] for end in pairs.pairs())
    num_labels = int(bank.gold.pairs.label_P.max(initial=0)) + 1
    voted = {}
    for k in config.pair_neighbours:
        label_P = majority_vote(torch.from_numpy(label_PK[:, :k]), num_labels).numpy()
        voted[k] = Related(first_P[label_P > 0], second_P[label_P > 0], label_P[label_P > 0])
    return voted


def _labels(gold: Gold, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Labels of pairs of words in the order of the text; 0 for those that are not related."""
    num_words, pairs = int(gold.indptr_S1[-1]), gold.pairs
    low, high = np.minimum(pairs.first_P, pairs.second_P), np.maximum(pairs.first_P, pairs.second_P)
    key_R, place_R = np.unique(low * num_words + high, return_index=True)
    key = first.astype(np.int64) * num_words + second
    slot = np.searchsorted(key_R, key).clip(max=max(len(key_R) - 1, 0))
    if not len(key_R):
        return np.zeros(first.shape, dtype=np.int64)
    return np.where(key_R[slot] == key, pairs.label_P[place_R][slot], 0)


def _chunk_ends(tag_W: np.ndarray, indptr_S1: np.ndarray) -> np.ndarray:
    is_end_W = np.zeros(len(tag_W), dtype=bool)
    is_end_W[chunks(tag_W, indptr_S1).end_C - 1] = True
    return is_end_W


def _tags_found(
    bank: EmbeddedSentences, asked: EmbeddedSentences, config: KnnConfig, store: WordStore
) -> dict[int, np.ndarray]:
    found = nearest(asked.tag_WD, bank.tag_WD, max(config.tag_neighbours), metric="l2")
    tag_WK = torch.from_numpy(bank.gold.tag_W)[found.index_QK.cpu()]
    num_tags = len(tag_names(store.entity_types))
    return {k: majority_vote(tag_WK[:, :k], num_tags).numpy() for k in config.tag_neighbours}


def _compared(
    gold: Gold, pairs: Related, tag_W: np.ndarray, *, num_types: int, num_relations: int
) -> EntityRelationScores:
    return score_entities_relations(
        TaggedPairs(tag_W, *pairs),
        TaggedPairs(gold.tag_W, *gold.pairs),
        indptr_S1=gold.indptr_S1,
        num_types=num_types,
        num_relations=num_relations,
    )
