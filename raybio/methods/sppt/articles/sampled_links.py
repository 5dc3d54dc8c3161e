"""Link retrieval on samples of a test graph, as SPPT's paper measures it on articles (Table 7; facts §6).

A test graph has a quarter of the nodes or less. Of each sample some nodes are drawn, all their neighbours join them,
and links among these are asked for. The links may be those of training: the measure is transductive.

Shape letters: N nodes, D embedding width.

Link retrieval of text encoders on samples of test graphs: models and a store in, a table out.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from raybio.core.errors import DataError
from raybio.core.randomness import derive_seed
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.input_lengths import text_lengths
from raybio.encoders.text import build_text_encoder, text_reader
from raybio.encoders.text_checkpoint import read_checkpoint
from raybio.encoders.tokenization import TokenizerSource, read_texts
from raybio.methods.sppt.articles.store import LinkedTextStore
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.link_retrieval import induced, link_chance, link_retrieval, neighbours_of
from raybio.store.store import open_store
from raybio.training.collective import SingleProcess
from raybio.training.embed import embed_rows

TEST = 2


SHARES = (0.5, 0.25, 0.25)
"""Of pairs of nodes that neither part has yet: training, validation, test."""


MEASURES = ("lrap", "ndcg", "average_precision", "mrr")


class OverTrials(NamedTuple):
    """Mean and standard deviation (of a sample) over trials."""

    mean: float
    deviation: float


class LinkSample(NamedTuple):
    """Nodes of a test graph that are asked for the links among them.

    Attributes:
        node_A: which they are.
        links: among them, numbered in their order.
    """

    node_A: np.ndarray
    links: Graph


def nodes_of_test_graph(graph: Graph, rng: np.random.Generator) -> np.ndarray:
    """Nodes of a test graph: in random order, links whose ends are in no part yet choose one for both."""
    source_E = np.repeat(np.arange(graph.num_nodes), graph.degree_N)
    target_E = np.asarray(graph.indices)
    once = np.flatnonzero(source_E < target_E)
    once = rng.permutation(once)
    part_E = rng.choice(len(SHARES), size=len(once), p=SHARES)
    part_N = [-1] * graph.num_nodes
    for u, v, part in zip(
        source_E[once].tolist(), target_E[once].tolist(), part_E.tolist(), strict=True
    ):
        if part_N[u] < 0 and part_N[v] < 0:
            part_N[u] = part_N[v] = part
    return np.flatnonzero(np.array(part_N) == TEST)


def linked_of_test_graph(graph: Graph, seed: int, trial: int = 0) -> int:
    """Nodes with a link in a test graph, the first one unless told: what samples are drawn from."""
    node_S = nodes_of_test_graph(graph, np.random.default_rng((seed, trial)))
    return int((induced(graph, node_S, np.zeros(len(node_S), np.int32)).degree_N > 0).sum())


def draw_link_samples(
    graph: Graph, *, trials: int = 5, samples: int = 100, nodes: int = 200, seed: int = 0
) -> list[list[LinkSample]]:
    """The samples of each trial, a test graph of its own; every model is asked the same.

    Args:
        graph: links among all nodes.
        trials: test graphs.
        samples: of each.
        nodes: drawn for a sample, of those with a link in the test graph; all of these if there are fewer.
        seed: of the test graphs and samples.

    Raises:
        ValueError: if a test graph has no link.
    """
    return [
        _of_trial(graph, samples, nodes, np.random.default_rng((seed, trial)))
        for trial in range(trials)
    ]


def sampled_link_scores(samples: Sequence[LinkSample], embedding_ND: Tensor) -> list[float]:
    """Mean of each of ``MEASURES`` over the samples of a trial, for embeddings of all nodes."""
    found = [
        link_retrieval(embedding_ND[one.node_A], one.links.indptr, one.links.indices)  # type: ignore[arg-type]
        for one in samples
    ]
    return [float(np.mean([getattr(one, name) for one in found])) for name in MEASURES]


def sampled_link_chance(trials: Sequence[Sequence[LinkSample]]) -> dict[str, float]:
    """Return the mean over trials, and over their samples, of what random orders give."""
    found = []
    for samples in trials:
        of_trial = [
            link_chance(one.links, np.zeros(one.links.num_nodes, np.int64)) for one in samples
        ]
        found.append([np.mean([chance[name] for chance in of_trial]) for name in MEASURES])
    return dict(zip(MEASURES, np.mean(found, axis=0).tolist(), strict=True))


def over_trials(value_TM: ArrayLike) -> dict[str, OverTrials]:
    """Mean and deviation over trials, by the name of the measure; a deviation of 0 of a single trial."""
    values = np.asarray(value_TM, np.float64)
    deviation_M = values.std(axis=0, ddof=1 if len(values) > 1 else 0)
    numbers = zip(MEASURES, values.mean(axis=0).tolist(), deviation_M.tolist(), strict=True)
    return {name: OverTrials(mean, deviation) for name, mean, deviation in numbers}


def _of_trial(graph: Graph, samples: int, nodes: int, rng: np.random.Generator) -> list[LinkSample]:
    node_S = nodes_of_test_graph(graph, rng)
    test_graph = induced(graph, node_S, np.zeros(len(node_S), np.int32))
    linked = np.flatnonzero(test_graph.degree_N > 0)
    if not len(linked):
        raise ValueError(f"a test graph of {len(node_S)} nodes has no link, want a larger graph")
    drawn_samples = []
    for _ in range(samples):
        drawn = rng.choice(linked, min(nodes, len(linked)), replace=False)
        asked = np.unique(np.concatenate([drawn, neighbours_of(test_graph, drawn)]))
        links = induced(test_graph, asked, np.zeros(len(asked), np.int32))
        drawn_samples.append(LinkSample(node_S[asked], links))
    return drawn_samples


MAX_TOKENS_AT_ONCE = 16_384


RANDOM, RANDOM_WIDTH = "random vectors", 768


def sampled_links(
    models: Sequence[str],
    store_path: Path,
    *,
    pooling: Literal["mean", "cls"] = "cls",
    max_length: int = 512,
    trials: int = 5,
    samples: int = 100,
    nodes: int = 200,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, dict[str, OverTrials]]:
    """Scores of random vectors and of each model, by its name; all links of the store count, held-out ones too.

    Args:
        models: folders or hub ids of text encoders.
        store_path: linked texts.
        pooling: of models that do not say.
        max_length: tokens of a text that are read, at most what a model has positions for.
        trials: test graphs.
        samples: of each.
        nodes: drawn for a sample.
        seed: of test graphs, samples and random vectors.
        say: called with what is being done.

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
        return over_trials([sampled_link_scores(of_trial, embedding_ND) for of_trial in drawn])

    scores = {RANDOM: score(random_vectors(graph.num_nodes, seed))}
    if (at_hand := linked_of_test_graph(graph, seed)) <= nodes:
        say(
            f"a test graph has {at_hand:,} linked nodes: each sample of {nodes} is all of it, easier than the paper's"
        )
    for model in models:
        say(f"embedding {store.num_rows:,} texts by {model}")
        scores[model] = score(_embed(model, store, pooling, max_length))
    return scores


