"""JSON files: records with checked fields, and streams of records from files of any size.

Errors name the file, the record and the field. ``stream_records`` reads a list one element at a
time, in bounded memory, and counts lines; ``stream_object`` reads an object the same way.
"""

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from raybio.core.errors import DataError
from raybio.store.sources import open_source, read_whole

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a character, which JSON may contain and UTF-8 cannot encode."""

BLOCK_BYTES = 64 << 10

MAX_RECORD_LETTERS = 16 << 20
"""Maximum length of a record, in characters; a longer one indicates a damaged file."""

SPACE = " \t\r\n"
"""White space of JSON."""


def read_json_object(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file, plain or gzip.

    Raises:
        DataError: if the file cannot be read, is damaged or too large (``read_whole``), holds
            something else, or repeats a name in an object.
    """
    path = Path(path)
    with open_source(path, "a JSON file") as file:
        content = read_whole(file, str(path))
    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=unique_names)
    except KeyError as error:
        raise DataError(f"{path}: names {error} twice in one object. Keep one of them.") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is no JSON ({error}). Repair it, or fetch it again.") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: holds a {type(value).__name__}, want an object {{...}}")
    return value


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these pairs; Python's default silently keeps the last of equal names.

    Raises:
        KeyError: with a repeated name.
    """
    value = dict(pairs)
    if len(value) < len(pairs):
        raise KeyError(Counter(name for name, _ in pairs).most_common(1)[0][0])
    return value


def is_text(value: Any) -> TypeGuard[str]:
    r"""Return whether the value is a text that UTF-8 can encode (``"\ud800"`` is not)."""
    return isinstance(value, str) and not LONE_SURROGATE.search(value)


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass(frozen=True)
class Record:
    """One JSON object of a file, and its location for error messages.

    Attributes:
        path: the file.
        name: location of the record in the file.
        fields: content of the object.
    """

    path: Path
    name: str
    fields: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path, name: str, value: Any) -> "Record":
        """Return the record, if the value is an object.

        Raises:
            DataError: if it is not.
        """
        if not isinstance(value, dict):
            raise DataError(
                f"{path}, record {_cut(name)}: is a {type(value).__name__}, want an object {{...}}"
            )
        return cls(path, name, value)

    def wrong(self, field: str, want: str) -> DataError:
        """Return the error that a field is not what was wanted."""
        got = repr(self.fields[field]) if field in self.fields else "nothing"
        shown = _cut(got)
        name = _cut(self.name)
        return DataError(
            f"{self.path}, record {name}, field {field!r}: {shown}, want {want}. Repair the record."
        )

    def text(self, field: str) -> str:
        """Return a non-blank text, without surrounding white space.

        Raises:
            DataError: if it is missing, blank or no text.
        """
        value = self.fields.get(field)
        if not is_text(value) or not value.strip():
            raise self.wrong(field, "a text")
        return value.strip()

    def texts(self, field: str) -> tuple[str, ...]:
        """Return the non-blank texts of a list; a missing field is an empty list.

        Raises:
            DataError: if it is not a list of texts.
        """
        value = self.fields.get(field, [])
        if not isinstance(value, list) or not all(is_text(item) for item in value):
            raise self.wrong(field, "a list of texts")
        return tuple(item.strip() for item in value if item.strip())


def stream_records(path: Path, *names: str) -> Iterator[tuple[int, Any]]:
    """Yield the elements of the list in a file, or of the list with a given name in its object.

    Args:
        path: the file, plain or gzip, UTF-8.
        names: possible names of the list, of which the object has one; none: the file is the list.
            Other values of the object are skipped.

    Yields:
        The line on which the element begins, from 1, and its value. After an error, discard earlier
        elements too.

    Raises:
        DataError: with file and line, if the file cannot be read, is damaged, is no JSON, or holds
            something else; if an object repeats a name; or if a record is longer than
            ``MAX_RECORD_LETTERS``.
    """
    with open_source(path, "a JSON file") as file:
        text = _Text(path, iter(lambda: file.read(BLOCK_BYTES), b""))
        if names:
            yield from _elements_of_object(text, names)
        else:
            yield from _elements(text)
        if text.next_letter():
            raise text.wrong("more after its end")


def stream_object(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each pair of the object in a file, in bounded memory.

    Args:
        path: the file, plain or gzip, UTF-8.

    Raises:
        DataError: as ``stream_records``, and if the object repeats a name.
    """
    names = set()
    with open_source(path, "a JSON file") as file:
        text = _Text(path, iter(lambda: file.read(BLOCK_BYTES), b""))
        text.expect("{")
        while text.next_letter() != "}":
            name = text.value()
            if not isinstance(name, str) or name in names:
                raise text.wrong(f"{name!r} is there twice or is no name")
            names.add(name)
            text.expect(":")
            yield name, text.value()
            _skip_comma(text, "}")
        text.expect("}")
        if text.next_letter():
            raise text.wrong("more after its end")


