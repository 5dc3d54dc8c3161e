"""Structure-preserving pre-training (SPPT) on protein interaction graphs.

McDermott, Yap, Szolovits, Zitnik: "Structure-inducing pre-training". L = (1 - λ) L_MLM + λ L_SPML over a graph of
proteins: one encoder learns to fill in masked residues and to place interacting proteins of a species close together.

Reproduced: the tiered sampling (tier 1: negatives from the anchor's species; tier 2: the loss weights the pairs of
the batch), both graph losses, the masked anchor view, and link retrieval as the measure. Different from the authors'
code, each with a setting for theirs: special tokens are never masked; copies of a node in a batch are ignored instead
of being each other's negatives; the paper's λ is used as such; negatives that no species can give come from outside
it, counted; pairs run over the sequences of all workers; and held-out links are measured beside the training links.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor

from raybio.batches import LinkBatch, TokenBatch
from raybio.data.collate import InputConfig, LinkCollate, TokenTable, read_tokens
from raybio.data.plan import PlanConfig
from raybio.data.protein_store import ProteinStore
from raybio.data.simulate import default_corpus
from raybio.data.store import open_store
from raybio.encoders.export import export_encoder
from raybio.encoders.protein import EncoderConfig, ProteinEncoder, build_protein_encoder
from raybio.encoders.sources import check_source
from raybio.errors import ConfigError
from raybio.evaluation.embedding_map import embedding_map
from raybio.evaluation.link_retrieval import (
    LinkEvaluationConfig,
    LinkQuestions,
    ask,
    evaluate_links,
    link_questions,
    node_scores,
    scores_with_intervals,
)
from raybio.functional.hashing import derive_seed
from raybio.objectives.structure_preserving import ObjectiveConfig, StructurePreserving
from raybio.protocols import Collective, Encoder, System
from raybio.training.encode import embed_rows
from raybio.training.optim import OptimConfig
from raybio.training.settings import ScheduleConfig, TrainingConfig


class Config(TrainingConfig):
    """Settings of SPPT on proteins; the defaults are the paper's where it states them."""

    encoder: EncoderConfig = EncoderConfig()
    input: InputConfig = InputConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    plan: PlanConfig = PlanConfig()
    evaluation: LinkEvaluationConfig = LinkEvaluationConfig()

    @model_validator(mode="after")
    def _parts_fit(self) -> "Config":
        if self.encoder.source == "scratch" and self.input.max_length > self.encoder.max_positions:
            raise ValueError(
                f"input.max_length {self.input.max_length} is more than encoder.max_positions "
                f"{self.encoder.max_positions}: raise the second or lower the first"
            )
        plan, objective = self.plan, self.objective
        if not objective.masked_anchors and objective.lambda_spml < 1:
            raise ValueError(
                f"objective.masked_anchors is false with lambda_spml {objective.lambda_spml}: the language model needs "
                "masked anchors, and one forward pass serves both losses. Set it with lambda_spml = 1 only"
            )
        unequal = plan.num_positives_per_anchor != plan.num_negatives_per_anchor
        if unequal and objective.lambda_spml > 0 and objective.loss == "margin_contrastive":
            raise ValueError(
                "objective.loss margin_contrastive pairs each positive with a negative, but plan has "
                f"num_positives_per_anchor {plan.num_positives_per_anchor} and num_negatives_per_anchor "
                f"{plan.num_negatives_per_anchor}: want equal numbers"
            )
        return self


DEMO = Config(
    encoder=EncoderConfig(num_layers=2, width=128, num_heads=4, ffn_width=512, max_positions=72, pooling="mean"),
    input=InputConfig(max_length=72, crop="random"),
    objective=ObjectiveConfig(lambda_spml=0.5),
    plan=PlanConfig(global_batch_rows=64, anchor_order="group_first", num_negatives_per_anchor=0),
    schedule=ScheduleConfig(max_steps=500, checkpoint_every_steps=100, evaluate_every_steps=100),
    optim=OptimConfig(peak_lr=1e-3, num_warmup_steps=50, schedule="cosine", final_lr_ratio=0.05),
)
"""Settings for the embedded miniature tree of life on two CPU cores: minutes, not days.

A batch is one species, so that all of its unlinked pairs are tier-1 negatives and none has to be drawn beside them.
"""


MAX_MAP_ROWS = 1500


def prepare_demo(directory: str | Path) -> Path:
    """The embedded default corpus as a prepared store inside ``directory``; made on the first call."""
    return default_corpus(directory).path


def check(config: Config, store: ProteinStore) -> None:
    """Refuse what can be known to fail before anything starts.

    Raises:
        ConfigError: if the encoder's source is not there.
    """
    check_source(config.encoder.source, config.encoder.revision)


