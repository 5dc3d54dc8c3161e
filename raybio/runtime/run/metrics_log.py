"""``metrics.jsonl``: one line per report, written by rank 0 and read by all followers of a run.

The file decouples training from tracking: training only appends lines to a file.

A run that is stopped at an evaluation step writes a line with ``is_evaluation_pending``, which
readers skip. The next start replaces it by the report with the evaluation, so that readers get each
step once and complete.
"""

import functools
import json
import logging
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from raybio.core.errors import ConfigError
from raybio.core.files import named_failure, replace_bytes
from raybio.core.records import is_report

PENDING = "is_evaluation_pending"

_log = logging.getLogger(__name__)


class MetricsLog:
    """The writer of the log. Each step is in the file once, however often the run is resumed."""

    def __init__(self, path: Path) -> None:
        """Write to ``path``, which may hold the reports of an earlier start."""
        self.path = path
        self._last_step: int | None = None

    def rewind(self, step: int) -> None:
        """Remove reports after ``step``, from which the run resumes; they will be written again."""
        kept = []
        last_step = -1
        for line, report in _parsed(_whole_lines(self.path), self.path):
            if report["step"] <= step:
                kept.append(line)
                last_step = report["step"]
        self._last_step = last_step
        if kept and sum(map(len, kept)) == self.path.stat().st_size:
            return
        content = b"".join(kept)
        # Write a new file instead of truncating, so that a reader notices that it has to start
        # over.
        replace_bytes(self.path, content)

    def append(
        self,
        step: int,
        metrics: dict[str, float],
        *,
        is_synced: bool = False,
        is_evaluation_pending: bool = False,
        **facts: Any,
    ) -> None:
        """Add a report, unless the file has one of that step or a later one.

        Args:
            step: step of the report.
            metrics: its metrics.
            is_synced: force the log to the disk.
            is_evaluation_pending: the step will be reported again; see above.
            facts: other facts of the report, as plain JSON.
        """
        if self._last_step is None:
            self.rewind(step)
        if self._last_step is not None and step <= self._last_step:
            return
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        broken = {name: str(value) for name, value in metrics.items() if not math.isfinite(value)}
        line = {
            "step": step,
            "time_ms": int(time.time() * 1000),
            "metrics": finite,
            **({"not_finite": broken} if broken else {}),
            **({PENDING: True} if is_evaluation_pending else {}),
            **facts,
        }
        text = json.dumps(line) + "\n"
        with named_failure(self.path, len(text)), open(self.path, "a", encoding="utf-8") as file:
            file.write(text)
            if is_synced:
                file.flush()
                os.fsync(file.fileno())
        if not is_evaluation_pending:
            self._last_step = step


class MetricsTail:
    """The reader of the log: it returns complete lines that are new since the last call.

    Each step comes once, and a second time if a later start added an evaluation to it.
    """

    def __init__(self, path: Path, after_step: int = -1, *, was_evaluated: bool = True) -> None:
        """Follow ``path``, which need not exist yet.

        Args:
            path: the log.
            after_step: step of the last report that is not new.
            was_evaluated: whether that report held an evaluation; if not, one that holds it is new.
        """
        self.path = path
        self.last = (after_step, was_evaluated)
        self._file: BinaryIO | None = None
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """Return new reports, in order of step."""
        file = self._current_file()
        if file is None:
            return []
        file.seek(self._offset)
        text = file.read()
        end = text.rfind(b"\n") + 1
        self._offset += end
        new = []
        for _, report in _parsed(text[:end], self.path):
            position = position_of(report)
            if position > self.last:
                new.append(report)
                self.last = position
        return new

    def close(self) -> None:
        """Close the file. The next ``read`` opens it again and returns only new reports."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def __del__(self) -> None:
        """Close the file."""
        self.close()

    def _current_file(self) -> BinaryIO | None:
        """Return the file at the path, held open so that its inode number is not reused."""
        try:
            now = os.stat(self.path)
            if self._file is not None:
                held = os.fstat(self._file.fileno())
                is_same = (held.st_dev, held.st_ino) == (now.st_dev, now.st_ino)
                if is_same and now.st_size >= self._offset:
                    return self._file
            self.close()
            self._file = self.path.open("rb", buffering=0)
            self._offset = 0
        except FileNotFoundError:
            return None
        return self._file


def position_of(report: dict[str, Any]) -> tuple[int, bool]:
    """Return (step, whether it holds an evaluation) of a report; later reports are greater."""
    return report["step"], bool(report.get("is_evaluation"))


def read_reports(path: Path) -> list[dict[str, Any]]:
    """Return all reports of a run so far."""
    return MetricsTail(path).read()


def reports_for(command: str, path: Path) -> list[dict[str, Any]]:
    """Return all reports of a run that a command of raybio was given.

    Raises:
        ConfigError: if the run's folder has none.
    """
    if not path.is_file():
        raise ConfigError(
            f"raybio {command}: {path.parent} has no {path.name}; want the folder of a run that "
            "has begun, such as runs/first"
        )
    return read_reports(path)


def _whole_lines(path: Path) -> bytes:
    """Return complete lines, without a partial last line that a kill may have left."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return b""
    return text[: text.rfind(b"\n") + 1]


def _parsed(text: bytes, path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each line, with its line end, and its report; skip pending ones.

    Damaged lines are skipped with a warning.
    """
    for line in text.splitlines(keepends=True):
        try:
            report = json.loads(line)
        except (ValueError, RecursionError):
            report = None
        if not is_report(report):
            _warn_of_damage(path)
        elif PENDING not in report:
            yield line, report


@functools.cache
def _warn_of_damage(path: Path) -> None:
    _log.warning("%s: lines that are no reports, as a power loss leaves them, are skipped", path)
