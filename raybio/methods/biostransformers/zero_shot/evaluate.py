"""Zero-shot evaluation of text encoders: models and data sets in, a judged report out; no training, no cluster."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from raybio.core.errors import ConfigError, RecordError, RecordFormatError, StoreError
from raybio.core.randomness import derive_seed
from raybio.core.records import read_record
from raybio.encoders.checkpoints import model_names
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.input_lengths import text_lengths
from raybio.encoders.text import TextReader, build_text_encoder, text_reader
from raybio.encoders.tokenization import TokenizerSource, read_texts
from raybio.methods.biostransformers.store import ArticleStore
from raybio.methods.biostransformers.zero_shot.names import task_names
from raybio.methods.biostransformers.zero_shot.scores import (
    BASELINES,
    Embed,
    Task,
    TaskResult,
    encoder_scorer,
    judge,
)
from raybio.methods.biostransformers.zero_shot.tasks import read_tasks
from raybio.store.store import open_store
from raybio.training.collective import SingleProcess
from raybio.training.embed import embed_rows

MAX_TOKENS_AT_ONCE = 16_384


MAX_LENGTH = 512
"""Tokens of a text that are read, where nothing else is said and the model reads so many."""


def zero_shot(
    models: Sequence[str],
    tasks: Collection[str],
    data: Path,
    *,
    seed: int = 0,
    max_length: int | None = None,
    hoc_pmids: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[TaskResult]:
    """Judge models, TF-IDF, BM25 and chance on tasks.

    Args:
        models: folders or hub ids; the first is what the others are tested against.
        tasks: data sets ("hoc", "pubmedqa", "bioasq": all their tasks) or names of single tasks.
        data: the folder of the data sets.
        seed: of the bootstrap and the permutation tests.
        max_length: tokens of a text that are read; None: ``MAX_LENGTH``, or as many as a model has positions for.
        hoc_pmids: a list of abstracts over which the Hallmarks of Cancer are asked as well, such as a test split.
        say: called with what is being done.

    Raises:
        ConfigError: for an unknown task, a data set that is not there, or a model that cannot be loaded or reads fewer
            tokens than ``max_length``.
        DataError: for a file that is not of its form.
        RecordError: if the ``run.json`` of a model's run is damaged.
    """
    asked = read_tasks(task_names(tasks), data, hoc_pmids=hoc_pmids)
    model_by_name = model_names(models)
    pmids_by_name = {name: training_pmids(model) for name, model in model_by_name.items()}
    known = {name: pmid_N for name, pmid_N in pmids_by_name.items() if pmid_N is not None}
    readers = {name: _reader(model, max_length) for name, model in model_by_name.items()}
    encoders = {
        name: encoder_scorer(_embedder(model, max_length or MAX_LENGTH))
        for name, model in model_by_name.items()
    }
    scorers = encoders | dict(BASELINES)
    results = []
    for task in asked:
        say(task.name)
        result = judge(task, scorers, np.random.default_rng(derive_seed(seed, task.name)))
        num_trained_on = {
            name: int(np.isin(list(task.pmids), pmid_N).sum()) for name, pmid_N in known.items()
        }
        cuts = {
            name: remarks for name, reader in readers.items() if (remarks := _cuts(task, reader))
        }
        results.append(replace(result, num_trained_on=num_trained_on, cuts=cuts))
    return results


def _reader(model: str, max_length: int | None) -> TextReader:
    reader = text_reader(
        TextEncoderConfig(source=model, max_length=max_length or MAX_LENGTH), count_by_word={}
    )
    if max_length is not None and max_length > reader.num_positions:
        raise ConfigError(
            f"--max-length: got {max_length}, and {model} reads at most {reader.num_positions} tokens; want at most that"
        )
    return reader


def _cuts(task: Task, reader: TextReader) -> list[str]:
    """What the model does not read of the task's texts."""
    found = []
    for what, texts in {"queries": task.queries, "documents": task.documents}.items():
        read = partial(_taken, texts)
        found.append(
            text_lengths(what, read, np.arange(len(texts)), reader, max_length=reader.max_tokens)
        )
    return [one.remark for one in found if one.remark]


def _taken(texts: Sequence[str], row_R: np.ndarray) -> list[str]:
    return [texts[row] for row in row_R.tolist()]


def training_pmids(model: str) -> np.ndarray | None:
    """PMIDs of the articles that a run of ours was trained on; None for other models, or if its store is gone.

    Args:
        model: ``export/`` in the folder of a run; ``run.json`` next to it names the store.

    Raises:
        RecordError: if ``run.json`` is there and is damaged or of another format version.
    """
    record = Path(model).parent / "run.json"
    try:
        run = read_record(record, "run")
    except OSError:
        return None
    except RecordFormatError:
        raise
    except RecordError as error:
        raise RecordError(
            f"{error} It names the run's training articles: to evaluate the model without them, "
            "copy its folder elsewhere"
        ) from None
    if run is None:
        return None
    try:
        store = open_store(run["store"], ArticleStore)
        is_the_same = run["data_digest"].startswith(store.digest)
    except (OSError, LookupError, TypeError, AttributeError, StoreError):
        return None
    return store.pmid_N[~store.is_validation_N] if is_the_same else None


def _embedder(model: str, max_length: int) -> Embed:
    """Texts -> embeddings; every text is encoded once, however many tasks ask for it."""
    encoder = build_text_encoder(
        TextEncoderConfig(source=model, max_length=max_length), seed=0
    ).eval()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    encoder.to(device)
    tokenise = partial(
        TokenizerSource.of(encoder.tokenizer).tokenise, max_length=encoder.max_tokens
    )
    known: dict[str, Tensor] = {}

    def embed(texts: Sequence[str]) -> Tensor:
        """Embeddings (texts, D) in order; texts that were embedded before are not again."""
        new = list(dict.fromkeys(text for text in texts if text not in known))
        rows = np.arange(len(new))
        embedding_ND = embed_rows(
            encoder,
            lambda row_M: read_texts([new[row] for row in row_M], tokenise),
            rows,
            SingleProcess(),
            max_tokens=MAX_TOKENS_AT_ONCE,
        ).cpu()
        known.update(zip(new, embedding_ND, strict=True))
        return torch.stack([known[text] for text in texts])

    return embed
