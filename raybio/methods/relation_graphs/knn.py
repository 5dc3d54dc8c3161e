"""Entities and relations of sentences by the nearest training words and pairs of words (facts §6).

Shape letters: S sentences, W words, P pairs of words of one sentence, D width, K neighbours.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raybio.core.final_report import UnitScores
from raybio.evaluation.evaluator import exact_scores
from raybio.methods.relation_graphs.config import NeighbourConfig, Rule
from raybio.methods.relation_graphs.majority_vote import majority_vote
from raybio.methods.relation_graphs.pair_probe import fit_pair_classifier, pair_logits
from raybio.methods.relation_graphs.scores import (
    EntityRelationScores,
    TaggedPairs,
    score_entities_relations,
)
from raybio.methods.relation_graphs.store import WordStore
from raybio.methods.relation_graphs.tags import chunks, gold_pairs, tag_names, tags_of
from raybio.methods.relation_graphs.word_pairs import WordPairs, nearest_pairs
from raybio.ops.nearest import nearest

SEED = 0
"""Of the bootstrap."""


PAIR_MEASURES = ("re_minus_f1", "re_minus_precision", "re_minus_recall")


class Related(NamedTuple):
    """Pairs of words with the relation of each.

    Attributes:
        first_P: words, numbered through.
        second_P: other words of the same sentences.
        label_P: >= 1.
    """

    first_P: np.ndarray
    second_P: np.ndarray
    label_P: np.ndarray


class Gold(NamedTuple):
    """What sentences have; words are numbered through.

    Attributes:
        indptr_S1: words of each sentence.
        tag_W: BIO tags.
        pairs: related words.
    """

    indptr_S1: np.ndarray
    tag_W: np.ndarray
    pairs: Related


def gold_of(store: WordStore, rows: np.ndarray) -> Gold:
    """Tags and related words of stored sentences."""
    nothing = np.zeros(0, dtype=np.int64)
    indptr_S1 = np.cumsum([0, *(len(store.sentence(row)) for row in rows.tolist())], dtype=np.int64)
    found = [gold_pairs(store, row) for row in rows.tolist()]
    first, second = (
        np.concatenate(
            [
                nothing,
                *(one[side] + start for one, start in zip(found, indptr_S1[:-1], strict=True)),
            ]
        )
        for side in (0, 1)
    )
    label = np.concatenate([nothing, *(one[2] for one in found)])
    tag_W = np.concatenate([nothing, *(tags_of(store, row) for row in rows.tolist())])
    return Gold(indptr_S1, tag_W, Related(first, second, label))


class Spaces(NamedTuple):
    """Words of some sentences where relations, and where tags are to be found, with what is known of them.

    Attributes:
        pair_WD: for pairs of words.
        tag_WD: for single words.
        gold: tags and related pairs.
    """

    pair_WD: Tensor
    tag_WD: Tensor
    gold: Gold

    @property
    def pairs(self) -> WordPairs:
        """All candidates."""
        return WordPairs(
            self.pair_WD, torch.from_numpy(self.gold.indptr_S1).to(self.pair_WD.device)
        )


@dataclass(frozen=True)
class Found:
    """What is found in sentences by every number of neighbours that may be chosen.

    Attributes:
        asked: the sentences.
        pairs_by_k: related words.
        tag_W_by_k: tags.
        names: of the store's entity types, and of its relations.
        at_chunk_ends: only pairs count whose words both end a chunk of the tags.
    """

    asked: Spaces
    pairs_by_k: dict[int, Related]
    tag_W_by_k: dict[int, np.ndarray]
    names: tuple[tuple[str, ...], tuple[str, ...]]
    at_chunk_ends: bool = False

    def scores(self, rule: Rule) -> EntityRelationScores:
        """Compared with gold."""
        return self._scores(
            self.pairs_by_k[rule.pair_neighbours], self.tag_W_by_k[rule.tag_neighbours]
        )

    def best_rule(self, first: Rule) -> Rule:
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


def find(bank: Spaces, asked: Spaces, store: WordStore, config: NeighbourConfig) -> Found:
    """Let training words and pairs vote."""
    names = (store.entity_types, store.relation_names)
    tag_W_by_k = _tags_found(bank, asked, config, store)
    at_chunk_ends = config.candidates == "chunk_ends"
    # What a number of neighbours finds to end no chunk may do so by another.
    ends_W = [_chunk_ends(tag_W, asked.gold.indptr_S1) for tag_W in tag_W_by_k.values()]
    is_asked_W = (
        np.any(ends_W, axis=0) if at_chunk_ends else np.ones(len(asked.gold.tag_W), dtype=bool)
    )
    return Found(
        asked, _pairs_found(bank, asked, is_asked_W, config), tag_W_by_k, names, at_chunk_ends
    )


def _pairs_found(
    bank: Spaces, asked: Spaces, is_asked_W: np.ndarray, config: NeighbourConfig
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
    bank: Spaces, asked: Spaces, config: NeighbourConfig, store: WordStore
) -> dict[int, np.ndarray]:
    found = nearest(asked.tag_WD, bank.tag_WD, max(config.tag_neighbours), metric="l2")
    tag_WK = torch.from_numpy(bank.gold.tag_W)[found.index_QK.cpu()]
    num_tags = len(tag_names(store.entity_types))
    return {k: majority_vote(tag_WK[:, :k], num_tags).numpy() for k in config.tag_neighbours}


def probe(
    bank: Spaces, asked: Spaces, store: WordStore, config: NeighbourConfig, rule: Rule
) -> EntityRelationScores:
    """Pairs that a linear classifier finds related, whatever the relation (the paper's Table 3)."""
    pairs = bank.pairs
    first_P, second_P = (end.cpu().numpy() for end in pairs.pairs())
    is_related_P = torch.from_numpy(_labels(bank.gold, first_P, second_P) > 0).to(
        bank.pair_WD.device
    )
    fitted = fit_pair_classifier(
        pairs, is_related_P, l2=config.probe_l2, positive_weight=rule.probe_positive_weight
    )
    is_found_P = (pair_logits(asked.pairs, *fitted) > 0).cpu().numpy()
    first_P, second_P = (end.cpu().numpy()[is_found_P] for end in asked.pairs.pairs())
    gold = asked.gold
    ones = gold._replace(pairs=gold.pairs._replace(label_P=np.ones_like(gold.pairs.label_P)))
    found = Related(first_P, second_P, np.ones_like(first_P))
    return _compared(ones, found, gold.tag_W, num_types=len(store.entity_types), num_relations=1)


@dataclass(frozen=True)
class Judged:
    """Scores of what is found in sentences.

    Attributes:
        rule: how they were found.
        found: their scores.
        probe: those of a linear classifier of pairs, whatever the relation (the paper's Table 3).
    """

    rule: Rule
    found: EntityRelationScores
    probe: EntityRelationScores

    def intervals(self) -> dict[str, Any]:
        """All values with their bootstrap intervals over sentences; equal resamples whenever they are asked for."""
        found = self.found.intervals(np.random.default_rng(SEED))
        probe = self.probe.intervals(np.random.default_rng(SEED))
        named = {name: interval._asdict() for name, interval in found.items()}
        return named | {_as_probe(name): probe[name]._asdict() for name in PAIR_MEASURES}

    def unit_scores(self) -> UnitScores:
        """What each sentence adds to each value."""
        found, probe = self.found.unit_scores(), self.probe.unit_scores()
        values = {_as_probe(name): probe.value_by_measure[name] for name in PAIR_MEASURES}
        return UnitScores(found.unit_U, {**found.value_by_measure, **values})


def choose_rule(bank: Spaces, asked: Spaces, store: WordStore, config: NeighbourConfig) -> Rule:
    """The only numbers that there are, or those that are best on ``asked``, of equals the least.

    Args:
        bank: training words.
        asked: words of validation sentences, which are not among those of the bank.
        store: where both are from.
        config: settings.
    """
    if not config.has_choice:
        return config.first_rule
    rule = find(bank, asked, store, config).best_rule(config.first_rule)
    if len(config.probe_positive_weights) == 1:
        return rule
    rules = [
        rule._replace(probe_positive_weight=weight)
        for weight in sorted(config.probe_positive_weights)
    ]
    return max(
        rules, key=lambda rule: probe(bank, asked, store, config, rule).values["re_minus_f1"]
    )


def judge(
    bank: Spaces, asked: Spaces, store: WordStore, config: NeighbourConfig, rule: Rule
) -> Judged:
    """Judge by neighbours and by a linear classifier.

    Args:
        bank: training words.
        asked: other words.
        store: where both are from.
        config: settings.
        rule: how they are found.
    """
    one = {"pair_neighbours": (rule.pair_neighbours,), "tag_neighbours": (rule.tag_neighbours,)}
    found = find(bank, asked, store, config.model_copy(update=one))
    return Judged(rule, found.scores(rule), probe(bank, asked, store, config, rule))


def chance_scores(bank: Gold, asked: Gold, store: WordStore) -> dict[str, dict[str, float]]:
    """Return the scores of the most frequent labels of ``bank``, exactly.

    Every word is an entity of the most frequent type, and every two words of a sentence have the most frequent
    relation; for the linear probe, all are related.
    """
    types_T = np.bincount(
        bank.tag_W[bank.tag_W % 2 == 1] // 2, minlength=1
    )  # tag 1 + 2t begins an entity of type t
    relations_R = np.bincount(bank.pairs.label_P, minlength=2)
    relations_R[0] = 0
    tag_W = np.full(len(asked.tag_W), 1 + 2 * int(types_T.argmax()))
    ends = [np.triu_indices(size, k=1) for size in np.diff(asked.indptr_S1).tolist()]
    first_P, second_P = (
        np.concatenate(
            [end[side] + start for end, start in zip(ends, asked.indptr_S1.tolist(), strict=False)]
        )
        for side in (0, 1)
    )
    related = Related(first_P, second_P, np.full(len(first_P), max(int(relations_R.argmax()), 1)))
    sizes = {"num_types": len(store.entity_types), "num_relations": len(store.relation_names) - 1}
    values = dict(_compared(asked, related, tag_W, **sizes).values)
    all_related = related._replace(label_P=np.ones_like(first_P))
    ones = asked._replace(pairs=asked.pairs._replace(label_P=np.ones_like(asked.pairs.label_P)))
    probed = _compared(
        ones, all_related, asked.tag_W, num_types=sizes["num_types"], num_relations=1
    ).values
    return exact_scores(values | {_as_probe(name): probed[name] for name in PAIR_MEASURES})


def _as_probe(name: str) -> str:
    return name.replace("re_minus", "probe")


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
