"""Read documents with entities; the format is recognized by the content.

Formats: PubTator (``pubtator``), BioC XML and JSON (``bioc``), DocRED (``docred``); plain or gzip.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from raybio.core.errors import DataError
from raybio.methods.mtb_mccl.documents.bioc import read_bioc_json, read_bioc_xml
from raybio.methods.mtb_mccl.documents.docred import read_docred
from raybio.methods.mtb_mccl.documents.entities import DOCUMENT, RawDocument
from raybio.methods.mtb_mccl.documents.pubtator import TEXT_LINE, read_pubtator
from raybio.store.json import LONE_SURROGATE
from raybio.store.quarantine import Quarantine
from raybio.store.sources import open_source

Reader = Callable[[Path, Quarantine], Iterator[RawDocument]]

NO_TEXT = "document without text"
NO_UTF8 = "document with a lone surrogate, which UTF-8 cannot encode"

_READER_BY_START: dict[str, Reader] = {"<": read_bioc_xml, "{": read_bioc_json, "[": read_docred}
_NUM_PROBED_BYTES = 64 << 10
_WANTED = "documents in PubTator's format, BioC XML, BioC JSON or DocRED's JSON"


def read_documents(path: str | Path, quarantine: Quarantine) -> Iterator[RawDocument]:
    """Yield the documents of a file, in order.

    Write them where they can be discarded: if the file turns out to be damaged at its end, the
    documents before must not be used.

    Args:
        path: the file.
        quarantine: receives skipped records with file, line and reason.

    Raises:
        DataError: with file and line, if the file cannot be read, is damaged, or of another format.
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
    with open_source(path, _WANTED) as file:
        start = file.read(_NUM_PROBED_BYTES).decode("utf-8", errors="replace").lstrip()
    if not start:
        raise DataError(f"{path}: is empty, want {_WANTED}")
    first_line = start.split("\n", 1)[0].rstrip("\r")
    if TEXT_LINE.fullmatch(first_line):
        return read_pubtator
    if start[0] not in _READER_BY_START:
        raise DataError(f"{path}: begins with {first_line[:60]!r}, want {_WANTED}")
    return _READER_BY_START[start[0]]


def _strings(raw: RawDocument) -> Iterator[str]:
    yield raw.document_id
    yield raw.text
    for mention in raw.mentions:
        yield from (mention.type, *mention.ids.values())
    for relation in raw.relations:
        yield from relation
