"""What a rewired encoder is compared with: mask average, X-FACTR's mask prediction and written answers.

Follows Contrastive-Probe (Meng et al., 2022), section 4 and Table 3. Differences: mask average is of log-probabilities
(the paper; the authors' code averages logits over padded pieces) and ranks all names, as the probe does; a query that
is too long loses words at its beginning and never its mask; T5's answer ends at its next sentinel.

The hybrid is ours: the names' distances from a query in a rewired encoder's space, mixed, for names of one token, with
what a masked language model says of them: at these the paper finds such models better.

At which rank each query's first right answer came, whatever gave the answers: ranked names, tokens, written texts.

Q queries.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from raybio.core.errors import ConfigError
from raybio.encoders.checkpoints import check_source, model_names
from raybio.encoders.config import Pooling
from raybio.methods.contrastive_probe.accuracy import CUTOFFS, ProbeOutcome
from raybio.methods.contrastive_probe.baselines.generative import (
    AnswerWriter,
    load_answer_writer,
    writes_answers,
)
from raybio.methods.contrastive_probe.baselines.masked_lm import (
    MaskedLanguageModel,
    hybrid_scores,
    load_masked_lm,
    mask_average_scores,
    restricted_scores,
)
from raybio.methods.contrastive_probe.baselines.x_factr import is_right, predict_answers
from raybio.methods.contrastive_probe.benchmark.biolama import read_benchmark
from raybio.methods.contrastive_probe.benchmark.medlama import Subset
from raybio.methods.contrastive_probe.benchmark.probe_benchmark import ProbeBenchmark
from raybio.methods.contrastive_probe.config import DecodeConfig
from raybio.methods.contrastive_probe.probe import TextEmbedder, embed_benchmark, load_embedder
from raybio.ops.retrieval import Retrieval, Scores, cached_scores, distance_scores, retrieve_by_each

Method = Literal["mask-average", "x-factr", "generative", "hybrid"]


METHODS: tuple[Method, ...] = ("mask-average", "x-factr", "generative", "hybrid")


MAX_QUERY_TOKENS = 64


NUM_EXAMPLES, NUM_SHOWN = 5, 5
"""Queries whose answers the report shows, and answers of each."""


class Example(NamedTuple):
    """A query whose answers are shown: its words, and the names that are right."""

    query: str
    gold: Sequence[str]


class Asked(NamedTuple):
    """A benchmark, or some queries of each relation; candidates are the names of the whole benchmark.

    Attributes:
        benchmark: its queries are asked with prompts in words of ours.
        default: the same with the relations' own words, which is how the paper asks generative models.
    """

    benchmark: ProbeBenchmark
    default: ProbeBenchmark

    def outcome(self, first_hit_Q: np.ndarray) -> ProbeOutcome:
        """What is told by the rank of each one's first right answer."""
        return ProbeOutcome(self.benchmark.relations, self.benchmark.relation_Q, first_hit_Q)

    def gold(self) -> list[np.ndarray]:
        """Numbers of each one's right names."""
        return np.split(self.benchmark.answer_P, self.benchmark.indptr_Q1[1:-1])

    def example_rows(self) -> list[int]:
        """A few queries, drawn by chance, always the same ones."""
        num = len(self.benchmark.relation_Q)
        return sorted(
            np.random.default_rng(0).choice(num, min(NUM_EXAMPLES, num), replace=False).tolist()
        )

    def examples(self) -> list[Example]:
        """Their words and right answers."""
        names, queries, gold = self.benchmark.names, self.benchmark.queries("[Y]"), self.gold()
        return [
            Example(queries[row], [names[number] for number in gold[row]])
            for row in self.example_rows()
        ]


class Rewired(NamedTuple):
    """The encoder of a hybrid: folder or hub id, its pooling (None: its own), and what the language model counts."""

    source: str
    pooling: Pooling | None = None
    weight: float = 0.5


def ask(folder: Path, subset: Subset, queries_per_relation: int | None = None) -> Asked:
    """The queries of a benchmark's folder, or some of each relation: those that training asks of as many.

    Raises:
        DataError: if it is no benchmark.
    """
    both = (read_benchmark(folder, subset, prompts) for prompts in ("human", "default"))
    return Asked(
        *(
            one if queries_per_relation is None else one.sample(queries_per_relation, seed=0)
            for one in both
        )
    )


