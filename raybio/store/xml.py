"""XML of any size, an element at a time: bounded memory, nothing expanded, nothing fetched."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn
from xml.parsers import expat

from lxml import etree

from raybio.core.errors import DataError
from raybio.store.sources import open_source

BLOCK_BYTES = 64 << 10


MAX_PROLOG_BYTES = 1 << 20


MAX_RECORD_BYTES = 16 << 20


# collect_ids stays on: switching it off makes lxml 6 load external DTDs, whatever load_dtd says.
SAFE_PARSER = {
    "huge_tree": False,
    "load_dtd": False,
    "no_network": True,
    "remove_comments": True,
    "remove_pis": True,
    "resolve_entities": False,
}


class _RootFound(Exception):  # noqa: N818
    """Ends the look at the prolog."""


def stream_elements(
    path: str | Path, *, roots: tuple[str, ...], tags: tuple[str, ...]
) -> Iterator[Any]:
    """The elements of a file that have one of ``tags``, wherever they stand, when they end; inner ones come first.

    The root's children of any other tag come too, so that the caller can say what it left out. An element is emptied
    when the next one is asked for.

    Args:
        path: the file, plain or gzip (recognised by its content).
        roots: names of the root element that are taken.
        tags: names of the elements that are wanted.

    Yields:
        lxml elements. After an error, what came before it may be wrong as well: a damaged gzip is found at its end.

    Raises:
        DataError: with file and line, if the file cannot be read, is a torn or damaged gzip, is not well-formed XML in
            the encoding it declares, has another root, declares entities, or holds one record or text that is larger
            than any real one.
    """
    path = Path(path)
    blocks = _blocks(path)
    prolog = _checked_prolog(blocks, path, roots)
    parser = etree.XMLPullParser(("start", "end"), tag=(*roots, *tags), **SAFE_PARSER)
    root, line, num_pending_bytes = None, 1, 0
    for block in chain(prolog, blocks):
        _feed(parser, block, path, line)
        for event, element in parser.read_events():
            if root is None:
                root = element
            elif event == "end" and element.tag in tags:
                yield element
                # The tail must stay: libxml2 may still be writing it.
                element.clear(keep_tail=True)
        num_pending_bytes += len(block)
        if root is not None and len(root) > 1:
            yield from (child for child in root[:-1] if child.tag not in tags)
            # Not the last one, which libxml2 may still be writing.
            del root[:-1]
            num_pending_bytes = 0
        if num_pending_bytes > MAX_RECORD_BYTES:
            raise DataError(
                f"{path}, line {line}: one record is longer than {MAX_RECORD_BYTES >> 20} MiB, want far less. "
                "Is the file damaged? Fetch it again."
            )
        line += block.count(b"\n")
    _close(parser, path, line)
    if root is None:
        raise DataError(
            f"{path}: no element of {', '.join(roots)} was found. Is this the right kind of file?"
        )
    yield from (child for child in root if child.tag not in tags)


def _checked_prolog(blocks: Iterator[bytes], path: Path, roots: tuple[str, ...]) -> list[bytes]:
    """The blocks up to the one in which the root begins, once that root is one of ``roots`` and no entity is declared.

    Expat does this because it opens nothing and can be stopped at a declaration.
    """
    parser = expat.ParserCreate(namespace_separator=" ")

    def begin_element(tag: str, _: Any) -> None:
        if tag not in roots:
            raise DataError(
                f"{path}, line {parser.CurrentLineNumber}: the root element is <{tag[:80]}>, "
                f"want <{'> or <'.join(roots)}>. Is this the right kind of file?"
            )
        raise _RootFound

    def declare_entity(name: str, *_: Any) -> NoReturn:
        raise DataError(
            f"{path}, line {parser.CurrentLineNumber}: declares the entity {name[:80]!r}, which is refused, because "
            "entities can blow up or read other files. Fetch the file from its source."
        )

    parser.StartElementHandler, parser.EntityDeclHandler = begin_element, declare_entity
    seen: list[bytes] = []
    try:
        for block in blocks:
            seen.append(block)
            parser.Parse(block, False)
            if len(seen) * BLOCK_BYTES > MAX_PROLOG_BYTES:
                break
        parser.Parse(b"", True)
    except _RootFound:
        return seen
    # LookupError and ValueError: an encoding that is unknown or not supported.
    except (expat.ExpatError, LookupError, ValueError) as error:
        raise DataError(
            f"{path}, line {parser.CurrentLineNumber}: is not XML ({error}), want <{'> or <'.join(roots)}>"
        ) from None
    raise DataError(f"{path}: no root element, want <{'> or <'.join(roots)}>")


def _feed(parser: Any, block: bytes, path: Path, line: int) -> None:
    try:
        parser.feed(block)
    except (etree.LxmlError, LookupError, ValueError) as error:
        raise _broken(parser, path, line, error) from None


def _close(parser: Any, path: Path, line: int) -> None:
    try:
        parser.close()
    except (etree.LxmlError, LookupError, ValueError) as error:
        raise _broken(parser, path, line, error) from None


def _broken(parser: Any, path: Path, line: int, error: Exception) -> DataError:
    """The first thing that the parser minded; some complaints come late, and then without their line."""
    complaints = parser.feed_error_log.filter_from_errors()
    reason = complaints[0].message if len(complaints) else str(error)
    line = complaints[0].line if len(complaints) else (getattr(error, "lineno", None) or line)
    return DataError(
        f"{path}, line {line}: is not well-formed XML ({reason.strip()}). Fetch the file again."
    )


def _blocks(path: Path) -> Iterator[bytes]:
    with open_source(path, "an XML file") as file:
        while block := file.read(BLOCK_BYTES):
            yield block
