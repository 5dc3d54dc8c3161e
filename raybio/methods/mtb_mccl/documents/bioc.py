"""BioC, as XML and as JSON: documents of passages with annotations, and relations between the ids of entities.

``identifier`` and ``type`` of an annotation, and ``entity1``, ``entity2`` and ``type`` of a relation, stand in infons.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raybio.methods.mtb_mccl.documents.entities import (
    DOCUMENT,
    MENTION,
    RELATION,
    Mention,
    RawDocument,
    mention_fault,
    split_ids,
)
from raybio.store.json import Record, stream_records
from raybio.store.quarantine import Quarantine
from raybio.store.xml import stream_elements

MOST_BLANKS = 10_000


SEVERAL_PLACES = "mention in several pieces"


NO_PLACE = "mention without offsets and type"


NO_ENDS = "relation without entity1, entity2 and type"


NOT_IN_ORDER = "document whose passages are out of order, overlap or lie far apart"


def read_bioc_xml(path: Path, quarantine: Quarantine) -> Iterator[RawDocument]:
    """The documents of a ``<collection>``, in order.

    Args:
        path: the file, plain or gzip.
        quarantine: takes mentions whose text is not that at their offsets, and what lacks a field.

    Raises:
        DataError: as ``stream_elements``; what came before must not be used then.
    """
    for element in stream_elements(path, roots=("collection",), tags=("document",)):
        if element.tag == "document":
            line = element.sourceline or 1
            yield from _document(_as_json(element), path, line, quarantine)


def read_bioc_json(path: Path, quarantine: Quarantine) -> Iterator[RawDocument]:
    """The documents of an object with a list ``documents``, in order; arguments as for XML.

    Raises:
        DataError: as ``stream_records``, and for a document that is not of the form.
    """
    for line, value in stream_records(path, "documents"):
        yield from _document(value, path, line, quarantine)


def _as_json(document: Any) -> dict[str, Any]:
    """An XML document in the form of JSON's."""
    return {
        "id": _text(document, "id"),
        "passages": [_unit(unit) for unit in document.iter("passage", "sentence")],
        "relations": [{"infons": _infons(relation)} for relation in document.iter("relation")],
    }


def _unit(element: Any) -> dict[str, Any]:
    """A passage, or a sentence of one that has no text of its own."""
    return {
        "offset": _number(_text(element, "offset")),
        "text": _text(element, "text"),
        "annotations": [
            {
                "infons": _infons(annotation),
                "text": _text(annotation, "text"),
                "locations": [
                    {name: _number(location.get(name)) for name in ("offset", "length")}
                    for location in annotation.iterchildren("location")
                ],
            }
            for annotation in element.iterchildren("annotation")
        ],
    }


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


def _document(value: Any, path: Path, line: int, quarantine: Quarantine) -> Iterator[RawDocument]:
    record = Record.of(path, f"at line {line}", value)
    document_id = str(value.get("id") or "").strip()
    if not document_id:
        raise record.wrong("id", "the document's id")
    units = [
        unit
        for passage in _objects(record, "passages")
        for unit in _with_sentences(passage, path, line)
    ]
    text = _joined(units)
    if text is None:
        quarantine.add(DOCUMENT, NOT_IN_ORDER, path.name, line, document_id)
        return
    mentions = []
    for unit in units:
        for annotation in _objects(unit, "annotations"):
            mention = _mention(annotation, text, quarantine, path, line, document_id)
            mentions += [] if mention is None else [mention]
    relations = list[tuple[str, str, str]]()
    in_passages = [one for unit in units for one in _objects(unit, "relations")]
    for relation in [*in_passages, *_objects(record, "relations")]:
        infons = _infons_of(relation)
        label, first, second = (
            str(infons.get(name) or "").strip() for name in ("type", "entity1", "entity2")
        )
        if label and first and second:
            relations.append((label, first, second))
        else:
            quarantine.saw(RELATION, 1)
            quarantine.add(RELATION, NO_ENDS, path.name, line, document_id)
    yield RawDocument(document_id, text, tuple(mentions), tuple(relations), line)


def _with_sentences(passage: Record, path: Path, line: int) -> Iterator[Record]:
    yield passage
    yield from _objects(passage, "sentences")


def _objects(record: Record, field: str) -> list[Record]:
    """A list of objects; a missing one is empty."""
    value = record.fields.get(field) or []
    if not isinstance(value, list):
        raise record.wrong(field, "a list of objects")
    return [Record.of(record.path, record.name, one) for one in value]


def _infons_of(record: Record) -> dict[str, Any]:
    infons = record.fields.get("infons") or {}
    if not isinstance(infons, dict):
        raise record.wrong("infons", "an object")
    return infons


def _joined(units: list[Record]) -> str | None:
    """The passages at their offsets, blanks between them; None if they cannot stand so."""
    text = ""
    for unit in units:
        part, offset = unit.fields.get("text") or "", unit.fields.get("offset")
        if not part:
            continue
        if not isinstance(part, str):
            raise unit.wrong("text", "a text")
        num_blanks = offset - len(text) if isinstance(offset, int) else -1
        if not 0 <= num_blanks <= MOST_BLANKS:
            return None
        text += " " * num_blanks + part
    return text


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _mention(
    annotation: Record, text: str, quarantine: Quarantine, path: Path, line: int, document_id: str
) -> Mention | None:
    quarantine.saw(MENTION, 1)
    infons, name = _infons_of(annotation), annotation.fields.get("text")
    places, kind = _objects(annotation, "locations"), str(infons.get("type") or "").strip()
    reason, start, end = NO_PLACE, -1, -1
    if len(places) > 1:
        reason = SEVERAL_PLACES
    elif (
        places
        and kind
        and all(_is_number(places[0].fields.get(one)) for one in ("offset", "length"))
    ):
        start = places[0].fields["offset"]
        end = start + places[0].fields["length"]
        reason = mention_fault(text, start, end, str(name)) or ""
    if reason:
        quarantine.add(
            MENTION, reason, path.name, line, f"{document_id}: {name!r} at {start}-{end}"
        )
        return None
    return Mention(start, end, kind, split_ids(str(infons.get("identifier") or "")))
