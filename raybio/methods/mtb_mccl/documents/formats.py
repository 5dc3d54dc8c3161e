"""Read documents with entities in any supported format."""

from collections.abc import Callable, Iterator
from pathlib import Path

from raybio.core.errors import DataError
from raybio.methods.mtb_mccl.documents.bioc import read_bioc_json, read_bioc_xml
from raybio.methods.mtb_mccl.documents.docred import read_docred
from raybio.methods.mtb_mccl.documents.entities import (
    DOCUMENT,
    RawDocument,
)
from raybio.methods.mtb_mccl.documents.pubtator import TEXT_LINE, read_pubtator
from raybio.store.json import LONE_SURROGATE
from raybio.store.quarantine import Quarantine
from raybio.store.sources import open_source

Reader = Callable[[Path, Quarantine], Iterator[RawDocument]]


LOOK_BYTES = 64 << 10


WANTED = "documents in PubTator's format, BioC XML, BioC JSON or DocRED's JSON"


NO_TEXT = "document without text"


NO_UTF8 = "document with half a letter, which UTF-8 cannot hold"


READER_BY_START: dict[str, Reader] = {"<": read_bioc_xml, "{": read_bioc_json, "[": read_docred}


def read_documents(path: str | Path, quarantine: Quarantine) -> Iterator[RawDocument]:
    """The documents of a file in PubTator's format, BioC XML, BioC JSON or DocRED's JSON, plain or gzip.

    The format is recognised by the content.

    Args:
        path: the file.
        quarantine: takes what is left out, with its file, line and reason.

    Yields:
        Documents in the file's order. Write them where they can be thrown away: if the file turns out to be broken at
        its end, what came before must not be used.

    Raises:
        DataError: with file and line, if the file cannot be read, is damaged, or of none of these formats.
    """
    path = Path(path)
    for raw in _reader_of(path)(path, quarantine):
        quarantine.saw(DOCUMENT, 1)
        reason = "" if raw.text.strip() else NO_TEXT
        if LONE_SURROGATE.search("".join(_strings(raw))):
            reason = NO_UTF8
        if reason:
            quarantine.add(DOCUMENT, reason, path.name, raw.line, ascii(raw.document_id))
        else:
            yield raw


def _reader_of(path: Path) -> Reader:
    with open_source(path, WANTED) as file:
        start = file.read(LOOK_BYTES).decode("utf-8-sig", errors="replace").lstrip()
    if not start:
        raise DataError(f"{path}: is empty, want {WANTED}")
    first = start.split("\n", 1)[0].rstrip("\r")
    if TEXT_LINE.fullmatch(first):
        return read_pubtator
    if start[0] not in READER_BY_START:
        raise DataError(f"{path}: begins with {first[:60]!r}, want {WANTED}")
    return READER_BY_START[start[0]]


def _strings(raw: RawDocument) -> Iterator[str]:
    yield from (raw.document_id, raw.text)
    for mention in raw.mentions:
        yield from (mention.type, *mention.ids.values())
    for relation in raw.relations:
        yield from relation
