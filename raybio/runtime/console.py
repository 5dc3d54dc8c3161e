"""The console of all tables and panels."""

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from raybio.core.terminal import printable


class PrintableConsole(Console):
    """A console that shows the control characters of its texts; its own colors stay."""

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        """Make a console.

        Args:
            stderr: write to stderr instead of stdout.
            options: those of rich's console.
        """
        # Looked up once: a live panel replaces the streams by ones that print through its console.
        options.setdefault("file", sys.stderr if stderr else sys.stdout)
        super().__init__(stderr=stderr, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as rich's text, for all strings in tables and lines."""
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of a renderable."""
        if isinstance(renderable, Text):
            renderable = renderable.copy()
            renderable.plain = printable(renderable.plain)
        return super().render(renderable, options)
