"""The console that commands print their tables on."""

import os
import sys

from raybio.runtime.console import PrintableConsole

FILE_COLUMNS = 1000
"""Width where no terminal limits it: tables take as much as they need, and nothing is wrapped."""


def stdout_console() -> PrintableConsole:
    """Return a console on stdout, as wide as its tables where stdout is a file or a pipe.

    ``COLUMNS`` decides where it is set.
    """
    is_free = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return PrintableConsole(width=FILE_COLUMNS if is_free else None)