class Baseline(NamedTuple):
    """What one model achieved by one method.

    Attributes:
        model: who answered.
        method: and how.
        outcome: the same as a probe's.
        ks: k of the accuracies that mean something: the method gives at least so many answers.
        remark: what a reader of its numbers must know.
        examples: first answers to each of the example queries, the best first.
        is_single_Q: which queries have a right answer of one token of the language model; None if that was not asked.
    """

    model: str
    method: str
    outcome: ProbeOutcome
    ks: tuple[int, ...]
    remark: str
    examples: Sequence[Sequence[str]]
    is_single_Q: NDArray[np.bool_] | None = None


def baselines(
    models: Sequence[str],
    methods: Collection[Method],
    asked: Asked,
    *,
    decode: DecodeConfig,
    restrict: bool = False,
    rewired: Rewired | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Baseline]:
    """Every model by every method that it can: encoder-decoders write, masked language models fill masks.

    Args:
        models: folders or hub ids.
        methods: of ``METHODS``.
        asked: what to ask.
        decode: how X-FACTR fills masks.
        restrict: names are ranked among the answers that the query's relation has in the benchmark, and not all names.
        rewired: the encoder of "hybrid", which gives mask average and the encoder alone beside it.
        say: called with what is being done.

    Raises:
        ConfigError: for a model that cannot be loaded, has no head, or has nothing to do; for a hybrid of nothing.
    """
    if ("hybrid" in methods) != (rewired is not None):
        raise ConfigError(
            "a hybrid is of a masked language model and a rewired encoder; want both or neither"
        )
    by_model = methods_by_model(models, methods)
    # All are loaded before one is asked, which takes far longer: one that is not whole is refused at once.
    for model in list(by_model)[1:]:
        _load(model, by_model[model], decode)
    embed = None if rewired is None else load_embedder(rewired.source, rewired.pooling)
    results: list[Baseline] = []
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for model, able in by_model.items():
        say(f"loading {model}")
        loaded = _load(model, able, decode)
        loaded.model.to(device)
        if isinstance(loaded, AnswerWriter):
            results += _generative(model, loaded, asked, say)
            continue
        if rewired is not None and embed is not None:
            (encoder_name,) = model_names([rewired.source])
            results += _hybrid(
                (model, encoder_name), loaded, embed, rewired.weight, asked, restrict, say
            )
        elif "mask-average" in able:
            results.append(_mask_average(model, loaded, asked, restrict, say))
        if "x-factr" in able:
            results.append(_x_factr(model, loaded, asked, decode, say))
    return results


def methods_by_model(models: Sequence[str], methods: Collection[Method]) -> dict[str, list[Method]]:
    """By which of the methods each model can be asked; only its configuration is read.

    Raises:
        ConfigError: for a model that is not there, or can be asked by none.
    """
    by_model: dict[str, list[Method]] = {}
    for model in models:
        check_source(model, "main")
        writes = writes_answers(model)
        by_model[model] = [method for method in methods if (method == "generative") == writes]
        if not by_model[model]:
            kind, wanted = (
                ("an", "generative") if writes else ("no", "mask-average, x-factr or hybrid")
            )
            raise ConfigError(
                f"model {model!r} is {kind} encoder-decoder and can be asked by {wanted}; got {', '.join(methods)}"
            )
    return by_model


def _load(
    model: str, methods: Collection[Method], decode: DecodeConfig
) -> AnswerWriter | MaskedLanguageModel:
    if "generative" in methods:
        return load_answer_writer(model)
    masked_lm = load_masked_lm(model)
    if "x-factr" in methods:
        _room(model, masked_lm, decode)
    return masked_lm


def _mask_average(
    name: str, model: MaskedLanguageModel, asked: Asked, restrict: bool, say: Callable[[str], None]
) -> Baseline:
    return _ranked(
        {(name, "mask average"): _mask_scores(model, asked)}, model, asked, restrict, say
    )[0]


def _hybrid(
    names: tuple[str, str],
    model: MaskedLanguageModel,
    embed: TextEmbedder,
    weight: float,
    asked: Asked,
    restrict: bool,
    say: Callable[[str], None],
) -> list[Baseline]:
    """The language model, the encoder and both together, on each block of queries in turn."""
    name, encoder_name = names
    say(f"{encoder_name}, {embed.encoder.pooling} pooling: {len(asked.benchmark.names):,} names")
    mask = cached_scores(_mask_scores(model, asked))
    encoder = cached_scores(distance_scores(*embed_benchmark(embed, asked.benchmark)))
    both = hybrid_scores(encoder, mask, _is_single(model, asked), weight)
    scores = {
        (name, "mask average"): mask,
        (encoder_name, f"encoder alone, {embed.encoder.pooling} pooling"): encoder,
        (f"{name} and {encoder_name}", f"hybrid, weight {weight:g}"): both,
    }
    return _ranked(scores, model, asked, restrict, say)


