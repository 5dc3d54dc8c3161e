"""Contrastive-Probe's second half: what do encoders know? Models and a benchmark in, judged predictions out.

Paper: *Rewire-then-Probe: A Contrastive Recipe for Probing Biomedical Knowledge of Pre-trained Language Models*. As its
code has it, names and queries are embedded as the state of their first token, unscaled, names cut to 25 tokens and
queries to 50, special ones included. A layer L is probed as the paper's text says, by the last state of the model's
first L layers. What differs: texts whose tokens are equal (names that differ in case alone, for an uncased model) are
embedded once, so that they tie; ties stand in order of names.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from raybio.data.pair_collate import read_texts
from raybio.encoders.text import TextEncoder, TextEncoderConfig, build_text_encoder
from raybio.encoders.tokens import TokenizerSource
from raybio.errors import ConfigError
from raybio.evaluation.probe import ProbeConfig, Questions, outcome, predict
from raybio.evaluation.probe_report import ProbeResult
from raybio.protocols import Collective
from raybio.retrieval.nearest import nearest
from raybio.systems.zero_shot import model_names
from raybio.training.encode import embed_rows
from raybio.training.gather import SingleProcess

MAX_TOKENS_AT_ONCE = 16_384
NAME_TOKENS, QUERY_TOKENS = 25, 50
Pooling = Literal["cls", "mean"]


class Benchmark(Questions, Protocol):
    """Questions that can be put into words; ``raybio.data.probe_benchmark.ProbeBenchmark`` is one."""

    def queries(self, mask_token: str) -> list[str]:
        """Each query as a sentence with the mask token where the answer belongs."""
        ...


def probe(
    models: Sequence[str],
    benchmark: Benchmark,
    config: ProbeConfig,
    *,
    layers: Sequence[int] | None = None,
    pooling: Pooling = "cls",
    name_tokens: int = NAME_TOKENS,
    query_tokens: int = QUERY_TOKENS,
    say: Callable[[str], None] = lambda _: None,
) -> list[ProbeResult]:
    """Ask every model, at every layer; a result each, in that order.

    Args:
        models: folders or hub ids.
        benchmark: what is asked.
        config: among which names, by which distance, and what counts as right.
        layers: how many of a model's layers, from the first on, are used; None: all, once.
        pooling: what of a text's states is its embedding.
        name_tokens: tokens of a name that are read, special ones included.
        query_tokens: tokens of a query.
        say: called with what is being done.

    Raises:
        ConfigError: if a model cannot be loaded, has fewer layers, or has no mask token.
    """
    results = []
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name, model in model_names(models).items():
        for layer in layers or (None,):
            at = "" if layer is None else f", its first {layer} layers"
            say(f"probing {name}{at}: {len(benchmark.names):,} names, {len(benchmark.relation_Q):,} queries")
            settings = {"source": model, "pooling": pooling, "normalise": False}
            settings |= {"max_length": max(name_tokens, query_tokens)}
            settings |= {} if layer is None else {"num_layers_kept": layer}
            encoder = build_text_encoder(TextEncoderConfig.from_mapping(settings), seed=0).to(device)
            predicted_QK = probe_encoder(encoder, benchmark, config, name_tokens=name_tokens, query_tokens=query_tokens)
            found = outcome(benchmark, predicted_QK, config.match)
            results.append(ProbeResult(name, layer, found, predicted_QK))
            say(f"{results[-1].label}: acc@1 {found.micro(1):.2%}, acc@10 {found.micro(10):.2%}")
    return results


def probe_encoder(
    encoder: TextEncoder,
    benchmark: Benchmark,
    config: ProbeConfig,
    collective: Collective | None = None,
    *,
    name_tokens: int = NAME_TOKENS,
    query_tokens: int = QUERY_TOKENS,
) -> np.ndarray:
    """The 10 names (Q, 10) nearest to each query for an encoder that is there, the same on every worker.

    Raises:
        ConfigError: if its tokenizer has no mask token.
    """
    mask_token = encoder.tokenizer.mask_token
    if mask_token is None:
        raise ConfigError(
            "the encoder's tokenizer has no mask token to stand for the answer; want a masked language model's"
        )
    collective = collective or SingleProcess()
    query_QD = embed_texts(encoder, benchmark.queries(mask_token), query_tokens, collective)
    name_CD = embed_texts(encoder, benchmark.names, name_tokens, collective)

    def search(query_BD: Tensor, candidate_MD: Tensor, k: int) -> Tensor:
        return nearest(query_BD, candidate_MD, k, metric=config.metric, collective=collective).index_QK

    return predict(benchmark, query_QD, name_CD, config, search)


def embed_texts(encoder: TextEncoder, texts: Sequence[str], max_tokens: int, collective: Collective) -> Tensor:
    """Embeddings (N, D) of texts cut to ``max_tokens``; texts of equal tokens have equal embeddings."""
    tokenise = partial(TokenizerSource.of(encoder.tokenizer).tokenise, max_length=min(max_tokens, encoder.max_tokens))
    token_T, indptr_N1 = tokenise(texts)
    first_by_tokens: dict[bytes, int] = {}
    bounds = zip(indptr_N1[:-1].tolist(), indptr_N1[1:].tolist(), strict=True)
    place_N = [first_by_tokens.setdefault(token_T[a:b].tobytes(), len(first_by_tokens)) for a, b in bounds]
    _, text_U = np.unique(place_N, return_index=True)
    embedding_UD = embed_rows(
        encoder,
        lambda row_M: read_texts([texts[text] for text in text_U[row_M]], tokenise),
        np.arange(len(text_U)),
        collective,
        max_tokens=MAX_TOKENS_AT_ONCE,
    )
    return embedding_UD[torch.tensor(place_N, device=embedding_UD.device)]
