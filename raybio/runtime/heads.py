"""Detection of exports with a head that predicts, and checks of their output, without torch."""

from collections.abc import Iterable
from pathlib import Path

from raybio.core.errors import ConfigError
from raybio.methods import METHODS
from raybio.runtime.model_paths import near_run_folders
from raybio.store.data_sets import JSON_LINES, PARQUET, TSV
from raybio.training.method import Method


def method_of_head(folder: Path) -> Method | None:
    """Return the method whose head an export has; None if it has none."""
    for method in METHODS.values():
        if method.predictor is not None and (folder / method.predictor.record).is_file():
            return method
    return None


def require_head(folder: str | Path) -> Method:
    """Return the method whose head an export has.

    Raises:
        ConfigError: if there is no such folder, or it has no head.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise ConfigError(
            f"{folder}: no such folder; want a run, or its export/" + near_run_folders(str(folder))
        )
    method = method_of_head(path)
    if method is not None:
        return method
    names = ", ".join(name for name, method in METHODS.items() if method.predictor is not None)
    raise ConfigError(
        f"{folder}: has no head that predicts; want a run of {names}, or its export/ (of an older "
        "version of raybio: train it again under another name). Models of other methods embed: "
        "raybio embed, raybio search query, raybio evaluate ask"
    )


def output_suffix(out: Path, document_suffixes: Iterable[str]) -> str:
    """Return the suffix that decides the format of the output.

    Args:
        out: the output.
        document_suffixes: suffixes of a method that writes documents.

    Raises:
        ConfigError: for a suffix without a format.
    """
    known = [TSV, JSON_LINES, PARQUET, *document_suffixes]
    suffix = out.suffix.lower()
    if suffix not in known:
        raise ConfigError(f"{out}: want a file that ends in {', '.join(known)}")
    return suffix
