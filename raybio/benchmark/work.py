"""The queue of a benchmark: tasks x models, each a Ray task whose results are kept.

Results are records in the report's folder, one for each (model, task), named after everything that
they depend on. The same command again reads them back.
"""

import json
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from raybio.benchmark.log import BenchmarkLog
from raybio.benchmark.models import BenchmarkModel
from raybio.benchmark.task import BenchmarkTask, TaskFacts, TaskScores
from raybio.core.errors import RaybioError
from raybio.core.files import disk_problem
from raybio.core.shared_scores import Identity, SharedScores
from raybio.runtime.cluster.resources import TrialResources

_VERSION = 3
"""Raised whenever the same data and weights give other scores."""


@dataclass(frozen=True)
class RivalResults:
    """What is known of a task without the model.

    Attributes:
        facts: protocol, sizes and chance.
        scores: scores of each rival.
    """

    facts: TaskFacts
    scores: Mapping[str, TaskScores]


class Part(NamedTuple):
    """A result that is wanted.

    Attributes:
        task: the task.
        identity: everything that the result depends on.
        is_rivals: whether it is that of the rivals.
    """

    task: BenchmarkTask
    identity: Identity
    is_rivals: bool

    def __str__(self) -> str:
        """Return its name in messages."""
        return f"{self.task.name}{', rivals' if self.is_rivals else ''}"


class Results:
    """The results in the folder of a report."""

    def __init__(self, out: Path) -> None:
        """Read and write in a report's folder."""
        self._saved = SharedScores(out / "scores", {}, {})

    def has(self, part: Part) -> bool:
        """Return whether a result is kept."""
        return self._saved.read(part.identity) is not None

    def of_model(self, part: Part) -> TaskScores | None:
        """Return a model's scores."""
        content = self._saved.read(part.identity)
        return None if content is None else TaskScores.from_json(content)

    def of_rivals(self, part: Part) -> RivalResults | None:
        """Return facts and rivals of a task."""
        content = self._saved.read(part.identity)
        if content is None:
            return None
        scores = {name: TaskScores.from_json(own) for name, own in content["scores"].items()}
        return RivalResults(TaskFacts(**content["facts"]), scores)

    def lock(self, part: Part) -> AbstractContextManager[None]:
        """Wait until no other process computes a result, and hold it for a block.

        Workers of a killed command may be at work for a while when the same command runs again.
        """
        return self._saved.lock(part.identity)

    def write(self, part: Part, content: Mapping[str, Any]) -> None:
        """Keep a result."""
        self._saved.write(part.identity, json.dumps(content))


def identity_of(of_task: Identity, model: BenchmarkModel | None, *, is_rivals: bool) -> Identity:
    """Return everything that a result depends on; of the task, its ``identity``."""
    digest = "" if model is None else model.digest
    return {**of_task, "version": _VERSION, "model": digest, "rivals": is_rivals}


@dataclass
class WorkItem:
    """Results of a model on tasks that share texts; a ``Task`` of ``run_tasks``.

    Attributes:
        out: folder of the report, which workers see under the same path.
        model: the model; None: rivals that need none.
        parts: the wanted results.
        reason_by_part: why the model was refused, by name of the part; filled by ``keep``.
    """

    out: Path
    model: BenchmarkModel | None
    parts: Sequence[Part]
    reason_by_part: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the line that is printed when it is done."""
        who = "rivals" if self.model is None else self.model.name
        return f"evaluated {who}: {', '.join(map(str, self.parts))}"

    @property
    def is_done(self) -> bool:
        """Whether all results are kept."""
        results = Results(self.out)
        return all(results.has(part) for part in self.parts)

    def work(self, reserved: TrialResources | None = None) -> dict[str, str]:
        """Compute and keep the missing results; return why parts were refused."""
        results = Results(self.out)
        refused = {}
        for part in self.parts:
            with results.lock(part):
                try:
                    self._compute(part, results)
                # A model, a data set or a user's own task that fails does not end the others.
                except Exception as error:
                    if isinstance(error, OSError) and disk_problem(error) is not None:
                        raise  # no other result could be kept either
                    reason = str(error)
                    if not isinstance(error, RaybioError | ValueError):
                        reason = f"{type(error).__name__}: {error}"
                        BenchmarkLog(self.out).say(traceback.format_exc())
                    refused[str(part)] = reason
                    BenchmarkLog(self.out).say(f"skipped: {self._named(part)}: {reason}")
        return refused

    def _compute(self, part: Part, results: Results) -> None:
        say = BenchmarkLog(self.out).say
        if results.has(part):
            say(f"read back: {self._named(part)}")
            return
        say(f"evaluating {self._named(part)}")
        content = self._rivals(part) if part.is_rivals else self._scores(part)
        results.write(part, content)
        say(f"evaluated {self._named(part)}")

    def _named(self, part: Part) -> str:
        return f"{part}" if self.model is None else f"{part} of {self.model.name}"

    def keep(self, result: Mapping[str, str]) -> None:
        """Note the refusals; results are kept by the worker."""
        self.reason_by_part.update(result)

    def _scores(self, part: Part) -> dict[str, Any]:
        assert self.model is not None
        return part.task.score(self.model).to_json()

    def _rivals(self, part: Part) -> dict[str, Any]:
        scores: Mapping[str, TaskScores] = {}
        if self.model is not None or not part.task.rivals_read_the_model:
            scores = part.task.rivals(self.model)
        facts = asdict(part.task.facts())
        return {"facts": facts, "scores": {name: own.to_json() for name, own in scores.items()}}
