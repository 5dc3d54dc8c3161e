"""What a rewired encoder is compared with: mask average, X-FACTR's mask prediction and written answers.

Follows Contrastive-Probe (Meng et al., 2022), section 4 and Table 3. Differences: mask average is of log-probabilities
(the paper; the authors' code averages logits over padded pieces) and ranks all names, as the probe does; a query that
is too long loses words at its beginning and never its mask; T5's answer ends at its next sentinel.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from raybio.data.biolama import read_benchmark
from raybio.data.probe_benchmark import ProbeBenchmark, Subset
from raybio.encoders.masked_lm import MaskedLanguageModel, load_masked_lm
from raybio.encoders.seq2seq import AnswerWriter, load_answer_writer, writes_answers
from raybio.errors import ConfigError
from raybio.evaluation.first_hits import NEVER, Baseline, first_of_ranked, first_of_written, fold
from raybio.evaluation.mask_average import mask_average_scores, restricted_scores
from raybio.evaluation.mask_prediction import DecodeConfig, is_right, predict_answers
from raybio.evaluation.probe import CUTOFFS, ProbeOutcome
from raybio.functional.retrieval import retrieve

Method = Literal["mask-average", "x-factr", "generative"]
METHODS: tuple[Method, ...] = ("mask-average", "x-factr", "generative")
MAX_QUERY_TOKENS = 64


class Asked(NamedTuple):
    """Some queries of a benchmark; candidates are the names of the whole benchmark.

    Attributes:
        benchmark: its queries are asked with prompts in words of ours.
        default: the same with the relations' own words, which is how the paper asks generative models.
        row_Q: the queries asked.
    """

    benchmark: ProbeBenchmark
    default: ProbeBenchmark
    row_Q: np.ndarray

    @property
    def relation_Q(self) -> np.ndarray:
        """The relation of each."""
        return self.benchmark.relation_Q[self.row_Q]

    def outcome(self, first_hit_Q: np.ndarray) -> ProbeOutcome:
        """What is told by the rank of each one's first right answer."""
        return ProbeOutcome(self.benchmark.relations, self.relation_Q, first_hit_Q)

    def texts(self, benchmark: ProbeBenchmark, mask_token: str) -> list[str]:
        """Their cloze texts."""
        texts = benchmark.queries(mask_token)
        return [texts[row] for row in self.row_Q]

    def gold(self) -> list[np.ndarray]:
        """Numbers of each one's right names."""
        bounds = self.benchmark.indptr_Q1
        return [self.benchmark.answer_P[bounds[row] : bounds[row + 1]] for row in self.row_Q]


def ask(folder: Path, subset: Subset, limit: int | None = None) -> Asked:
    """The queries of a benchmark's folder, or the first ``limit`` of each relation.

    Raises:
        DataError: if it is no benchmark.
    """
    benchmark, default = (read_benchmark(folder, subset, prompts) for prompts in ("human", "default"))
    row_Q = np.arange(len(benchmark.relation_Q))
    if limit is not None:
        first_R = np.searchsorted(benchmark.relation_Q, np.arange(len(benchmark.relations)))
        row_Q = row_Q[row_Q - first_R[benchmark.relation_Q] < limit]
    return Asked(benchmark, default, row_Q)


