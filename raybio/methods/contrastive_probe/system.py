"""Contrastive-Probe: rewire a pre-trained encoder by the heads and tails of raw sentences, and probe it for facts.

Meng, Liu, Shareghi, Su, Collins, Collier: "Rewire-then-Probe: A Contrastive Recipe for Probing Biomedical Knowledge of
Pre-trained Language Models" (ACL 2022). A sentence's head with one mask token is drawn to its tail and away from all
other heads and tails of the batch (InfoNCE, τ = 0.04); some hundred steps on 10,000 sentences are enough. Then the
nearest of all names of a benchmark (MedLAMA) to a prompt with a mask token should be a right answer.

Reproduced: random tails, [CLS] states, the symmetric loss over 2B sequences, AdamW at a constant 2e-5 without clipping,
a checkpoint every 50 steps, the probe by Euclidean distance among the names of all relations. Different from the
authors' code: the mask ratio is honoured, the true tail is taken (theirs may keep a sentence's last word), epochs do
not end in smaller batches, equal sentences are no negatives of each other, all randomness hangs on the seed, names
outside of ASCII can be found, a query that is too long loses its beginning and not its mask.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from raybio.core.errors import ConfigError
from raybio.core.final_report import Stage, UnitScores
from raybio.core.interfaces import Collective, Encoder, System
from raybio.core.randomness import derive_seed
from raybio.encoders.config import SCRATCH
from raybio.encoders.export import export_text_encoder
from raybio.encoders.input_lengths import InputLengths, text_lengths
from raybio.encoders.text import TextEncoder, build_text_encoder, check_text_encoder, text_reader
from raybio.encoders.tokenization import TokenizerSource
from raybio.evaluation.evaluator import Evaluator, ModelScores, bootstrap_seed
from raybio.evaluation.unit_scores import sample_units
from raybio.methods.contrastive_probe.accuracy import (
    CUTOFFS,
    NUM_PREDICTED,
    ProbeOutcome,
    chance_scores,
    outcome,
)
from raybio.methods.contrastive_probe.batches import ClozeBatch
from raybio.methods.contrastive_probe.benchmark.probe_benchmark import ProbeBenchmark
from raybio.methods.contrastive_probe.cloze import ClozeCollate, ClozePlan
from raybio.methods.contrastive_probe.config import Config, EvaluationConfig
from raybio.methods.contrastive_probe.demo import default_knowledge
from raybio.methods.contrastive_probe.loss import ClozeContrast
from raybio.methods.contrastive_probe.probe import TextEmbedder, agreement, probe_encoder
from raybio.methods.contrastive_probe.step_selection import write_step_selection
from raybio.methods.contrastive_probe.store import ClozeStore
from raybio.ops.retrieval import retrieve, vector_scores
from raybio.ops.scores import Metric
from raybio.ops.spread import spread_metrics
from raybio.store.store import open_store

__all__ = [
    "STORE",
    "build",
    "check",
    "input_lengths",
    "prepare_demo",
    "write_step_selection",
]

STORE = ClozeStore
"""The class of the stores that it trains on."""


def prepare_demo(directory: str | Path) -> Path:
    """The embedded default corpus as a prepared store inside ``directory``; made on the first call."""
    return default_knowledge(directory).path


def check(config: Config, store: ClozeStore) -> None:
    """Refuse what can be known to fail before anything starts.

    Raises:
        ConfigError: if encoder, plan or evaluation do not fit their source or the store, or sentences,
            queries or names are to be longer than what the encoder reads.
    """
    check_text_encoder(config.encoder)
    _checked_plan(config, store)


def input_lengths(config: Config, store: ClozeStore) -> list[InputLengths]:
    """Count queries, answers and names that are longer than what is read of them."""
    reader = text_reader(config.encoder, count_by_word=store.count_by_word)
    mask_token, plan = reader.tokenizer.mask_token or "", _checked_plan(config, store)
    source = TokenizerSource.of(reader.tokenizer)
    tokenise = partial(source.tokenise, max_length=config.cloze.max_tokens, keep_mask=True)
    collate = ClozeCollate(plan, config.cloze, tokenise, mask_token, config.seed)
    count = partial(text_lengths, reader=reader, max_length=config.encoder.max_length)
    most, rows = config.cloze.max_tokens, plan.trained_rows
    found = [
        count("queries of sentences", lambda row_R: collate.divided(row_R)[0], rows, limit=most),
        count("answers of sentences", lambda row_R: collate.divided(row_R)[1], rows, limit=most),
    ]
    asked = config.evaluation
    for name, benchmark in store.benchmarks.items():
        for what, texts, longest in (
            (f"queries of the {name} set", benchmark.queries(mask_token), asked.max_query_tokens),
            (f"names of the {name} set", benchmark.names, asked.max_name_tokens),
        ):
            found.append(count(what, partial(_taken, texts), np.arange(len(texts)), limit=longest))
    return found


def _taken(texts: Sequence[str], row_R: np.ndarray) -> list[str]:
    return [texts[row] for row in row_R.tolist()]


def _checked_plan(config: Config, store: ClozeStore) -> ClozePlan:
    if store.benchmarks and not set(config.evaluation.query_sets) <= store.benchmarks.keys():
        asked = config.evaluation.query_set
        raise ConfigError(
            f"evaluation.query_set is {asked}, and {store.path} has the {', '.join(store.benchmarks)} set alone. "
            "Ask that, or prepare a store of a benchmark with both: <relation>_<rows>.csv (full) and "
            "<relation>_<rows>_hard.csv (hard)"
        )
    longest = config.encoder.max_length
    lengths = {"cloze.max_tokens": config.cloze.max_tokens}
    if store.benchmarks:
        lengths["evaluation.max_query_tokens"] = config.evaluation.max_query_tokens
        lengths["evaluation.max_name_tokens"] = config.evaluation.max_name_tokens
    for name, wanted in lengths.items():
        if longest != "auto" and wanted > longest:
            raise ConfigError(
                f"{name} is {wanted}, and encoder.max_length is {longest}: more would be cut than is said. Raise "
                "encoder.max_length, or lower the other to it"
            )
    return ClozePlan(store, config.plan, config.seed)


def build(config: Config, store_path: str | Path) -> System:
    """Wire Contrastive-Probe over a prepared store of sentences.

    Raises:
        StoreError: if the store is missing, damaged or of another kind.
        ConfigError: if the encoder cannot be loaded, has no mask token, or settings do not fit each other.
    """
    store = open_store(store_path, ClozeStore)
    plan = _checked_plan(config, store)
    encoder = _encoder(config, store)
    tokenizer = TokenizerSource.of(encoder.tokenizer)
    mask_token = encoder.tokenizer.mask_token
    if mask_token is None:
        raise ConfigError(
            f"encoder.source {config.encoder.source!r}: its tokenizer has no mask token; want one that has"
        )
    tokenise = partial(
        tokenizer.tokenise,
        max_length=min(config.cloze.max_tokens, encoder.max_tokens),
        keep_mask=True,
    )
    collate = ClozeCollate(plan, config.cloze, tokenise, mask_token, config.seed)
    evaluator = ProbeEvaluator(config, store, collate)
    return System(
        name="contrastive_probe",
        model=encoder,
        objective=ClozeContrast(config.objective),
        batch_type=ClozeBatch,
        collate=collate,
        steps_per_epoch=plan.steps_per_epoch,
        evaluate=evaluator.evaluate_during_training
        if store.benchmarks or config.plan.num_held_out_sentences
        else None,
        final_evaluate=evaluator.final_report if store.benchmarks else None,
        export=lambda folder, card: export_text_encoder(encoder, folder, card=card),
        data_digest=f"{store.digest} read as {tokenizer.fingerprint}",
        is_pretrained=config.encoder.source != SCRATCH,
    )


def _encoder(config: Config, store: ClozeStore) -> TextEncoder:
    """The encoder as training begins with it."""
    seed = derive_seed(config.seed, "weights")
    return build_text_encoder(config.encoder, seed=seed, count_by_word=store.count_by_word)


@dataclass(frozen=True)
class ProbeEvaluator(Evaluator):
    """The probe of a model with the store's benchmark, and measures that need no gold answers."""

    config: Config
    store: ClozeStore
    collate: ClozeCollate

    def evaluate_during_training(
        self, model: Encoder, collective: Collective
    ) -> Mapping[str, float]:
        """Return ``val/*``: accuracies and agreement on the sampled queries, retrieval of held-out tails."""
        embed, metrics = _embedder(model, collective), dict[str, float]()
        if self.store.benchmarks:
            metrics |= self._probed(embed) | self._agreement(embed)
        if self.config.plan.num_held_out_sentences:
            metrics |= self._held_out(embed)
        return metrics | spread_metrics(embed.known_UD)

    def _probed(self, embed: TextEmbedder) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for name, asked in zip(self.config.evaluation.query_sets, self._sampled, strict=True):
            found, prefix = self._ask(asked, embed), "val/hard_" if name == "hard" else "val/"
            metrics |= {f"{prefix}acc_at_{k}": found.macro(k) for k in CUTOFFS}
            metrics |= {f"{prefix}micro_acc_at_{k}": found.micro(k) for k in CUTOFFS}
            for k in (CUTOFFS[0], CUTOFFS[-1]):
                by_relation = zip(found.relations, found.by_relation(k).tolist(), strict=True)
                metrics |= {
                    f"{prefix}acc_at_{k}/{relation}": share for relation, share in by_relation
                }
        return metrics

    def _agreement(self, embed: TextEmbedder) -> dict[str, float]:
        """Of the queries' words and the relations' own, where these differ; their mean over such relations."""
        num = self.config.evaluation.agreement_queries_per_relation
        if num == 0:
            return {}
        asked = self._sampled[0].sample(num, seed=0)
        # Among all names: which names answer a relation's queries is gold.
        config = self.config.evaluation.model_copy(update={"candidates": "all"})
        predicted_QK = self._predict(asked, embed, config)
        agreement_R = agreement(
            embed, asked, asked.in_own_words, config, predicted_QK, **self._lengths
        )
        by_relation = zip(asked.relations, agreement_R, strict=True)
        known = {relation: float(value) for relation, value in by_relation if not np.isnan(value)}
        if not known:
            return {}
        name = f"val/agreement_at_{NUM_PREDICTED}"
        return {name: float(np.mean(list(known.values())))} | {
            f"{name}/{key}": value for key, value in known.items()
        }

    def _held_out(self, embed: TextEmbedder) -> dict[str, float]:
        """Does each held-out sentence's query find its answer among all of theirs, by the distance of the probe?"""
        query_H, answer_H = self.collate.held_out
        answers, own_H = np.unique(answer_H, return_inverse=True)
        query_HD, answer_CD = (
            embed(texts, self.config.cloze.max_tokens) for texts in (query_H, answers.tolist())
        )
        metric: Metric = "euclidean" if self.config.evaluation.metric == "l2" else "cosine"
        scores = vector_scores(query_HD, answer_CD, metric)
        found = retrieve(scores, np.arange(len(own_H) + 1), own_H, collective=embed.collective)
        return {
            "val/held_out_recall_at_1": found.recall_at(1),
            "val/held_out_mrr": found.mean_reciprocal_rank,
        }

    def initial_encoder(self) -> Encoder:
        """Return the encoder as training begins with it."""
        return _encoder(self.config, self.store)

    def score(self, model: Encoder, collective: Collective, stage: Stage) -> ModelScores:
        """Score all queries of all query sets, and each relation."""
        embed = _embedder(model, collective)
        benchmarks = self.store.benchmarks
        answers = {name: self._ask(benchmark, embed) for name, benchmark in benchmarks.items()}
        rng = np.random.default_rng(bootstrap_seed(self.config.seed))
        return ModelScores(
            scores={name: _scores(outcome, rng) for name, outcome in answers.items()},
            chance={
                name: chance_scores(benchmark, self.config.evaluation)
                for name, benchmark in benchmarks.items()
            },
            spread=spread_metrics(embed.known_UD),
            unit_scores={name: _query_scores(outcome) for name, outcome in answers.items()},
            details={
                "relations": {name: _by_relation(outcome) for name, outcome in answers.items()}
            },
        )

    @cached_property
    def _sampled(self) -> list[ProbeBenchmark]:
        """Drawn once, so that evaluations of a run, and runs over one store, are comparable."""
        num = self.config.evaluation.queries_per_relation
        whole = [self.store.benchmarks[name] for name in self.config.evaluation.query_sets]
        return whole if num is None else [benchmark.sample(num, seed=0) for benchmark in whole]

    def _ask(self, benchmark: ProbeBenchmark, embed: TextEmbedder) -> ProbeOutcome:
        asked = self.config.evaluation
        return outcome(benchmark, self._predict(benchmark, embed, asked), asked.match)

    def _predict(
        self, benchmark: ProbeBenchmark, embed: TextEmbedder, asked: EvaluationConfig
    ) -> np.ndarray:
        return probe_encoder(embed, benchmark, asked, **self._lengths)

    @property
    def _lengths(self) -> dict[str, int]:
        asked = self.config.evaluation
        return {"name_tokens": asked.max_name_tokens, "query_tokens": asked.max_query_tokens}


