"""Zero-shot ranking of BioSTransformers: the figures of ``raybio evaluate zero-shot``."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from raybio.benchmark.task import TaskFacts, TaskScores, by_relative_path
from raybio.benchmark.tasks.ranked_documents import RankedDocumentsTask
from raybio.core.arrays import Integers
from raybio.methods.biostransformers.zero_shot.names import DATA_SETS, task_names
from raybio.methods.biostransformers.zero_shot.ranking import RankingTask
from raybio.methods.biostransformers.zero_shot.tasks import read_tasks
from raybio.ops.retrieval import Scores

_BLOCK_ROWS = 1024


class ZeroShotTask(RankedDocumentsTask):
    """Documents ranked for queries by the cosine of their embeddings."""

    family: ClassVar[str] = "Zero-shot ranking"

    data: Path = Field(description="folder with hallmarks_of_cancer/, pubmedqa/, bioasq_7b/")

    @property
    def title(self) -> str:
        """Name of data set and task."""
        return f"{DATA_SETS[self._data_set].title}: {self.name}"

    @property
    def measure(self) -> str:
        """Name of the score."""
        return "R-precision"

    @property
    def group(self) -> str:
        """Tasks of one data set share texts."""
        return self._data_set

    def check(self) -> str:
        """Return why the task cannot run.

        Raises:
            ConfigError: if no task has this name.
        """
        task_names([self.name])
        if self.files():
            return ""
        data_set = DATA_SETS[self._data_set]
        return f"{self.data} holds no {data_set.title}: want {' or '.join(data_set.paths)} in it"

    def files(self) -> Mapping[str, Path]:
        """Return the files of the data set."""
        for path in DATA_SETS[self._data_set].paths:
            found = self.data / path
            if found.is_dir():
                paths = [each for each in found.iterdir() if ".json" in each.name]
                return by_relative_path(found, paths)
            if found.exists():
                return {"data": found}
        return {}

    def identity(self) -> dict[str, Any]:
        """Return what scores depend on: the name chooses queries and documents, too."""
        return super().identity() | {"name": self.name}

    def facts(self) -> TaskFacts:
        """Return protocol and sizes."""
        task = self._ranking
        chance = task.chance()
        shares = {self.measure: chance.micro}
        if chance.macro is not None:
            shares["macro R-precision"] = chance.macro
        leakage = "No label is used. The articles are in PubMed, so models may have read them."
        size = (
            f"{len(task.queries):,} queries, {len(task.documents):,} documents, "
            f"{task.num_gold:,} gold"
        )
        return TaskFacts(task.protocol, size, leakage, shares)

    def _texts(self) -> tuple[Sequence[str], Sequence[str]]:
        return self._ranking.queries, self._ranking.documents

    def _gold(self) -> tuple[Integers, Integers]:
        return self._ranking.gold_pairs

    def _scores(self, scores: Scores, remarks: Sequence[str] = ()) -> TaskScores:
        hits = self._ranking.count_hits(scores, _BLOCK_ROWS)
        others = {}
        if hits.has_macro:
            others["macro R-precision"] = float((hits.hits_U / hits.total_U).mean())
        return TaskScores(
            tuple(map(str, range(len(hits.hits_U)))),
            hits.hits_U.astype(float),
            hits.total_U.astype(float),
            others=others,
            remarks=tuple(remarks),
        )

    @property
    def _data_set(self) -> str:
        (name,) = task_names([self.name])
        return next(key for key, data_set in DATA_SETS.items() if name in data_set.tasks)

    @cached_property
    def _ranking(self) -> RankingTask:
        (task,) = read_tasks([self.name], self.data)
        return task
