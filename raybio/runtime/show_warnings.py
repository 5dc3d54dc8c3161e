"""What a driver does with its runs' warnings: it follows their ``notices.jsonl`` and prints each message once."""

from pathlib import Path

from raybio.runtime.notices import NoticeTail


class WarningPrinter:
    """Print the warnings of several runs; a message that several of them log is printed for the first alone."""

    def __init__(self) -> None:
        """Follow no run yet."""
        self._tails: dict[Path, NoticeTail] = {}
        self._printed: set[str] = set()

    def follow(self, notices: Path) -> None:
        """Read a run's warnings from now on; a run that is followed already goes on where it was read."""
        if notices not in self._tails:
            self._tails[notices] = NoticeTail(notices)

    def show(self, notices: Path, run: str) -> None:
        """Print the new warnings of a run that is followed, under the name ``run``."""
        tail = self._tails.get(notices)
        for notice in tail.read() if tail is not None else []:
            message = notice.get("warning")
            if message is not None and message not in self._printed:
                self._printed.add(message)
                print(f"{run} | warning: {message}", flush=True)
