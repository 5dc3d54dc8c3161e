"""Read BioC, as XML and as JSON: passages with annotations, and relations between entity ids.

The infons of an annotation hold ``type`` and an id, see ``ID_NAMES``; the infons of a relation hold
``type`` and two ids, see ``END_NAMES``. XML documents are converted to the form of JSON first.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from raybio.methods.mtb_mccl.documents.entities import (
    DOCUMENT,
    MENTION,
    RELATION,
    TYPE_BY_NAME,
    Mention,
    RawDocument,
    mention_fault,
    split_ids,
)
from raybio.store.json import Record, stream_records
from raybio.store.quarantine import Quarantine
from raybio.store.xml import stream_elements

LISTS = ("documents", "PubTator3")
"""Names of the list of documents in JSON: BioC's, and that of PubTator3's export."""

ID_NAMES = ("identifier", "mesh", "ncbi gene", "ncbi taxonomy", "concept id")
"""Names of an annotation's infon with the id, as ``_plain`` writes them, by rank."""

LABEL_NAMES = ("type", "relation")
END_NAMES = (("entity1", "entity2"), ("role1", "role2"), ("Chemical", "Disease"))
"""Names of a relation's infons with its label, and with the ids of both ends, by rank: BioRED's,
PubTator3's and BC5CDR's."""

MOST_BLANKS = 10_000
"""Passages further apart than this are not joined."""

DISCONTINUOUS = "mention in several pieces"
INCOMPLETE_MENTION = "mention without offsets and type"
INCOMPLETE_RELATION = "relation without entity1, entity2 and type"
WITHOUT_ID = "mention without an identifier (its name is its id)"
MISPLACED_PASSAGES = "document whose passages are out of order, overlap or lie far apart"


class _Source(NamedTuple):
    """File and position of a document, for messages."""

    path: Path
    line: int
    document_id: str
    quarantine: Quarantine

    def skip(self, kind: str, reason: str, detail: str, *, is_bad: bool = True) -> None:
        self.quarantine.add(kind, reason, self.path.name, self.line, detail, is_bad=is_bad)


def read_bioc_xml(path: Path, quarantine: Quarantine) -> Iterator[RawDocument]:
    """Yield the documents of a ``<collection>``, in order.

    Args:
        path: the file, plain or gzip.
        quarantine: receives mentions whose text is not the text at their offsets, and records that
            lack a field.

    Raises:
        DataError: as ``stream_elements``. Documents yielded before must be discarded.
    """
    for element in stream_elements(path, roots=("collection",), tags=("document",)):
        if element.tag == "document":
            line = element.sourceline or 1
            yield from _documents(_as_json(element), path, line, quarantine)


def read_bioc_json(path: Path, quarantine: Quarantine) -> Iterator[RawDocument]:
    """Yield the documents of an object with a list of ``LISTS``; arguments as for XML.

    Raises:
        DataError: as ``stream_records``, and for a document of another form.
    """
    for line, value in stream_records(path, *LISTS):
        yield from _documents(value, path, line, quarantine)


def _as_json(document: Any) -> dict[str, Any]:
    """Return an XML document in the form of JSON."""
    return {
        "id": _text(document, "id"),
        "passages": [_passage(element) for element in document.iter("passage", "sentence")],
        "relations": [{"infons": _infons(relation)} for relation in document.iter("relation")],
    }


def _passage(element: Any) -> dict[str, Any]:
    """Return a passage, or a sentence of a passage that has no text of its own."""
    return {
        "offset": _number(_text(element, "offset")),
        "text": _text(element, "text"),
        "annotations": [_annotation(child) for child in element.iterchildren("annotation")],
    }


def _annotation(element: Any) -> dict[str, Any]:
    locations = [
        {"offset": _number(location.get("offset")), "length": _number(location.get("length"))}
        for location in element.iterchildren("location")
    ]
    return {"infons": _infons(element), "text": _text(element, "text"), "locations": locations}


def _infons(element: Any) -> dict[str, str]:
    return {
        infon.get("key", ""): "".join(infon.itertext()) for infon in element.iterchildren("infon")
    }


def _text(element: Any, tag: str) -> str:
    child = next(element.iterchildren(tag), None)
    return "" if child is None else "".join(child.itertext())