def _mask_scores(model: MaskedLanguageModel, asked: Asked) -> Scores:
    texts = model.cloze_tokens(
        asked.benchmark.queries(model.tokenizer.mask_token), _query_tokens(model)
    )

    def log_probs(first: int, end: int) -> torch.Tensor:
        return model.at_masks(texts[first:end])

    pieces = model.name_tokens(asked.benchmark.names)
    return mask_average_scores(log_probs, len(texts), pieces, model.model.config.vocab_size)


def _ranked(
    scores: dict[tuple[str, str], Scores],
    model: MaskedLanguageModel,
    asked: Asked,
    restrict: bool,
    say: Callable[[str], None],
) -> list[Baseline]:
    """What (model, method) achieved by its scores of all names, or of the answers of the query's relation."""
    benchmark, is_single_C = asked.benchmark, _is_single(model, asked)
    several = list(scores.values())
    if restrict:
        several = [
            restricted_scores(one, benchmark.relation_Q, benchmark.is_tail_RC) for one in several
        ]
    candidates = (
        "answers of the query's relation" if restrict else f"all {len(benchmark.names):,} names"
    )
    is_single_Q = np.array([is_single_C[numbers].any() for numbers in asked.gold()])
    (name, method), first_scores = next(iter(scores)), several[0]

    def block(first: int, end: int) -> torch.Tensor:
        say(f"{name}: {method}, query {first:,} of {first_scores.num_queries:,}")
        return first_scores.block(first, end)

    # Here alone there is progress to tell: examples are asked again afterwards, one by one.
    told = [replace(first_scores, block=block), *several[1:]]
    found = map(
        first_of_ranked,
        retrieve_by_each(told, benchmark.indptr_Q1, benchmark.answer_P, block_rows=256),
    )
    remark = f"candidates: {candidates}{_cut(model, asked, _query_tokens(model))}"
    return [
        Baseline(
            name,
            method,
            asked.outcome(first_Q),
            CUTOFFS,
            remark,
            _best_names(one, asked),
            is_single_Q,
        )
        for (name, method), one, first_Q in zip(scores, several, found, strict=True)
    ]


def _best_names(scores: Scores, asked: Asked) -> list[list[str]]:
    names, shown = asked.benchmark.names, []
    for row in asked.example_rows():
        order_C = scores.block(row, row + 1)[0].sort(descending=True, stable=True).indices
        shown.append([names[number] for number in order_C[:NUM_SHOWN].tolist()])
    return shown


def _is_single(model: MaskedLanguageModel, asked: Asked) -> np.ndarray:
    """(C,) which names are one token of a language model; an unknown one stands for every word it lacks."""
    unknown = model.tokenizer.unk_token_id
    return np.array(
        [len(one) == 1 and one[0] != unknown for one in model.name_tokens(asked.benchmark.names)]
    )


