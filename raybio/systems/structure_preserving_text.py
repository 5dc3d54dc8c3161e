"""Structure-preserving pre-training (SPPT) on graphs of texts: articles that cite each other.

McDermott, Yap, Szolovits, Zitnik: "Structure-inducing pre-training". As on proteins, with what the paper takes for
articles: the margin contrastive loss, negatives that are any texts, λ = 0.01. Its four epochs are a matter of
``schedule.max_steps``. All texts are one group; of a large one the final table asks 5,000 nodes and their neighbours,
and with ``evaluation.test_graphs`` also samples of test graphs, as the paper's Table 7 does.

Different from the authors' code: as on proteins, and an anchor is encoded once, not twice with two masks; the loss is
the paper's sum of two means, of which theirs is half (lambda_spml weighs it).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from raybio.data.collate import MaskConfig
from raybio.data.input_lengths import InputLengths
from raybio.data.linked_text_store import LinkedTextStore
from raybio.data.plan import PlanConfig
from raybio.data.simulate_citations import default_citations
from raybio.data.store import open_store
from raybio.data.text_rows import HasTexts, TextRows
from raybio.encoders.text import (
    ClsTextEncoderConfig,
    TextEncoder,
    TextEncoderConfig,
    build_text_encoder,
    check_text_encoder,
    text_reader,
)
from raybio.encoders.text_export import export_text_encoder
from raybio.encoders.tokens import TokenizerSource
from raybio.errors import ConfigError
from raybio.evaluation.link_retrieval import LinkEvaluationConfig
from raybio.evaluation.sampled_links import (
    MEASURES,
    LinkSample,
    draw_link_samples,
    linked_of_test_graph,
    sampled_link_chance,
    sampled_link_scores,
)
from raybio.evaluation.shares import exact_scores
from raybio.evaluation.task_scores import with_intervals
from raybio.evaluation.unit_scores import sampled
from raybio.functional.hashing import derive_seed
from raybio.objectives.structure_preserving import ObjectiveConfig
from raybio.protocols import Collective, Encoder, System
from raybio.systems.input_lengths import text_lengths
from raybio.systems.link_samples import random_vectors, whole_graph
from raybio.systems.linking import LinkJudge, check_sampling, link_system
from raybio.training.optim import OptimConfig
from raybio.training.settings import ScheduleConfig, TrainingConfig

SAMPLES_SEED = 0
"""Of test graphs and their samples: the same for every run, and for ``evaluate.py link-samples``."""


class EvaluationConfig(LinkEvaluationConfig):
    """How link retrieval of texts is measured."""

    test_graphs: int = Field(
        0, ge=0, description="test graphs whose samples the final table asks too, 5 in the paper's Table 7; 0: none"
    )
    samples: int = Field(100, ge=1, description="of each test graph")
    nodes_per_sample: int = Field(200, ge=1, description="drawn for a sample; their neighbours join them")


class Config(TrainingConfig):
    """Settings of SPPT on texts; the defaults are the paper's where it states them."""

    encoder: ClsTextEncoderConfig = ClsTextEncoderConfig(
        source="allenai/scibert_scivocab_uncased", normalise=False, max_length=512
    )
    input: MaskConfig = MaskConfig()
    objective: ObjectiveConfig = ObjectiveConfig(loss="margin_contrastive", lambda_spml=0.01)
    plan: PlanConfig = PlanConfig()
    evaluation: EvaluationConfig = EvaluationConfig(num_nodes_per_group=200, num_nodes_per_group_at_the_end=5000)

    @model_validator(mode="after")
    def _parts_fit(self) -> "Config":
        check_sampling(self.plan, self.objective)
        return self


