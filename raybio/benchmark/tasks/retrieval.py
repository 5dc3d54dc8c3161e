"""Retrieval of documents in BEIR's layout: the figures of ``raybio evaluate retrieval``."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

from raybio.benchmark.task import TaskFacts, TaskScores, missing_files
from raybio.benchmark.tasks.ranked_documents import RankedDocumentsTask
from raybio.core.arrays import Integers
from raybio.evaluation.retrieval import RETRIEVAL, chance_measures, query_measures
from raybio.ops.retrieval import Scores, retrieve
from raybio.store.retrieval_files import RetrievalFiles, read_retrieval_files

_PRIMARY = "ndcg_at_10"

_PROTOCOL = (
    "All documents are ranked for each query by the cosine of embeddings. Relevance is yes or no. "
    "Measures are those of sentence-transformers' InformationRetrievalEvaluator. Documents that "
    "TF-IDF or BM25 score alike are in random order."
)


class BeirRetrievalTask(RankedDocumentsTask):
    """A corpus, queries and judgments in the files of BEIR."""

    family: ClassVar[str] = "Retrieval"

    corpus: Path = Field(description="JSON lines: _id, text and perhaps title")
    queries: Path = Field(description="JSON lines: _id, text")
    qrels: Path = Field(description="TSV with header: query-id, corpus-id, score")

    @property
    def measure(self) -> str:
        """Name of the score."""
        return RETRIEVAL.measures[_PRIMARY]

    def check(self) -> str:
        """Return why the task cannot run."""
        return missing_files(
            self.files().values(), "want a corpus, queries and judgments in BEIR's layout"
        )

    def files(self) -> Mapping[str, Path]:
        """Return the three files."""
        return {"corpus": self.corpus, "queries": self.queries, "qrels": self.qrels}

    def facts(self) -> TaskFacts:
        """Return protocol and sizes."""
        files = self._files
        size = (
            f"{len(files.queries):,} queries, {len(files.documents):,} documents, "
            f"{len(files.indices):,} relevant pairs"
        )
        chance = chance_measures(np.diff(files.indptr), len(files.documents))
        remarks = [f"{remark[0].upper()}{remark[1:]}." for remark in files.remarks]
        protocol = " ".join([_PROTOCOL, *remarks])
        named = {title: chance[key] for key, title in RETRIEVAL.measures.items()}
        return TaskFacts(protocol, size, chance=named)

    def _texts(self) -> tuple[Sequence[str], Sequence[str]]:
        return self._files.queries, self._files.documents

    def _gold(self) -> tuple[Integers, Integers]:
        files = self._files
        return np.repeat(np.arange(len(files.queries)), np.diff(files.indptr)), files.indices

    def _scores(self, scores: Scores, remarks: Sequence[str] = ()) -> TaskScores:
        found = query_measures(retrieve(scores, self._files.indptr, self._files.indices))
        others = {
            title: float(found[key].mean())
            for key, title in RETRIEVAL.measures.items()
            if key != _PRIMARY
        }
        position_Q = self._files.position_Q.tolist()
        return TaskScores.of_means(position_Q, found[_PRIMARY], others, remarks=remarks)

    @cached_property
    def _files(self) -> RetrievalFiles:
        return read_retrieval_files(self.corpus, self.queries, self.qrels)
