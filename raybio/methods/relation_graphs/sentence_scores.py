"""Sentence scores."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from raybio.core.final_report import UnitScores
from raybio.evaluation.evaluator import exact_scores
from raybio.methods.relation_graphs.config import KnnConfig, KnnSettings
from raybio.methods.relation_graphs.gold import EmbeddedSentences, Gold, Related
from raybio.methods.relation_graphs.knn import _compared, _labels, predict_by_knn
from raybio.methods.relation_graphs.pair_probe import fit_pair_classifier, pair_logits
from raybio.methods.relation_graphs.scores import (
    EntityRelationScores,
)
from raybio.methods.relation_graphs.store import WordStore

BOOTSTRAP_SEED = 0
"""Of the bootstrap."""


PAIR_MEASURES = ("re_minus_f1", "re_minus_precision", "re_minus_recall")


def score_probe(
    bank: EmbeddedSentences,
    asked: EmbeddedSentences,
    store: WordStore,
    config: KnnConfig,
    rule: KnnSettings,
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
class SentenceScores:
    """Scores of what is found in sentences.

    Attributes:
        rule: how they were found.
        found: their scores.
        probe: those of a linear classifier of pairs, whatever the relation (the paper's Table 3).
    """

    rule: KnnSettings
    found: EntityRelationScores
    probe: EntityRelationScores

    def intervals(self) -> dict[str, Any]:
        """All values with their bootstrap intervals over sentences; equal resamples whenever they are asked for."""
        found = self.found.intervals(np.random.default_rng(BOOTSTRAP_SEED))
        probe = self.probe.intervals(np.random.default_rng(BOOTSTRAP_SEED))
        named = {name: interval._asdict() for name, interval in found.items()}
        return named | {_as_probe(name): probe[name]._asdict() for name in PAIR_MEASURES}

    def unit_scores(self) -> UnitScores:
        """What each sentence adds to each value."""
        found, probe = self.found.unit_scores(), self.probe.unit_scores()
        values = {_as_probe(name): probe.value_by_measure[name] for name in PAIR_MEASURES}
        return UnitScores(found.unit_U, {**found.value_by_measure, **values})


def choose_settings(
    bank: EmbeddedSentences, asked: EmbeddedSentences, store: WordStore, config: KnnConfig
) -> KnnSettings:
    """The only numbers that there are, or those that are best on ``asked``, of equals the least.

    Args:
        bank: training words.
        asked: words of validation sentences, which are not among those of the bank.
        store: where both are from.
        config: settings.
    """
    if not config.has_choice:
        return config.first_settings
    rule = predict_by_knn(bank, asked, store, config).best_settings(config.first_settings)
    if len(config.probe_positive_weights) == 1:
        return rule
    rules = [
        rule._replace(probe_positive_weight=weight)
        for weight in sorted(config.probe_positive_weights)
    ]
    return max(
        rules, key=lambda rule: score_probe(bank, asked, store, config, rule).values["re_minus_f1"]
    )


def score_sentences(
    bank: EmbeddedSentences,
    asked: EmbeddedSentences,
    store: WordStore,
    config: KnnConfig,
    rule: KnnSettings,
) -> SentenceScores:
    """Judge by neighbours and by a linear classifier.

    Args:
        bank: training words.
        asked: other words.
        store: where both are from.
        config: settings.
        rule: how they are found.
    """
    one = {"pair_neighbours": (rule.pair_neighbours,), "tag_neighbours": (rule.tag_neighbours,)}
    found = predict_by_knn(bank, asked, store, config.model_copy(update=one))
    return SentenceScores(rule, found.scores(rule), score_probe(bank, asked, store, config, rule))


def most_frequent_scores(bank: Gold, asked: Gold, store: WordStore) -> dict[str, dict[str, float]]:
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
