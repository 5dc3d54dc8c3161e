"""``notices.jsonl``: warnings and progress of a run's workers, and the step that they start from.

A worker reports to the user by logging on a ``raybio`` logger: warnings, and progress at level
INFO. Only rank 0 reports progress. Each rank has its own file. The driver follows the files and
prints each message once.
"""

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raybio.core.records import is_count
from raybio.store.json import is_text

LOGGER = "raybio"


class NoticeTail:
    """Reads the notices that all workers write after this object is made."""

    def __init__(self, path: Path) -> None:
        """Follow ``path`` of rank 0 and the files of other ranks; they may not exist yet."""
        self._path = path
        self._offset_by_file = {file: file.stat().st_size for file in self._files()}

    def read(self) -> list[dict[str, Any]]:
        """Return new notices.

        They have ``warning``, or ``progress``, or ``first_step`` and ``steps_per_epoch``.
        """
        notices: list[dict[str, Any]] = []
        for path in self._files():
            offset = self._offset_by_file.get(path, 0)
            with path.open("rb") as file:
                file.seek(offset)
                text = file.read()
            end = text.rfind(b"\n") + 1
            self._offset_by_file[path] = offset + end
            notices += _parsed(text[:end])
        return notices

    def _files(self) -> list[Path]:
        return sorted(self._path.parent.glob(f"{self._path.stem}*{self._path.suffix}"))


@contextmanager
def warnings_to(path: Path, rank: int = 0) -> Iterator[None]:
    """Append warnings and progress of this process's loggers to the file of its rank."""
    # Workers on several nodes cannot append to one file on a network disk.
    own = path if rank == 0 else path.with_name(f"{path.stem}-{rank}{path.suffix}")
    handler = _NoticeHandler(own, rank)
    logger = logging.getLogger(LOGGER)
    level = logger.level
    logger.addHandler(handler)
    if rank == 0:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def report_start(
    path: Path,
    first_step: int,
    steps_per_epoch: float,
    device: str = "cpu",
    *,
    is_first_step_reported: bool = False,
) -> None:
    """Append a start.

    Args:
        path: the notices of rank 0.
        first_step: step that the run starts from: 0, or the step of its checkpoint.
        steps_per_epoch: steps of an epoch.
        device: ``cuda`` or ``cpu``.
        is_first_step_reported: whether this start writes the report of ``first_step``: at step 0,
            or with a missed evaluation.
    """
    notice = {"first_step": first_step, "steps_per_epoch": steps_per_epoch, "device": device}
    _append(path, notice | {"is_first_step_reported": is_first_step_reported})


def read_starts(path: Path) -> list[dict[str, Any]]:
    """Return the starts of a run: ``time_ms``, ``first_step``, ``steps_per_epoch``, ``device``."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    return [notice for notice in _parsed(text) if "first_step" in notice]


class _NoticeHandler(logging.Handler):
    """Appends each message once, however often it is logged."""

    def __init__(self, path: Path, rank: int) -> None:
        super().__init__(logging.WARNING if rank else logging.INFO)
        self._path = path
        self._rank = rank
        self._written: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
            if message not in self._written:
                self._written.add(message)
                kind = "warning" if record.levelno >= logging.WARNING else "progress"
                _append(self._path, {"rank": self._rank, kind: message})
        except Exception:
            self.handleError(record)


def _append(path: Path, notice: dict[str, Any]) -> None:
    # The first newline ends a partial line of a killed process. A single write keeps lines of
    # several processes apart.
    line = "\n" + json.dumps({"time_ms": int(time.time() * 1000)} | notice) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def _parsed(text: bytes) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            notice = json.loads(line)
        except (ValueError, RecursionError):
            # An empty line, or a partial line of a killed process.
            continue
        if _is_notice(notice):
            yield notice


def _is_notice(value: Any) -> bool:
    """Return whether a line is a notice with valid values."""
    if not isinstance(value, dict):
        return False
    if "warning" in value or "progress" in value:
        texts = [value.get(kind, "") for kind in ("warning", "progress")]
        return all(map(is_text, texts)) and "first_step" not in value
    steps_per_epoch = value.get("steps_per_epoch")
    is_positive = isinstance(steps_per_epoch, int | float) and 0 < steps_per_epoch < 2**63
    return all(is_count(value.get(name)) for name in ("time_ms", "first_step")) and is_positive


class WarningPrinter:
    """Prints the warnings of several runs; equal messages are printed only for the first run."""

    def __init__(self) -> None:
        """Follow no run yet."""
        self._tails: dict[Path, NoticeTail] = {}
        self._printed: set[str] = set()

    def follow(self, notices: Path) -> None:
        """Read a run's warnings from now on, or continue if it is followed already."""
        if notices not in self._tails:
            self._tails[notices] = NoticeTail(notices)

    def show(self, notices: Path, run: str) -> None:
        """Print new warnings of a followed run, under the name ``run``."""
        if notices not in self._tails:
            return
        for notice in self._tails[notices].read():
            message = notice.get("warning")
            if message is not None and message not in self._printed:
                self._printed.add(message)
                print(f"{run} | warning: {message}", flush=True)
