"""The console that commands print their tables on."""

import os
import sys

from raybio.runtime.console import PrintableConsole

FILE_COLUMNS = 1000
"""Width without a terminal; it is large enough that tables need no wrapping."""


def stdout_console() -> PrintableConsole:
    """Return a console on stdout, as wide as its tables if stdout is a file or a pipe.

    If ``COLUMNS`` is set, it decides the width.
    """
    is_free = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return PrintableConsole(width=FILE_COLUMNS if is_free else None)
