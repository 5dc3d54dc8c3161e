"""The queue of a benchmark: tasks x models, each a Ray task whose results are kept.

Results are records in the report's folder, named after everything that they depend on: facts and
rivals of each task, and scores of each (model, task). The same command again reads them back.
"""

import errno
import json
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from raybio.benchmark.log import BenchmarkLog
from raybio.benchmark.models import BenchmarkModel
from raybio.benchmark.task import PROTOCOL, RIVAL_ROWS, BenchmarkTask, TaskFacts, TaskScores
from raybio.core.errors import RaybioError
from raybio.core.files import FULL
from raybio.core.records import fields_of
from raybio.core.shared_scores import Identity, SharedScores
from raybio.runtime.cluster.resources import TrialResources
from raybio.runtime.run.spec import Compute
from raybio.runtime.run.tasks import run_tasks

_VERSION = 6
"""Raised whenever the same data and weights give other scores, measures or facts."""


PartKind = Literal["facts", "rivals", "scores"]


class Part(NamedTuple):
    """One result that the report needs.

    Attributes:
        task: the task.
        kind: facts of the task, scores of its rivals, or scores of a model.
        model: the model that is scored, or whose tokens rivals read; None: none is needed.
        identity: everything that the result depends on.
    """

    task: BenchmarkTask
    kind: PartKind
    model: BenchmarkModel | None
    identity: Identity

    @classmethod
    def of(
        cls, task: BenchmarkTask, of_task: Identity, kind: PartKind, model: BenchmarkModel | None
    ) -> "Part":
        """Return a part; ``of_task`` is the task's ``identity``."""
        digest = "" if model is None else model.digest
        identity = {**of_task, "version": _VERSION, "model": digest, "kind": kind}
        return cls(task, kind, model, identity)

    def __str__(self) -> str:
        """Return its name in messages."""
        return self.task.name if self.kind == "scores" else f"{self.task.name}, {self.kind}"

    @property
    def row(self) -> str:
        """Return the name of the row that is missing if this part is refused."""
        if self.kind == "scores":
            assert self.model is not None
            return self.model.name
        return RIVAL_ROWS if self.kind == "rivals" else PROTOCOL


class Results:
    """The results in the folder of a report."""

    def __init__(self, out: Path) -> None:
        """Read and write in a report's folder."""
        self._saved = SharedScores(out / "scores", {}, {})

    def has(self, part: Part) -> bool:
        """Return whether a result is kept."""
        return self._saved.read(part.identity) is not None

    def scores(self, part: Part) -> TaskScores | None:
        """Return the scores of a model."""
        content = self._saved.read(part.identity)
        return None if content is None else TaskScores.from_json(content)

    def rivals(self, part: Part) -> dict[str, TaskScores] | None:
        """Return the scores of each rival."""
        content = self._saved.read(part.identity)
        if content is None:
            return None
        return {name: TaskScores.from_json(own) for name, own in content.items()}

    def facts(self, part: Part) -> TaskFacts | None:
        """Return the facts of a task."""
        content = self._saved.read(part.identity)
        if content is None:
            return None
        return TaskFacts(**fields_of(TaskFacts, content, self._saved.path(part.identity)))

    def lock(self, part: Part) -> AbstractContextManager[None]:
        """Wait until no other process computes a result, and hold it for a block.

        Workers of a killed command may be at work for a while when the same command runs again.
        """
        return self._saved.lock(part.identity)

    def write(self, part: Part, content: Mapping[str, Any]) -> None:
        """Keep a result; without it the report would lack a row.

        Raises:
            OSError: if it cannot be written.
        """
        self._saved.keep(part.identity, json.dumps(content))


@dataclass
class WorkItem:
    """Results of a model on tasks that share texts; a ``Task`` of ``run_tasks``.

    Attributes:
        out: folder of the report, which workers see under the same path.
        model: the model of all parts; None: the parts need no model.
        parts: the wanted results.
        reason_by_part: why the model was refused, by name of the part; filled by ``keep``.
    """

    out: Path
    model: BenchmarkModel | None
    parts: Sequence[Part]
    reason_by_part: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the line that is printed when it is done."""
        who = "" if self.model is None else f"{self.model.name}: "
        return f"evaluated {who}{', '.join(map(str, self.parts))}"

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
                # A model, a data set or a user's own task that fails must not stop the others.
                except Exception as error:
                    if isinstance(error, OSError) and error.errno in (*FULL, errno.EROFS):
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
        results.write(part, _content(part))
        say(f"evaluated {self._named(part)}")

    def _named(self, part: Part) -> str:
        return f"{part}" if self.model is None else f"{part} of {self.model.name}"

    def keep(self, result: Mapping[str, str]) -> None:
        """Note the refusals; results are kept by the worker."""
        self.reason_by_part.update(result)

    def lose(self, reason: str) -> None:
        """Note why results are missing: the process died at each attempt."""
        results = Results(self.out)
        for part in self.parts:
            if not results.has(part):
                self.reason_by_part[str(part)] = reason
                BenchmarkLog(self.out).say(f"skipped: {self._named(part)}: {reason}")


def _content(part: Part) -> dict[str, Any]:
    """Compute a result."""
    if part.kind == "facts":
        return part.task.facts().to_json()
    with nullcontext() if part.model is None else part.model.in_its_precision():
        if part.kind == "rivals":
            return {name: own.to_json() for name, own in part.task.rivals(part.model).items()}
        assert part.model is not None
        return part.task.score(part.model).to_json()


def compute_parts(
    parts: Sequence[Part], out: Path, *, with_ray: bool, verbose: bool
) -> dict[str, dict[str, str]]:
    """Compute the results that are not kept, on a cluster or in this process.

    Returns:
        Task -> row -> why it was refused.
    """
    parts_by_worker: dict[tuple[str, str], list[Part]] = {}
    for part in parts:
        model = "" if part.model is None else part.model.name
        parts_by_worker.setdefault((part.task.group, model), []).append(part)
    items = [WorkItem(out, own[0].model, own) for own in parts_by_worker.values()]
    say = BenchmarkLog(out).say
    missing = [item for item in items if not item.is_done]
    for item in items:
        if item.is_done:
            say(f"read back: {item}")
    if with_ray:
        run_tasks(
            missing,
            Compute(),
            needs_gpu=lambda item: item.model is not None,
            on_lost=WorkItem.lose,
            verbose=verbose,
        )
    else:
        for number, item in enumerate(missing, start=1):
            item.keep(item.work())
            print(f"{item}: {number} of {len(missing)}", flush=True)
    refused: dict[str, dict[str, str]] = {}
    for item in items:
        for part in item.parts:
            if str(part) in item.reason_by_part:
                reason = item.reason_by_part[str(part)]
                refused.setdefault(part.task.name, {})[part.row] = reason
    return refused
