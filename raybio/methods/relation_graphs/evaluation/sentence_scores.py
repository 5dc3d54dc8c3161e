"""Scores of kNN and of a linear probe on sentences, and the choice of their settings.

The linear probe (the paper's Table 3) classifies pairs as related or not, whatever the relation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from raybio.core.final_report import UnitScores
from raybio.core.unit_counts import UnitCounts
from raybio.evaluation.unit_scores import sample_counts
from raybio.methods.relation_graphs.annotations.folds import FoldRows
from raybio.methods.relation_graphs.annotations.gold import (
    EmbeddedSentences,
    Gold,
    Related,
    read_gold,
)
from raybio.methods.relation_graphs.classifiers.knn import (
    pair_labels,
    predict_by_knn,
    score_against_gold,
)
from raybio.methods.relation_graphs.classifiers.pair_probe import fit_pair_classifier, pair_logits
from raybio.methods.relation_graphs.config import KnnConfig, WordKnnSettings
from raybio.methods.relation_graphs.evaluation.spert_scores import SpertScores, score_spans
from raybio.methods.relation_graphs.scores import EntityRelationScores
from raybio.methods.relation_graphs.store import WordStore
from raybio.ops.significance import percentile_intervals

BOOTSTRAP_SEED = 0
"""Seed of the resamples of sentences: the same for all models, so that their scores are paired."""

PAIR_MEASURES = ("re_minus_f1", "re_minus_precision", "re_minus_recall")


@dataclass(frozen=True)
class SentenceScores:
    """Scores of predictions for sentences.

    Attributes:
        knn: scores of kNN, or of predictions without vectors.
        probe: scores of the linear probe, or of the pairs predicted without vectors, whatever their
            relation.
        spert: scores of the predictions of ``knn`` by SpERT's conventions.
    """

    knn: EntityRelationScores
    probe: EntityRelationScores
    spert: SpertScores

    @property
    def counts(self) -> dict[str, UnitCounts]:
        """The counts of sentences of all scores."""
        probe = {_as_probe(name): self.probe.counts[name] for name in PAIR_MEASURES}
        return {**self.knn.counts, **probe, **self.spert.counts}

    @property
    def values(self) -> dict[str, float]:
        """All values."""
        return {name: counts.value for name, counts in self.counts.items()}

    def intervals(self) -> dict[str, Any]:
        """Return all values with bootstrap intervals over sentences."""
        intervals = percentile_intervals(self.counts, np.random.default_rng(BOOTSTRAP_SEED))
        return {name: interval._asdict() for name, interval in intervals.items()}

    def unit_scores(self) -> UnitScores:
        """Return the counts of sentences of all scores."""
        return sample_counts(self.counts)


@dataclass(frozen=True)
class VectorScores(SentenceScores):
    """Scores of kNN and of the linear probe over vectors of words.

    Attributes:
        settings: settings of kNN and of the probe.
    """

    settings: WordKnnSettings


def score_sentences(
    reference: EmbeddedSentences,
    queries: EmbeddedSentences,
    store: WordStore,
    config: KnnConfig,
    settings: WordKnnSettings,
) -> VectorScores:
    """Score kNN and the linear probe.

    Args:
        reference: training sentences.
        queries: other sentences.
        store: the store of both.
        config: settings of the evaluation.
        settings: the chosen settings.
    """
    (scores,) = score_each(reference, queries, store, config, [settings])
    return scores


def score_each(
    reference: EmbeddedSentences,
    queries: EmbeddedSentences,
    store: WordStore,
    config: KnnConfig,
    settings: Sequence[WordKnnSettings],
) -> list[VectorScores]:
    """Return the scores of ``score_sentences`` for each of several settings, by one search."""
    searched = {
        "num_pair_neighbors": tuple(each.num_pair_neighbors for each in settings),
        "num_tag_neighbors": tuple(each.num_tag_neighbors for each in settings),
    }
    predictions = predict_by_knn(reference, queries, store, config.model_copy(update=searched))
    scores = []
    for each in settings:
        pairs, tag_W = predictions.predicted(each)
        by_words = _by_words(queries.gold, pairs, tag_W, store)
        by_spans = _by_spans(queries.gold, pairs, tag_W, store, config.spert_overlaps)
        probe = score_probe(reference, queries, store, config, each)
        scores.append(VectorScores(by_words, probe, by_spans, each))
    return scores


def score_probe(
    reference: EmbeddedSentences,
    queries: EmbeddedSentences,
    store: WordStore,
    config: KnnConfig,
    settings: WordKnnSettings,
) -> EntityRelationScores:
    """Fit the linear probe on the reference pairs, and score the pairs that it predicts.

    Without reference pairs it predicts none.
    """
    pairs = reference.pairs
    if not pairs.num_pairs:
        none = np.zeros(0, dtype=np.int64)
        return _score_related(queries.gold, none, none, store)
    first_P, second_P = (end_P.cpu().numpy() for end_P in pairs.pairs())
    is_related_P = torch.from_numpy(pair_labels(reference.gold, first_P, second_P) > 0)
    weight_2D, bias = fit_pair_classifier(
        pairs,
        is_related_P.to(reference.pair_WD.device),
        l2=config.probe_l2,
        positive_weight=settings.probe_positive_weight,
    )
    is_predicted_P = (pair_logits(queries.pairs, weight_2D, bias) > 0).cpu().numpy()
    first_P, second_P = (end_P.cpu().numpy()[is_predicted_P] for end_P in queries.pairs.pairs())
    return _score_related(queries.gold, first_P, second_P, store)


def score_predictions(
    gold: Gold,
    pairs: Related,
    tag_W: np.ndarray,
    store: WordStore,
    *,
    spert_overlaps: bool = True,
) -> SentenceScores:
    """Score related pairs and tags that were predicted without vectors.

    Scores of the same pairs, whatever their relation, take the place of the linear probe's.
    """
    return SentenceScores(
        _by_words(gold, pairs, tag_W, store),
        _score_related(gold, pairs.first_P, pairs.second_P, store),
        _by_spans(gold, pairs, tag_W, store, spert_overlaps),
    )


def _by_words(
    gold: Gold, pairs: Related, tag_W: np.ndarray, store: WordStore
) -> EntityRelationScores:
    num_relations = len(store.relation_names) - 1
    num_types = len(store.entity_types)
    return score_against_gold(gold, pairs, tag_W, num_types=num_types, num_relations=num_relations)


def _by_spans(
    gold: Gold, pairs: Related, tag_W: np.ndarray, store: WordStore, with_overlaps: bool
) -> SpertScores:
    num_relations = len(store.relation_names) - 1
    num_types = len(store.entity_types)
    return score_spans(
        gold,
        pairs,
        tag_W,
        num_types=num_types,
        num_relations=num_relations,
        with_overlaps=with_overlaps,
    )


def _score_related(
    gold: Gold, first_P: np.ndarray, second_P: np.ndarray, store: WordStore
) -> EntityRelationScores:
    """Score pairs that are predicted to be related, whatever the relation."""
    return score_against_gold(
        _with_one_relation(gold),
        Related(first_P, second_P, np.ones_like(first_P)),
        gold.tag_W,
        num_types=len(store.entity_types),
        num_relations=1,
    )


def choose_settings(
    reference: EmbeddedSentences,
    queries: EmbeddedSentences,
    store: WordStore,
    config: KnnConfig,
) -> WordKnnSettings:
    """Return the settings that are best on ``queries``; ties go to the smallest.

    Args:
        reference: training sentences.
        queries: validation sentences that are not in the reference.
        store: the store of both.
        config: the candidates.
    """
    if not config.has_choice:
        return config.first_settings
    settings = predict_by_knn(reference, queries, store, config).best_settings(
        config.first_settings
    )
    if len(config.probe_positive_weights) == 1:
        return settings
    candidates = [
        settings._replace(probe_positive_weight=weight)
        for weight in sorted(config.probe_positive_weights)
    ]
    return max(
        candidates,
        key=lambda candidate: score_probe(reference, queries, store, config, candidate).values[
            "re_minus_f1"
        ],
    )


def chance_scores(
    store: WordStore, fold: FoldRows, split: str, *, spert_overlaps: bool = True
) -> dict[str, float]:
    """Return the scores of predicting the most frequent labels for "dev" or "test" sentences.

    Labels are counted in the sentences that predict the split. Every word is an entity of the most
    frequent type, and any two words of a sentence have the most frequent relation (none if the
    store has no relation). For the probe, all pairs are related.
    """
    reference = read_gold(store, fold.train if split == "dev" else fold.train_and_dev)
    queries = read_gold(store, fold.dev if split == "dev" else fold.test)
    begins_W = reference.tag_W % 2 == 1  # tag 1 + 2t begins an entity of type t
    types_T = np.bincount(reference.tag_W[begins_W] // 2, minlength=1)
    relations_R = np.bincount(reference.pairs.label_P, minlength=2)
    relations_R[0] = 0
    tag_W = np.full(len(queries.tag_W), 1 + 2 * int(types_T.argmax()))
    firsts = []
    seconds = []
    has_relations = len(store.relation_names) > 1
    for start, size in zip(queries.indptr_S1.tolist(), np.diff(queries.indptr_S1), strict=False):
        first_K, second_K = np.triu_indices(int(size) if has_relations else 0, k=1)
        firsts.append(first_K + start)
        seconds.append(second_K + start)
    first_P = np.concatenate(firsts)
    second_P = np.concatenate(seconds)
    label = max(int(relations_R.argmax()), 1)
    related = Related(first_P, second_P, np.full(len(first_P), label))
    scores = score_predictions(queries, related, tag_W, store, spert_overlaps=spert_overlaps)
    return scores.values


def _with_one_relation(gold: Gold) -> Gold:
    """Return the annotations with all relations merged."""
    merged = gold.pairs._replace(label_P=np.ones_like(gold.pairs.label_P))
    return gold._replace(pairs=merged)


def _as_probe(name: str) -> str:
    return name.replace("re_minus", "probe")