def cuts_of_models(
    models: Sequence[str], store_path: Path, max_length: int = 512
) -> dict[str, str]:
    """Return for each model that does not read all texts whole how many it cuts, and where; no weights are loaded.

    Raises:
        ConfigError: for a model that cannot be loaded.
        StoreError: for a store that cannot be read.
    """
    store = open_store(store_path, LinkedTextStore)
    remarks = {}
    for model in models:
        reader = text_reader(
            TextEncoderConfig(source=model, max_length=max_length), count_by_word={}
        )
        lengths = text_lengths(
            "texts", store.texts, np.arange(store.num_rows), reader, wanted=max_length
        )
        remarks[model] = lengths.remark
    return {model: remark for model, remark in remarks.items() if remark}


def whole_graph(store: LinkedTextStore) -> Graph:
    """All links of a store, held-out ones too."""
    graph = store.graph
    source_E = np.repeat(np.arange(graph.num_nodes), graph.degree_N)
    edge_E2 = np.concatenate([np.stack([source_E, graph.indices], axis=1), store.heldout])
    return Graph.from_edges(edge_E2, graph.num_nodes)


def random_vectors(num_nodes: int, seed: int) -> Tensor:
    """What every model is compared with (N, 768)."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "random-vectors") % 2**63)
    return torch.randn(num_nodes, RANDOM_WIDTH, generator=generator)


def _embed(
    model: str, store: LinkedTextStore, pooling: Literal["mean", "cls"], max_length: int
) -> Tensor:
    says = read_checkpoint(model, "main", with_head=True).head is not None
    own = "auto" if says else pooling
    config = TextEncoderConfig(source=model, max_length=max_length, pooling=own, normalise=False)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    encoder = build_text_encoder(config, seed=0).to(device)
    tokenise = partial(
        TokenizerSource.of(encoder.tokenizer).tokenise, max_length=encoder.max_tokens
    )
    rows = np.arange(store.num_rows)
    return embed_rows(
        encoder,
        lambda row_R: read_texts(store.texts(row_R), tokenise),
        rows,
        SingleProcess(),
        max_tokens=MAX_TOKENS_AT_ONCE,
    )
