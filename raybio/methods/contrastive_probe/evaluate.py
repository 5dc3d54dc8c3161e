"""Evaluation of a run: the probe on the store's benchmarks, and measures without gold answers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from raybio.core.final_report import Stage, UnitScores
from raybio.core.interfaces import Collective, Encoder
from raybio.encoders.text import TextEncoder, initial_encoder
from raybio.evaluation.evaluator import (
    RIVAL_SEED,
    Evaluator,
    ModelScores,
    bootstrap_seed,
    chosen_on,
)
from raybio.evaluation.unit_scores import sample_units
from raybio.methods.contrastive_probe.accuracy import (
    CUTOFFS,
    NUM_PREDICTED,
    Mean,
    ProbeOutcome,
    chance_scores,
    evaluate_predictions,
)
from raybio.methods.contrastive_probe.benchmark.probe_benchmark import ProbeBenchmark
from raybio.methods.contrastive_probe.cloze import ClozeCollate
from raybio.methods.contrastive_probe.config import Config
from raybio.methods.contrastive_probe.probe import evaluate_agreement, probe_encoder
from raybio.methods.contrastive_probe.rivals import predict_by_rivals
from raybio.methods.contrastive_probe.store import ClozeStore
from raybio.methods.contrastive_probe.text_embedder import TextEmbedder
from raybio.ops.embedding_geometry import spread_metrics
from raybio.ops.retrieval import retrieve, vector_scores

_MEASURES: tuple[tuple[str, Mean], ...] = (("", "macro"), ("micro_", "micro"))
"""Prefix of a measure's name, and its mean."""

_AGREEMENT = f"agreement_at_{NUM_PREDICTED}"


