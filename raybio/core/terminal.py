"""Messages whose control characters are escaped: ids and paths come from untrusted sources."""

import re
from collections.abc import Iterable
from typing import Any, TextIO

_CONTROL = r"\x00-\x08\x0b-\x1f\x7f-\x9f"
_CONTROL_CHARACTER = re.compile(f"[{_CONTROL}]")

_PASSED = re.compile(rf"\r[^{_CONTROL}]*|(\x1b\[A)+|\x1b\[0m")
"""Matches control sequences of other libraries that may reach a terminal.

A progress bar of a download rewrites its line or moves the cursor up. When a process that used Ray
ends, colorama resets the colors.
"""


def printable(text: str) -> str:
    r"""Return a text with its control characters, except tab and newline, as in ``\x1b``."""
    return _CONTROL_CHARACTER.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


class PrintableStream:
    """A text stream that escapes control characters.

    Attributes:
        rich_proxied_file: the stream below, which rich's consoles write to: rich looks for this
            name. They write colors, so ``raybio.runtime.console`` makes their text printable.
    """

    def __init__(self, stream: TextIO) -> None:
        """Write to ``stream``."""
        self.rich_proxied_file = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)

    def write(self, text: str) -> int:
        """Write a text."""
        is_passed = _PASSED.fullmatch(text) is not None
        self.rich_proxied_file.write(text if is_passed else printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts."""
        for line in lines:
            self.write(line)


def stream_of_data(stream: TextIO) -> TextIO:
    """Return the stream to write data to: without escapes, unless it is a terminal."""
    return stream if stream.isatty() else getattr(stream, "rich_proxied_file", stream)
