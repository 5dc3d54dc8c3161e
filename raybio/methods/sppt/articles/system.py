"""Structure-preserving pre-training (SPPT) on graphs of texts: articles that cite each other.

McDermott, Yap, Szolovits, Zitnik: "Structure-inducing pre-training". As on proteins, with what the paper takes for
articles: the margin contrastive loss, negatives that are any texts, λ = 0.01. Its four epochs are a matter of
``schedule.max_steps``. All texts are one group; of a large one the final table asks 5,000 nodes and their neighbours,
and with ``evaluation.test_graphs`` also samples of test graphs, as the paper's Table 7 does.

Different from the authors' code: as on proteins, and an anchor is encoded once, not twice with two masks; the loss is
the paper's sum of two means, of which theirs is half (lambda_spml weighs it).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from raybio.core.errors import ConfigError
from raybio.core.final_report import Stage
from raybio.core.interfaces import Collective, Encoder, System
from raybio.core.randomness import derive_seed
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.export import export_text_encoder
from raybio.encoders.input_lengths import InputLengths, text_lengths
from raybio.encoders.text import TextEncoder, build_text_encoder, check_text_encoder, text_reader
from raybio.encoders.tokenization import TokenizerSource
from raybio.evaluation.evaluator import ModelScores, bootstrap_seed, device_of, exact_scores
from raybio.evaluation.unit_scores import sample_units
from raybio.methods.sppt.articles.collate import HasTexts, TextRows
from raybio.methods.sppt.articles.config import Config, EvaluationConfig
from raybio.methods.sppt.articles.demo import default_citations
from raybio.methods.sppt.articles.link_samples import (
    MEASURES,
    LinkSample,
    draw_link_samples,
    num_linked_test_nodes,
    random_vectors,
    sampled_link_chance,
    sampled_link_scores,
    whole_graph,
)
from raybio.methods.sppt.articles.store import LinkedTextStore
from raybio.methods.sppt.config import ObjectiveConfig
from raybio.methods.sppt.downstream.scores import with_intervals
from raybio.methods.sppt.system import LinkEvaluator, link_system
from raybio.store.store import open_store

SAMPLES_SEED = 0
"""Of test graphs and their samples: the same for every run, and for ``evaluate.py link-samples``."""


STORE = LinkedTextStore
"""The class of the stores that it trains on."""


def prepare_demo(directory: str | Path) -> Path:
    """The embedded default corpus as a prepared store inside ``directory``; made on the first call."""
    return default_citations(directory).path


def check(config: Config, store: LinkedTextStore) -> None:
    """Refuse what can be known to fail before anything starts.

    Raises:
        ConfigError: if the encoder's source is not there or does not fit, or a test graph is no larger than a sample.
    """
    check_text_encoder(config.encoder)
    asked = config.evaluation
    graph = whole_graph(store) if asked.test_graphs else store.graph
    for trial in range(asked.test_graphs):
        if (at_hand := num_linked_test_nodes(graph, SAMPLES_SEED, trial)) <= asked.nodes_per_sample:
            raise ConfigError(
                f"evaluation.test_graphs: number {trial + 1} of {asked.test_graphs} has {at_hand:,} linked nodes in "
                f"{store.path}, and every sample of {asked.nodes_per_sample} would be all of it; want fewer "
                "evaluation.nodes_per_sample, a larger graph, or no test graphs"
            )


def input_lengths(config: Config, store: LinkedTextStore) -> list[InputLengths]:
    """Count the texts that are longer than what is read of them."""
    reader = text_reader(config.encoder, count_by_word=store.count_by_word)
    return [
        text_lengths(
            "texts",
            store.texts,
            np.arange(store.num_rows),
            reader,
            wanted=config.encoder.max_length,
        )
    ]


def build(config: Config, store_path: str | Path) -> System:
    """Wire SPPT over a prepared store of linked texts.

    Raises:
        StoreError: if the store is missing, damaged or of another kind.
        ConfigError: if the encoder cannot be loaded, or has no masked words.
    """
    store = open_store(store_path, LinkedTextStore)
    encoder = _encoder(config, store.count_by_word)
    tokenizer = TokenizerSource.of(encoder.tokenizer)
    read = text_rows(store, encoder)
    fresh = partial(_encoder, config, store.count_by_word)
    evaluator = ArticleLinkEvaluator(store, read, fresh, config.evaluation, config)
    return link_system(
        "sppt_mag",
        config,
        store,
        encoder=encoder,
        read=read,
        masks=config.input,
        evaluate=evaluator.evaluate_during_training,
        final_evaluate=evaluator.final_report,
        export=lambda folder, card: export_text_encoder(encoder, folder, card=card),
        data_digest=f"{store.digest} read as {tokenizer.fingerprint}",
    )


@dataclass(frozen=True)
class ArticleLinkEvaluator(LinkEvaluator):
    """Link retrieval over the whole graph and, where asked for, on samples of test graphs."""

    linked: LinkedTextStore
    evaluation: EvaluationConfig

    def stages(self, model: Encoder, collective: Collective) -> Iterator[tuple[Stage, ModelScores]]:
        """Score as ``LinkEvaluator`` does; test graphs are the units of a split ``samples``."""
        for stage, scores in super().stages(model, collective):
            if self.evaluation.test_graphs:
                scores = self._with_samples(scores, stage, model, collective)
            yield stage, scores

    def _with_samples(
        self, scores: ModelScores, stage: Stage, model: Encoder, collective: Collective
    ) -> ModelScores:
        row_N = np.arange(self.linked.num_rows)
        if stage == "random":
            embedding_ND = random_vectors(len(row_N), SAMPLES_SEED)
        elif stage == "initial":
            initial = self.initial_encoder().to(device_of(model))
            embedding_ND = self.embed(initial, collective, row_N)
        else:
            embedding_ND = self.embed(model, collective, row_N)
        values = self._on_samples(embedding_ND, collective)
        intervals = with_intervals(values, bootstrap_seed(self.config.seed))
        chance = exact_scores(sampled_link_chance(self._samples))
        units = sample_units(np.arange(self.evaluation.test_graphs), values)
        return replace(
            scores,
            scores={**scores.scores, "samples": intervals},
            chance={**scores.chance, "samples": chance},
            unit_scores={**scores.unit_scores, "samples": units},
        )

    def _on_samples(self, embedding_ND: Tensor, collective: Collective) -> dict[str, np.ndarray]:
        """Scores (T,) of test graphs, which the workers share."""
        value_TM = torch.zeros(
            len(self._samples), len(MEASURES), dtype=torch.float64, device=embedding_ND.device
        )
        for trial in range(collective.rank, len(self._samples), collective.world):
            value_TM[trial] = torch.tensor(sampled_link_scores(self._samples[trial], embedding_ND))
        value_MT = collective.all_sum(value_TM).T.cpu().numpy()
        return dict(zip(MEASURES, value_MT, strict=True))

    @cached_property
    def _samples(self) -> list[list[LinkSample]]:
        asked = self.evaluation
        sizes = {
            "trials": asked.test_graphs,
            "samples": asked.samples,
            "nodes": asked.nodes_per_sample,
        }
        return draw_link_samples(whole_graph(self.linked), **sizes, seed=SAMPLES_SEED)


def _encoder(config: Config, count_by_word: dict[str, int]) -> TextEncoder:
    """The encoder as training begins with it."""
    seed = derive_seed(config.seed, "weights")
    encoder = build_text_encoder(config.encoder, seed=seed, count_by_word=count_by_word)
    return with_head(encoder, config.encoder, config.objective, config.seed)


def with_head(
    encoder: TextEncoder, config: TextEncoderConfig, objective: ObjectiveConfig, seed: int
) -> TextEncoder:
    """The encoder, with a head of masked language modelling if that counts.

    Raises:
        ConfigError: if it cannot have one.
    """
    if objective.lambda_spml < 1:
        encoder.learn_words(config, seed=derive_seed(seed, "mask head"))
    return encoder


def text_rows(linked: HasTexts, encoder: TextEncoder) -> TextRows:
    """Texts as the encoder's tokens.

    Raises:
        ConfigError: if its tokenizer has no mask token.
    """
    source = TokenizerSource.of(encoder.tokenizer)
    if source.mask_id is None:
        raise ConfigError("encoder.source: its tokenizer has no mask token; want one that has")
    tokenise = partial(source.tokenise, max_length=encoder.max_tokens)
    ordinary_ids = np.setdiff1d(np.arange(source.vocabulary_size), source.special_ids)
    return TextRows(linked, tokenise, source.mask_id, source.special_ids, ordinary_ids)
