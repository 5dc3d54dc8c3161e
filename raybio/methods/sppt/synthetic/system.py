"""SPPT on synthetic graphs: which structures does the graph loss bring into the embedding space?

McDermott, Yap, Szolovits, Zitnik, "Structure-inducing pre-training", synthetic experiments. Nodes
of cliques, surfaces and cycles with graphlets are sentences, which shallow encoders read as
characters. The measure is 3-NN classification of nodes in the embedding space. The homophily of the
labels predicts the gain.

Differences from the authors' code: no self-loops, and isolated nodes of a surface are dropped
(``graph.self_loops``); sentences of a triangle are drawn evenly over mixtures of topics
(``graph.spread``); the classes of a cycle have distinct topics; structural classes are clusters of
15 orbits.
"""

import math
from functools import partial
from pathlib import Path

import numpy as np

from raybio.core.interfaces import System
from raybio.core.location import Location
from raybio.core.recipes import recipes_of
from raybio.encoders.config import ClsTextEncoderConfig
from raybio.encoders.export import export_text_encoder
from raybio.encoders.input_lengths import InputLengths, text_lengths
from raybio.encoders.text import (
    build_text_encoder,
    check_text_encoder,
    text_reader,
)
from raybio.encoders.tokenization import TokenizerSource
from raybio.methods.sppt.synthetic.config import Config, GraphKind
from raybio.methods.sppt.synthetic.demo import SIMULATED_TOPICS
from raybio.methods.sppt.synthetic.evaluate import NodeLabelEvaluator, embed_nodes
from raybio.methods.sppt.synthetic.graphs import NUM_NODES, SyntheticGraph, synthetic_graph
from raybio.methods.sppt.synthetic.simplicial import SURFACES
from raybio.methods.sppt.synthetic.store import TopicStore
from raybio.methods.sppt.system import check_link_plan, link_steps_per_epoch, link_system
from raybio.methods.sppt.text_encoder import initial_text_encoder, text_rows
from raybio.store.store import open_store
from raybio.training.collective import SingleProcess

NUM_CYCLE_NODES = 72
"""Mean number of nodes of a cycle of 36 with nine graphlets of 2 to 6 nodes."""


def published_settings(kind: GraphKind, given: Config | None = None) -> dict[str, object]:
    """Return the paper's settings of a graph: encoder, batch, and the steps of its epochs.

    Args:
        kind: the graph.
        given: the configuration whose batch and nodes determine the steps of an epoch; None for the
            paper's.
    """
    recipe = recipes_of("raybio.methods.sppt.synthetic")[paper_recipe(kind)].settings
    rows = recipe["plan"]["global_batch_rows"]
    nodes = NUM_NODES.get(kind, NUM_CYCLE_NODES)
    if given is not None:
        rows = given.plan.global_batch_rows
        if kind in NUM_NODES and given.graph.num_nodes is not None:
            nodes = given.graph.num_nodes
    settings: dict[str, object] = {
        "plan.global_batch_rows": rows,
        "schedule.max_steps": math.ceil(recipe["schedule"]["max_epochs"] * nodes / rows),
    }
    for size in ("num_layers", "width", "num_heads", "ffn_width"):
        settings[f"encoder.{size}"] = recipe["encoder"][size]
    return settings


def paper_recipe(kind: str) -> str:
    """Return the name of the recipe with the paper's settings of a graph."""
    if kind in SURFACES:
        return "paper_surfaces"
    return "paper_cliques" if kind == "cliques" else "paper_cycles"


def published_recipe(config: Config, store: TopicStore) -> str:
    """Return the name of the recipe with the paper's settings of a run's graph."""
    return paper_recipe(config.graph.kind)


DEMO_CORPUS = SIMULATED_TOPICS
"""The corpus it trains on if no store is given."""


def check(config: Config, store: TopicStore) -> None:
    """Check, before anything starts, that the encoder exists and the graph can be drawn.

    Raises:
        ConfigError: if the encoder's source is missing or unsuitable; or as ``check_link_plan``.
        DataError: if the store has too few sentences for the graph; or as ``check_link_plan``.
    """
    check_text_encoder(
        config.encoder, needs_mask_token=True, needs_mask_head=config.objective.lambda_spml < 1
    )
    nodes = synthetic_graph(store, config.graph)
    check_link_plan(config, nodes, self_loops=config.graph.self_loops)


def input_lengths(config: Config, store: TopicStore) -> list[InputLengths]:
    """Count the sentences of the graph that the encoder truncates."""
    nodes = synthetic_graph(store, config.graph)
    reader = text_reader(config.encoder, count_by_word=_count_by_word(nodes))
    rows = np.arange(len(nodes.text_N))
    return [
        text_lengths("sentences", nodes.texts, rows, reader, max_length=config.encoder.max_length)
    ]


def steps_per_epoch(config: Config, store: TopicStore) -> float:
    """Return the steps in which each node of the graph is an anchor once."""
    nodes = synthetic_graph(store, config.graph)
    return link_steps_per_epoch(config, nodes, self_loops=config.graph.self_loops)


def build(config: Config, store_path: str | Location) -> System:
    """Draw a graph from a store of topics, and wire SPPT over it.

    Raises:
        StoreError: if the store is missing, damaged or of another kind.
        DataError: if it has too few sentences for the graph.
        ConfigError: if the encoder cannot be loaded, or has no head for masked words.
    """
    store = open_store(store_path, TopicStore)
    nodes = synthetic_graph(store, config.graph)
    new_encoder = partial(
        initial_text_encoder,
        config.encoder,
        config.objective,
        count_by_word=_count_by_word(nodes),
        seed=config.seed,
    )
    encoder = new_encoder()
    read = text_rows(nodes, encoder)
    evaluator = NodeLabelEvaluator(config, nodes, new_encoder)
    return link_system(
        "sppt_synthetic",
        config,
        nodes,
        encoder=encoder,
        read=read,
        masks=config.input,
        evaluate=evaluator.evaluate_during_training,
        final_evaluate=evaluator.final_report,
        export=lambda folder, card: export_text_encoder(encoder, folder, card=card),
        self_loops=config.graph.self_loops,
        data_digest=f"{store.digest} read as {TokenizerSource.of(encoder.tokenizer).fingerprint}",
    )


def embedded_nodes(
    export: str | Path, store: TopicStore, config: Config
) -> tuple[SyntheticGraph, np.ndarray]:
    """Return the graph of a configuration, and a trained model's embeddings of its nodes (N, D).

    Raises:
        ConfigError: if the model cannot be loaded.
        DataError: if the store has too few sentences for the graph.
    """
    nodes = synthetic_graph(store, config.graph)
    settings = {
        "source": str(export),
        "max_length": config.encoder.max_length,
        "pooling": config.encoder.pooling,
    }
    encoder = build_text_encoder(ClsTextEncoderConfig(**settings, normalize=False), seed=0)
    embedding_ND = embed_nodes(config, nodes, encoder, SingleProcess())
    return nodes, embedding_ND.numpy()


def _count_by_word(nodes: SyntheticGraph) -> dict[str, int]:
    """Return a count of 1 for each word, so that the vocabulary has the characters of all nodes."""
    return dict.fromkeys(sorted({word for text in nodes.text_N for word in text.split()}), 1)
