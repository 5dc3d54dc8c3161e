"""raybio: pre-train, fine-tune, probe and tune biomedical encoders on a Ray cluster."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from raybio.core.version import VERSION

if TYPE_CHECKING:
    from raybio.runtime.any_store import open_store
    from raybio.runtime.load import load
    from raybio.runtime.search.index import open_index
    from raybio.runtime.train import train

__all__ = ["__version__", "load", "open_index", "open_store", "train"]
__version__ = VERSION

_MODULES = {
    "load": "raybio.runtime.load",
    "open_index": "raybio.runtime.search.index",
    "open_store": "raybio.runtime.any_store",
    "train": "raybio.runtime.train",
}
"""Function -> its module, imported when the function is first used: torch takes seconds."""


if not TYPE_CHECKING:
    # Type checkers do not see it: with it, raybio would have any name.
    def __getattr__(name: str) -> Any:
        """Return a function of ``_MODULES``."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
