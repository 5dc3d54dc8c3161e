"""Zero-shot evaluation of text encoders: models and data sets in, a judged report out; no training, no cluster."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from raybio.data.pair_collate import read_texts
from raybio.encoders.text import TextEncoderConfig, build_text_encoder
from raybio.encoders.tokens import TokenizerSource
from raybio.errors import ConfigError
from raybio.evaluation.zero_shot import BASELINES, Embed, TaskResult, encoder_scorer, judge
from raybio.functional.hashing import derive_seed
from raybio.systems.zero_shot_tasks import TASK_NAMES, read_tasks
from raybio.training.encode import embed_rows
from raybio.training.gather import SingleProcess

DATA_SETS = {
    "hoc": ("hallmarks_of_cancer/hoc_text_labels.tar.gz", "hoc_text_labels.tar.gz"),
    "pubmedqa": ("pubmedqa/ori_pqal.json.gz", "pubmedqa/ori_pqal.json", "ori_pqal.json.gz", "ori_pqal.json"),
    "bioasq": ("bioasq_7b", "bioasq"),
}
"""Where a data set is looked for inside the data folder."""

MAX_TOKENS_AT_ONCE = 16_384


def zero_shot(
    models: Sequence[str],
    tasks: Collection[str],
    data: Path,
    *,
    seed: int = 0,
    max_length: int = 512,
    say: Callable[[str], None] = lambda _: None,
) -> list[TaskResult]:
    """Judge models, TF-IDF, BM25 and chance on tasks.

    Args:
        models: folders or hub ids; the first is what the others are tested against.
        tasks: data sets ("hoc", "pubmedqa", "bioasq": all their tasks) or names of single tasks.
        data: the folder of the data sets.
        seed: of the bootstrap and the permutation tests.
        max_length: tokens of a text that are read, at most what a model has positions for.
        say: called with what is being done.

    Raises:
        ConfigError: for an unknown task, a data set that is not there, or a model that cannot be loaded.
        DataError: for a file that is not of its form.
    """
    asked = read_tasks(**_files(tasks, data), names=_task_names(tasks))
    encoders = {name: encoder_scorer(_embedder(model, max_length)) for name, model in _names(models).items()}
    scorers = encoders | dict(BASELINES)
    results = []
    for task in asked:
        say(task.name)
        results.append(judge(task, scorers, np.random.default_rng(derive_seed(seed, task.name))))
    return results


def _names(models: Sequence[str]) -> dict[str, str]:
    """Models by a short name: a run's or the last part of the path, or the whole where that is not unique."""
    places = [Path(model).absolute() for model in models]
    short = [place.parent.name if place.name == "export" else place.name for place in places]
    return {name if short.count(name) == 1 else model: model for name, model in zip(short, models, strict=True)}


def _task_names(tasks: Collection[str]) -> list[str]:
    if not tasks:
        raise ConfigError(f"--tasks: nothing is asked for; want some of {', '.join([*DATA_SETS, *TASK_NAMES])}")
    return [name for name in TASK_NAMES if name in tasks or name.split("-")[0] in tasks]


def _files(tasks: Collection[str], data: Path) -> dict[str, Path]:
    files = {}
    if not data.is_dir():
        raise ConfigError(f"--data {data}: is no folder; want the one that holds hallmarks_of_cancer/ and the others")
    for task in tasks:
        data_set = task.split("-")[0]
        if data_set not in DATA_SETS or not (task == data_set or task in TASK_NAMES):
            raise ConfigError(f"--tasks: {task!r} is no task; want some of {', '.join([*DATA_SETS, *TASK_NAMES])}")
        found = [data / place for place in DATA_SETS[data_set] if (data / place).exists()]
        if not found:
            raise ConfigError(f"--data {data}: holds no {data_set}; want {' or '.join(DATA_SETS[data_set])} in it")
        files[data_set] = found[0]
    return files


def _embedder(model: str, max_length: int) -> Embed:
    """Texts -> embeddings; every text is encoded once, however many tasks ask for it."""
    encoder = build_text_encoder(TextEncoderConfig(source=model, max_length=max_length), seed=0).eval()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    encoder.to(device)
    tokenise = partial(TokenizerSource.of(encoder.tokenizer).tokenise, max_length=encoder.max_tokens)
    known: dict[str, Tensor] = {}

    def embed(texts: Sequence[str]) -> Tensor:
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
