"""Packages that single methods need: the extras of raybio."""

from collections.abc import Iterator
from contextlib import contextmanager

from raybio.core.errors import ConfigError


@contextmanager
def from_extra(package: str, extra: str) -> Iterator[None]:
    """Say which extra is missing if an import in a ``with`` block fails.

    Args:
        package: its name for pip.
        extra: the extra of raybio that installs it.

    Raises:
        ConfigError: if a module is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(f"{package} is not installed: pip install 'raybio[{extra}]'") from error
