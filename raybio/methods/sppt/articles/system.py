"""Structure-preserving pre-training (SPPT) on graphs of texts: articles that cite each other.

McDermott, Yap, Szolovits, Zitnik, "Structure-inducing pre-training". As on proteins, with the
paper's settings for articles: margin contrastive loss, λ = 0.01, any unlinked text as a negative.
The number of epochs (the paper's four) is set by ``schedule.max_steps``. All texts are one group.
In a large group, the final evaluation covers 5,000 nodes and their neighbors. With
``evaluation.test_graphs`` it also covers samples of test graphs, as in the paper's Table 7.

Differences from the authors' code: those of SPPT on proteins; an anchor is encoded once, not twice
with two masks; the loss is the paper's sum of two means, which is twice that of the code.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from raybio.core.errors import ConfigError
from raybio.core.interfaces import Encoder, System
from raybio.core.location import Location
from raybio.encoders.export import export_text_encoder
from raybio.encoders.input_lengths import InputLengths, text_lengths
from raybio.encoders.text import TextEncoder, check_text_encoder, text_reader
from raybio.encoders.tokenization import TokenizerSource
from raybio.methods.sppt.articles.config import Config
from raybio.methods.sppt.articles.demo import SIMULATED_CITATIONS
from raybio.methods.sppt.articles.evaluate import SAMPLES_SEED, ArticleLinkEvaluator
from raybio.methods.sppt.articles.link_samples import num_linked_test_nodes, whole_graph
from raybio.methods.sppt.articles.store import LinkedTextStore, text_copies
from raybio.methods.sppt.collate import ReadRows
from raybio.methods.sppt.leakage import link_classes
from raybio.methods.sppt.system import check_link_plan, link_steps_per_epoch, link_system
from raybio.methods.sppt.text_encoder import initial_text_encoder, text_rows
from raybio.store.store import open_store
from raybio.store.token_cache import CachedTokens, preparation

DEMO_CORPUS = SIMULATED_CITATIONS
"""The corpus it trains on if no store is given."""


def check(config: Config, store: LinkedTextStore) -> None:
    """Check, before anything starts, that the encoder exists and test graphs are large enough.

    Raises:
        ConfigError: if the encoder's source is missing or unsuitable, or a test graph is no larger
            than a sample; or as ``check_link_plan``.
        DataError: as ``check_link_plan``.
    """
    check_text_encoder(
        config.encoder, needs_mask_token=True, needs_mask_head=config.objective.lambda_spml < 1
    )
    check_link_plan(config, store)
    evaluation = config.evaluation
    if not evaluation.test_graphs:
        return
    graph = whole_graph(store)
    for trial in range(evaluation.test_graphs):
        num_linked = num_linked_test_nodes(graph, SAMPLES_SEED, trial)
        if num_linked <= evaluation.nodes_per_sample:
            raise ConfigError(
                f"evaluation.test_graphs: number {trial + 1} of {evaluation.test_graphs} has "
                f"{num_linked:,} linked nodes in {store.location}, and every sample of "
                f"{evaluation.nodes_per_sample} would be all of it; want fewer "
                "evaluation.nodes_per_sample, a larger graph, or no test graphs"
            )


def input_lengths(config: Config, store: LinkedTextStore) -> list[InputLengths]:
    """Count the texts that the encoder truncates."""
    reader = text_reader(config.encoder, count_by_word=store.count_by_word)
    rows = np.arange(store.num_rows)
    return [text_lengths("texts", store.texts, rows, reader, max_length=config.encoder.max_length)]


steps_per_epoch = link_steps_per_epoch


def build(config: Config, store_path: str | Location) -> System:
    """Wire SPPT over a prepared store of linked texts.

    Raises:
        StoreError: if the store is missing, damaged or of another kind.
        ConfigError: if the encoder cannot be loaded, or has no head for masked words.
    """
    store = open_store(store_path, LinkedTextStore)
    new_encoder = partial(initial_encoder, config, store)
    encoder = new_encoder()
    tokenizer = TokenizerSource.of(encoder.tokenizer)
    rows_per_step = config.plan.global_batch_rows * (1 + config.plan.num_positives_per_anchor)
    tokens = _stored_tokens(store, encoder, config.schedule.max_steps * rows_per_step)
    read = replace(text_rows(store, encoder), tokens=tokens)
    evaluator = link_evaluator(config, store, encoder, read, fresh=new_encoder)
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
        prepare_node=preparation([tokens]),
    )


def initial_encoder(config: Config, store: LinkedTextStore) -> TextEncoder:
    """Return the encoder at the start of training.

    Raises:
        ConfigError: if it cannot be loaded, or has no head for masked words.
    """
    return initial_text_encoder(
        config.encoder, config.objective, count_by_word=store.count_by_word, seed=config.seed
    )


def link_evaluator(
    config: Config,
    store: LinkedTextStore,
    encoder: TextEncoder,
    read: ReadRows,
    *,
    fresh: Callable[[], Encoder] | None,
) -> ArticleLinkEvaluator:
    """Return the evaluation of an encoder on a store's links.

    Args:
        config: its seed, memory and evaluation count.
        store: the articles.
        encoder: has the tokenizer.
        read: reader of their texts as the encoder's tokens.
        fresh: returns the encoder with its initial weights; None: they are unknown.
    """
    return ArticleLinkEvaluator(
        store,
        read,
        fresh,
        config.evaluation,
        config,
        TokenizerSource.of(encoder.tokenizer).identity(encoder.max_tokens),
        heldout_parts=_heldout_parts(store),
    )


def _heldout_parts(store: LinkedTextStore) -> dict[str, np.ndarray]:
    """Return the held-out links by how much training shows of their ends, if they differ."""
    leakage = store.manifest.get("leakage", {})
    if all(leakage.get(name) in (0, leakage.get("links")) for name in ("with_twin", "c1", "c2")):
        return {}  # read texts only if there are parts
    classes = link_classes(store.graph, store.heldout, text_copies(store.text))
    return classes.parts(store.heldout)


def _stored_tokens(store: LinkedTextStore, encoder: TextEncoder, num_reads: float) -> CachedTokens:
    """Return the reader of a store's texts as the encoder's tokens, which uses their cache.

    Args:
        store: the texts.
        encoder: has the tokenizer.
        num_reads: rows that the run reads.
    """
    source = TokenizerSource.of(encoder.tokenizer)
    return CachedTokens(
        store.texts,
        partial(source.tokenize, max_length=encoder.max_tokens),
        num_rows=store.num_rows,
        identity=f"{store.digest}, text, {source.identity(encoder.max_tokens)}",
        num_reads=num_reads,
    )
