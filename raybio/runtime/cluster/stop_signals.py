"""SIGINT, SIGTERM and SIGHUP end a run in order: at its next step, with a checkpoint."""

import contextlib
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any


class StopSignals:
    """Turns signals into files that the workers see, for a ``with`` block.

    SIGHUP says that a terminal was closed. It counts once, since a shell and the terminal may both
    send it, and not where it is ignored (nohup). While Ray is starting, a second signal raises
    KeyboardInterrupt.

    Attributes:
        caught: the signals that came.
        is_starting: Ray is being started, and nobody looks at the file yet.
    """

    def __init__(self, *stop_files: Path) -> None:
        """Name the file of each run; nothing is caught before the block."""
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
        """From now on, a signal only becomes files."""
        self.is_starting = False

    def count_exit(self, error: KeyboardInterrupt | SystemExit) -> None:
        """Count the signal that ended the start of Ray by an exception; raise any other exit.

        A second signal of ours does so, and Ray's own handler of SIGTERM, which it installs
        meanwhile: that exits with the signal's number.
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
            # A full disk: the driver stops the run without the file.
            with contextlib.suppress(OSError):
                file.touch()
        if self.is_starting:
            if len(self.caught) > 1:
                raise KeyboardInterrupt
            # Left half started, Ray may leave processes behind for a while.
            name = signal.Signals(number).name
            print(
                f"{name}: stopping when Ray has started (a second signal stops at once)",
                file=sys.stderr,
            )

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for file in self.stop_files:
            # On a disk that became read-only, the signal still ends the command. The next start
            # removes the file.
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
