"""Baselines of the probe: mask average, X-FACTR's mask prediction, generated answers, and a hybrid.

Meng et al. (2022), Section 4 and Table 3. Different:

- Mask average is a mean of log-probabilities, as in the paper (the authors' code averages logits
  over padded pieces), and ranks all names, as the probe does.
- A query that is too long loses words at its beginning and never its mask.
- T5's answer ends at its next sentinel.

The hybrid is ours: an encoder's distances, mixed with the scores of a masked language model for
names of one token. The paper finds such models better at these names.

Q queries, C names.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from raybio.core.errors import ConfigError
from raybio.encoders.checkpoints import check_source, model_names
from raybio.encoders.config import Pooling
from raybio.methods.contrastive_probe.accuracy import CUTOFFS, ProbeOutcome
from raybio.methods.contrastive_probe.baselines.first_hits import (
    NO_HIT,
    first_hits_of_ranked,
    first_hits_of_texts,
    fold,
)
from raybio.methods.contrastive_probe.baselines.generative import (
    AnswerGenerator,
    is_encoder_decoder,
    load_answer_generator,
)
from raybio.methods.contrastive_probe.baselines.mask_average import (
    hybrid_scores,
    mask_average_scores,
    restricted_scores,
)
from raybio.methods.contrastive_probe.baselines.masked_lm import (
    MaskedLanguageModel,
    load_masked_lm,
)
from raybio.methods.contrastive_probe.baselines.queries import BaselineQueries
from raybio.methods.contrastive_probe.baselines.x_factr import (
    blocks_by_length,
    is_exact_match,
    predict_answers,
)
from raybio.methods.contrastive_probe.config import BaselineMethod, DecodeConfig
from raybio.methods.contrastive_probe.probe import embed_benchmark
from raybio.methods.contrastive_probe.text_embedder import TextEmbedder, load_embedder
from raybio.ops.retrieval import Scores, cached_scores, distance_scores, retrieve_by_each
from raybio.training.precision import default_device

MAX_QUERY_TOKENS = 64

NUM_EXAMPLE_ANSWERS = 5

_QUERIES_PER_BLOCK = 256

Log = Callable[[str], None]


@dataclass(frozen=True)
class RewiredEncoder:
    """The encoder of a hybrid.

    Attributes:
        source: folder or hub id.
        pooling: None for the default of the model.
        weight: weight of the masked language model, between 0 and 1.
    """

    source: str
    pooling: Pooling | None = None
    weight: float = 0.5


@dataclass(frozen=True)
class BaselineResult:
    """The result of one model with one method.

    Attributes:
        model: name of the model.
        method: name of the method, with its settings.
        outcome: ranks of the first correct answers.
        ks: cutoffs for which the method gives enough answers.
        remark: what a reader of the figures needs to know.
        examples: first answers to each of the example queries, the best first.
        is_single_Q: whether a gold name is one token of the language model; None if unknown.
    """

    model: str
    method: str
    outcome: ProbeOutcome
    ks: tuple[int, ...]
    remark: str
    examples: Sequence[Sequence[str]]
    is_single_Q: NDArray[np.bool_] | None = None


def evaluate_baselines(
    models: Sequence[str],
    methods: Collection[BaselineMethod],
    queries: BaselineQueries,
    *,
    decode: DecodeConfig,
    restrict: bool = False,
    rewired: RewiredEncoder | None = None,
    log: Log = lambda _: None,
) -> list[BaselineResult]:
    """Evaluate every model with every method that it supports.

    Encoder-decoders generate answers, masked language models fill masks.

    Args:
        models: folders or hub ids.
        methods: names of the methods.
        queries: the benchmark.
        decode: how X-FACTR fills masks.
        restrict: candidates are the answers of the query's relation, not all names.
        rewired: encoder of "hybrid", whose results include mask average and the encoder alone.
        log: called with progress messages.

    Raises:
        ConfigError: for a model that cannot be loaded, has no head, or supports no method; for
            "hybrid" without an encoder, or an encoder without "hybrid".
    """
    if ("hybrid" in methods) != (rewired is not None):
        raise ConfigError(
            "a hybrid combines a masked language model and a rewired encoder; want both or neither"
        )
    methods_of_model = methods_by_model(models, methods)
    # All models are loaded once before the long evaluation: an incomplete one fails at once.
    for model in list(methods_of_model)[1:]:
        _load(model, methods_of_model[model], decode)
    embed = None if rewired is None else load_embedder(rewired.source, rewired.pooling)
    device = default_device()
    results: list[BaselineResult] = []
    for model, supported in methods_of_model.items():
        log(f"loading {model}")
        loaded = _load(model, supported, decode)
        loaded.model.to(device)
        if isinstance(loaded, AnswerGenerator):
            results += _generative(model, loaded, queries, log)
            continue
        if rewired is not None and embed is not None:
            results += _hybrid(model, loaded, rewired, embed, queries, restrict, log)
        elif "mask-average" in supported:
            scores = {(model, "mask average"): _mask_scores(loaded, queries)}
            results += _ranked(scores, loaded, queries, restrict, log)
        if "x-factr" in supported:
            results.append(_x_factr(model, loaded, queries, decode, log))
    return results


def methods_by_model(
    models: Sequence[str], methods: Collection[BaselineMethod]
) -> dict[str, list[BaselineMethod]]:
    """Return model -> the methods that it supports; only configurations are read.

    Raises:
        ConfigError: for a model that does not exist or supports none of them.
    """
    supported: dict[str, list[BaselineMethod]] = {}
    for model in models:
        check_source(model, "main")
        is_generative = is_encoder_decoder(model)
        supported[model] = [
            method for method in methods if (method == "generative") == is_generative
        ]
        if not supported[model]:
            kind = "an encoder-decoder" if is_generative else "no encoder-decoder"
            wanted = "generative" if is_generative else "mask-average, x-factr or hybrid"
            raise ConfigError(
                f"model {model!r} is {kind} and supports {wanted}; got {', '.join(methods)}"
            )
    return supported


def _load(
    model: str, methods: Collection[BaselineMethod], decode: DecodeConfig
) -> AnswerGenerator | MaskedLanguageModel:
    if "generative" in methods:
        return load_answer_generator(model)
    masked_lm = load_masked_lm(model)
    if "x-factr" in methods:
        _max_query_tokens_of_x_factr(model, masked_lm, decode)
    return masked_lm


def _hybrid(
    name: str,
    model: MaskedLanguageModel,
    rewired: RewiredEncoder,
    embed: TextEmbedder,
    queries: BaselineQueries,
    restrict: bool,
    log: Log,
) -> list[BaselineResult]:
    """Evaluate the language model, the encoder, and both together."""
    (encoder_name,) = model_names([rewired.source])
    pooling = f"{embed.encoder.pooling} pooling"
    log(f"{encoder_name}, {pooling}: {len(queries.benchmark.names):,} names")
    # Each block of scores is used by two results.
    mask = cached_scores(_mask_scores(model, queries))
    encoder = cached_scores(distance_scores(*embed_benchmark(embed, queries.benchmark)))
    hybrid = hybrid_scores(encoder, mask, _is_single_token(model, queries), rewired.weight)
    scores = {
        (name, "mask average"): mask,
        (encoder_name, f"encoder alone, {pooling}"): encoder,
        (f"{name} and {encoder_name}", f"hybrid, weight {rewired.weight:g}"): hybrid,
    }
    return _ranked(scores, model, queries, restrict, log)


def _mask_scores(model: MaskedLanguageModel, queries: BaselineQueries) -> Scores:
    texts = model.cloze_tokens(
        queries.benchmark.queries(model.tokenizer.mask_token), _max_query_tokens(model)
    )

    def log_probs(first: int, end: int) -> torch.Tensor:
        return model.at_masks(texts[first:end])

    pieces = model.name_tokens(queries.benchmark.names)
    return mask_average_scores(log_probs, len(texts), pieces, model.model.config.vocab_size)


def _ranked(
    scores_by_name: Mapping[tuple[str, str], Scores],
    model: MaskedLanguageModel,
    queries: BaselineQueries,
    restrict: bool,
    log: Log,
) -> list[BaselineResult]:
    """Return the results of ranking names by scores; these are by (model, method)."""
    benchmark = queries.benchmark
    candidates = f"all {len(benchmark.names):,} names"
    all_scores = list(scores_by_name.values())
    if restrict:
        candidates = "answers of the query's relation"
        all_scores = [
            restricted_scores(scores, benchmark.relation_Q, benchmark.is_tail_RC)
            for scores in all_scores
        ]
    remark = f"candidates: {candidates}"
    remark += _truncation_remark(model, queries, _max_query_tokens(model))
    is_single_C = _is_single_token(model, queries)
    is_single_Q = np.array([is_single_C[names].any() for names in queries.gold()])
    logged = _with_progress(all_scores[0], next(iter(scores_by_name)), log)
    retrievals = retrieve_by_each(
        # The scores without progress messages are used for the examples, one query at a time.
        [logged, *all_scores[1:]],
        benchmark.indptr_Q1,
        benchmark.answer_P,
        block_rows=_QUERIES_PER_BLOCK,
    )
    results = []
    for (name, method), scores, retrieval in zip(
        scores_by_name, all_scores, retrievals, strict=True
    ):
        outcome = queries.outcome(first_hits_of_ranked(retrieval))
        examples = _best_names(scores, queries)
        results.append(
            BaselineResult(name, method, outcome, CUTOFFS, remark, examples, is_single_Q)
        )
    return results


def _with_progress(scores: Scores, name: tuple[str, str], log: Log) -> Scores:
    model, method = name

    def block(first: int, end: int) -> torch.Tensor:
        log(f"{model}: {method}, query {first:,} of {scores.num_queries:,}")
        return scores.block(first, end)

    return replace(scores, block=block)


def _best_names(scores: Scores, queries: BaselineQueries) -> list[list[str]]:
    names = queries.benchmark.names
    examples = []
    for row in queries.example_rows():
        order_C = scores.block(row, row + 1)[0].sort(descending=True, stable=True).indices
        examples.append([names[name] for name in order_C[:NUM_EXAMPLE_ANSWERS].tolist()])
    return examples


def _is_single_token(model: MaskedLanguageModel, queries: BaselineQueries) -> NDArray[np.bool_]:
    """Return whether each name (C,) is one token that is not the unknown one."""
    unknown = model.tokenizer.unk_token_id
    tokens = model.name_tokens(queries.benchmark.names)
    return np.array([len(name) == 1 and name[0] != unknown for name in tokens])


def _x_factr(
    name: str,
    model: MaskedLanguageModel,
    queries: BaselineQueries,
    decode: DecodeConfig,
    log: Log,
) -> BaselineResult:
    gold = _gold_tokens(model, queries)
    max_tokens = _max_query_tokens_of_x_factr(name, model, decode)
    texts = model.cloze_tokens(queries.benchmark.queries(model.tokenizer.mask_token), max_tokens)
    # Every hypothesis of the beam is a row of the language model.
    max_rows = 320 if model.model.device.type == "cpu" else 2560
    queries_per_block = max(1, max_rows // decode.beam)
    first_Q = np.full(len(texts), NO_HIT)
    tokens_by_row: dict[int, tuple[int, ...]] = {}
    for rows in blocks_by_length(texts, 8 * queries_per_block):
        log(f"{name}: x-factr, {len(rows):,} of {len(texts):,} queries")
        predictions = predict_answers(
            [texts[row] for row in rows],
            model.log_probs,
            decode,
            mask_id=model.mask_id,
            pad_id=model.pad_id,
            queries_per_block=queries_per_block,
        )
        is_hit = is_exact_match(predictions, [gold[row] for row in rows])
        first_Q[rows[is_hit]] = 0
        for row, prediction in zip(rows.tolist(), predictions, strict=True):
            tokens_by_row[row] = prediction.tokens
    method = f"X-FACTR, {decode.decode}"
    if decode.refine != "none":
        method += f" + {decode.refine}"
    is_reachable = [any(len(tokens) <= decode.max_masks for tokens in answers) for answers in gold]
    remark = (
        f"beam {decode.beam}; {np.mean(is_reachable):.1%} of the queries have an answer of 1 to "
        f"{decode.max_masks} tokens"
    )
    remark += _truncation_remark(model, queries, max_tokens)
    examples = [[model.tokenizer.decode(tokens_by_row[row])] for row in queries.example_rows()]
    return BaselineResult(name, method, queries.outcome(first_Q), (1,), remark, examples)


def _gold_tokens(
    model: MaskedLanguageModel, queries: BaselineQueries
) -> list[list[tuple[int, ...]]]:
    """Return the token ids of the gold names of each query, without names of unknown tokens."""
    unknown = model.tokenizer.unk_token_id
    tokens = model.name_tokens(queries.benchmark.names)
    return [
        [tokens[name] for name in names if unknown not in tokens[name]] for names in queries.gold()
    ]


def _generative(
    name: str, model: AnswerGenerator, queries: BaselineQueries, log: Log
) -> list[BaselineResult]:
    names = queries.benchmark.names
    gold = [[names[name_index] for name_index in answers] for answers in queries.gold()]
    texts = [text.rstrip(" .") for text in queries.default.queries(model.mask_token)]
    answers: list[list[str]] = []
    for start in range(0, len(texts), _QUERIES_PER_BLOCK):
        log(f"{name}: generative, query {start:,} of {len(texts):,}")
        answers += model.answers(texts[start : start + _QUERIES_PER_BLOCK])
    examples = [answers[row][:NUM_EXAMPLE_ANSWERS] for row in queries.example_rows()]
    # The examples show the manual prompts.
    is_default = queries.default.prompts != queries.benchmark.prompts
    prompts = "default prompts; " if is_default else ""
    folded = BaselineResult(
        model=name,
        method="generative",
        outcome=queries.outcome(first_hits_of_texts(answers, gold, fold)),
        ks=CUTOFFS,
        remark=f"{prompts}compared without case and outer spaces",
        examples=examples,
    )
    exact = BaselineResult(
        model=name,
        method="generative, exact",
        outcome=queries.outcome(first_hits_of_texts(answers, gold)),
        ks=CUTOFFS,
        remark=f"{prompts}compared letter by letter",
        examples=examples,
    )
    return [folded, exact]


def _truncation_remark(
    model: MaskedLanguageModel, queries: BaselineQueries, max_tokens: int
) -> str:
    """Return the end of a remark about queries longer than ``max_tokens``; empty without any."""
    texts = queries.benchmark.queries(model.tokenizer.mask_token)
    num_cut = sum(len(ids) > max_tokens for ids in model.tokenizer(texts)["input_ids"])
    return f"; {num_cut:,} of {len(texts):,} queries cut to {max_tokens} tokens" if num_cut else ""


def _max_query_tokens(model: MaskedLanguageModel) -> int:
    return min(MAX_QUERY_TOKENS, model.max_tokens or MAX_QUERY_TOKENS)


def _max_query_tokens_of_x_factr(
    name: str, model: MaskedLanguageModel, decode: DecodeConfig
) -> int:
    """Return the maximum tokens of a query with one mask, so that it fits with all masks.

    Raises:
        ConfigError: if the masks would need more than half of the tokens.
    """
    max_tokens = _max_query_tokens(model)
    if decode.max_masks > max_tokens // 2:
        raise ConfigError(
            f"model {name!r} reads {max_tokens} tokens, and max_masks is {decode.max_masks}; "
            f"want {max_tokens // 2} at most, so that half of them are left for the query"
        )
    return max_tokens - (decode.max_masks - 1)
