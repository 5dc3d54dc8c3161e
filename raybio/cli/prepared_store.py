"""Reuse of a prepared store whose upload failed: the same command only uploads it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from pydantic import BaseModel

from raybio.core.errors import StoreError
from raybio.core.files import replace_text
from raybio.core.version import code_digest

if TYPE_CHECKING:
    from raybio.store.store import Store

S = TypeVar("S", bound="Store")

_RECORD = "prepared_from.json"


class _UnknownError(Exception):
    """It is unknown whether an argument is the same as before."""


def description(prepare: Callable[..., Any]) -> str | None:
    """Return a text that is equal for preparations that would write the same store.

    It names raybio's code, the function, its settings, and path, size and time of modification of
    each source file.

    Args:
        prepare: a function with its arguments, as ``functools.partial`` binds them.

    Returns:
        The text; None if it cannot be determined, as for a function that is not a ``partial``.
    """
    if not isinstance(prepare, partial):
        return None
    try:
        described = {"code": code_digest(), "preparation": _described(prepare)}
    except (_UnknownError, OSError):
        return None
    return json.dumps(described, sort_keys=True)


def record(work: Path, described: str | None) -> None:
    """Record how the store in ``work`` was prepared."""
    if described is not None:
        replace_text(work / _RECORD, described)


def open_if_prepared(
    work: Path, folder: Path, prepare: "Callable[..., S]", described: str | None
) -> "S | None":
    """Return the store of an earlier command with an equal description; None if there is none.

    Args:
        work: where ``record`` wrote.
        folder: the store.
        prepare: the function that would prepare it, as for ``description``.
        described: result of ``description`` for ``prepare``.
    """
    from raybio.store.store import open_store

    path = work / _RECORD
    if described is None or not path.is_file() or path.read_text(encoding="utf-8") != described:
        return None
    kind = get_type_hints(prepare.func)["return"]  # type: ignore[attr-defined]
    try:
        return open_store(folder, kind, verify=True)
    except StoreError:
        return None


def _described(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return _described_path(value)
    if isinstance(value, BaseModel):
        return [type(value).__qualname__, value.model_dump(mode="json")]
    if isinstance(value, partial):
        return [_described(value.func), _described(value.args), _described(value.keywords)]
    if is_dataclass(value):
        content = {field.name: getattr(value, field.name) for field in fields(value)}
        return [type(value).__qualname__, _described(content)]
    if isinstance(value, Mapping):
        return {str(name): _described(each) for name, each in value.items()}
    if isinstance(value, Sequence):
        return [_described(each) for each in value]
    if hasattr(value, "__qualname__") and "<" not in value.__qualname__:
        return f"{value.__module__}.{value.__qualname__}"
    raise _UnknownError


def _described_path(path: Path) -> list[Any]:
    """Return a path with size and time of modification of the file, or of all files below it."""
    described: list[Any] = [str(path.absolute())]
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    for file in files:
        status = file.stat()
        described.append([str(file.absolute()), status.st_size, status.st_mtime_ns])
    return described