def _number(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


def _documents(value: Any, path: Path, line: int, quarantine: Quarantine) -> Iterator[RawDocument]:
    """Yield the document, unless its passages cannot be joined."""
    record = Record.of(path, f"at line {line}", value)
    document_id = str(value.get("id") or "").strip()
    if not document_id:
        raise record.wrong("id", "the document's id")
    source = _Source(path, line, document_id, quarantine)
    passages = []
    for passage in _objects(record, "passages"):
        passages.append(passage)
        passages += _objects(passage, "sentences")
    text = _joined(passages)
    if text is None:
        source.skip(DOCUMENT, MISPLACED_PASSAGES, document_id)
        return
    mentions = []
    for passage in passages:
        for annotation in _objects(passage, "annotations"):
            mention = _mention(annotation, text, source)
            if mention is not None:
                mentions.append(mention)
    relations = []
    for owner in (*passages, record):
        for fields in _objects(owner, "relations"):
            relation = _relation(fields)
            if relation is not None:
                relations.append(relation)
            else:
                quarantine.saw(RELATION, 1)
                source.skip(RELATION, INCOMPLETE_RELATION, document_id)
    starts = [passage.fields["offset"] for passage in passages if passage.fields.get("text")]
    yield RawDocument(
        document_id,
        text,
        tuple(mentions),
        tuple(relations),
        line,
        passage_starts=tuple(starts) or (0,),
    )


def _objects(record: Record, field: str) -> list[Record]:
    """Return a list of objects; a missing one is empty."""
    value = record.fields.get(field) or []
    if not isinstance(value, list):
        raise record.wrong(field, "a list of objects")
    return [Record.of(record.path, record.name, fields) for fields in value]


def _infons_of(record: Record) -> dict[str, Any]:
    infons = record.fields.get("infons") or {}
    if not isinstance(infons, dict):
        raise record.wrong("infons", "an object")
    return infons


def _joined(passages: list[Record]) -> str | None:
    """Return the passages at their offsets, with blanks between; None if that is impossible."""
    text = ""
    for passage in passages:
        part = passage.fields.get("text") or ""
        offset = passage.fields.get("offset")
        if not part:
            continue
        if not isinstance(part, str):
            raise passage.wrong("text", "a text")
        num_blanks = offset - len(text) if isinstance(offset, int) else -1
        if not 0 <= num_blanks <= MOST_BLANKS:
            return None
        text += " " * num_blanks + part
    return text


def _relation(record: Record) -> tuple[str, str, str] | None:
    """Return (label, id, id); None if a field is missing."""
    infons = _infons_of(record)
    label = next((text for name in LABEL_NAMES if (text := _as_text(infons.get(name)))), "")
    for names in END_NAMES:
        first, second = (_id_of_end(infons.get(name)) for name in names)
        if label and first and second:
            return label, first, second
    return None


def _id_of_end(value: Any) -> str:
    """Return the id of a relation's end; PubTator3 writes an object, or the type and the id."""
    if isinstance(value, dict):
        return _as_text(value.get("identifier"))
    text = _as_text(value)
    kind, _, written_id = text.partition("|")
    return written_id if kind in TYPE_BY_NAME and written_id else text


def _as_text(value: Any) -> str:
    return str(value or "").strip()


def _mention(annotation: Record, text: str, source: _Source) -> Mention | None:
    """Return the mention, or skip it."""
    source.quarantine.saw(MENTION, 1)
    infons = _infons_of(annotation)
    name = annotation.fields.get("text")
    locations = _objects(annotation, "locations")
    kind = str(infons.get("type") or "").strip()
    reason = INCOMPLETE_MENTION
    start = -1
    end = -1
    if len(locations) > 1:
        reason = DISCONTINUOUS
    elif locations and kind and _has_span(locations[0]):
        start = locations[0].fields["offset"]
        end = start + locations[0].fields["length"]
        reason = mention_fault(text, start, end, str(name)) or ""
    if reason:
        source.skip(MENTION, reason, f"{source.document_id}: {name!r} at {start}-{end}")
        return None
    written_ids = _written_ids(infons)
    if not written_ids:
        detail = f"{source.document_id}: {name!r}, infons: {', '.join(infons)}"
        source.skip(MENTION, WITHOUT_ID, detail, is_bad=False)
    return Mention(start, end, kind, split_ids(written_ids))


def _written_ids(infons: Mapping[str, Any]) -> str:
    """Return the ids of a mention as they are written, "" if there is no infon with them."""
    value_by_name = {_plain(name): value for name, value in infons.items()}
    return next((text for name in ID_NAMES if (text := _as_text(value_by_name.get(name)))), "")


def _plain(name: str) -> str:
    """Return a name as it is compared: "NCBI_Gene" is ``ncbi gene``."""
    return name.strip().lower().replace("_", " ")


def _has_span(location: Record) -> bool:
    return all(_is_number(location.fields.get(name)) for name in ("offset", "length"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
