"""PubTator's format: titles, abstracts, mentions and relations on lines, a document at a time.

``PMID|t|title``, ``PMID|a|abstract``, then ``PMID <tab> start <tab> end <tab> text <tab> type [<tab> ids]`` and
``PMID <tab> relation <tab> id <tab> id [<tab> Novel|No]``; an empty line between documents. Offsets count in the title,
one blank and the abstract. Lines may end in CR LF.

DocRED's JSON (Yao et al., 2019; Re-DocRED: Tan et al., 2022): tokens, vertices with their mentions, labels.

The text is the tokens, divided by single blanks. Vertices have no id of a knowledge base.

Reading documents with entities, whatever their format.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from raybio.core.errors import DataError
from raybio.methods.mtb_mccl.documents.bioc import read_bioc_json, read_bioc_xml
from raybio.methods.mtb_mccl.documents.entities import (
    DOCUMENT,
    MENTION,
    OTHER_TEXT,
    OUTSIDE,
    RELATION,
    Mention,
    RawDocument,
    fault_of,
    split_ids,
)
from raybio.store.json import LONE_SURROGATE, Record, stream_records
from raybio.store.quarantine import Quarantine
from raybio.store.sources import open_source, read_lines

TEXT_LINE = re.compile(r"([^|\t]+)\|([ta])\|(.*)", re.DOTALL)


NUMBER = re.compile(r"-?[0-9]{1,9}")


STRAY = "line that belongs to no document"


UNKNOWN_LINE = "line that is neither text nor mention nor relation"


REPEATED_TEXT = "second title or abstract of a document"


@dataclass
class _Pending:
    """A document whose lines are being read."""

    document_id: str
    line: int
    texts: dict[str, str] = field(default_factory=dict)
    rows: list[tuple[int, list[str]]] = field(default_factory=list)


def read_pubtator(path: Path, quarantine: Quarantine) -> Iterator[RawDocument]:
    """The documents of a file, in order.

    Args:
        path: the file, plain or gzip.
        quarantine: takes mentions whose text is not that at their offsets, and lines that are none of the above.

    Raises:
        DataError: if the file is torn or not UTF-8; what came before must not be used then.
    """
    pending: _Pending | None = None
    for number, ended in enumerate(read_lines(path, "a file in PubTator's format"), start=1):
        line = ended.rstrip("\r\n")
        text = TEXT_LINE.fullmatch(line)
        document_id = (text[1] if text else line.split("\t", 1)[0]).strip()
        starts = text is not None and (
            pending is None or text[2] == "t" or pending.document_id != document_id
        )
        if pending is not None and (not line.strip() or starts):
            yield _finished(pending, path, quarantine)
            pending = None
        if text is not None and starts:
            pending = _Pending(document_id, number)
        if not line.strip():
            continue
        if pending is None or pending.document_id != document_id:
            quarantine.saw(MENTION, 1)
            quarantine.add(MENTION, STRAY, path.name, number, line)
        elif text is None:
            pending.rows.append((number, line.split("\t")))
        elif text[2] in pending.texts:
            quarantine.add(DOCUMENT, REPEATED_TEXT, path.name, number, line)
        else:
            pending.texts[text[2]] = text[3]
    if pending is not None:
        yield _finished(pending, path, quarantine)


def _finished(pending: _Pending, path: Path, quarantine: Quarantine) -> RawDocument:
    title, abstract = pending.texts.get("t", ""), pending.texts.get("a")
    text = title if abstract is None else f"{title} {abstract}"
    mentions, relations = list[Mention](), list[tuple[str, str, str]]()
    for number, row in pending.rows:
        if len(row) >= 5 and NUMBER.fullmatch(row[1]) and NUMBER.fullmatch(row[2]):
            quarantine.saw(MENTION, 1)
            start, end, name, kind = int(row[1]), int(row[2]), row[3], row[4].strip()
            fault = fault_of(text, start, end, name)
            if fault:
                detail = f"{pending.document_id}: {name!r} at {start}-{end}"
                quarantine.add(MENTION, fault, path.name, number, detail)
            else:
                mentions.append(
                    Mention(start, end, kind, split_ids(row[5] if len(row) > 5 else ""))
                )
        elif len(row) in (4, 5):
            relations.append((row[1].strip(), row[2].strip(), row[3].strip()))
        else:
            quarantine.saw(RELATION, 1)
            quarantine.add(RELATION, UNKNOWN_LINE, path.name, number, "\t".join(row))
    return RawDocument(pending.document_id, text, tuple(mentions), tuple(relations), pending.line)


def read_docred(path: Path, quarantine: Quarantine) -> Iterator[RawDocument]:
    """The documents of a file, in order; a document's id is its title, an entity's the number of its vertex.

    A mention's name must be its tokens, white space aside: the authors tokenised the texts, and not always the names.
    Of a name with several lines the last one counts; numbers of lists stand in the others.

    Args:
        path: the file, plain or gzip: a list of objects with ``title``, ``sents``, ``vertexSet`` and ``labels``.
        quarantine: takes mentions whose name is not that at their place.

    Raises:
        DataError: as ``stream_records``, and for a document that is not of the form.
    """
    for line, value in stream_records(path):
        record = Record.of(path, f"at line {line}", value)
        sentences = _lists(record, "sents")
        if not all(isinstance(token, str) for sentence in sentences for token in sentence):
            raise record.wrong("sents", "lists of words")
        tokens = [token for sentence in sentences for token in sentence]
        first_S1 = list(accumulate((len(sentence) for sentence in sentences), initial=0))
        start_T1 = list(accumulate((len(token) + 1 for token in tokens), initial=0))
        title, text = record.text("title"), " ".join(tokens)
        mentions = []
        for number, vertex in enumerate(_lists(record, "vertexSet")):
            for one in vertex:
                mention = Record.of(path, f"{title!r}, a mention of vertex {number}", one)
                span = _span(mention, first_S1, start_T1)
                fault = _fault(text, span, mention)
                quarantine.saw(MENTION, 1)
                if span is None or fault:
                    quarantine.add(
                        MENTION, fault, path.name, line, f"{title}: {mention.fields.get('name')!r}"
                    )
                else:
                    mentions.append(
                        Mention(*span, mention.text("type"), {str(number): str(number)})
                    )
        relations = _relations(record)
        yield RawDocument(title, text, tuple(mentions), relations, line, is_docred=True)


def _lists(record: Record, field: str) -> list[list[Any]]:
    value = record.fields.get(field)
    if not isinstance(value, list) or not all(isinstance(one, list) for one in value):
        raise record.wrong(field, "a list of lists")
    return value


def _span(mention: Record, first_S1: list[int], start_T1: list[int]) -> tuple[int, int] | None:
    """Offsets of the characters; None if there are no such tokens."""
    sentence, place = mention.fields.get("sent_id"), mention.fields.get("pos")
    if not isinstance(sentence, int):
        raise mention.wrong("sent_id", "the number of a sentence")
    if not (
        isinstance(place, list) and len(place) == 2 and all(isinstance(one, int) for one in place)
    ):
        raise mention.wrong("pos", "two numbers")
    if not 0 <= sentence < len(first_S1) - 1:
        return None
    start, end = (first_S1[sentence] + one for one in place)
    if not first_S1[sentence] <= start < end <= first_S1[sentence + 1]:
        return None
    return start_T1[start], start_T1[end] - 1


def _fault(text: str, span: tuple[int, int] | None, mention: Record) -> str:
    if span is None or span[0] == span[1]:
        return OUTSIDE
    name = mention.text("name").split("\n")[-1]
    return "" if "".join(text[slice(*span)].split()) == "".join(name.split()) else OTHER_TEXT


def _relations(record: Record) -> tuple[tuple[str, str, str], ...]:
    """Labels; a file without relations has none."""
    value = record.fields.get("labels") or []
    if not isinstance(value, list):
        raise record.wrong("labels", "a list of objects")
    labels = [Record.of(record.path, record.name, one) for one in value]
    for label in labels:
        if not all(isinstance(label.fields.get(end), int) for end in ("h", "t")):
            raise label.wrong("h", "the number of a vertex, and one in 't'")
    return tuple(
        (label.text("r"), str(label.fields["h"]), str(label.fields["t"])) for label in labels
    )


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
