"""Structure-preserving pre-training on synthetic graphs: which structures does it bring into an embedding?

McDermott, Yap, Szolovits, Zitnik: "Structure-inducing pre-training", synthetic experiments (facts §7). Sentences are
the nodes of cliques, of points on a surface, or of a cycle with graphlets; shallow encoders read their letters. What
the nearest neighbours of a node tell of its label is the measure; the homophily of these labels foretells the gain.

Different from the authors' code: no node is its own neighbour and nodes on a surface without a neighbour are left out
(``graph.self_loops``), a triangle's sentences are drawn evenly over mixtures of topics (``graph.spread``), labels of
cycles have a topic each, and a structural label is made of 15 orbits.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from raybio.core.final_report import LabelledMap, Stage
from raybio.core.interfaces import Collective, Encoder, System
from raybio.core.randomness import derive_seed
from raybio.encoders.config import ClsTextEncoderConfig
from raybio.encoders.export import export_text_encoder
from raybio.encoders.input_lengths import InputLengths, text_lengths
from raybio.encoders.text import TextEncoder, build_text_encoder, check_text_encoder, text_reader
from raybio.encoders.tokenization import TokenizerSource
from raybio.evaluation.evaluator import Evaluator, ModelScores, bootstrap_seed, exact_scores
from raybio.evaluation.projection import embedding_map
from raybio.methods.sppt.articles.system import text_rows, with_head
from raybio.methods.sppt.collate import unmasked
from raybio.methods.sppt.config import LinkEvaluationConfig
from raybio.methods.sppt.evaluate import draw_link_queries, evaluate_links
from raybio.methods.sppt.graph.homophily import edge_homophily, homophily
from raybio.methods.sppt.synthetic.config import Config, GraphKind
from raybio.methods.sppt.synthetic.demo import default_topics
from raybio.methods.sppt.synthetic.graphs import NUM_NODES, SyntheticGraph, synthetic_graph
from raybio.methods.sppt.synthetic.leave_one_out import LeaveOneOut, leave_one_out
from raybio.methods.sppt.synthetic.simplicial import SURFACES
from raybio.methods.sppt.synthetic.store import TopicStore
from raybio.methods.sppt.system import link_system
from raybio.ops.spread import spread_metrics
from raybio.store.store import open_store
from raybio.training.collective import SingleProcess
from raybio.training.embed import embed_rows

NODES_OF_CYCLE = 72
"""On average: a cycle of 36 and nine graphlets of 2 to 6 nodes."""


def published_settings(kind: GraphKind, given: Config | None = None) -> dict[str, object]:
    """What the paper has for a graph: its encoder, the nodes of a step, and as many steps as its epochs take.

    Args:
        kind: the graph.
        given: what all settings together come to, by whose rows and nodes epochs are reckoned; None: the paper's.
    """
    is_surface = kind in SURFACES
    epochs, rows = (
        (1500, 16) if is_surface else (8000, 50) if kind == "cliques" else (5000, NODES_OF_CYCLE)
    )
    nodes = NUM_NODES.get(kind, NODES_OF_CYCLE)
    if given is not None:
        rows = given.plan.global_batch_rows
        if kind in NUM_NODES and given.graph.num_nodes is not None:
            nodes = given.graph.num_nodes
    found: dict[str, object] = {
        "plan.global_batch_rows": rows,
        "schedule.max_steps": math.ceil(epochs * nodes / rows),
    }
    wider = {"num_layers": 3, "width": 256, "num_heads": 4, "ffn_width": 256} if is_surface else {}
    return found | {f"encoder.{name}": value for name, value in wider.items()}


STORE = TopicStore
"""The class of the stores that it trains on."""


def prepare_demo(directory: str | Path) -> Path:
    """The embedded default sentences as a prepared store inside ``directory``; made on the first call."""
    return default_topics(directory).path


def check(config: Config, store: TopicStore) -> None:
    """Refuse what can be known to fail before anything starts.

    Raises:
        ConfigError: if the encoder's source is not there or does not fit.
        DataError: if the store has too few sentences for the graph.
    """
    check_text_encoder(config.encoder)
    synthetic_graph(store, config.graph)


def input_lengths(config: Config, store: TopicStore) -> list[InputLengths]:
    """Count the sentences of the graph that are longer than what is read of them."""
    nodes = synthetic_graph(store, config.graph)
    reader = text_reader(config.encoder, count_by_word=_count_by_word(nodes))
    rows = np.arange(len(nodes.text_N))
    return [text_lengths("sentences", nodes.texts, rows, reader, wanted=config.encoder.max_length)]


def build(config: Config, store_path: str | Path) -> System:
    """Draw the graph from a store of topics, and wire SPPT over it.

    Raises:
        StoreError: if the store is missing, damaged or of another kind.
        DataError: if it has too few sentences for the graph.
        ConfigError: if the encoder cannot be loaded, or has no masked words.
    """
    store = open_store(store_path, TopicStore)
    nodes = synthetic_graph(store, config.graph)
    encoder = _encoder(config, nodes)
    read = text_rows(nodes, encoder)
    evaluator = NodeLabelEvaluator(config, nodes)
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
    """The graph of a configuration, and what a trained model makes of its nodes (N, D).

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
    encoder = build_text_encoder(ClsTextEncoderConfig(**settings, normalise=False), seed=0)
    return nodes, _embed(config, nodes, encoder, SingleProcess()).numpy()


