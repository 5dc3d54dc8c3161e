"""Zero-shot evaluation of text encoders on ranking tasks, without training or a cluster."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybio.core.errors import ConfigError, RaybioError, RecordError, RecordFormatError
from raybio.core.files import RUN
from raybio.core.randomness import derive_seed
from raybio.core.records import read_record
from raybio.encoders.checkpoints import model_names
from raybio.encoders.config import SCRATCH, TextEncoderConfig
from raybio.encoders.input_lengths import lengths_of_texts
from raybio.encoders.text import TextReader, build_text_encoder, text_reader
from raybio.encoders.tokenization import TokenizerSource, read_texts
from raybio.evaluation.lexical import BASELINES
from raybio.methods.biostransformers.formats.tables import FIRST_TEXT_ID
from raybio.methods.biostransformers.method import METHOD
from raybio.methods.biostransformers.store import ArticleStore
from raybio.methods.biostransformers.zero_shot.names import task_names
from raybio.methods.biostransformers.zero_shot.ranking import RankingTask
from raybio.methods.biostransformers.zero_shot.scores import (
    Embed,
    TaskResult,
    encoder_scorer,
    evaluate_task,
)
from raybio.methods.biostransformers.zero_shot.tasks import read_tasks
from raybio.store.store import open_store
from raybio.training.collective import SingleProcess
from raybio.training.embed import check_embeddings, embed_rows
from raybio.training.embedding_model import MAX_TOKENS_AT_ONCE
from raybio.training.precision import default_device


def evaluate_zero_shot(
    models: Sequence[str],
    tasks: Collection[str],
    data: Path,
    *,
    seed: int = 0,
    max_length: int | None = None,
    hoc_pmids: Path | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> list[TaskResult]:
    """Evaluate models, TF-IDF, BM25 and chance on tasks.

    Documents that TF-IDF or BM25 score alike are in random order: most share no word with a query.

    Args:
        models: folders or hub ids; all scorers are tested against the first.
        tasks: data sets ("hoc", "pubmedqa", "bioasq": all their tasks) or names of single tasks.
        data: folder of the data sets.
        seed: seed of the bootstrap and the permutation tests.
        max_length: maximum length of a text in tokens; None: what the model's folder states
            (``max_seq_length`` of sentence-transformers), as in its library.
        hoc_pmids: file of PMIDs, such as a test split, for additional Hallmarks of Cancer tasks.
        report: called with the name of each task.

    Raises:
        ConfigError: for an unknown task, a missing data set, or a model that cannot be loaded or
            has fewer positions than ``max_length``.
        DataError: for an invalid file.
        RecordError: if the ``run.json`` of a model's run is damaged.
    """
    ranking_tasks = read_tasks(task_names(tasks), data, hoc_pmids=hoc_pmids)
    model_by_name = model_names(models)
    pmids_by_name = {}
    for name, model in model_by_name.items():
        known = training_pmids(model)
        if known is not None:
            pmids_by_name[name] = known
    readers = {name: _reader(model, max_length) for name, model in model_by_name.items()}
    encoders = {
        name: encoder_scorer(text_embedder(model, max_length))
        for name, model in model_by_name.items()
    }
    scorers = {**encoders, **BASELINES}
    results = []
    for task in ranking_tasks:
        report(task.name)
        rng = np.random.default_rng(derive_seed(seed, task.name))
        result = evaluate_task(task, scorers, rng)
        num_trained_on = {
            name: known if isinstance(known, str) else int(np.isin(list(task.pmids), known).sum())
            for name, known in pmids_by_name.items()
        }
        cuts = {}
        for name, reader in readers.items():
            remarks = _truncation_remarks(task, reader)
            if remarks:
                cuts[name] = remarks
        results.append(replace(result, num_trained_on=num_trained_on, cuts=cuts))
    return results


def _reader(model: str, max_length: int | None) -> TextReader:
    reader = text_reader(_encoder_config(model, max_length), count_by_word={})
    if max_length is not None and max_length > reader.num_positions:
        raise ConfigError(
            f"--max-length: got {max_length}, and {model} reads at most {reader.num_positions} "
            "tokens; want at most that"
        )
    return reader


def _encoder_config(model: str, max_length: int | None) -> TextEncoderConfig:
    return TextEncoderConfig(source=model, max_length=max_length or "auto")


def _truncation_remarks(task: RankingTask, reader: TextReader) -> list[str]:
    """Return remarks on the task's texts that the model truncates."""
    remarks = []
    for what, texts in {"queries": task.queries, "documents": task.documents}.items():
        lengths = lengths_of_texts(what, texts, reader, max_length=reader.max_tokens)
        if lengths.remark:
            remarks.append(lengths.remark)
    return remarks


