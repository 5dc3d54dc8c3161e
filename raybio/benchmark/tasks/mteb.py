"""Tasks of mteb, the Massive Text Embedding Benchmark: mteb's data, protocol and measure.

Shape letters: N texts, M others, E experiments, U units, D width.
"""

import json
from collections.abc import Mapping, Sequence
from copy import copy
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from raybio.benchmark.models import RandomVectors
from raybio.benchmark.rivals import HASHED_WORDS
from raybio.benchmark.task import (
    BenchmarkEncoder,
    BenchmarkTask,
    TaskFacts,
    TaskScores,
    missing_files,
)
from raybio.core.errors import ConfigError, DataError
from raybio.core.extras import from_extra
from raybio.training.precision import default_device

_FURTHER = ("accuracy", "f1", "map_at_10", "mrr_at_10", "recall_at_100")

_TREC_NAMES = {
    "ndcg": "ndcg_cut",
    "map": "map_cut",
    "recall": "recall",
    "precision": "P",
    "hit_rate": "success",
}
"""Measure of mteb -> its name in the scores of single queries, by pytrec_eval."""

_NO_UNITS = "mteb gives no value of each unit for this measure, so there is no interval and no test"

_ROUNDING = 1e-5
"""mteb rounds the scores of retrieval to 5 digits."""

_PROTOCOL = (
    "{description} mteb {version} computes {measure} of its task {task} ({type}), split {split}, "
    "subset {subset}. Embeddings are compared by their cosine. No prompt is put before a text."
)

_NUM_WORDS = 4096

_KIND_OF_INPUTS = {"query": "queries", "document": "documents"}


class MtebTask(BenchmarkTask):
    """A task of mteb on texts, by its name there."""

    family: ClassVar[str] = "mteb"

    mteb: str = Field(description="name of the task in mteb, such as NFCorpus")
    data: Path | None = Field(
        None,
        description="folder with a copy of its data set; None: the cache of the library datasets, "
        "or a download",
    )
    split: str | None = Field(None, description="split, if mteb evaluates several")
    subset: str | None = Field(None, description="subset, such as a language, if there are several")

    @property
    def measure(self) -> str:
        """Name of the score in mteb."""
        return _task(self).metadata.main_score

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest possible score of measures that have units."""
        if _is_retrieval(_task(self)) or self.measure == "accuracy":
            return (0.0, 1.0)
        return super().limits

    def check(self) -> str:
        """Return why the task cannot run.

        Raises:
            ConfigError: if mteb is not installed, or has no such task, split or subset.
        """
        path = type(_task(self)).metadata.dataset["path"]
        return missing_files([self.data] if self.data else [], f"want a copy of {path}")

    def identity(self) -> dict[str, Any]:
        """Return what scores depend on: mteb's version, and its pinned data, too."""
        fetched = {} if self.data else dict(_task(self).metadata.dataset)
        return super().identity() | {"mteb": _version(), "fetched": fetched}

    def facts(self) -> TaskFacts:
        """Return protocol and sizes."""
        task = _loaded(self)
        subset = task.hf_subsets[0]
        protocol = _PROTOCOL.format(
            description=f"{task.metadata.description.strip().rstrip('.')}.",
            version=_version(),
            measure=self.measure,
            task=self.mteb,
            type=task.metadata.type,
            split=task.eval_splits[0],
            subset=subset,
        )
        if _is_classification(task):
            protocol += (
                f" {task.n_experiments} times a linear classifier is fitted to "
                f"{task.samples_per_label} training rows of each class; a row's value is the share "
                "of classifiers that are right."
            )
        rows = task.dataset.get(subset, task.dataset)[task.eval_splits[0]]
        size = f"{len(rows):,} rows"
        if _is_retrieval(task):
            size = f"{len(rows['queries']):,} queries, {len(rows['corpus']):,} documents"
        leakage = "The data is public: models may have been trained on it."
        return TaskFacts(protocol, size, leakage)

    def score(self, model: BenchmarkEncoder) -> TaskScores:
        """Evaluate by mteb.

        Raises:
            DataError: if mteb cannot load the data.
        """
        return self._scores(_MtebEncoder(model))

    def rivals(self, model: BenchmarkEncoder | None) -> Mapping[str, TaskScores]:
        """Evaluate random vectors and hashed words."""
        random = _MtebEncoder(RandomVectors())
        found = {random.model.name: self._scores(random)}
        words = _HashedWords([text for texts in random.inputs.values() for text in texts])
        return found | {words.name: self.score(words)}

    def _scores(self, encoder: "_MtebEncoder") -> TaskScores:
        task = copy(_loaded(self))
        split = task.eval_splits[0]
        subset = task.hf_subsets[0]
        scores_by_query: dict[str, dict[str, float]] = {}
        if _is_retrieval(task):
            task.task_specific_scores = _keeping(task.task_specific_scores, scores_by_query)
        with TemporaryDirectory() as folder:
            predictions = Path(folder) if _is_classification(task) else None
            found = task.evaluate(
                encoder,
                split,
                subsets_to_run=[subset],
                encode_kwargs={"batch_size": 1024, "show_progress_bar": False},
                prediction_folder=predictions,
            )[subset]
            value_by_unit: dict[str, float] = {}
            if scores_by_query:
                value_by_unit = _values_of_queries(scores_by_query, self.measure)
            elif predictions is not None and self.measure == "accuracy":
                saved = json.loads((predictions / task.prediction_file_name).read_text())
                rows = task.dataset.get(subset, task.dataset)[split]
                gold_U = np.asarray(rows[task.label_column_name])
                right_U = (np.asarray(saved[subset][split]) == gold_U).mean(axis=0)
                value_by_unit = {str(row): right for row, right in enumerate(right_U.tolist())}
        return scores_of_units(
            found["main_score"],
            value_by_unit,
            {name: found[name] for name in _FURTHER if name in found and name != self.measure},
            encoder.model.truncation_remarks(encoder.inputs),
        )


