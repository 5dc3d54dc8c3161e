"""Link retrieval of text encoders on samples of test graphs: models and a store in, a table out."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from raybio.data.linked_text_store import LinkedTextStore
from raybio.data.pair_collate import read_texts
from raybio.data.store import open_store
from raybio.encoders.text import TextEncoderConfig, build_text_encoder, text_reader
from raybio.encoders.text_checkpoint import read_checkpoint
from raybio.encoders.tokens import TokenizerSource
from raybio.errors import DataError
from raybio.evaluation.sampled_links import (
    OverTrials,
    draw_link_samples,
    linked_of_test_graph,
    over_trials,
    sampled_link_scores,
)
from raybio.functional.hashing import derive_seed
from raybio.graphs import Graph
from raybio.systems.input_lengths import text_lengths
from raybio.training.encode import embed_rows
from raybio.training.gather import SingleProcess

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
        say(f"a test graph has {at_hand:,} linked nodes: each sample of {nodes} is all of it, easier than the paper's")
    for model in models:
        say(f"embedding {store.num_rows:,} texts by {model}")
        scores[model] = score(_embed(model, store, pooling, max_length))
    return scores


def cuts_of_models(models: Sequence[str], store_path: Path, max_length: int = 512) -> dict[str, str]:
    """Return for each model that does not read all texts whole how many it cuts, and where; no weights are loaded.

    Raises:
        ConfigError: for a model that cannot be loaded.
        StoreError: for a store that cannot be read.
    """
    store = open_store(store_path, LinkedTextStore)
    remarks = {}
    for model in models:
        reader = text_reader(TextEncoderConfig(source=model, max_length=max_length), count_by_word={})
        lengths = text_lengths("texts", store.texts, np.arange(store.num_rows), reader, wanted=max_length)
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


def _embed(model: str, store: LinkedTextStore, pooling: Literal["mean", "cls"], max_length: int) -> Tensor:
    says = read_checkpoint(model, "main", with_head=True).head is not None
    own = "auto" if says else pooling
    config = TextEncoderConfig(source=model, max_length=max_length, pooling=own, normalise=False)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    encoder = build_text_encoder(config, seed=0).to(device)
    tokenise = partial(TokenizerSource.of(encoder.tokenizer).tokenise, max_length=encoder.max_tokens)
    rows = np.arange(store.num_rows)
    return embed_rows(
        encoder,
        lambda row_R: read_texts(store.texts(row_R), tokenise),
        rows,
        SingleProcess(),
        max_tokens=MAX_TOKENS_AT_ONCE,
    )
