"""JSON records on disk: each names its kind and its format version, which readers check.

A record is a JSON object ``{"format": kind, "version": number, ..., "checksum": sha256}``. It is
written in one atomic step that survives a power loss, so that readers see the old file or the new
one. A value that was changed on disk does not match the checksum of the rest. A change of what a
kind holds, or of what it means, raises the version of that kind in ``FORMATS``, and adds the step
from the version before if that can be read. No kind has a step yet; write them as functions in
``raybio/core/migrations.py``.
"""

import dataclasses
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from raybio.core.digest import json_digest
from raybio.core.errors import ConfigError, RecordError, RecordFormatError
from raybio.core.files import TooLargeError, read_limited, replace_text
from raybio.core.location import Location

_log = logging.getLogger(__name__)


Step = Callable[[dict[str, Any]], dict[str, Any]]
"""Returns the next version's content of a record. It may change the dict, not what that holds."""


class Format(NamedTuple):
    """The format of one kind of record.

    Attributes:
        version: the version that is written.
        if_lost: what the user does about a damaged or missing record.
        steps: version n -> the step from there to n + 1. Records of older versions are read if
            there are all steps to the present one. Their files stay as they are until they are
            written again.
    """

    version: int
    if_lost: str
    steps: Mapping[int, Step] = MappingProxyType({})


_SAME_COMMAND = "Give the run's own command again: it is written again."
_ANY = "Restore it from a backup, or delete it and give the same command again."

FORMATS = {
    "run": Format(
        1,
        "Give the run's whole command, with --store, --config and --set as at the first start; or "
        "restore the file from a backup, or choose another --name.",
    ),
    "launch": Format(
        1,
        "Restore it from a backup, or delete it and give --workers, --cpus-per-worker, --device "
        "and --tracking-uri as at the first start: with others, results are not bit-identical.",
    ),
    "start": Format(1, _ANY),
    "inputs": Format(1, _ANY),
    "failure": Format(1, _ANY),
    "outcome": Format(1, _SAME_COMMAND),
    "result": Format(1, _SAME_COMMAND),
    "tracking": Format(1, _SAME_COMMAND),
    "trial": Format(1, "Restore it from a backup, or choose another --name."),
    "trial checkpoint": Format(1, _ANY),
    "trial end": Format(1, _ANY),
    "trials": Format(
        1,
        "Restore it from a backup, or delete it: the sweep finds its trials by their settings.",
    ),
    "comparison": Format(1, _ANY),
    "mirror": Format(2, _SAME_COMMAND),
    "shared scores": Format(1, _SAME_COMMAND),
    "score table": Format(1, _ANY),
    "fold scores": Format(1, _ANY),
    "cross-validation": Format(1, _ANY),
    "synthetic graphs": Format(1, _ANY),
    "embedding manifest": Format(1, _ANY),
    "embedding part": Format(1, _ANY),
    "export settings": Format(1, "Export the run again: give its own command."),
    "task head": Format(1, "Export the run again: give its own command."),
    "word predictor": Format(1, "Export the run again: give its own command."),
    "export files": Format(1, "Export the run again: give its own command."),
    "verified files": Format(1, _SAME_COMMAND),
    "token cache": Format(1, _SAME_COMMAND),
    "word features": Format(1, _SAME_COMMAND),
    "report": Format(1, "Give the command again: it is written again."),
    "benchmark embeddings": Format(5, _SAME_COMMAND),
    "built benchmark": Format(1, "Give the command again, with --force: it is written again."),
    "benchmark report": Format(4, "Give the command again: it is written again."),
}
"""Kind of record -> its format."""


_HEADER = frozenset({"format", "version", "checksum"})

_OTHER_VERSION = "Another version of raybio wrote it; make it again, or use the raybio of that time"

MAX_RECORD_BYTES = 256 << 20
"""Maximum size of a record; those of the largest runs and stores have some megabytes."""