def scores_of_units(
    score: float,
    value_by_unit: Mapping[str, float],
    others: Mapping[str, float],
    remarks: Sequence[str],
) -> TaskScores:
    """Return mteb's score with the values of its units, if their mean is the score.

    Otherwise, as for a correlation, there are no units, and a remark says so.
    """
    units = sorted(value_by_unit)
    value_U = np.array([value_by_unit[unit] for unit in units])
    if units and abs(value_U.mean() - score) <= _ROUNDING:
        return TaskScores.of_means(units, value_U, others, remarks=remarks)
    return TaskScores.of_means([], [], others, value=float(score), remarks=[*remarks, _NO_UNITS])


def _values_of_queries(
    scores_by_query: Mapping[str, Mapping[str, float]], measure: str
) -> dict[str, float]:
    """Return query -> value; empty if mteb has no such measure of single queries."""
    name, _, depth = measure.partition("_at_")
    key = f"{_TREC_NAMES.get(name, name)}_{depth}"
    return {query: scores[key] for query, scores in scores_by_query.items() if key in scores}


def _keeping(compute: Any, kept: dict[str, dict[str, float]]) -> Any:
    """Return mteb's hook for further scores of retrieval, which keeps those of single queries."""

    def hook(scores: dict[str, dict[str, float]], *arguments: Any, **options: Any) -> Any:
        kept.update(scores)
        return compute(scores, *arguments, **options)

    return hook


# Not a property: what the driver has imported would travel to workers.
@lru_cache(maxsize=1)
def _task(task: MtebTask) -> Any:
    """Return the task of mteb, with one split and one subset; its data is not loaded.

    Raises:
        ConfigError: if there is no such task, split or subset, or it is not of texts alone.
    """
    with from_extra("mteb", "mteb"):
        import mteb
    try:
        found = mteb.get_task(task.mteb)
    except KeyError as error:
        reason = str(error.args[0]).removeprefix("KeyError: ")
        raise ConfigError(f"task {task.name}, mteb: {reason}") from None
    if found.is_aggregate or list(found.metadata.modalities) != ["text"]:
        raise ConfigError(f"task {task.name}: mteb's {task.mteb} is no single task on texts")
    found.filter_eval_splits([_chosen(task, "split", task.split, found.metadata.eval_splits)])
    found.hf_subsets = [_chosen(task, "subset", task.subset, found.hf_subsets)]
    if task.data is not None:
        copied = {**found.metadata.dataset, "path": str(task.data)}
        found.metadata = found.metadata.model_copy(update={"dataset": copied})
    return found


