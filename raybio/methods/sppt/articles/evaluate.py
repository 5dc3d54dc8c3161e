"""Link retrieval of text encoders: at the end of a run, and of finished encoders by command."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from raybio.core.errors import DataError
from raybio.core.final_report import Stage
from raybio.core.interfaces import Collective, Encoder
from raybio.core.location import Location
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.input_lengths import text_lengths
from raybio.encoders.text import build_text_encoder, text_reader
from raybio.encoders.text_checkpoint import read_checkpoint
from raybio.encoders.tokenization import TokenizerSource, read_texts
from raybio.evaluation.evaluator import ModelScores, bootstrap_seed, device_of, exact_scores
from raybio.evaluation.unit_scores import sample_units
from raybio.methods.sppt.articles.config import ArticleEvaluationConfig
from raybio.methods.sppt.articles.link_samples import (
    MEASURES,
    LinkSample,
    OverTrials,
    by_embeddings,
    by_rival,
    draw_link_samples,
    num_linked_test_nodes,
    over_trials,
    random_vectors,
    sampled_link_chance,
    sampled_link_scores,
    whole_graph,
)
from raybio.methods.sppt.articles.store import LinkedTextStore
from raybio.methods.sppt.evaluate import draw_link_queries
from raybio.methods.sppt.link_retrieval import LinkRetrieval
from raybio.methods.sppt.rivals import LOOK_UP, Rival
from raybio.methods.sppt.scores import with_intervals
from raybio.methods.sppt.system import LinkEvaluator
from raybio.store.store import open_store
from raybio.training.collective import SingleProcess
from raybio.training.embed import embed_rows
from raybio.training.embedding_model import MAX_TOKENS_AT_ONCE
from raybio.training.precision import default_device

RANDOM = "random vectors"
"""Name of the random baseline among the models."""

SAMPLES_SEED = 0
"""Seed of test graphs and samples, equal in all runs and in ``raybio evaluate link-samples``."""


@dataclass(frozen=True)
class ArticleLinkEvaluator(LinkEvaluator):
    """Evaluates link retrieval over the whole graph and, if configured, on samples of test graphs.

    Attributes:
        linked: the articles and their links.
        evaluation: settings, with the number and size of the samples.
    """

    content: ClassVar[str] = "TF-IDF"
    content_ngram: ClassVar[int] = 1
    composition: ClassVar[bool] = False

    linked: LinkedTextStore
    evaluation: ArticleEvaluationConfig

    def score(self, model: Encoder, collective: Collective, stage: Stage) -> ModelScores:
        """Score the whole graph. Test graphs are the units of an additional split, ``samples``."""
        scores = super().score(model, collective, stage)
        if not self.evaluation.test_graphs:
            return scores
        embedding_ND = self.embed(model, collective, np.arange(self.linked.num_rows))
        return self._with_samples(
            scores, by_embeddings(embedding_ND), self.config.seed, embedding_ND.device, collective
        )

    def score_random(self, model: Encoder, collective: Collective) -> ModelScores:
        """Score random vectors, on samples too."""
        scores = super().score_random(model, collective)
        if not self.evaluation.test_graphs:
            return scores
        vector_ND = random_vectors(self.linked.num_rows, SAMPLES_SEED)
        by_random = by_embeddings(vector_ND)
        return self._with_samples(scores, by_random, self.config.seed, device_of(model), collective)

    def score_rival(
        self,
        name: str,
        rival: Callable[[], Rival],
        device: torch.device,
        collective: Collective,
    ) -> ModelScores:
        """Score a rival, on samples too except for look-up, which compares all pairs of texts."""
        scores = super().score_rival(name, rival, device, collective)
        if name == LOOK_UP or not self.evaluation.test_graphs:
            return scores
        all_nodes = draw_link_queries(self.linked.graph, self.linked.heldout, 0)
        of_all_nodes = self.rivals_of(all_nodes, collective)[name]()
        # As by ``RIVAL_SEED``, whatever the run's seed.
        return self._with_samples(scores, by_rival(of_all_nodes, device), 0, device, collective)

    def _with_samples(
        self,
        scores: ModelScores,
        retrieve: Callable[[LinkSample], LinkRetrieval],
        seed: int,
        device: torch.device,
        collective: Collective,
    ) -> ModelScores:
        value_by_measure = self._score_samples(retrieve, device, collective)
        intervals = with_intervals(value_by_measure, bootstrap_seed(seed))
        chance = exact_scores(sampled_link_chance(self._samples))
        units = sample_units(np.arange(self.evaluation.test_graphs), value_by_measure)
        return replace(
            scores,
            scores={**scores.scores, "samples": intervals},
            chance={**scores.chance, "samples": chance},
            unit_scores={**scores.unit_scores, "samples": units},
        )

    def _score_samples(
        self,
        retrieve: Callable[[LinkSample], LinkRetrieval],
        device: torch.device,
        collective: Collective,
    ) -> dict[str, np.ndarray]:
        """Return the scores (T,) of the test graphs by measure. The workers share the graphs."""
        value_TM = torch.zeros(
            len(self._samples), len(MEASURES), dtype=torch.float64, device=device
        )
        for trial in range(collective.rank, len(self._samples), collective.world):
            value_TM[trial] = torch.tensor(sampled_link_scores(self._samples[trial], retrieve))
        value_MT = collective.all_sum(value_TM).T.cpu().numpy()
        return dict(zip(MEASURES, value_MT, strict=True))

    @cached_property
    def _samples(self) -> list[list[LinkSample]]:
        return draw_link_samples(
            whole_graph(self.linked),
            trials=self.evaluation.test_graphs,
            samples=self.evaluation.samples,
            nodes=self.evaluation.nodes_per_sample,
            seed=SAMPLES_SEED,
        )


def evaluate_link_samples(
    models: Sequence[str],
    store_path: Location,
    *,
    pooling: Literal["mean", "cls"] = "cls",
    max_length: int = 512,
    trials: int = 5,
    samples: int = 100,
    nodes: int = 200,
    seed: int = 0,
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, dict[str, OverTrials]]:
    """Return the scores of random vectors and of each model, by its name.

    All links of the store count, held-out links included.

    Args:
        models: folders or hub ids of text encoders.
        store_path: store of linked texts.
        pooling: pooling of models whose checkpoint does not state one.
        max_length: maximum number of tokens of a text, limited by the model's positions.
        trials: number of test graphs.
        samples: samples of each test graph.
        nodes: nodes drawn for a sample.
        seed: seed of test graphs, samples and random vectors.
        report: called with progress messages.

    Raises:
        ConfigError: for a model that cannot be loaded.
        StoreError: for a store that cannot be read.
        DataError: for a graph that is too small.
    """
    store = open_store(store_path, LinkedTextStore)
    graph = whole_graph(store)
    try:
        drawn = draw_link_samples(graph, trials=trials, samples=samples, nodes=nodes, seed=seed)
    except ValueError as error:
        raise DataError(f"{store_path}: {error}") from None

    def score(embedding_ND: Tensor) -> dict[str, OverTrials]:
        retrieve = by_embeddings(embedding_ND)
        return over_trials([sampled_link_scores(trial, retrieve) for trial in drawn])

    scores = {RANDOM: score(random_vectors(graph.num_nodes, seed))}
    num_linked = num_linked_test_nodes(graph, seed)
    if num_linked <= nodes:
        report(
            f"a test graph has {num_linked:,} linked nodes: each sample of {nodes} is the whole "
            "test graph, which is easier than the paper's protocol"
        )
    for model in models:
        report(f"embedding {store.num_rows:,} texts by {model}")
        scores[model] = score(_embed(model, store, pooling, max_length))
    return scores


def truncation_remarks(
    models: Sequence[str], store_path: Location, max_length: int = 512
) -> dict[str, str]:
    """Return a remark for each model that truncates texts of the store. No weights are loaded.

    Raises:
        ConfigError: for a model that cannot be loaded.
        StoreError: for a store that cannot be read.
    """
    store = open_store(store_path, LinkedTextStore)
    rows = np.arange(store.num_rows)
    remarks = {}
    for model in models:
        config = TextEncoderConfig(source=model, max_length=max_length)
        reader = text_reader(config, count_by_word={})
        lengths = text_lengths("texts", store.texts, rows, reader, max_length=max_length)
        if lengths.remark:
            remarks[model] = lengths.remark
    return remarks


def _embed(
    model: str, store: LinkedTextStore, pooling: Literal["mean", "cls"], max_length: int
) -> Tensor:
    states_pooling = read_checkpoint(model, "main", with_head=True).head is not None
    config = TextEncoderConfig(
        source=model,
        max_length=max_length,
        pooling="auto" if states_pooling else pooling,
        normalize=False,
    )
    device = default_device()
    encoder = build_text_encoder(config, seed=0).to(device)
    source = TokenizerSource.of(encoder.tokenizer)
    tokenize = partial(source.tokenize, max_length=encoder.max_tokens)
    return embed_rows(
        encoder,
        lambda row_R: read_texts(store.texts(row_R), tokenize),
        np.arange(store.num_rows),
        SingleProcess(),
        max_tokens=MAX_TOKENS_AT_ONCE,
    )