@dataclass(frozen=True)
class ProbeEvaluator(Evaluator):
    """Probes a model with the benchmarks of a store.

    Attributes:
        config: settings of the run.
        store: sentences and benchmarks.
        collate: divides the held-out sentences.
    """

    rivals_read = "the benchmarks of the store"

    config: Config
    store: ClozeStore
    collate: ClozeCollate

    def evaluate_during_training(
        self, model: Encoder, collective: Collective
    ) -> Mapping[str, float]:
        """Return metrics ``val/*``.

        These are accuracies and agreement on the sampled queries, retrieval of held-out answers,
        and the spread of the embeddings.
        """
        embed = _embedder(model, collective)
        metrics: dict[str, float] = {}
        if self.store.benchmarks:
            metrics |= self._accuracies(embed)
            metrics |= self._agreement(embed)
        if self.config.plan.num_held_out_sentences:
            metrics |= self._held_out_retrieval(embed)
        return metrics | spread_metrics(embed.known_UD)

    def initial_encoder(self) -> Encoder:
        """Return the encoder at the start of training."""
        return initial_encoder(
            self.config.encoder, seed=self.config.seed, count_by_word=self.store.count_by_word
        )

    def rivals(self, device: Any, collective: Collective) -> Iterator[tuple[Stage, ModelScores]]:
        """Score the predictions that need no encoder, unless the settings exclude them."""
        config = self.config.evaluation
        if not config.rivals:
            return
        outcomes_by_rival: dict[str, dict[str, ProbeOutcome]] = {}
        for name, benchmark in self.store.benchmarks.items():
            for rival, predicted_QK in predict_by_rivals(benchmark, config, collective).items():
                outcome = evaluate_predictions(benchmark, predicted_QK, config.match)
                outcomes_by_rival.setdefault(rival, {})[name] = outcome
        for rival, outcomes in outcomes_by_rival.items():
            yield rival, self._scores_of(outcomes, RIVAL_SEED)

    def score(self, model: Encoder, collective: Collective, stage: Stage) -> ModelScores:
        """Score all queries of all query sets, and each relation."""
        embed = _embedder(model, collective)
        benchmarks = self.store.benchmarks
        outcomes = {name: self._probe(benchmark, embed) for name, benchmark in benchmarks.items()}
        return replace(
            self._scores_of(outcomes, bootstrap_seed(self.config.seed)),
            spread=spread_metrics(embed.known_UD),
        )

    def remarks(self) -> Sequence[str]:
        """Return a remark on how many queries chose the step of the weights, if not all."""
        metric = self.config.schedule.best_metric or ""
        evaluation = self.config.evaluation
        setting = "evaluation.queries_per_relation"
        name = "hard" if metric.startswith("val/hard_") else evaluation.query_sets[0]
        if metric.startswith(f"val/{_AGREEMENT}"):
            setting = "evaluation.agreement_queries_per_relation"
            sampled = self._agreement_benchmark
        elif "acc_at_" in metric:
            sampled = self._sampled_benchmarks[evaluation.query_sets.index(name)]
        else:
            return ()
        num_queries = len(sampled.relation_Q)
        num_all = len(self.store.benchmarks[name].relation_Q)
        if num_queries == num_all:
            return ()
        return [chosen_on(num_queries, num_all, f"{name} queries", setting)]

    def _scores_of(self, outcomes: Mapping[str, ProbeOutcome], seed: int) -> ModelScores:
        """Return the scores of the outcome on each query set."""
        rng = np.random.default_rng(seed)
        return ModelScores(
            scores={name: _intervals(outcome, rng) for name, outcome in outcomes.items()},
            chance={
                name: chance_scores(benchmark, self.config.evaluation)
                for name, benchmark in self.store.benchmarks.items()
            },
            unit_scores={name: _query_scores(outcome) for name, outcome in outcomes.items()},
            details={
                "relations": {name: _by_relation(outcome) for name, outcome in outcomes.items()}
            },
        )

    def _accuracies(self, embed: TextEmbedder) -> dict[str, float]:
        metrics: dict[str, float] = {}
        query_sets = self.config.evaluation.query_sets
        for name, benchmark in zip(query_sets, self._sampled_benchmarks, strict=True):
            prefix = "val/hard_" if name == "hard" else "val/"
            outcome = self._probe(benchmark, embed)
            for k in CUTOFFS:
                metrics[f"{prefix}acc_at_{k}"] = outcome.macro(k)
            for k in CUTOFFS:
                metrics[f"{prefix}micro_acc_at_{k}"] = outcome.micro(k)
            for k in (CUTOFFS[0], CUTOFFS[-1]):
                accuracies = outcome.by_relation(k).tolist()
                for relation, accuracy in zip(outcome.relations, accuracies, strict=True):
                    metrics[f"{prefix}acc_at_{k}/{relation}"] = accuracy
        return metrics

    def _agreement(self, embed: TextEmbedder) -> dict[str, float]:
        """Return the agreement of the prompts with the default prompts, by relation and its mean.

        Relations whose two prompts are equal are skipped.
        """
        if self.config.evaluation.agreement_queries_per_relation == 0:
            return {}
        benchmark = self._agreement_benchmark
        agreement_R = evaluate_agreement(
            embed,
            benchmark,
            benchmark.with_default_prompts,
            self.config.evaluation,
            **self._max_tokens,
        )
        pairs = zip(benchmark.relations, agreement_R.tolist(), strict=True)
        agreement_by_relation = {
            relation: agreement for relation, agreement in pairs if not np.isnan(agreement)
        }
        if not agreement_by_relation:
            return {}
        name = f"val/{_AGREEMENT}"
        metrics = {name: float(np.mean(list(agreement_by_relation.values())))}
        for relation, agreement in agreement_by_relation.items():
            metrics[f"{name}/{relation}"] = agreement
        return metrics

    def _held_out_retrieval(self, embed: TextEmbedder) -> dict[str, float]:
        """Return how well the queries of held-out sentences (H) retrieve their own answers."""
        query_H, answer_H = self.collate.held_out
        answers, own_H = np.unique(answer_H, return_inverse=True)
        max_tokens = self.config.cloze.max_tokens
        query_HD = embed(query_H, max_tokens)
        answer_CD = embed(answers.tolist(), max_tokens)
        scores = vector_scores(query_HD, answer_CD, self.config.evaluation.metric)
        retrieval = retrieve(scores, np.arange(len(own_H) + 1), own_H, collective=embed.collective)
        return {
            "val/held_out_recall_at_1": retrieval.recall_at(1),
            "val/held_out_mrr": retrieval.mean_reciprocal_rank,
        }

    @cached_property
    def _sampled_benchmarks(self) -> list[ProbeBenchmark]:
        """The queries during training: one sample, so that evaluations are comparable."""
        config = self.config.evaluation
        benchmarks = [self.store.benchmarks[name] for name in config.query_sets]
        if config.queries_per_relation is None:
            return benchmarks
        return [benchmark.sample(config.queries_per_relation, seed=0) for benchmark in benchmarks]

    @cached_property
    def _agreement_benchmark(self) -> ProbeBenchmark:
        """The queries during training that are also probed with the default prompt."""
        num_queries = self.config.evaluation.agreement_queries_per_relation
        return self._sampled_benchmarks[0].sample(num_queries, seed=0)

    def _probe(self, benchmark: ProbeBenchmark, embed: TextEmbedder) -> ProbeOutcome:
        config = self.config.evaluation
        predicted_QK = probe_encoder(embed, benchmark, config, **self._max_tokens)
        return evaluate_predictions(benchmark, predicted_QK, config.match)

    @property
    def _max_tokens(self) -> dict[str, int]:
        config = self.config.evaluation
        return {"name_tokens": config.max_name_tokens, "query_tokens": config.max_query_tokens}


def _embedder(model: Encoder, collective: Collective) -> TextEmbedder:
    assert isinstance(model, TextEncoder)
    return TextEmbedder(model, collective)


def _intervals(outcome: ProbeOutcome, rng: np.random.Generator) -> dict[str, Any]:
    """Return ``{"acc_at_1": {"value", "low", "high"}, ..., "micro_acc_at_1": ...}``."""
    intervals = {}
    for prefix, mean in _MEASURES:
        for k in CUTOFFS:
            intervals[f"{prefix}acc_at_{k}"] = outcome.interval(k, mean, rng)._asdict()
    return intervals


def _query_scores(outcome: ProbeOutcome) -> UnitScores:
    """Return the contribution of each query to the scores of ``_intervals``."""
    shares = {}
    for prefix, mean in _MEASURES:
        for k in CUTOFFS:
            shares[f"{prefix}acc_at_{k}"] = outcome.shares(k, mean)
    return sample_units(np.arange(len(outcome.relation_Q)), shares)


def _by_relation(outcome: ProbeOutcome) -> dict[str, dict[str, float]]:
    scores: dict[str, dict[str, float]] = {relation: {} for relation in outcome.relations}
    for k in CUTOFFS:
        accuracies = outcome.by_relation(k).tolist()
        for relation, accuracy in zip(outcome.relations, accuracies, strict=True):
            scores[relation][f"acc_at_{k}"] = accuracy
    return scores
