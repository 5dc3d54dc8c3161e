"""`notices.jsonl`: the warnings of a run's workers, and the step that they start from; the driver shows both.

A worker reports to the user by logging a warning on a `raybio` logger. Several processes append to the file.
"""

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOGGER = "raybio"


class NoticeTail:
    """Read the notices that were written after this object was made."""

    def __init__(self, path: Path) -> None:
        """Follow ``path``, which need not exist yet."""
        self.path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def read(self) -> list[dict[str, Any]]:
        """Return the new notices, each with ``warning``, or with ``first_step`` and ``steps_per_epoch``."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        end = text.rfind(b"\n") + 1
        self._offset += end
        return list(_parsed(text[:end]))


@contextmanager
def warnings_to(path: Path, rank: int = 0) -> Iterator[None]:
    """Append the warnings of all ``raybio`` loggers in this process to ``path``."""
    handler = _NoticeHandler(path, rank)
    logger = logging.getLogger(LOGGER)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def report_start(path: Path, first_step: int, steps_per_epoch: float) -> None:
    """Append the number of updates that the run starts from, 0 or those of its checkpoint, and its steps per epoch."""
    _append(path, {"first_step": first_step, "steps_per_epoch": steps_per_epoch})


class _NoticeHandler(logging.Handler):
    """Append each warning once, however often it is logged."""

    def __init__(self, path: Path, rank: int) -> None:
        super().__init__(logging.WARNING)
        self._path = path
        self._rank = rank
        self._written: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
            if message not in self._written:
                self._written.add(message)
                _append(self._path, {"rank": self._rank, "warning": message})
        except Exception:
            self.handleError(record)


def _append(path: Path, notice: dict[str, Any]) -> None:
    line = json.dumps({"time_ms": int(time.time() * 1000)} | notice) + "\n"
    # One write in append mode, so that the lines of several processes do not mix.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def _parsed(text: bytes) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            # A killed process or a full disk can leave half a line; the others are whole.
            continue
