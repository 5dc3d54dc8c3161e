"""XML files of any size, read one element at a time: bounded memory, no entities, no network."""

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
"""The root element must begin within this many bytes."""

MAX_RECORD_BYTES = 16 << 20
"""Maximum size of one record; a larger one indicates a damaged file."""


# collect_ids stays on: without it, lxml 6 loads external DTDs even if load_dtd is off.
SAFE_PARSER = {
    "huge_tree": False,
    "load_dtd": False,
    "no_network": True,
    "remove_comments": True,
    "remove_pis": True,
    "resolve_entities": False,
}


class _RootFound(Exception):  # noqa: N818
    """Stops the parser of the prolog."""


def stream_elements(
    path: str | Path, *, roots: tuple[str, ...], tags: tuple[str, ...]
) -> Iterator[Any]:
    """Yield the elements with one of ``tags`` at any depth, when they end; inner ones come first.

    Children of the root with other tags are yielded too, so that the caller can report what it
    skips. An element is emptied when the next one is requested.

    Args:
        path: the file, plain or gzip (recognized by its content).
        roots: accepted names of the root element.
        tags: names of the wanted elements.

    Yields:
        lxml elements. After an error, discard earlier elements too: a damaged gzip shows at its
        end.

    Raises:
        DataError: with file and line, if the file cannot be read, is a truncated or damaged gzip,
            is not well-formed XML in the encoding it declares, has another root, declares entities,
            or holds a record or text larger than ``MAX_RECORD_BYTES``.
    """
    path = Path(path)
    blocks = _blocks(path)
    prolog = _checked_prolog(blocks, path, roots)
    parser = etree.XMLPullParser(("start", "end"), tag=(*roots, *tags), **SAFE_PARSER)
    root = None
    line = 1
    num_pending_bytes = 0
    for block in chain(prolog, blocks):
        _feed(parser, block, path, line)
        for event, element in parser.read_events():
            if root is None:
                root = element
            elif event == "end" and element.tag in tags:
                yield element
                # Keep the tail, which libxml2 may still be writing.
                element.clear(keep_tail=True)
        num_pending_bytes += len(block)
        if root is not None and len(root) > 1:
            yield from (child for child in root[:-1] if child.tag not in tags)
            # Keep the last child, which libxml2 may still be writing.
            del root[:-1]
            num_pending_bytes = 0
        if num_pending_bytes > MAX_RECORD_BYTES:
            raise DataError(
                f"{path}, line {line}: one record is longer than {MAX_RECORD_BYTES >> 20} MiB, "
                "want far less. Is the file damaged? Fetch it again."
            )
        line += block.count(b"\n")
    _close(parser, path, line)
    if root is None:
        raise DataError(
            f"{path}: has no element {' or '.join(roots)}. Is this the right kind of file?"
        )
    yield from (child for child in root if child.tag not in tags)


def _checked_prolog(blocks: Iterator[bytes], path: Path, roots: tuple[str, ...]) -> list[bytes]:
    """Return the blocks up to the start of the root; refuse other roots and declared entities.

    Expat checks this, because it opens no other files and can be stopped at a declaration.
    """
    parser = expat.ParserCreate(namespace_separator=" ")
    wanted = f"<{'> or <'.join(roots)}>"

    def begin_element(tag: str, _: Any) -> None:
        if tag not in roots:
            raise DataError(
                f"{path}, line {parser.CurrentLineNumber}: the root element is <{tag[:80]}>, "
                f"want {wanted}. Is this the right kind of file?"
            )
        raise _RootFound

    def declare_entity(name: str, *_: Any) -> NoReturn:
        raise DataError(
            f"{path}, line {parser.CurrentLineNumber}: declares the entity {name[:80]!r}, which is "
            "refused, because entities can grow without bound or read other files. Fetch the file "
            "from its source."
        )

    parser.StartElementHandler = begin_element
    parser.EntityDeclHandler = declare_entity
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
    # An unknown or unsupported encoding raises LookupError or ValueError.
    except (expat.ExpatError, LookupError, ValueError) as error:
        raise DataError(
            f"{path}, line {parser.CurrentLineNumber}: is not XML ({error}), want {wanted}"
        ) from None
    raise DataError(f"{path}: no root element, want {wanted}")


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
    """Return the first problem in the parser's log; a late error may lack its line."""
    logged = parser.feed_error_log.filter_from_errors()
    if len(logged):
        reason = logged[0].message
        line = logged[0].line
    else:
        reason = str(error)
        line = getattr(error, "lineno", None) or line
    reason = reason.strip()[:200]
    return DataError(
        f"{path}, line {line}: is not well-formed XML ({reason}). Fetch the file again."
    )


def _blocks(path: Path) -> Iterator[bytes]:
    with open_source(path, "an XML file") as file:
        while block := file.read(BLOCK_BYTES):
            yield block