def write_record(path: Path, kind: str, content: Mapping[str, Any]) -> None:
    """Write a record of a kind of ``FORMATS``.

    NaN and infinity, which JSON does not have, become null; ``nan_for_null`` of
    ``final_report`` makes them NaN again.

    Raises:
        OSError: if it cannot be written.
    """
    replace_text(path, record_text(kind, content))


def record_text(kind: str, content: Mapping[str, Any]) -> str:
    """Return the text of a record, as ``write_record`` writes it."""
    plain = json.loads(
        json.dumps(to_record(kind, content), default=float), parse_constant=lambda _: None
    )
    plain["checksum"] = json_digest(plain)
    return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_record(path: Path, kind: str) -> dict[str, Any] | None:
    """Return the content of a record, None if there is no such file.

    Raises:
        RecordError: if the file is too large, no JSON, or not what was written.
        RecordFormatError: if it is a record of another kind or format version.
    """
    try:
        record = json.loads(read_limited(path, MAX_RECORD_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except TooLargeError as error:
        raise RecordError(f"{error}. {FORMATS[kind].if_lost}") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: damaged, not JSON ({error}). {FORMATS[kind].if_lost}") from None
    return _checked(record, kind, path)


@contextmanager
def export_record(path: Path, kind: str, method: str) -> Iterator[dict[str, Any]]:
    """Yield the content of a record in an export; the block reads it.

    Args:
        path: the record.
        kind: its expected kind.
        method: the method whose exports have it.

    Raises:
        ConfigError: if there is no such file, it is damaged or of another kind or format version,
            or the block raises ``LookupError``, ``TypeError``, ``ValueError``, ``OSError`` or
            ``ConfigError``.
    """
    try:
        content = read_record(path, kind)
    except RecordError as error:
        raise ConfigError(str(error)) from None
    if content is None:
        raise ConfigError(
            f"{path.parent}: has no {path.name}; want the export/ of a run of {method}"
        )
    try:
        yield content
    except LookupError as error:
        raise ConfigError(f"{path}: lacks {error}; export the run again") from None
    except (OSError, TypeError, ValueError, ConfigError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); export the run again") from None


def read_recomputable(
    path: Path, kind: str, *, max_bytes: int | None = MAX_RECORD_BYTES
) -> dict[str, Any] | None:
    """Return the content of a record that can be recomputed when it is lost.

    Args:
        path: the record.
        kind: its expected kind.
        max_bytes: size from which a file counts as damaged; None: any size is read.

    Returns:
        None if there is no such file, and, with a warning, if it is damaged.

    Raises:
        RecordFormatError: if it is a record of another kind or format version.
    """
    try:
        text = read_limited(path, max_bytes)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except TooLargeError as error:
        _log.warning("%s; it is written again", error)
        return None
    return parse_recomputable(text, kind, path)


def parse_recomputable(text: bytes, kind: str, source: Location) -> dict[str, Any] | None:
    """Return the content of a record's text; as ``read_recomputable``.

    Args:
        text: JSON.
        kind: its expected kind.
        source: the file that it was read from.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        _log.warning("%s: damaged, not JSON (%s); it is written again", source, error)
        return None
    try:
        return _checked(record, kind, source)
    except RecordFormatError:
        raise
    except RecordError:
        _log.warning("%s: damaged, not what was written; it is written again", source)
        return None


def fields_of(cls: Any, content: Any, source: Location) -> dict[str, Any]:
    """Return the values in a record's content of the fields of a dataclass.

    Another version of raybio may have written more, which is left out.

    Args:
        cls: the dataclass.
        content: plain JSON.
        source: the file that it was read from.

    Raises:
        RecordError: if the content is no object, lacks a field that has no default, or has a value
            of another type.
    """
    if not isinstance(content, dict):
        raise RecordError(
            f"{source}: holds {str(content)[:40]!r}, want an object. {_OTHER_VERSION}"
        )
    hints = get_type_hints(cls)
    fields = {}
    for field in dataclasses.fields(cls):
        name = field.name
        is_required = field.default is field.default_factory is dataclasses.MISSING
        if name in content:
            if not _fits(content[name], hints[name]):
                shown = repr(content[name])[:40]
                raise RecordError(f"{source}: {name} is {shown}. {_OTHER_VERSION}")
            fields[name] = content[name]
        elif is_required:
            raise RecordError(f"{source}: lacks {name}. {_OTHER_VERSION}")
    return fields


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value of parsed JSON has the type of a field, without looking inside it."""
    kind = get_origin(hint) or hint
    if kind in (Union, UnionType):
        return any(_fits(value, member) for member in get_args(hint))
    if kind in (Mapping, dict):
        return isinstance(value, dict)
    if kind is float:
        return type(value) in (int, float)
    if kind in (bool, int, str, NoneType, list):
        return type(value) is kind
    return True


def is_count(value: Any) -> bool:
    """Return whether a value of parsed JSON is an integer in [0, 2**63)."""
    return type(value) is int and 0 <= value < 2**63


def is_report(value: Any) -> bool:
    """Return whether a value of parsed JSON is a line of a log of metrics."""
    return (
        isinstance(value, dict)
        and is_count(value.get("step"))
        and is_count(value.get("time_ms"))
        and isinstance(value.get("metrics"), dict)
        and all(isinstance(number, float) for number in value["metrics"].values())
    )


def to_record(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as it is written, with its kind and version."""
    header = {"format": kind, "version": FORMATS[kind].version}
    if _HEADER & content.keys():
        raise ValueError(f"a record's content has the keys of its header: {sorted(content)}")
    return header | dict(content)


def from_record(record: Any, kind: str, source: Location) -> dict[str, Any]:
    """Return the content of a parsed record; its checksum is not verified.

    Args:
        record: parsed JSON.
        kind: its expected kind.
        source: the file that it was read from.

    Raises:
        RecordFormatError: if it is a record of another kind, or of a version from which no steps
            lead to the present one.
    """
    return _present_content(record, _steps_from(record, kind, source))


def _steps_from(record: Any, kind: str, source: Location) -> list[Step]:
    """Return the steps from the version of a record to the present one; none of it is verified."""
    wanted = FORMATS[kind].version
    if (
        not isinstance(record, dict)
        or type(record.get("version")) is not int
        or "format" not in record
    ):
        raise RecordFormatError(
            f"{source}: got no format version, want version {wanted} of {kind!r}: it was "
            "written by an earlier version of raybio; make it again, or use the raybio of that time"
        )
    if record["format"] != kind:
        written = str(record["format"])[:40]
        raise RecordFormatError(
            f"{source}: got a record of {written!r}, want one of {kind!r}; restore it from a backup"
        )
    version = record["version"]
    refusal = f"{source}: got version {str(version)[:40]} of {kind!r}, want version {wanted}: "
    if version > wanted:
        raise RecordFormatError(
            f"{refusal}it was written by a newer version of raybio; update it to that"
        )
    steps = FORMATS[kind].steps
    if any(number not in steps for number in range(version, wanted)):
        raise RecordFormatError(
            f"{refusal}it was written by another version of raybio; make it again, or use the "
            "raybio of that time"
        )
    return [steps[number] for number in range(version, wanted)]


def _present_content(record: Mapping[str, Any], steps: Iterable[Step]) -> dict[str, Any]:
    content = {name: value for name, value in record.items() if name not in _HEADER}
    for step in steps:
        content = step(content)
    return content


def _checked(record: Any, kind: str, source: Location) -> dict[str, Any]:
    steps = _steps_from(record, kind, source)
    whole = {name: value for name, value in record.items() if name != "checksum"}
    if record.get("checksum") != json_digest(whole):
        raise RecordError(
            f"{source}: damaged, its checksum is not that of what it holds. {FORMATS[kind].if_lost}"
        )
    # Steps read only what was written.
    return _present_content(record, steps)