def _chosen(task: MtebTask, field: str, given: str | None, known: Sequence[str]) -> str:
    if given is None and len(known) == 1:
        return known[0]
    if given is None or given not in known:
        raise ConfigError(
            f"task {task.name}: {field} {given or 'is missing'}, want one of {', '.join(known)}"
        )
    return given


def _loaded(task: MtebTask) -> Any:
    """Return the task of mteb with its data.

    Raises:
        DataError: if it cannot be loaded.
    """
    found = _task(task)
    try:
        found.load_data()
        if _is_retrieval(found):
            found.convert_v1_dataset_format_to_v2(num_proc=None)
    except Exception as error:  # those of mteb, datasets and huggingface_hub have no common class
        path = type(found).metadata.dataset["path"]
        raise DataError(
            f"task {task.name}: mteb cannot load {task.data or path} ({error}). "
            f"Without a network, give a copy: `hf download {path} --repo-type dataset --local-dir "
            "FOLDER`, and data: FOLDER"
        ) from error
    return found


def _is_retrieval(task: Any) -> bool:
    from mteb.abstasks import AbsTaskRetrieval

    return isinstance(task, AbsTaskRetrieval)


def _is_classification(task: Any) -> bool:
    return task.metadata.type == "Classification" and not task.is_cross_validation


def _version() -> str:
    import mteb

    return mteb.__version__


class _MtebEncoder:
    """A model of the benchmark as ``mteb.models.EncoderProtocol`` wants it.

    Attributes:
        model: the model.
        inputs: the texts that were embedded, by what they are.
    """

    def __init__(self, model: BenchmarkEncoder) -> None:
        self.model = model
        self.inputs: dict[str, list[str]] = {}

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb knows of the model: nothing."""
        from mteb.models import ModelMeta

        return ModelMeta.create_empty()

    def encode(self, inputs: Any, *, prompt_type: Any = None, **_: Any) -> NDArray[np.float32]:
        """Return the embeddings (N, D) of the texts of all batches."""
        texts = [text for batch in inputs for text in batch["text"]]
        kind = _KIND_OF_INPUTS.get(getattr(prompt_type, "value", ""), "texts")
        self.inputs.setdefault(kind, []).extend(texts)
        return self.model.embed(texts)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Return cosines (N, M)."""
        return (_normalized(embeddings1) @ _normalized(embeddings2).T).cpu()

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Return the cosines (N,) of pairs."""
        return (_normalized(embeddings1) * _normalized(embeddings2)).sum(dim=1).cpu()


def _normalized(embedding_ND: Any) -> Tensor:
    tensor_ND = torch.atleast_2d(torch.as_tensor(embedding_ND)).to(default_device())
    return torch.nn.functional.normalize(tensor_ND.float(), dim=1)


class _HashedWords:
    """Embeds a text as its TF-IDF vector (4096,), with words hashed to positions."""

    name = HASHED_WORDS
    folder = ""

    def __init__(self, texts: Sequence[str]) -> None:
        from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

        self._count = HashingVectorizer(n_features=_NUM_WORDS, alternate_sign=False, norm=None)
        self._weigh = TfidfTransformer(sublinear_tf=True).fit(self._count.transform(texts))

    def embed(self, inputs: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors (N, 4096)."""
        return self._weigh.transform(self._count.transform(inputs)).toarray().astype(np.float32)

    def truncation_remarks(self, inputs_by_name: Mapping[str, Sequence[str]]) -> list[str]:
        """Return no remark: no text is cut."""
        return []