def _elements_of_object(text: "_Text", names: Sequence[str]) -> Iterator[tuple[int, Any]]:
    text.expect("{")
    is_found = False
    while text.next_letter() != "}":
        key = text.value()
        text.expect(":")
        if key not in names:
            text.value()
        elif not is_found and text.next_letter() == "[":
            is_found = True
            yield from _elements(text)
        else:
            raise text.wrong(f"{key!r} is there twice or is no list")
        _skip_comma(text, "}")
    text.expect("}")
    if not is_found:
        shown = " or ".join(map(repr, names))
        raise DataError(f"{text.path}: holds no {shown}, want an object with a list of that name")


def _elements(text: "_Text") -> Iterator[tuple[int, Any]]:
    text.expect("[")
    while text.next_letter() != "]":
        yield text.line, text.value()
        _skip_comma(text, "]")
    text.expect("]")


def _skip_comma(text: "_Text", end: str) -> None:
    """Take the comma before the next element; there is none before ``end``."""
    if text.next_letter() != end:
        text.expect(",")
        if text.next_letter() == end:
            raise text.wrong(f"a comma before {end}")


class _Text:
    """The unread rest of a file: a buffer that is refilled as needed, and the current line.

    Attributes:
        path: the file.
        line: line of the next character, from 1.
    """

    def __init__(self, path: Path, blocks: Iterator[bytes]) -> None:
        self.path = path
        self.line = 1
        self._decoder = json.JSONDecoder(object_pairs_hook=unique_names)
        self._letters = _decoded(path, blocks)
        self._buffer = ""
        self._position = 0

    def next_letter(self) -> str:
        """Take white space and return the next character; "" at the end of the file."""
        while True:
            while self._position < len(self._buffer) and self._buffer[self._position] in SPACE:
                self.line += self._buffer[self._position] == "\n"
                self._position += 1
            if self._position < len(self._buffer):
                return self._buffer[self._position]
            if not self._read_more(1):
                return ""

    def expect(self, letter: str) -> None:
        """Take this character."""
        actual = self.next_letter()
        if actual != letter:
            raise self.wrong(
                f"found {actual!r}, want {letter!r}" if actual else f"ends, want {letter!r}"
            )
        self._position += 1

    def value(self) -> Any:
        """Take and return a JSON value."""
        self.next_letter()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._position)
                # A number at the end of the buffer may continue in the next block, as 1e+ does.
                if self._buffer[end : end + 3].strip(".eE+-") or not self._read_more(1):
                    self.line += self._buffer.count("\n", self._position, end)
                    self._position = end
                    return value
            except KeyError as error:
                raise self.wrong(f"names {error} twice in one object") from None
            except RecursionError:
                raise self.wrong("nested too deeply") from None
            except ValueError as error:
                if not self._read_more(max(1, len(self._buffer) - self._position)):
                    raise self.wrong(str(error)) from None

    def wrong(self, problem: str) -> DataError:
        """Return the error that the file is not JSON of the expected form."""
        return DataError(
            f"{self.path}, line {self.line}: is no JSON of the wanted form ({problem}). Repair it, "
            "or fetch it again."
        )

    def _read_more(self, num_letters: int) -> bool:
        """Read at least ``num_letters`` characters; return False at the end of the file."""
        if len(self._buffer) - self._position > MAX_RECORD_LETTERS:
            raise self.wrong(
                f"a record of more than {MAX_RECORD_LETTERS >> 20} Mi letters, or a broken one"
            )
        parts = [self._buffer[self._position :]]
        num_read = 0
        for letters in self._letters:
            parts.append(letters)
            num_read += len(letters)
            if num_read >= num_letters:
                break
        self._buffer = "".join(parts)
        self._position = 0
        return num_read > 0


def _decoded(path: Path, blocks: Iterator[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for block in blocks:
            yield decoder.decode(block)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: is no JSON: not UTF-8 ({error.reason}). Repair it, or fetch it again."
        ) from None
