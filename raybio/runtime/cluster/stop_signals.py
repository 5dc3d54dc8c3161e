"""Handling of SIGINT, SIGTERM and SIGHUP: a run ends at its next step, with a checkpoint."""

import contextlib
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any


class StopSignals:
    """Turns signals into stop files that the workers see, within a ``with`` block.

    SIGHUP, sent when a terminal is closed, counts once, since shell and terminal may both send it.
    It does not count if it is ignored (nohup). While Ray is starting, a second signal raises
    KeyboardInterrupt.

    Attributes:
        caught: the signals received.
        is_starting: whether Ray is still starting, so that no process checks the file yet.
    """

    def __init__(self, *stop_files: Path) -> None:
        """Set the stop file of each run; signals are handled only within the block."""
        self.stop_files = stop_files
        self.caught = list[int]()
        self.is_starting = True
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                    continue
                self._before[number] = signal.signal(number, self._handle)
        return self

    def ray_has_started(self) -> None:
        """From now on, signals only create stop files."""
        self.is_starting = False

    def count_exit(self, error: KeyboardInterrupt | SystemExit) -> None:
        """Record the signal that ended the start of Ray by an exception; reraise any other exit.

        The exception comes from a second signal, or from the SIGTERM handler that Ray installs
        during its start, which exits with the signal's number.
        """
        if isinstance(error, SystemExit) and error.code != signal.SIGTERM:
            raise error
        if not self.caught:
            self.caught.append(signal.SIGTERM)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP and number in self.caught:
            return
        self.caught.append(number)
        for file in self.stop_files:
            # The disk may be full; the driver stops the run even without the file.
            with contextlib.suppress(OSError):
                file.touch()
        if self.is_starting:
            if len(self.caught) > 1:
                raise KeyboardInterrupt
            # An interrupted start of Ray may leave processes behind for a while.
            name = signal.Signals(number).name
            print(
                f"{name}: stopping when Ray has started (a second signal stops at once)",
                file=sys.stderr,
            )

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for file in self.stop_files:
            # The disk may have become read-only; the signal must still end the command. The next
            # start removes the file.
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
