"""Output of a command: escape control characters, and handle a lost reader or a full disk."""

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from raybio.core.files import FULL
from raybio.core.terminal import PrintableStream


class _Output:
    """A text stream; when its reader is gone, a running training stops in order.

    Without a handler of SIGHUP, writing then raises, as for any stream. If SIGHUP is ignored
    (nohup), the command continues without output. Text for a full disk is dropped if
    ``is_optional``.
    """

    def __init__(self, stream: TextIO, *, is_optional: bool) -> None:
        self._stream = stream
        self._is_optional = is_optional

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except UnicodeEncodeError:
            # File names may have bytes that are not UTF-8, and terminals may support few
            # characters.
            encoding = self._stream.encoding
            return self.write(text.encode(encoding, "backslashreplace").decode(encoding))
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        if self._is_optional and error.errno in FULL:
            return
        handler = signal.getsignal(signal.SIGHUP)
        is_gone = error.errno in (errno.EPIPE, errno.EIO)
        if not is_gone or handler in (signal.SIG_DFL, None):
            raise error
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)
        if handler is not signal.SIG_IGN:
            os.kill(os.getpid(), signal.SIGHUP)


@contextmanager
def guarded_output() -> Iterator[None]:
    """Guard stdout and stderr for a ``with`` block."""
    before = sys.stdout, sys.stderr
    sys.stdout = _printable(_Output(sys.stdout, is_optional=False))
    sys.stderr = _printable(_Output(sys.stderr, is_optional=True))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _printable(output: _Output) -> TextIO:
    return cast(TextIO, PrintableStream(cast(TextIO, output)))
