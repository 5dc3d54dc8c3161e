"""The base of tasks that rank documents for queries, with its rivals by words."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

from raybio.benchmark.models import RandomVectors, on_device
from raybio.benchmark.quality import corpus_quality, pair_quality
from raybio.benchmark.task import BenchmarkEncoder, BenchmarkTask, TaskScores
from raybio.core.arrays import Integers
from raybio.evaluation.lexical import BASELINES
from raybio.ops.retrieval import Scores, cosine_scores


class RankedDocumentsTask(BenchmarkTask):
    """All documents ranked for each query, by the cosine of their embeddings."""

    @property
    def limits(self) -> tuple[float, float]:
        """The lowest and the highest possible score."""
        return (0.0, 1.0)

    def score(self, model: BenchmarkEncoder) -> TaskScores:
        """Rank by cosines; measure the quality of the embeddings."""
        queries, documents = self._texts()
        query_QD = on_device(model.embed(queries))
        document_CD = on_device(model.embed(documents))
        remarks = model.truncation_remarks({"queries": queries, "documents": documents})
        scores = self._scores(cosine_scores(query_QD, document_CD), remarks)
        quality = corpus_quality("documents", document_CD) | pair_quality(
            "queries and their documents", query_QD, document_CD, *self._gold()
        )
        return replace(scores, others={**scores.others, **quality})

    def rivals(self, model: BenchmarkEncoder | None) -> Mapping[str, TaskScores]:
        """Rank by words, and by random vectors."""
        queries, documents = self._texts()
        found = {}
        for name, scorer in BASELINES.items():
            found[name] = self._scores(scorer(queries, documents))
        random = RandomVectors()
        return found | {random.name: self.score(random)}

    @abstractmethod
    def _texts(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return queries and documents."""

    @abstractmethod
    def _gold(self) -> tuple[Integers, Integers]:
        """Return the query (P,) and the document (P,) of each gold pair."""

    @abstractmethod
    def _scores(self, scores: Scores, remarks: Sequence[str] = ()) -> TaskScores:
        """Return the scores of a ranking."""
