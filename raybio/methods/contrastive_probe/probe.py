"""Contrastive-Probe's second half: what do encoders know? Models and a benchmark in, judged predictions out.

Paper: *Rewire-then-Probe: A Contrastive Recipe for Probing Biomedical Knowledge of Pre-trained Language Models*. As its
code has it, names and queries are embedded as the state of their first token, unscaled, names cut to 25 tokens and
queries to 50, special ones included. A layer L is probed by the last state of the model's first L layers, those of a
finished model that was trained with all of them; the paper's layers (Figures 6 and 7) are of models that were chopped
first and rewired then, a training run each. What differs: texts whose tokens are equal (names that differ in case
alone, for an uncased model) are embedded once, so that they tie; ties stand in order of names; a query longer than 50
tokens keeps its mask.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from raybio.core.errors import ConfigError
from raybio.core.interfaces import Collective
from raybio.encoders.checkpoints import check_source, model_names
from raybio.encoders.config import Pooling, TextEncoderConfig
from raybio.encoders.input_lengths import text_lengths
from raybio.encoders.text import TextEncoder, build_text_encoder, text_reader
from raybio.encoders.text_checkpoint import read_checkpoint, read_sentence_folder
from raybio.encoders.tokenization import TokenizerSource, read_texts
from raybio.methods.contrastive_probe.accuracy import Questions, outcome, predict
from raybio.methods.contrastive_probe.config import NAME_TOKENS, QUERY_TOKENS, ProbeConfig
from raybio.methods.contrastive_probe.report import ProbeResult
from raybio.methods.contrastive_probe.wording_agreement import agreement_beyond_heads
from raybio.ops.nearest import nearest
from raybio.training.collective import SingleProcess
from raybio.training.embed import embed_rows

MAX_TOKENS_AT_ONCE = 16_384


NUM_NEAR_HEAD = 50
"""Names nearest to a query's head that say nothing of what is asked about it."""


class Benchmark(Questions, Protocol):
    """Questions that can be put into words; ``raybio.methods.contrastive_probe.benchmark.medlama.ProbeBenchmark`` is one."""

    @property
    def prompts(self) -> tuple[str, ...]: ...  # noqa: D102
    def queries(self, mask_token: str) -> list[str]:
        """Each query as a sentence with the mask token where the answer belongs."""
        ...


class TextEmbedder:
    """Embeddings of texts by an encoder whose weights stay as they are; texts of equal tokens are embedded once."""

    def __init__(self, encoder: TextEncoder, collective: Collective | None = None) -> None:
        """Share the work with the workers of ``collective``; each gets all embeddings."""
        self.encoder = encoder
        self.collective = collective or SingleProcess()
        self._tokenizer = TokenizerSource.of(encoder.tokenizer)
        self._row_by_tokens: dict[bytes, int] = {}
        self._known_UD = torch.empty(0, encoder.width, device=next(encoder.parameters()).device)

    @property
    def tokenizer_fingerprint(self) -> str:
        """Changes with anything that changes the tokens of a text."""
        return self._tokenizer.fingerprint

    @property
    def known_UD(self) -> Tensor:  # noqa: N802  # shape letters
        """Embeddings (U, D) of all distinct texts so far."""
        return self._known_UD

    def __call__(self, texts: Sequence[str], max_tokens: int) -> Tensor:
        """Embeddings (N, D) of texts cut to ``max_tokens``, a query's mask being kept."""
        longest = min(max_tokens, self.encoder.max_tokens)
        tokenise = partial(self._tokenizer.tokenise, max_length=longest, keep_mask=True)
        token_T, indptr_N1 = tokenise(texts)
        num_known, new = len(self._row_by_tokens), list[int]()
        row_N = []
        for text, (start, end) in enumerate(pairwise(indptr_N1.tolist())):
            row = self._row_by_tokens.setdefault(token_T[start:end].tobytes(), num_known + len(new))
            new += [text] if row == num_known + len(new) else []
            row_N.append(row)
        new_UD = embed_rows(
            self.encoder,
            lambda row_M: read_texts([texts[new[row]] for row in row_M.tolist()], tokenise),
            np.arange(len(new)),
            self.collective,
            max_tokens=MAX_TOKENS_AT_ONCE,
        )
        self._known_UD = torch.cat([self._known_UD, new_UD])
        return self._known_UD[torch.tensor(row_N, device=new_UD.device)]