def _x_factr(
    name: str,
    model: MaskedLanguageModel,
    asked: Asked,
    decode: DecodeConfig,
    say: Callable[[str], None],
) -> Baseline:
    pieces = model.name_tokens(asked.benchmark.names)
    # An unknown token is no answer: it stands for every word that the vocabulary lacks.
    unknown = model.tokenizer.unk_token_id
    gold = [
        [pieces[number] for number in numbers if unknown not in pieces[number]]
        for numbers in asked.gold()
    ]
    room = _room(name, model, decode)
    queries = model.cloze_tokens(asked.benchmark.queries(model.tokenizer.mask_token), room)
    first_Q = np.full(len(queries), NEVER)
    # Every hypothesis of the beam is a row: so many rows at once, whatever its width.
    size = max(1, (320 if model.model.device.type == "cpu" else 2560) // decode.beam)
    tokens_by_row: dict[int, tuple[int, ...]] = {}
    for rows in _by_length(queries, 8 * size):
        say(f"{name}: x-factr, {len(rows):,} of {len(queries):,} queries")
        predictions = predict_answers(
            [queries[row] for row in rows],
            model.log_probs,
            decode,
            mask_id=model.mask_id,
            pad_id=model.pad_id,
            queries_at_once=size,
        )
        first_Q[rows[is_right(predictions, [gold[row] for row in rows])]] = 0
        tokens_by_row |= {
            row: one.tokens for row, one in zip(rows.tolist(), predictions, strict=True)
        }
    within = np.mean([any(len(tokens) <= decode.max_masks for tokens in golds) for golds in gold])
    how = decode.decode + ("" if decode.refine == "none" else f" + {decode.refine}")
    remark = f"beam {decode.beam}; {within:.1%} of the queries have an answer of 1 to {decode.max_masks} tokens"
    remark += _cut(model, asked, room)
    examples = [[model.tokenizer.decode(tokens_by_row[row])] for row in asked.example_rows()]
    return Baseline(name, f"X-FACTR, {how}", asked.outcome(first_Q), (1,), remark, examples)


def _generative(
    name: str, model: AnswerWriter, asked: Asked, say: Callable[[str], None]
) -> list[Baseline]:
    gold = [[asked.benchmark.names[number] for number in numbers] for numbers in asked.gold()]
    texts = [text.rstrip(" .") for text in asked.default.queries(model.mask_token)]
    answers: list[list[str]] = []
    for start in range(0, len(texts), 256):
        say(f"{name}: generative, query {start:,} of {len(texts):,}")
        answers += model.answers(texts[start : start + 256])
    remarks = {
        "generative": "compared without case and outer blanks",
        "generative, exact": "compared to the letter",
    }
    firsts = [first_of_written(answers, gold, fold), first_of_written(answers, gold)]
    examples = [answers[row][:NUM_SHOWN] for row in asked.example_rows()]
    return [
        Baseline(name, method, asked.outcome(first_Q), CUTOFFS, remark, examples)
        for (method, remark), first_Q in zip(remarks.items(), firsts, strict=True)
    ]


def _cut(model: MaskedLanguageModel, asked: Asked, most: int) -> str:
    """What a remark says of queries that are longer than ``most`` tokens."""
    queries = asked.benchmark.queries(model.tokenizer.mask_token)
    num_cut = sum(len(ids) > most for ids in model.tokenizer(queries)["input_ids"])
    return f"; {num_cut:,} of {len(queries):,} queries cut to {most} tokens" if num_cut else ""


def _query_tokens(model: MaskedLanguageModel) -> int:
    return min(MAX_QUERY_TOKENS, model.max_tokens or MAX_QUERY_TOKENS)


def _room(name: str, model: MaskedLanguageModel, decode: DecodeConfig) -> int:
    """Tokens for a query with one mask, so that it fits with all; a model that reads short texts may have too few."""
    num_tokens = _query_tokens(model)
    if decode.max_masks > num_tokens // 2:
        raise ConfigError(
            f"model {name!r} reads {num_tokens} tokens, and max_masks is {decode.max_masks}; want {num_tokens // 2} at "
            "most, so that half of them are left for the query"
        )
    return num_tokens - (decode.max_masks - 1)


def _by_length(queries: Sequence[np.ndarray], size: int) -> Iterator[np.ndarray]:
    order = np.argsort([len(tokens) for tokens in queries], kind="stable")
    for start in range(0, len(order), size):
        yield order[start : start + size]


NEVER = np.iinfo(np.int64).max
"""The rank of a right answer that was not given."""


def first_of_ranked(retrieval: Retrieval) -> NDArray[np.int64]:
    """(Q,) the rank of each query's best gold candidate, ``NEVER`` without gold."""
    first_Q = np.full(len(retrieval.num_gold_Q), NEVER)
    np.minimum.at(
        first_Q, np.repeat(np.arange(len(first_Q)), retrieval.num_gold_Q), retrieval.rank_P
    )
    return first_Q


def first_of_written(
    answers: Sequence[Sequence[str]],
    gold: Sequence[Collection[str]],
    same: Callable[[str], str] = lambda text: text,
) -> NDArray[np.int64]:
    """(Q,) the rank of the first written answer that is a gold name; ``same`` makes equal what is to count as equal."""
    first_Q = np.full(len(answers), NEVER)
    for query, (given, names) in enumerate(zip(answers, gold, strict=True)):
        wanted = {same(name) for name in names}
        first_Q[query] = next(
            (rank for rank, answer in enumerate(given) if same(answer) in wanted), NEVER
        )
    return first_Q


def fold(text: str) -> str:
    """A text without blanks around it and without case."""
    return text.strip().casefold()
