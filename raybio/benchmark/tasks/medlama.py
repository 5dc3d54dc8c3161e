"""Factual probing of Contrastive-Probe: the figures of ``raybio evaluate probe``."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field
from torch import Tensor

from raybio.benchmark.models import BenchmarkModel, RandomVectors, on_device
from raybio.benchmark.quality import corpus_quality, pair_quality
from raybio.benchmark.saved_embeddings import Embedded
from raybio.benchmark.task import (
    NOT_MEASURED,
    BenchmarkEncoder,
    BenchmarkTask,
    TaskFacts,
    TaskScores,
)
from raybio.core.distance import SavedDistance
from raybio.methods.contrastive_probe.accuracy import (
    chance_scores,
    evaluate_predictions,
    predict_names,
)
from raybio.methods.contrastive_probe.benchmark.biolama import is_biolama, read_benchmark
from raybio.methods.contrastive_probe.benchmark.probe_benchmark import ProbeBenchmark
from raybio.methods.contrastive_probe.config import NAME_TOKENS, QUERY_TOKENS, ProbeConfig, Subset
from raybio.methods.contrastive_probe.method import METHOD
from raybio.methods.contrastive_probe.probe import embed_benchmark, truncation_remarks
from raybio.methods.contrastive_probe.rivals import predict_by_rivals
from raybio.methods.contrastive_probe.text_embedder import TextEmbedder, load_embedder
from raybio.ops.nearest import nearest

_CUTOFF = 10

_PROTOCOL = (
    "Rewire-then-Probe (Meng et al. 2022): all names of the benchmark are ranked for a query such "
    'as "Metformin might treat [Y]." by the distance of embeddings. A query is correct at {k} if '
    "one of the first {k} names is an answer. Score: the mean over relations of their shares of "
    "correct queries. Names are cut to {names} tokens, queries to {queries}. Distance: {metric}, "
    "of embeddings that are not scaled to length 1."
)


class FactProbeTask(BenchmarkTask):
    """Names ranked for queries of MedLAMA or BioLAMA."""

    family: ClassVar[str] = "Facts"
    oracles: ClassVar[Collection[str]] = METHOD.table.oracles

    data: Path = Field(description="folder of MedLAMA's files, or of a source of BioLAMA")
    subset: Subset = Field("full", description="set of queries")
    metric: SavedDistance = Field("euclidean", description="distance of embeddings")
    queries_per_relation: int | None = Field(
        None, ge=1, description="size of a fixed random sample of queries; null: all"
    )

    @property
    def title(self) -> str:
        """Name of the benchmark and its set."""
        return f"{self.name}: {self.subset} set"

    @property
    def measure(self) -> str:
        """Name of the score."""
        return f"acc@{_CUTOFF}"

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest possible score."""
        return (0.0, 1.0)

    @property
    def group(self) -> str:
        """Both sets have the same names."""
        return f"facts of {self.data}"

    def check(self) -> str:
        """Return why the task cannot run."""
        if self.files():
            return ""
        return (
            f"{self.data} holds no benchmark: want MedLAMA's files (github.com/cambridgeltl/medlama"
            ") or a source of BioLAMA, as `raybio evaluate probe --benchmark` reads them"
        )

    def files(self) -> Mapping[str, Path]:
        """Return the files below the folder that hold data."""
        return {
            name: path
            for name, path in super().files().items()
            if path.is_file() and path.name != "README.md"
        }

    def facts(self) -> TaskFacts:
        """Return protocol and sizes."""
        benchmark = self._benchmark
        size = (
            f"{len(benchmark.relation_Q):,} queries of {len(benchmark.relations)} relations, "
            f"{len(benchmark.names):,} names"
        )
        protocol = _PROTOCOL.format(
            k=_CUTOFF, names=NAME_TOKENS, queries=QUERY_TOKENS, metric=self.metric
        )
        chance = chance_scores(benchmark, self._config)
        leakage = "Made from UMLS, which models may have read."
        if is_biolama(self.data):
            leakage = NOT_MEASURED
        shares = {"acc@1": chance["acc_at_1"]["value"], "acc@10": chance["acc_at_10"]["value"]}
        return TaskFacts(protocol, size, leakage, shares)

    def score(self, model: BenchmarkEncoder) -> TaskScores:
        """Rank names by the distance of their embeddings."""
        if isinstance(model, BenchmarkModel):
            query_QD, name_CD = embed_benchmark(_embedder(model), self._benchmark)
            remarks = truncation_remarks([model.folder], {self.name: self._benchmark})
            return self._nearest(
                query_QD, name_CD, [line for of in remarks.values() for line in of]
            )
        queries = self._benchmark.queries("")
        query_QD = on_device(model.embed(queries))
        return self._nearest(query_QD, on_device(model.embed(self._benchmark.names)))

    def rivals(self, model: BenchmarkEncoder | None) -> Mapping[str, TaskScores]:
        """Rank by letters, by the usual answers of a relation, and by random vectors."""
        found = {}
        for name, predicted_QK in predict_by_rivals(self._benchmark, self._config).items():
            found[name] = self._scores(predicted_QK)
        random = RandomVectors()
        return found | {random.name: self.score(random)}

    def _nearest(
        self, query_QD: Tensor, name_CD: Tensor, remarks: Sequence[str] = ()
    ) -> TaskScores:
        def search(query_BD: Tensor, candidate_MD: Tensor, k: int) -> Tensor:
            return nearest(query_BD, candidate_MD, k, metric=self.metric).index_QK

        benchmark = self._benchmark
        predicted_QK = predict_names(benchmark, query_QD, name_CD, self._config, search)
        scores = self._scores(predicted_QK, remarks)
        query_P = np.repeat(np.arange(len(query_QD)), np.diff(benchmark.indptr_Q1))
        quality = corpus_quality("names", name_CD) | pair_quality(
            "queries and their answers", query_QD, name_CD, query_P, benchmark.answer_P
        )
        return replace(scores, others={**scores.others, **quality})

    def _scores(self, predicted_QK: np.ndarray, remarks: Sequence[str] = ()) -> TaskScores:
        outcome = evaluate_predictions(self._benchmark, predicted_QK, self._config.match)
        others = {
            "acc@1": outcome.macro(1),
            "micro acc@1": outcome.micro(1),
            "micro acc@10": outcome.micro(10),
        }
        return TaskScores(
            tuple(map(str, range(len(outcome.relation_Q)))),
            outcome.hits(_CUTOFF) * outcome.weight_Q,
            outcome.weight_Q,
            others=others,
            remarks=tuple(remarks),
        )

    @property
    def _config(self) -> ProbeConfig:
        return ProbeConfig(metric=self.metric)

    @cached_property
    def _benchmark(self) -> ProbeBenchmark:
        benchmark = read_benchmark(self.data, self.subset)
        if self.queries_per_relation is None:
            return benchmark
        return benchmark.sample(self.queries_per_relation, seed=0)


@lru_cache(maxsize=1)
def _embedder(model: BenchmarkModel) -> "_SavedEmbedder":
    """Return the embedder of a model: queries of the hard set are known from the full one."""
    return _SavedEmbedder(model)


class _SavedEmbedder(TextEmbedder):
    """The probe's embedder, whose embeddings are saved with those of the benchmark."""

    def __init__(self, model: BenchmarkModel) -> None:
        embed = load_embedder(model.folder, model.whole_inputs.pooling)
        super().__init__(embed.encoder)
        self._model = model

    def __call__(self, texts: Sequence[str], max_tokens: int) -> Tensor:
        what = f"probed texts of {max_tokens} tokens, {self.encoder.pooling} pooling"

        def make() -> Embedded:
            num_known = len(self.known_UD)
            vector_ND = super(_SavedEmbedder, self).__call__(texts, max_tokens).cpu().numpy()
            return Embedded(vector_ND, len(self.known_UD) - num_known)

        return on_device(self._model.saved(what, texts, make))
