"""Structure-preserving pre-training (SPPT) on graphs of texts: articles that cite each other.

McDermott, Yap, Szolovits, Zitnik: "Structure-inducing pre-training". As on proteins, with what the paper takes for
articles: the margin contrastive loss, negatives that are any texts, λ = 0.01. Its four epochs are a matter of
``schedule.max_steps``. All texts are one group; of a large one the final table asks 5,000 nodes and their neighbours.

Different from the authors' code: as on proteins, and an anchor is encoded once, not twice with two masks; the loss is
the paper's sum of two means, of which theirs is half (lambda_spml weighs it).
"""

from functools import partial
from pathlib import Path

import numpy as np
from pydantic import model_validator

from raybio.data.collate import MaskConfig
from raybio.data.linked_text_store import LinkedTextStore
from raybio.data.plan import PlanConfig
from raybio.data.simulate_citations import default_citations
from raybio.data.store import open_store
from raybio.data.text_rows import HasTexts, TextRows
from raybio.encoders.sources import check_source
from raybio.encoders.text import TextEncoder, TextEncoderConfig, build_text_encoder
from raybio.encoders.text_export import export_text_encoder
from raybio.encoders.tokens import TokenizerSource
from raybio.errors import ConfigError
from raybio.evaluation.link_retrieval import LinkEvaluationConfig
from raybio.functional.hashing import derive_seed
from raybio.objectives.structure_preserving import ObjectiveConfig
from raybio.protocols import System
from raybio.systems.linking import LinkJudge, check_sampling, link_system
from raybio.training.optim import OptimConfig
from raybio.training.settings import ScheduleConfig, TrainingConfig


class Config(TrainingConfig):
    """Settings of SPPT on texts; the defaults are the paper's where it states them."""

    encoder: TextEncoderConfig = TextEncoderConfig(
        source="allenai/scibert_scivocab_uncased", pooling="cls", normalise=False, max_length=512
    )
    input: MaskConfig = MaskConfig()
    objective: ObjectiveConfig = ObjectiveConfig(loss="margin_contrastive", lambda_spml=0.01)
    plan: PlanConfig = PlanConfig()
    evaluation: LinkEvaluationConfig = LinkEvaluationConfig(
        num_nodes_per_group=200, num_nodes_per_group_at_the_end=5000
    )

    @model_validator(mode="after")
    def _parts_fit(self) -> "Config":
        check_sampling(self.plan, self.objective)
        return self


DEMO = Config(
    encoder=TextEncoderConfig(
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
        ConfigError: if the encoder's source is not there.
    """
    check_source(config.encoder.source, config.encoder.revision)


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
    judge = LinkJudge(store, read, fresh, config.evaluation, config)
    return link_system(
        "structure_preserving_text",
        config,
        store,
        encoder=encoder,
        read=read,
        masks=config.input,
        evaluate=judge.during_training,
        final_evaluate=judge.at_the_end,
        export=lambda folder, card: export_text_encoder(encoder, folder, card=card),
        data_digest=f"{store.digest} read as {tokenizer.fingerprint}",
    )


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