def build(config: Config, store_path: str | Path) -> System:
    """Wire SPPT over a prepared protein store.

    Raises:
        StoreError: if the store is missing or damaged.
        ConfigError: if encoder, batch or lengths do not fit each other.
    """
    store = open_store(store_path, ProteinStore)
    encoder = _encoder(config)
    if config.input.max_length > encoder.max_tokens:
        raise ConfigError(
            f"input.max_length is {config.input.max_length}, but the encoder {config.encoder.source!r} reads at most "
            f"{encoder.max_tokens} tokens: lower it with --set input.max_length={encoder.max_tokens}"
        )
    table = _token_table(encoder)
    objective = config.objective
    collate = LinkCollate(
        store,
        config.plan,
        config.input,
        table,
        config.seed,
        with_pairs=objective.lambda_spml > 0,
        mask_anchors=objective.lambda_spml < 1 or objective.masked_anchors,
        same_node=objective.same_node,
    )
    judge = _Judge(config, store, table)
    return System(
        name="structure_preserving",
        model=encoder,
        objective=StructurePreserving(objective, config.plan.num_positives_per_anchor),
        batch_type=LinkBatch,
        collate=collate,
        steps_per_epoch=collate.plan.steps_per_epoch,
        evaluate=judge.during_training,
        final_evaluate=judge.at_the_end,
        export=lambda folder, card: export_encoder(encoder, folder, card=card),
        # Another tokenizer makes other data of the same store.
        data_digest=f"{store.digest} read as {encoder.vocabulary.fingerprint}",
    )


def _encoder(config: Config) -> ProteinEncoder:
    """The encoder as training begins with it."""
    return build_protein_encoder(config.encoder, seed=derive_seed(config.seed, "weights"))


@dataclass(frozen=True)
class _Judge:
    """Link retrieval of a model over the store."""

    config: Config
    store: ProteinStore
    table: TokenTable

    def during_training(self, model: Encoder, collective: Collective) -> Mapping[str, float]:
        """Metrics ``train/link_*`` and ``val/link_*`` on the sampled nodes."""
        questions = self._sampled_questions
        embedding_SD = self._embed(model, collective, questions.node_S)
        return evaluate_links(questions, embedding_SD, self.config.evaluation, collective)

    def at_the_end(self, model: Encoder, collective: Collective) -> Mapping[str, Any]:
        """Whole species: random vectors, the initial weights and the trained ones, with bootstrap intervals; a map."""
        questions = link_questions(self.store.graph, self.store.heldout, 0, seed=0)
        device = next(model.parameters()).device
        generator = torch.Generator().manual_seed(derive_seed(self.config.seed, "random-vectors") % 2**63)
        rng = np.random.default_rng(derive_seed(self.config.seed, "bootstrap"))

        def score(embedding_ND: Tensor) -> dict[str, Any]:
            return scores_with_intervals(*ask(questions, embedding_ND, self.config.evaluation, collective), rng)

        # One matrix at a time: at the size of Tree-of-life each holds gigabytes.
        noise_ND = torch.randn(self.store.num_rows, model.width, generator=generator).to(device)
        scores = {"random": score(noise_ND)}
        del noise_ND
        scores["initial"] = score(self._embed(_encoder(self.config).to(device), collective, questions.node_S))
        embedding_ND = self._embed(model, collective, questions.node_S)
        trained = ask(questions, embedding_ND, self.config.evaluation, collective)
        scores["trained"] = scores_with_intervals(*trained, rng)
        positions = embedding_map(embedding_ND.cpu().numpy(), rng, max_rows=MAX_MAP_ROWS)
        labels = self.store.group_labels
        return {
            "scores": scores,
            "unit_scores": node_scores(*trained),
            "embedding_map": {
                "positions": positions.position_S2.tolist(),
                "groups": [labels[group] for group in self.store.group_N[positions.row_S]],
            },
        }

    @cached_property
    def _sampled_questions(self) -> LinkQuestions:
        """Drawn once, so that evaluations of a run, and runs over one store, are comparable."""
        return link_questions(self.store.graph, self.store.heldout, self.config.evaluation.num_nodes_per_group, seed=0)

    def _embed(self, model: Encoder, collective: Collective, row_N: np.ndarray) -> Tensor:
        return embed_rows(
            model, self._read, row_N, collective, max_tokens=self.config.memory.max_tokens_per_micro_batch
        )

    def _read(self, row_N: np.ndarray) -> TokenBatch:
        return read_tokens(self.store, row_N, self.table, self.config.input.max_length)


def _token_table(encoder: ProteinEncoder) -> TokenTable:
    vocabulary = encoder.vocabulary
    return TokenTable(
        token_id_by_byte=vocabulary.token_id_by_byte,
        cls_id=vocabulary.cls_id,
        eos_id=vocabulary.eos_id,
        mask_id=vocabulary.mask_id,
        residue_ids=vocabulary.residue_ids,
    )
