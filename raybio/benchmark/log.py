"""The log of a benchmark: results that each start and worker computed or read back."""

import os
import time
from pathlib import Path


class BenchmarkLog:
    """Lines of ``log.txt`` in the folder of a report; workers append to it, too."""

    def __init__(self, out: Path) -> None:
        """Write to the log of a report's folder."""
        self.path = out / "log.txt"

    def say(self, line: str) -> None:
        """Print a line, and append it to the log."""
        print(line, flush=True)
        text = f"{time.strftime('%Y-%m-%d %H:%M:%S')} [{os.getpid()}] {line}\n"
        # A single write to a file that is open for appending is atomic, whoever else writes.
        with self.path.open("ab", buffering=0) as file:
            file.write(text.encode(errors="backslashreplace"))