def baselines(
    models: Sequence[str],
    methods: Collection[Method],
    asked: Asked,
    *,
    decode: DecodeConfig,
    restrict: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> list[Baseline]:
    """Every model by every method that it can: encoder-decoders write, masked language models fill masks.

    Args:
        models: folders or hub ids.
        methods: of ``METHODS``.
        asked: what to ask.
        decode: how X-FACTR fills masks.
        restrict: mask average among the answers that the query's relation has in the benchmark, and not all names.
        say: called with what is being done.

    Raises:
        ConfigError: for a model that cannot be loaded, has no head, or has nothing to do.
    """
    can_write = {model: writes_answers(model) for model in models}
    for model, writes in can_write.items():
        if not any((method == "generative") == writes for method in methods):
            kind, wanted = ("an", "generative") if writes else ("no", "mask-average or x-factr")
            raise ConfigError(
                f"model {model!r} is {kind} encoder-decoder and can be asked by {wanted}; got {', '.join(methods)}"
            )
    results: list[Baseline] = []
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for model, writes in can_write.items():
        say(f"loading {model}")
        if writes:
            writer = load_answer_writer(model)
            writer.model.to(device)
            results += _generative(model, writer, asked, say)
            continue
        masked_lm = load_masked_lm(model)
        masked_lm.model.to(device)
        if "mask-average" in methods:
            results.append(_mask_average(model, masked_lm, asked, restrict, say))
        if "x-factr" in methods:
            results.append(_x_factr(model, masked_lm, asked, decode, say))
    return results


def _mask_average(
    name: str, model: MaskedLanguageModel, asked: Asked, restrict: bool, say: Callable[[str], None]
) -> Baseline:
    benchmark, gold = asked.benchmark, asked.gold()
    texts = model.cloze_tokens(asked.texts(benchmark, model.tokenizer.mask_token), _query_tokens(model))

    def log_probs(first: int, end: int) -> torch.Tensor:
        say(f"{name}: mask average, query {first:,} of {len(texts):,}")
        return model.at_masks(texts[first:end])

    pieces = model.name_tokens(benchmark.names)
    scores = mask_average_scores(log_probs, len(texts), pieces, model.model.config.vocab_size)
    if restrict:
        scores = restricted_scores(scores, asked.relation_Q, _answers_of_relations(benchmark))
    indptr = np.concatenate([[0], np.cumsum([len(numbers) for numbers in gold])])
    retrieval = retrieve(scores, indptr, np.concatenate(gold), block_rows=256)
    candidates = "answers of the query's relation" if restrict else f"all {len(benchmark.names):,} names"
    outcome = asked.outcome(first_of_ranked(retrieval))
    return Baseline(name, "mask average", outcome, CUTOFFS, f"candidates: {candidates}")


def _x_factr(
    name: str, model: MaskedLanguageModel, asked: Asked, decode: DecodeConfig, say: Callable[[str], None]
) -> Baseline:
    pieces = model.name_tokens(asked.benchmark.names)
    # An unknown token is no answer: it stands for every word that the vocabulary lacks.
    unknown = model.tokenizer.unk_token_id
    gold = [[pieces[number] for number in numbers if unknown not in pieces[number]] for numbers in asked.gold()]
    room = _query_tokens(model) - (decode.max_masks - 1)
    queries = model.cloze_tokens(asked.texts(asked.benchmark, model.tokenizer.mask_token), room)
    first_Q, size = np.full(len(queries), NEVER), 64 if model.model.device.type == "cpu" else 512
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
    within = np.mean([any(len(tokens) <= decode.max_masks for tokens in golds) for golds in gold])
    how = decode.decode + ("" if decode.refine == "none" else f" + {decode.refine}")
    remark = f"beam {decode.beam}; {within:.1%} of the queries have an answer of 1 to {decode.max_masks} tokens"
    return Baseline(name, f"x-factr, {how}", asked.outcome(first_Q), (1,), remark)


def _generative(name: str, model: AnswerWriter, asked: Asked, say: Callable[[str], None]) -> list[Baseline]:
    gold = [[asked.benchmark.names[number] for number in numbers] for numbers in asked.gold()]
    texts = [text.rstrip(" .") for text in asked.texts(asked.default, model.mask_token)]
    answers: list[list[str]] = []
    for start in range(0, len(texts), 256):
        say(f"{name}: generative, query {start:,} of {len(texts):,}")
        answers += model.answers(texts[start : start + 256])
    remarks = {"generative": "compared without case and outer blanks", "generative, exact": "compared to the letter"}
    firsts = [first_of_written(answers, gold, fold), first_of_written(answers, gold)]
    return [
        Baseline(name, method, asked.outcome(first_Q), CUTOFFS, remark)
        for (method, remark), first_Q in zip(remarks.items(), firsts, strict=True)
    ]


def _query_tokens(model: MaskedLanguageModel) -> int:
    return min(MAX_QUERY_TOKENS, model.max_tokens or MAX_QUERY_TOKENS)


def _by_length(queries: Sequence[np.ndarray], size: int) -> Iterator[np.ndarray]:
    order = np.argsort([len(tokens) for tokens in queries], kind="stable")
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _answers_of_relations(benchmark: ProbeBenchmark) -> np.ndarray:
    """(R, C) whether a name answers some query of a relation, asked here or not."""
    is_answer_RC = np.zeros((len(benchmark.relations), len(benchmark.names)), dtype=bool)
    relation_P = np.repeat(benchmark.relation_Q, np.diff(benchmark.indptr_Q1))
    is_answer_RC[relation_P, benchmark.answer_P] = True
    return is_answer_RC