DEMO = Config(
    encoder=ClsTextEncoderConfig(
        num_layers=2, width=96, num_heads=4, ffn_width=192, max_length=64, dropout=0.0, pooling="mean", normalise=False
    ),
    objective=ObjectiveConfig(loss="margin_contrastive", lambda_spml=0.1),
    schedule=ScheduleConfig(max_steps=400, checkpoint_every_steps=100, evaluate_every_steps=100),
    optim=OptimConfig(peak_lr=1e-3, num_warmup_steps=40, schedule="linear"),
)
"""Settings for the embedded simulated citation graph on two CPU cores: minutes."""


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
        if (at_hand := linked_of_test_graph(graph, SAMPLES_SEED, trial)) <= asked.nodes_per_sample:
            raise ConfigError(
                f"evaluation.test_graphs: number {trial + 1} of {asked.test_graphs} has {at_hand:,} linked nodes in "
                f"{store.path}, and every sample of {asked.nodes_per_sample} would be all of it; want fewer "
                "evaluation.nodes_per_sample, a larger graph, or no test graphs"
            )


def input_lengths(config: Config, store: LinkedTextStore) -> list[InputLengths]:
    """Count the texts that are longer than what is read of them."""
    reader = text_reader(config.encoder, count_by_word=store.count_by_word)
    return [text_lengths("texts", store.texts, np.arange(store.num_rows), reader, wanted=config.encoder.max_length)]


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
    judge = _Judge(LinkJudge(store, read, fresh, config.evaluation, config), store, config.evaluation)
    return link_system(
        "structure_preserving_text",
        config,
        store,
        encoder=encoder,
        read=read,
        masks=config.input,
        evaluate=judge.links.during_training,
        final_evaluate=judge.at_the_end,
        export=lambda folder, card: export_text_encoder(encoder, folder, card=card),
        data_digest=f"{store.digest} read as {tokenizer.fingerprint}",
    )


@dataclass(frozen=True)
class _Judge:
    """Link retrieval over the whole graph and, where asked for, on samples of test graphs."""

    links: LinkJudge
    store: LinkedTextStore
    evaluation: EvaluationConfig

    def at_the_end(self, model: Encoder, collective: Collective) -> Mapping[str, Any]:
        """As ``LinkJudge`` has it; test graphs are the units of a split ``samples``."""
        found = self.links.at_the_end(model, collective)
        if not self.evaluation.test_graphs:
            return found
        row_N, device = np.arange(self.store.num_rows), next(model.parameters()).device
        embeddings = {
            "random": lambda: random_vectors(len(row_N), SAMPLES_SEED),
            "initial": lambda: self.links.embed(self.links.fresh().to(device), collective, row_N),
            "trained": lambda: self.links.embed(model, collective, row_N),
        }
        for name, embed in embeddings.items():  # one matrix at a time
            values = self._on_samples(embed(), collective)
            found["scores"][name]["samples"] = with_intervals(values, derive_seed(self.links.config.seed, "bootstrap"))
        found["scores"]["chance"]["samples"] = exact_scores(sampled_link_chance(self._samples))
        found["unit_scores"]["samples"] = sampled(np.arange(self.evaluation.test_graphs), values)
        return found

    def _on_samples(self, embedding_ND: Tensor, collective: Collective) -> dict[str, np.ndarray]:
        """Scores (T,) of test graphs, which the workers share."""
        value_TM = torch.zeros(len(self._samples), len(MEASURES), dtype=torch.float64, device=embedding_ND.device)
        for trial in range(collective.rank, len(self._samples), collective.world):
            value_TM[trial] = torch.tensor(sampled_link_scores(self._samples[trial], embedding_ND))
        value_MT = collective.all_sum(value_TM).T.cpu().numpy()
        return dict(zip(MEASURES, value_MT, strict=True))

    @cached_property
    def _samples(self) -> list[list[LinkSample]]:
        asked = self.evaluation
        sizes = {"trials": asked.test_graphs, "samples": asked.samples, "nodes": asked.nodes_per_sample}
        return draw_link_samples(whole_graph(self.store), **sizes, seed=SAMPLES_SEED)


def _encoder(config: Config, count_by_word: dict[str, int]) -> TextEncoder:
    """The encoder as training begins with it."""
    seed = derive_seed(config.seed, "weights")
    encoder = build_text_encoder(config.encoder, seed=seed, count_by_word=count_by_word)
    return with_head(encoder, config.encoder, config.objective, config.seed)


def with_head(encoder: TextEncoder, config: TextEncoderConfig, objective: ObjectiveConfig, seed: int) -> TextEncoder:
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