def training_pmids(model: str) -> np.ndarray | str | None:
    """Return the PMIDs that a run was trained on, or why they are unknown; None for other models.

    The PMIDs of the runs that it was initialized from are included.

    Args:
        model: ``export/`` in the folder of a run; ``run.json`` next to it names the store.

    Raises:
        RecordError: if a ``run.json`` is damaged or of another format version.
    """
    pmids = []
    folder = Path(model)
    folders: list[Path] = []
    run = _run_of(folder)
    while run is not None and folder not in folders:
        folders.append(folder)
        if METHOD.has_name(run["method"]):
            known = _pmids_of_run(run)
            if isinstance(known, str):
                return known
            pmids.append(known)
        source = run["config"].get("encoder", {}).get("source", SCRATCH)
        if source == SCRATCH:
            break
        folder = Path(source).expanduser()
        run = _run_of(folder)
        if run is None and folder.name == "export":
            return f"{folder}: the run began with it, and there is no {RUN} next to it."
    return np.concatenate(pmids) if pmids else None


def _run_of(model: Path) -> dict[str, Any] | None:
    """Return the record of the run that exported a model; None for other models."""
    try:
        return read_record(model.parent / RUN, "run")
    except OSError:
        return None
    except RecordFormatError:
        raise
    except RecordError as error:
        raise RecordError(
            f"{error} It names the run's training articles: to evaluate the model without them, "
            "copy its folder elsewhere"
        ) from None


def _pmids_of_run(run: dict[str, Any]) -> np.ndarray | str:
    """Return the PMIDs of the training articles in a run's store, or why they are unknown."""
    try:
        store = open_store(run["store"], ArticleStore)
    except (OSError, RaybioError) as error:
        return str(error)
    if not run["data_digest"].startswith(store.digest):
        return f"{run['store']}: was prepared again since the training."
    pmid_N = store.pmid_N[~store.is_validation_N]
    num_texts = int((pmid_N >= FIRST_TEXT_ID).sum())
    if num_texts:
        return f"{run['store']}: {num_texts:,} of its training texts have no PMID."
    return pmid_N


def text_embedder(model: str, max_length: int | None) -> Embed:
    """Return a function from texts to embeddings that encodes every text only once.

    Args:
        model: folder or hub id.
        max_length: maximum length of a text in tokens; None: what the model's folder states.

    Raises:
        ConfigError: if the model cannot be loaded, or neither it nor its tokenizer states a length.
    """
    encoder = build_text_encoder(_encoder_config(model, max_length), seed=0).eval()
    device = default_device()
    encoder.to(device)
    source = TokenizerSource.of(encoder.tokenizer)
    tokenize = partial(source.tokenize, max_length=encoder.max_tokens)
    embedding_by_text: dict[str, Tensor] = {}

    def embed(texts: Sequence[str]) -> Tensor:
        """Return the embeddings (texts, D) in order.

        Raises:
            ConfigError: if one is not finite.
        """
        new = list(dict.fromkeys(text for text in texts if text not in embedding_by_text))
        rows = np.arange(len(new))
        embedding_ND = embed_rows(
            encoder,
            lambda row_M: read_texts([new[row] for row in row_M], tokenize),
            rows,
            SingleProcess(),
            max_tokens=MAX_TOKENS_AT_ONCE,
        ).cpu()
        check_embeddings(embedding_ND, f"model {model!r}")
        embedding_by_text.update(zip(new, embedding_ND, strict=True))
        return torch.stack([embedding_by_text[text] for text in texts])

    return embed