def own_pooling(model: str) -> Pooling:
    """What a folder or hub id in sentence-transformers' layout, such as a run's export, says; else the paper's "cls".

    Raises:
        ConfigError: if it cannot be found, or says something that cannot be honoured.
    """
    folder = read_sentence_folder(model, "main")
    return (folder and folder.pooling) or "cls"


def load_embedder(
    model: str, pooling: Pooling | None = None, num_layers: int | None = None
) -> TextEmbedder:
    """An embedder of names and queries as the probe reads them, on the GPU if there is one.

    Args:
        model: folder or hub id.
        pooling: what of a text's states is its embedding; None: the model's own (``own_pooling``).
        num_layers: how many of its layers are used, from the first on; None: all.

    Raises:
        ConfigError: if it cannot be loaded, or has fewer layers.
    """
    check_source(model, "main")
    settings: dict[str, Any] = {
        "source": model,
        "pooling": pooling or own_pooling(model),
        "normalise": False,
    }
    settings |= {"max_length": max(NAME_TOKENS, QUERY_TOKENS), "num_layers_kept": num_layers}
    encoder = build_text_encoder(TextEncoderConfig.from_mapping(settings), seed=0)
    return TextEmbedder(encoder.to("cuda" if torch.cuda.is_available() else "cpu"))


def probe(
    models: Sequence[str],
    benchmarks: Mapping[str, Benchmark],
    config: ProbeConfig,
    *,
    layers: Sequence[int] | None = None,
    pooling: Pooling | None = None,
    reworded: Mapping[str, Benchmark] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, list[ProbeResult]]:
    """Ask every model, at every layer; by name of the benchmark a result each, in that order.

    All models are looked at before the first is asked. Where they differ in pooling, their names in results say it.

    Args:
        models: folders or hub ids.
        benchmarks: what is asked; what they have in common is embedded once.
        config: among which names, by which distance, and what counts as right.
        layers: how many of a model's layers, from the first on, are used; None: all, once.
        pooling: what of a text's states is its embedding; None: each model's own (``own_pooling``).
        reworded: the same benchmarks in other words, to say how well both wordings agree; None: they are not asked.
        say: called with what is being done.

    Raises:
        ConfigError: if a model cannot be loaded, has fewer layers, or has no mask token.
    """
    for model in models:
        _check_model(model, layers, pooling)
    results: dict[str, list[ProbeResult]] = {name: [] for name in benchmarks}
    poolings = {pooling or own_pooling(model) for model in models}
    for name, model in model_names(models).items():
        shown = name if len(poolings) == 1 else f"{name} ({pooling or own_pooling(model)})"
        say(f"loading {model}")
        for layer in layers or [None]:  # type: ignore[list-item]
            embed = load_embedder(model, pooling, layer)
            at = f", {embed.encoder.pooling} pooling" + (
                "" if layer is None else f", its first {layer} layers"
            )
            for title, asked in benchmarks.items():
                say(
                    f"probing {name}{at}, {title}: {len(asked.names):,} names, {len(asked.relation_Q):,} queries"
                )
                predicted_QK = probe_encoder(embed, asked, config)
                found = outcome(asked, predicted_QK, config.match)
                agreement_R = None
                if reworded is not None:
                    agreement_R = agreement(embed, asked, reworded[title], config, predicted_QK)
                results[title].append(ProbeResult(shown, layer, found, predicted_QK, agreement_R))
                say(
                    f"{results[title][-1].label}: acc@1 {found.micro(1):.2%}, acc@10 {found.micro(10):.2%}"
                )
    return results


def cuts_of_benchmarks(
    models: Sequence[str], benchmarks: Mapping[str, Benchmark]
) -> dict[str, list[str]]:
    """Return for each model that does not read all names and queries whole how many it cuts, and where.

    Raises:
        ConfigError: if a model cannot be loaded, or has no mask token.
    """
    remarks: dict[str, list[str]] = {}
    for name, model in model_names(models).items():
        reader = text_reader(
            TextEncoderConfig(source=model, max_length=QUERY_TOKENS), count_by_word={}
        )
        for title, asked in benchmarks.items():
            for what, texts, limit in (
                ("names", asked.names, NAME_TOKENS),
                ("queries", asked.queries(_mask_token(reader.tokenizer)), QUERY_TOKENS),
            ):
                read = partial(_taken, texts)
                rows = np.arange(len(texts))
                lengths = text_lengths(
                    f"{what} of {title}", read, rows, reader, max_length=limit, limit=limit
                )
                if lengths.remark:
                    remarks.setdefault(name, []).append(lengths.remark)
    return remarks


