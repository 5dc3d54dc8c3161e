"""The probe: rank the names of a benchmark for its queries by the distance of embeddings.

Meng et al. (2022), as in the authors' code: names are cut to 25 tokens and queries to 50, special
tokens included. A layer L is probed by the last state of the first L layers of a finished model.
The paper's layers (Figures 6 and 7) are models that are truncated first and rewired afterwards, one
training run each. Ties are in order of names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raybio.encoders.checkpoints import check_source, model_names
from raybio.encoders.config import Pooling, TextEncoderConfig
from raybio.encoders.input_lengths import lengths_of_texts
from raybio.encoders.text import text_reader
from raybio.encoders.text_checkpoint import read_checkpoint
from raybio.methods.contrastive_probe.accuracy import (
    ProbeOutcome,
    evaluate_predictions,
    predict_names,
)
from raybio.methods.contrastive_probe.benchmark.probe_benchmark import ProbeBenchmark
from raybio.methods.contrastive_probe.config import NAME_TOKENS, QUERY_TOKENS, ProbeConfig
from raybio.methods.contrastive_probe.text_embedder import (
    TextEmbedder,
    default_pooling,
    load_embedder,
    mask_token_of,
)
from raybio.methods.contrastive_probe.wording_agreement import agreement_beyond_heads
from raybio.ops.nearest import nearest

NUM_NEAR_HEAD = 50
"""Names nearest to the head of a query that do not count in the agreement of wordings."""


@dataclass(frozen=True)
class ProbeResult:
    """The result of one model, or of another method that predicts.

    Attributes:
        model: short name of the model.
        layer: number of layers used; None for all.
        outcome: which predictions are correct.
        predicted_QK: indices of names in order, -1 for none; None for methods without names.
        agreement_R: agreement of two wordings, NaN where undefined; None without a second wording.
    """

    model: str
    layer: int | None
    outcome: ProbeOutcome
    predicted_QK: np.ndarray | None = None
    agreement_R: np.ndarray | None = None

    @property
    def label(self) -> str:
        """The model, and the number of layers if it is not all."""
        return self.model if self.layer is None else f"{self.model}, {self.layer} layers"


def probe_models(
    models: Sequence[str],
    benchmarks: Mapping[str, ProbeBenchmark],
    config: ProbeConfig,
    *,
    layers: Sequence[int] | None = None,
    pooling: Pooling | None = None,
    reworded: Mapping[str, ProbeBenchmark] | None = None,
    log: Callable[[str], None] = lambda _: None,
) -> dict[str, list[ProbeResult]]:
    """Probe every model at every layer; return the results by name of the benchmark, in that order.

    All models are checked before the first is probed. If their poolings differ, their names in the
    results include the pooling.

    Args:
        models: folders or hub ids.
        benchmarks: name -> queries; texts that benchmarks share are embedded once.
        config: candidates, distance and match.
        layers: numbers of layers used, from the first; None: all, once.
        pooling: how the states of a text are pooled; None: ``default_pooling`` of each model.
        reworded: the same queries in other words, for the agreement; None: no agreement.
        log: called with progress messages.

    Raises:
        ConfigError: if a model cannot be loaded, has fewer layers, or has no mask token.
    """
    for model in models:
        _check_model(model, layers, pooling)
    results: dict[str, list[ProbeResult]] = {name: [] for name in benchmarks}
    num_poolings = len({pooling or default_pooling(model) for model in models})
    depths: Sequence[int | None] = layers or [None]
    for name, model in model_names(models).items():
        shown_name = name
        if num_poolings > 1:
            shown_name = f"{name} ({pooling or default_pooling(model)})"
        log(f"loading {model}")
        for depth in depths:
            embed = load_embedder(model, pooling, depth)
            variant = f"{embed.encoder.pooling} pooling"
            if depth is not None:
                variant += f", its first {depth} layers"
            for title, benchmark in benchmarks.items():
                log(
                    f"probing {name}, {variant}, {title}: {len(benchmark.names):,} names, "
                    f"{len(benchmark.relation_Q):,} queries"
                )
                predicted_QK = probe_encoder(embed, benchmark, config)
                agreement_R = None
                if reworded is not None:
                    agreement_R = evaluate_agreement(embed, benchmark, reworded[title], config)
                hits = evaluate_predictions(benchmark, predicted_QK, config.match)
                result = ProbeResult(shown_name, depth, hits, predicted_QK, agreement_R)
                results[title].append(result)
                log(f"{result.label}: acc@1 {hits.micro(1):.2%}, acc@10 {hits.micro(10):.2%}")
    return results


def _check_model(model: str, layers: Sequence[int] | None, pooling: Pooling | None) -> None:
    """Check that a model exists, has all weights and enough layers; read only their headers."""
    check_source(model, "main")
    checkpoint = read_checkpoint(model, "main", with_head=pooling is None)
    checkpoint.check_model(num_layers=max(layers) if layers else None)


def truncation_remarks(
    models: Sequence[str], benchmarks: Mapping[str, ProbeBenchmark]
) -> dict[str, list[str]]:
    """Return model -> remarks on names and queries that it truncates, if it truncates any.

    Raises:
        ConfigError: if a model cannot be loaded, or has no mask token.
    """
    remarks: dict[str, list[str]] = {}
    for name, model in model_names(models).items():
        encoder = TextEncoderConfig(source=model, max_length=QUERY_TOKENS)
        reader = text_reader(encoder, count_by_word={})
        for title, benchmark in benchmarks.items():
            queries = benchmark.queries(mask_token_of(reader.tokenizer))
            for kind, texts, limit in (
                ("names", benchmark.names, NAME_TOKENS),
                ("queries", queries, QUERY_TOKENS),
            ):
                lengths = lengths_of_texts(
                    f"{kind} of {title}", texts, reader, max_length=limit, limit=limit
                )
                if lengths.remark:
                    remarks.setdefault(name, []).append(lengths.remark)
    return remarks


def evaluate_agreement(
    embed: TextEmbedder,
    benchmark: ProbeBenchmark,
    reworded: ProbeBenchmark,
    config: ProbeConfig,
    *,
    name_tokens: int = NAME_TOKENS,
    query_tokens: int = QUERY_TOKENS,
) -> np.ndarray:
    """Return the agreement (R,) of predictions for two wordings of the same queries.

    Names near the head do not count: its 50 nearest, or the nearest tenth of all names if that is
    less. A relation is NaN if its wordings differ only in spaces or case, such as MedLAMA's
    ``occurs_after``, since any predictions would agree. All names are candidates, whatever the
    settings say, since restricting them to names that answer a relation's queries uses gold.

    Args:
        embed: the encoder.
        benchmark: queries in the first wording.
        reworded: the same queries in the second wording.
        config: settings of the predictions; their candidates are ignored.
        name_tokens: maximum tokens of a name.
        query_tokens: maximum tokens of a query.
    """
    config = config.model_copy(update={"candidates": "all"})
    predicted_QK, other_QK = (
        probe_encoder(embed, wording, config, name_tokens=name_tokens, query_tokens=query_tokens)
        for wording in (benchmark, reworded)
    )
    name_CD = embed(benchmark.names, name_tokens)
    head_H, row_Q = np.unique(benchmark.head_Q, return_inverse=True)
    head_HD = name_CD[torch.from_numpy(head_H.astype(np.int64)).to(name_CD.device)]
    num_near = max(1, min(NUM_NEAR_HEAD, len(benchmark.names) // 10))
    neighbors = nearest(
        head_HD, name_CD, num_near, metric=config.metric, collective=embed.collective
    )
    near_head_QN = neighbors.index_QK.cpu().numpy()[row_Q]
    is_reworded_R = np.array(
        [
            "".join(prompt.split()).casefold() != "".join(other.split()).casefold()
            for prompt, other in zip(benchmark.prompts, reworded.prompts, strict=True)
        ]
    )
    return agreement_beyond_heads(
        benchmark.relation_Q, predicted_QK, other_QK, near_head_QN, is_reworded_R
    )


def probe_encoder(
    embed: TextEmbedder,
    benchmark: ProbeBenchmark,
    config: ProbeConfig,
    *,
    name_tokens: int = NAME_TOKENS,
    query_tokens: int = QUERY_TOKENS,
) -> np.ndarray:
    """Return the 10 names (Q, 10) nearest to each query, the same on every worker.

    Raises:
        ConfigError: if the tokenizer has no mask token.
    """
    query_QD, name_CD = embed_benchmark(
        embed, benchmark, name_tokens=name_tokens, query_tokens=query_tokens
    )

    def search(query_BD: Tensor, candidate_MD: Tensor, k: int) -> Tensor:
        neighbors = nearest(
            query_BD, candidate_MD, k, metric=config.metric, collective=embed.collective
        )
        return neighbors.index_QK

    return predict_names(benchmark, query_QD, name_CD, config, search)


def embed_benchmark(
    embed: TextEmbedder,
    benchmark: ProbeBenchmark,
    *,
    name_tokens: int = NAME_TOKENS,
    query_tokens: int = QUERY_TOKENS,
) -> tuple[Tensor, Tensor]:
    """Return embeddings of the queries (Q, D) and the names (C, D), the same on every worker.

    Raises:
        ConfigError: if the tokenizer has no mask token.
    """
    query_QD = embed(benchmark.queries(mask_token_of(embed.encoder.tokenizer)), query_tokens)
    name_CD = embed(benchmark.names, name_tokens)
    return query_QD, name_CD
