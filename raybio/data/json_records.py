"""Reading what stands in a JSON file, field by field, with errors that name the file and the record."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from raybio.data.source_files import open_source
from raybio.errors import DataError

HALF_LETTER = re.compile("[\ud800-\udfff]")


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file, plain or gzip.

    Raises:
        DataError: if the file cannot be read, is damaged, holds something else, or names something twice.
    """
    path = Path(path)
    with open_source(path, "a JSON file") as file:
        content = file.read()
    try:
        value = json.loads(content.decode("utf-8-sig"), object_pairs_hook=without_repetition)
    except KeyError as error:
        raise DataError(f"{path}: names {error} twice in one object. Keep one of them.") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is no JSON ({error}). Repair it, or fetch it again.") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: holds a {type(value).__name__}, want an object {{...}}")
    return value


def without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object; Python's own would keep the last of two records of one name and drop the first unsaid."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise KeyError(Counter(name for name, _ in pairs).most_common(1)[0][0])
    return value


def is_text(value: Any) -> TypeGuard[str]:
    r"""Whether it is a text that UTF-8 can hold: JSON may name half a letter (``"\ud800"``)."""
    return isinstance(value, str) and not HALF_LETTER.search(value)


@dataclass(frozen=True)
class Record:
    """One JSON object of a file, and where it stands."""

    path: Path
    name: str
    fields: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path, name: str, value: Any) -> "Record":
        """Check that it is an object.

        Raises:
            DataError: if it is none.
        """
        if not isinstance(value, dict):
            raise DataError(f"{path}, record {name}: is a {type(value).__name__}, want an object {{...}}")
        return cls(path, name, value)

    def wrong(self, field: str, want: str) -> DataError:
        """The error that a field is not what was wanted."""
        got = repr(self.fields[field]) if field in self.fields else "nothing"
        shown = got if len(got) <= 80 else got[:77] + "..."
        return DataError(f"{self.path}, record {self.name}, field {field!r}: {shown}, want {want}. Repair the record.")

    def text(self, field: str) -> str:
        """A text with something in it, without white space around it.

        Raises:
            DataError: if it is missing, blank or no text.
        """
        value = self.fields.get(field)
        if not is_text(value) or not value.strip():
            raise self.wrong(field, "a text")
        return value.strip()

    def texts(self, field: str) -> tuple[str, ...]:
        """A list of texts; a missing one is empty, and blank texts are left out.

        Raises:
            DataError: if it is no list of texts.
        """
        value = self.fields.get(field, [])
        if not isinstance(value, list) or not all(is_text(item) for item in value):
            raise self.wrong(field, "a list of texts")
        return tuple(item.strip() for item in value if item.strip())