def _encoder(config: Config, nodes: SyntheticGraph) -> TextEncoder:
    """The encoder as training begins with it; its letters are those of all nodes."""
    seed = derive_seed(config.seed, "weights")
    encoder = build_text_encoder(config.encoder, seed=seed, count_by_word=_count_by_word(nodes))
    return with_head(encoder, config.encoder, config.objective, config.seed)


def _count_by_word(nodes: SyntheticGraph) -> dict[str, int]:
    return dict.fromkeys(sorted({word for text in nodes.text_N for word in text.split()}), 1)


def _embed(
    config: Config, nodes: SyntheticGraph, model: TextEncoder, collective: Collective
) -> Tensor:
    max_tokens = config.memory.max_tokens_per_micro_batch
    read = partial(unmasked, text_rows(nodes, model))
    return embed_rows(model, read, np.arange(len(nodes.text_N)), collective, max_tokens=max_tokens)


@dataclass(frozen=True)
class NodeLabelEvaluator(Evaluator):
    """Classes and links of nodes, predicted from their neighbours in the embedding space."""

    config: Config
    nodes: SyntheticGraph

    def evaluate_during_training(
        self, model: Encoder, collective: Collective
    ) -> Mapping[str, float]:
        """Return ``nodes/auroc`` and ``nodes/accuracy``, and ``train/link_*``."""
        embedding_ND = _embed(self.config, self.nodes, model, collective)  # type: ignore[arg-type]
        queries = draw_link_queries(self.nodes.graph, self.nodes.heldout, 0, seed=0)
        found = self._left_out(embedding_ND)
        means = {
            "nodes/auroc": float(found.auroc_N.mean()),
            "nodes/accuracy": float(found.accuracy_N.mean()),
        }
        means |= evaluate_links(queries, embedding_ND, LinkEvaluationConfig(), collective)
        return means | spread_metrics(embedding_ND)

    def initial_encoder(self) -> Encoder:
        """Return the encoder as training begins with it."""
        return _encoder(self.config, self.nodes)

    def score(self, model: Encoder, collective: Collective, stage: Stage) -> ModelScores:
        """Score the classes of all nodes; draw a map of the trained model."""
        embedding_ND = _embed(self.config, self.nodes, model, collective)  # type: ignore[arg-type]
        found = self._left_out(embedding_ND)
        largest_share = np.bincount(self.nodes.label_N).max() / len(self.nodes.label_N)
        return ModelScores(
            scores={"nodes": found.scores(bootstrap_seed(self.config.seed))},
            chance={"nodes": exact_scores({"auroc": 0.5, "accuracy": largest_share})},
            spread=spread_metrics(embedding_ND),
            unit_scores={"nodes": found.units()},
            embedding_map=self._map(embedding_ND) if stage == "trained" else None,
        )

    def details(self) -> Mapping[str, Any]:
        """Return the size and the homophily of the graph."""
        return {"graph": describe(self.nodes)}

    def _map(self, embedding_ND: Tensor) -> LabelledMap:
        rng = np.random.default_rng(derive_seed(self.config.seed, "map"))
        drawn = embedding_map(embedding_ND.cpu().numpy(), rng)
        groups = [f"class {self.nodes.label_N[row]}" for row in drawn.row_S]
        return LabelledMap(drawn.position_S2, groups)

    def _left_out(self, embedding_ND: Tensor) -> LeaveOneOut:
        return leave_one_out(embedding_ND.cpu().numpy(), self.nodes.label_N)


def describe(nodes: SyntheticGraph) -> dict[str, float]:
    """Nodes, links and classes of a graph, and how much its links tell of a node's class before anything is trained."""
    graph = nodes.graph
    return {
        "nodes": graph.num_nodes,
        "links": int(graph.num_edges),
        "classes": int(nodes.label_N.max()) + 1,
        "homophily": homophily(graph, nodes.label_N),
        "edge_homophily": edge_homophily(graph, nodes.label_N),
    }
