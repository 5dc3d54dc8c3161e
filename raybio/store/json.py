"""Reading what stands in a JSON file, field by field, with errors that name the file and the record.

JSON of any size, an element of its list at a time: bounded memory, lines counted.
"""

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from raybio.core.errors import DataError
from raybio.store.sources import open_source

LONE_SURROGATE = re.compile("[\ud800-\udfff]")


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
    return isinstance(value, str) and not LONE_SURROGATE.search(value)


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
            raise DataError(
                f"{path}, record {name}: is a {type(value).__name__}, want an object {{...}}"
            )
        return cls(path, name, value)

    def wrong(self, field: str, want: str) -> DataError:
        """The error that a field is not what was wanted."""
        got = repr(self.fields[field]) if field in self.fields else "nothing"
        shown = got if len(got) <= 80 else got[:77] + "..."
        return DataError(
            f"{self.path}, record {self.name}, field {field!r}: {shown}, want {want}. Repair the record."
        )

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


BLOCK_BYTES = 64 << 10


MAX_RECORD_LETTERS = 16 << 20


SPACE = " \t\r\n"


def stream_records(path: Path, name: str | None = None) -> Iterator[tuple[int, Any]]:
    """The elements of the list that a file holds, or of the list called ``name`` in the object that it holds.

    Args:
        path: the file, plain or gzip, UTF-8.
        name: of the list; None: the file is the list. The object's other values are passed over.

    Yields:
        Line on which the element begins, from 1, and its value. After an error, what came before must not be used.

    Raises:
        DataError: with file and line, if the file cannot be read, is damaged, is no JSON, holds something else, an
            object names something twice, or a record is larger than any real one.
    """
    with open_source(path, "a JSON file") as file:
        text = _Text(path, iter(lambda: file.read(BLOCK_BYTES), b""))
        if name is None:
            yield from _elements(text)
        else:
            yield from _elements_of_object(text, name)
        if text.next_letter():
            raise text.wrong("more after its end")


def _elements_of_object(text: "_Text", name: str) -> Iterator[tuple[int, Any]]:
    text.expect("{")
    is_found = False
    while text.next_letter() != "}":
        key = text.value()
        text.expect(":")
        if key == name and not is_found and text.next_letter() == "[":
            is_found = True
            yield from _elements(text)
        elif key == name:
            raise text.wrong(f"{name!r} is there twice or is no list")
        else:
            text.value()
        _to_the_next(text, "}")
    text.expect("}")
    if not is_found:
        raise DataError(f"{text.path}: holds no {name!r}, want an object with a list of that name")


def _elements(text: "_Text") -> Iterator[tuple[int, Any]]:
    text.expect("[")
    while text.next_letter() != "]":
        yield text.line, text.value()
        _to_the_next(text, "]")
    text.expect("]")


def _to_the_next(text: "_Text", end: str) -> None:
    if text.next_letter() != end:
        text.expect(",")
        if text.next_letter() == end:
            raise text.wrong(f"a comma before {end}")


class _Text:
    """What was read of a file and not yet taken, and the line at which it begins."""

    def __init__(self, path: Path, blocks: Iterator[bytes]) -> None:
        self.path, self.line = path, 1
        self._decoder = json.JSONDecoder(object_pairs_hook=without_repetition)
        self._letters = _decoded(path, blocks)
        self._buffer, self._at = "", 0

    def next_letter(self) -> str:
        """The letter that comes after white space, which is taken; "" at the end of the file."""
        while True:
            while self._at < len(self._buffer) and self._buffer[self._at] in SPACE:
                self.line += self._buffer[self._at] == "\n"
                self._at += 1
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._more(1):
                return ""

    def expect(self, letter: str) -> None:
        """Take this letter."""
        found = self.next_letter()
        if found != letter:
            raise self.wrong(
                f"found {found!r}, want {letter!r}" if found else f"ends, want {letter!r}"
            )
        self._at += 1

    def value(self) -> Any:
        """Take a value."""
        self.next_letter()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._at)
                # A number that ends the buffer may go on.
                if end < len(self._buffer) or not self._more(1):
                    self.line += self._buffer.count("\n", self._at, end)
                    self._at = end
                    return value
            except KeyError as error:
                raise self.wrong(f"names {error} twice in one object") from None
            except RecursionError:
                raise self.wrong("nested too deeply") from None
            except ValueError as error:
                if not self._more(max(1, len(self._buffer) - self._at)):
                    raise self.wrong(str(error)) from None

    def wrong(self, what: str) -> DataError:
        """The error that the file is no JSON of the kind that was wanted."""
        return DataError(
            f"{self.path}, line {self.line}: is no JSON of the wanted form ({what}). Repair it, or fetch it again."
        )

    def _more(self, num_letters: int) -> bool:
        """Read on, at least so far; False at the end of the file."""
        if len(self._buffer) - self._at > MAX_RECORD_LETTERS:
            raise self.wrong(
                f"a record of more than {MAX_RECORD_LETTERS >> 20} Mi letters, or one that is broken"
            )
        parts, num_read = [self._buffer[self._at :]], 0
        for letters in self._letters:
            parts.append(letters)
            num_read += len(letters)
            if num_read >= num_letters:
                break
        self._buffer, self._at = "".join(parts), 0
        return num_read > 0


def _decoded(path: Path, blocks: Iterator[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        for block in blocks:
            yield decoder.decode(block)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: is no JSON: not UTF-8 ({error.reason}). Repair it, or fetch it again."
        ) from None
