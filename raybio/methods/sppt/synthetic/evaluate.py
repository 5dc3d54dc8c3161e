"""Evaluation of SPPT on synthetic graphs: classes and links of nodes, from their embeddings."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor

from raybio.core.final_report import CHARACTERS, LabeledMap, Stage
from raybio.core.interfaces import Collective, Encoder
from raybio.core.randomness import derive_seed
from raybio.encoders.text import TextEncoder
from raybio.evaluation.evaluator import Evaluator, ModelScores, bootstrap_seed, exact_scores
from raybio.evaluation.projection import embedding_map
from raybio.methods.sppt.collate import unmasked
from raybio.methods.sppt.config import LinkEvaluationConfig
from raybio.methods.sppt.evaluate import draw_link_queries, evaluate_links
from raybio.methods.sppt.graph.homophily import edge_homophily, homophily
from raybio.methods.sppt.synthetic.config import Config
from raybio.methods.sppt.synthetic.graphs import SyntheticGraph
from raybio.methods.sppt.synthetic.leave_one_out import LeaveOneOut, leave_one_out
from raybio.methods.sppt.text_encoder import text_rows
from raybio.ops.embedding_geometry import spread_metrics
from raybio.training.embed import embed_rows


@dataclass(frozen=True)
class NodeLabelEvaluator(Evaluator):
    """Evaluates classes and links of nodes, predicted from nearest neighbors.

    Attributes:
        config: the run's settings.
        nodes: the graph.
        new_encoder: returns the encoder at the start of training.
    """

    config: Config
    nodes: SyntheticGraph
    new_encoder: Callable[[], TextEncoder]

    def evaluate_during_training(
        self, model: Encoder, collective: Collective
    ) -> Mapping[str, float]:
        """Return ``nodes/auroc`` and ``nodes/accuracy``, and ``train/link_*``."""
        embedding_ND = self._embed(model, collective)
        queries = draw_link_queries(self.nodes.graph, self.nodes.heldout, 0)
        classified = self._classify(embedding_ND)
        metrics = {
            "nodes/auroc": float(classified.auroc_N.mean()),
            "nodes/accuracy": float(classified.accuracy_N.mean()),
        }
        metrics |= evaluate_links(queries, embedding_ND, LinkEvaluationConfig(), collective)
        return metrics | spread_metrics(embedding_ND)

    def initial_encoder(self) -> Encoder:
        """Return the encoder at the start of training."""
        return self.new_encoder()

    def rivals(self, device: Any, collective: Collective) -> Iterator[tuple[Stage, ModelScores]]:
        """Score the letters of the sentences."""
        yield CHARACTERS, self._scores_of(classify_letters(self.nodes, self.config))

    def score(self, model: Encoder, collective: Collective, stage: Stage) -> ModelScores:
        """Score the classes of all nodes; draw a map of the trained model."""
        embedding_ND = self._embed(model, collective)
        return replace(
            self._scores_of(self._classify(embedding_ND)),
            spread=spread_metrics(embedding_ND),
            draw_map=partial(self._map, embedding_ND) if stage == "trained" else None,
        )

    def _scores_of(self, classified: LeaveOneOut) -> ModelScores:
        largest_share = np.bincount(self.nodes.label_N).max() / len(self.nodes.label_N)
        return ModelScores(
            scores={"nodes": classified.scores(bootstrap_seed(self.config.seed))},
            chance={"nodes": exact_scores({"auroc": 0.5, "accuracy": largest_share})},
            unit_scores={"nodes": classified.units()},
        )

    def details(self) -> Mapping[str, Any]:
        """Return the size and the homophily of the graph."""
        return {"graph": describe(self.nodes)}

    def _embed(self, model: Encoder, collective: Collective) -> Tensor:
        assert isinstance(model, TextEncoder)
        return embed_nodes(self.config, self.nodes, model, collective)

    def _map(self, embedding_ND: Tensor) -> LabeledMap:
        rng = np.random.default_rng(derive_seed(self.config.seed, "map"))
        drawn = embedding_map(embedding_ND.cpu().numpy(), rng)
        groups = [f"class {self.nodes.label_N[row]}" for row in drawn.row_S]
        return LabeledMap(drawn.position_S2, groups)

    def _classify(self, embedding_ND: Tensor) -> LeaveOneOut:
        return leave_one_out(embedding_ND.cpu().numpy(), self.nodes.label_N)


def classify_letters(nodes: SyntheticGraph, config: Config) -> LeaveOneOut:
    """Classify nodes by TF-IDF of their character 2- to 4-grams.

    Of a long text, it reads one letter more than the encoder, one of whose tokens is special.
    """
    length = config.encoder.max_length
    # "auto": texts are read as far as the encoder has positions, which is further than these.
    texts = [text if length == "auto" else text[:length] for text in nodes.text_N]
    vectors = TfidfVectorizer(analyzer="char", ngram_range=(2, 4)).fit_transform(texts)
    return leave_one_out(vectors.toarray(), nodes.label_N)


def embed_nodes(
    config: Config, nodes: SyntheticGraph, model: TextEncoder, collective: Collective
) -> Tensor:
    """Return the embeddings (N, D) of all nodes."""
    read = partial(unmasked, text_rows(nodes, model))
    rows = np.arange(len(nodes.text_N))
    max_tokens = config.memory.max_tokens_per_micro_batch
    return embed_rows(model, read, rows, collective, max_tokens=max_tokens)


def describe(nodes: SyntheticGraph) -> dict[str, float]:
    """Return the numbers of nodes, links and classes, and the homophily of the classes."""
    graph = nodes.graph
    return {
        "nodes": graph.num_nodes,
        "links": int(graph.num_edges),
        "classes": int(nodes.label_N.max()) + 1,
        "homophily": homophily(graph, nodes.label_N),
        "edge_homophily": edge_homophily(graph, nodes.label_N),
    }
