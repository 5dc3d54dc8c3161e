"""``metrics.jsonl``: one line a report, written by rank 0 and read by all that follow a run.

The file is the spool between training and tracking: training only appends lines to a file.
"""

import json
import math
import os
import time
from pathlib import Path
from typing import Any, BinaryIO

from raybio.core.errors import ConfigError
from raybio.core.files import named_failure


class MetricsLog:
    """The writing end. Each step is in the file once, however often the run is resumed."""

    def __init__(self, path: Path) -> None:
        """Write to ``path``, which may hold the reports of an earlier start."""
        self.path = path
        self._last_step: int | None = None

    def rewind(self, step: int) -> None:
        """Remove reports after ``step``, from which the run resumes; they will come again."""
        lines = _lines(self.path)
        kept = [line for line in lines if json.loads(line)["step"] <= step]
        if kept and sum(len(line.encode()) for line in kept) == self.path.stat().st_size:
            self._last_step = json.loads(kept[-1])["step"]
            return
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.write_text("".join(kept), encoding="utf-8")
        # A new file, not a shorter one, so that a reader sees that it has to begin again.
        os.replace(temporary, self.path)
        self._last_step = json.loads(kept[-1])["step"] if kept else -1

    def append(self, step: int, metrics: dict[str, float], **facts: Any) -> None:
        """Add a report, unless the file has one of that step or a later one."""
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
            **facts,
        }
        text = json.dumps(line) + "\n"
        with named_failure(self.path, len(text)), open(self.path, "a", encoding="utf-8") as file:
            file.write(text)
        self._last_step = step


class MetricsTail:
    """The reading end: whole lines that are new since the last call, each step once."""

    def __init__(self, path: Path, after_step: int = -1) -> None:
        """Follow ``path``, which need not exist yet, from the first report after ``after_step``."""
        self.path = path
        self.last_step = after_step
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
        reports = [json.loads(line) for line in text[:end].splitlines()]
        self._offset += end
        new = []
        for report in reports:
            if report["step"] > self.last_step:
                new.append(report)
                self.last_step = report["step"]
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
            self._file, self._offset = self.path.open("rb", buffering=0), 0  # noqa: SIM115
        except FileNotFoundError:
            return None
        return self._file


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


def _lines(path: Path) -> list[str]:
    """Return whole lines, without a torn last one that a kill has left."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return text[: text.rfind("\n") + 1].splitlines(keepends=True)