def _embedder(model: Encoder, collective: Collective) -> TextEmbedder:
    assert isinstance(model, TextEncoder)
    return TextEmbedder(model, collective)


def _scores(answers: ProbeOutcome, rng: np.random.Generator) -> dict[str, Any]:
    """``{"acc_at_1": {"value", "low", "high"}, ..., "micro_acc_at_1": ...}``."""
    macro = {f"acc_at_{k}": answers.interval(k, "macro", rng)._asdict() for k in CUTOFFS}
    return macro | {
        f"micro_acc_at_{k}": answers.interval(k, "micro", rng)._asdict() for k in CUTOFFS
    }


def _query_scores(answers: ProbeOutcome) -> UnitScores:
    """What each query adds to ``_scores``, by the same names."""
    macro = {f"acc_at_{k}": answers.shares(k, "macro") for k in CUTOFFS}
    micro = {f"micro_acc_at_{k}": answers.shares(k, "micro") for k in CUTOFFS}
    return sample_units(np.arange(len(answers.relation_Q)), macro | micro)


def _by_relation(answers: ProbeOutcome) -> dict[str, dict[str, float]]:
    return {
        relation: {f"acc_at_{k}": float(answers.by_relation(k)[number]) for k in CUTOFFS}
        for number, relation in enumerate(answers.relations)
    }
