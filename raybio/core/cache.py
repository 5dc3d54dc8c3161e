"""A cache of what can be made again: ``RAYBIO_CACHE``, or ``~/.cache/raybio``.

Each machine has its own. A folder appears whole or not at all, and one process makes it while the
others wait.
"""

import os
from pathlib import Path

VARIABLE = "RAYBIO_CACHE"


def cache_folder() -> Path:
    """Return the folder of the cache, which may not exist yet."""
    return Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "raybio").expanduser()