def _taken(texts: Sequence[str], row_R: np.ndarray) -> list[str]:
    return [texts[row] for row in row_R.tolist()]


def _check_model(model: str, layers: Sequence[int] | None, pooling: Pooling | None) -> None:
    """Refuse what is not there or has too few layers, by small files alone."""
    check_source(model, "main")
    checkpoint = read_checkpoint(model, "main", with_head=pooling is None)
    checkpoint.load_config(max(layers) if layers else None)


def agreement(
    embed: TextEmbedder,
    asked: Benchmark,
    reworded: Benchmark,
    config: ProbeConfig,
    predicted_QK: np.ndarray,
    *,
    name_tokens: int = NAME_TOKENS,
    query_tokens: int = QUERY_TOKENS,
) -> np.ndarray:
    """How well predictions in two wordings of the same queries agree (R,), by names that the bare head does not bring.

    These are all but the head's 50 nearest, or its nearest tenth of all names where that is less. NaN for a relation
    whose wordings are equal but for blanks, as those of MedLAMA's ``occurs_after`` are: it would agree with itself
    whatever is predicted.

    Args:
        embed: the encoder.
        asked: queries in one wording.
        reworded: the same queries in the other.
        config: as for the predictions.
        predicted_QK: for ``asked``, by ``probe_encoder``.
        name_tokens: most tokens of a name.
        query_tokens: most tokens of a query.
    """
    other_QK = probe_encoder(
        embed, reworded, config, name_tokens=name_tokens, query_tokens=query_tokens
    )
    name_CD = embed(asked.names, name_tokens)
    head_H, row_Q = np.unique(asked.head_Q, return_inverse=True)
    head_HD = name_CD[torch.from_numpy(head_H.astype(np.int64)).to(name_CD.device)]
    num_near = max(1, min(NUM_NEAR_HEAD, len(asked.names) // 10))
    found = nearest(head_HD, name_CD, num_near, metric=config.metric, collective=embed.collective)
    near_QN = found.index_QK.cpu().numpy()[row_Q]
    wordings = zip(asked.prompts, reworded.prompts, strict=True)
    is_reworded_R = np.array(
        ["".join(one.split()) != "".join(other.split()) for one, other in wordings]
    )
    return agreement_beyond_heads(asked.relation_Q, predicted_QK, other_QK, near_QN, is_reworded_R)


def probe_encoder(
    embed: TextEmbedder,
    benchmark: Benchmark,
    config: ProbeConfig,
    *,
    name_tokens: int = NAME_TOKENS,
    query_tokens: int = QUERY_TOKENS,
) -> np.ndarray:
    """The 10 names (Q, 10) nearest to each query for an encoder that is there, the same on every worker.

    Raises:
        ConfigError: if its tokenizer has no mask token.
    """
    query_QD, name_CD = embed_benchmark(
        embed, benchmark, name_tokens=name_tokens, query_tokens=query_tokens
    )

    def search(query_BD: Tensor, candidate_MD: Tensor, k: int) -> Tensor:
        return nearest(
            query_BD, candidate_MD, k, metric=config.metric, collective=embed.collective
        ).index_QK

    return predict(benchmark, query_QD, name_CD, config, search)


def embed_benchmark(
    embed: TextEmbedder,
    benchmark: Benchmark,
    *,
    name_tokens: int = NAME_TOKENS,
    query_tokens: int = QUERY_TOKENS,
) -> tuple[Tensor, Tensor]:
    """Embeddings (Q, D) of a benchmark's queries and (C, D) of its names, the same on every worker.

    Raises:
        ConfigError: if the encoder's tokenizer has no mask token.
    """
    queries = benchmark.queries(mask_token(embed.encoder))
    return embed(queries, query_tokens), embed(benchmark.names, name_tokens)


def mask_token(encoder: TextEncoder) -> str:
    """What stands for the answer in a query.

    Raises:
        ConfigError: if the tokenizer has no mask token.
    """
    return _mask_token(encoder.tokenizer)


def _mask_token(tokenizer: PreTrainedTokenizerFast) -> str:
    token: str | None = tokenizer.mask_token
    if token is None:
        raise ConfigError(
            "the encoder's tokenizer has no mask token to stand for the answer; want a masked language model's"
        )
    return token
