"""The progress view of a run on the driver: a live panel in a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Collection
from typing import Any, TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from raybio.core.terminal import PrintableStream
from raybio.runtime.console import PrintableConsole

PLAIN_LINE_SECONDS = 10.0


class ProgressView:
    """Shows reports of a run as they arrive; used as a context manager."""

    def __init__(
        self,
        name: str,
        max_steps: int,
        console: Console | None = None,
        *,
        warned: set[str] | None = None,
        measures: Collection[str] | None = None,
    ) -> None:
        """Show a run.

        Args:
            name: name of the run.
            max_steps: number of its steps.
            console: console for the output; None: stderr.
            warned: printed warnings, which are not repeated; shared by the views of several runs.
            measures: measures of the method's table. Evaluations show them and the spread of
                embeddings, and count the other metrics. None: all metrics.
        """
        self.measures = measures
        self.name = name
        self.max_steps = max_steps
        self.console = console or PrintableConsole(stderr=True)
        self.message = "starting"
        self._said: set[str] = set()
        self._warned = set() if warned is None else warned
        self.train: dict[str, float] = {}
        self.evaluation: dict[str, float] = {}
        self.evaluation_step = 0
        self.step = 0
        self._started_at = time.monotonic()
        self._first_step: int | None = None
        self._first_ms = 0
        self._last_ms = 0
        self._last_line = 0.0
        self._live = (
            Live(console=self.console, refresh_per_second=4, get_renderable=self._panel)
            if self.console.is_terminal
            else None
        )

    def __enter__(self) -> "ProgressView":
        if self._live is not None:
            self._live.start()
            # rich now prints other output above the panel, and would interpret its control
            # characters.
            sys.stdout = cast(TextIO, PrintableStream(sys.stdout))
            sys.stderr = cast(TextIO, PrintableStream(sys.stderr))
        else:
            self._print(f"{self.name}: {self.message}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, message: str) -> None:
        """Show ``message`` next to the step; with plain lines, print it once."""
        self.message = message
        if self._live is None and message not in self._said:
            self._said.add(message)
            self._print(f"{self.name}: {message}")

    def wait(self) -> None:
        """Print every minute that the run is still starting; a panel shows the time instead."""
        minutes = int((time.monotonic() - self._started_at) // 60)
        if minutes and self._live is None:
            since = "a minute" if minutes == 1 else f"{minutes} minutes"
            self.say(f"starting, for {since} now")

    def warn(self, message: str) -> None:
        """Print a warning once, however many workers report it."""
        if message not in self._warned:
            self._warned.add(message)
            self.note(f"warning: {message}")

    def note(self, line: str) -> None:
        """Print a permanent line, above the panel if there is one."""
        self._print(f"{self.name}: {line}")

    def update(self, reports: list[dict[str, Any]]) -> None:
        """Show new reports of ``metrics.jsonl``."""
        for report in reports:
            self.step = report["step"]
            self.message = ""
            if self._first_step is None:
                self._first_step = self.step
                self._first_ms = report["time_ms"]
            self._last_ms = report["time_ms"]
            train = {name: value for name, value in report["metrics"].items() if "/" not in name}
            # Deeper names, such as metrics of single relations, are too many for this line.
            evaluation = {
                name: value for name, value in report["metrics"].items() if name.count("/") == 1
            }
            is_first_loss = bool(train) and not self.train
            self.train = train or self.train
            if evaluation:
                self.evaluation = evaluation
                self.evaluation_step = self.step
            if self._live is None:
                self._print_now_and_then(bool(evaluation), is_first_loss=is_first_loss)
        if reports and self.step >= self.max_steps:
            self.say("trained; final evaluation, which may take longer than those during training")

    @property
    def seconds_left(self) -> float | None:
        """Remaining seconds at the rate of this start; None at its first step.

        The rate is that between reports, several of which may be read at once.
        """
        seconds = (self._last_ms - self._first_ms) / 1000
        if self._first_step is None or self.step <= self._first_step or seconds <= 0:
            return None
        return (self.max_steps - self.step) * seconds / (self.step - self._first_step)

    @property
    def _losses(self) -> dict[str, float]:
        return {name: value for name, value in self.train.items() if "loss" in name}

    @property
    def _evaluated(self) -> str:
        if self.measures is None:
            return _show(self.evaluation)
        endings = tuple(self.measures)
        shown = {
            name: value
            for name, value in self.evaluation.items()
            if name.startswith("spread/") or name.endswith(endings)
        }
        # If the measures of the table have other names, show all metrics.
        if not shown:
            return _show(self.evaluation)
        num_hidden = len(self.evaluation) - len(shown)
        return _show(shown) + (f"  ({num_hidden} more in metrics.jsonl)" if num_hidden else "")

    def _print_now_and_then(self, is_evaluation: bool, *, is_first_loss: bool) -> None:
        now = time.monotonic()
        is_due = is_evaluation or is_first_loss or self.step >= self.max_steps
        if is_due or now - self._last_line >= PLAIN_LINE_SECONDS:
            self._last_line = now
            self._print(self._line() + (f" | {self._evaluated}" if is_evaluation else ""))

    def _line(self) -> str:
        parts = [f"{self.name}: step {self.step:,}/{self.max_steps:,}"]
        if (left := self.seconds_left) is not None:
            parts.append(f"{_clock(left)} left")
        if rate := self.train.get("tokens_per_second"):
            parts.append(f"{rate:,.0f} tokens/s")
        if skipped := int(self.train.get("skipped_steps", 0)):
            parts.append(f"{skipped} skipped")
        return " | ".join([*parts, *filter(None, [_show(self._losses)])])

    def _panel(self) -> Group:
        top = Table.grid(padding=(0, 2))
        left = self.seconds_left
        skipped = int(self.train.get("skipped_steps", 0))
        rate = self.train.get("tokens_per_second", 0.0)
        elapsed = time.monotonic() - self._started_at
        top.add_row(
            Text(self.name, style="bold"),
            ProgressBar(total=self.max_steps, completed=self.step, width=30),
            f"{self.step:,}/{self.max_steps:,}",
            f"{_clock(left)} left" if left is not None else _clock(elapsed),
            f"{rate:,.0f} tokens/s" if rate else "",
            Text(self.message or (f"{skipped} skipped" if skipped else ""), style="yellow"),
        )
        lines: list[Any] = [top, Text("  " + _show(self._losses))]
        if self.evaluation:
            lines.append(
                Text(
                    f"  evaluation at step {self.evaluation_step:,}: {self._evaluated}",
                    style="cyan",
                )
            )
        return Group(*lines)

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True, markup=False)


def _show(metrics: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} days"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
