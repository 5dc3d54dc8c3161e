"""Read PubTator files: titles, abstracts, mentions and relations as lines, one document at a time.

    PMID|t|title
    PMID|a|abstract
    PMID <tab> start <tab> end <tab> text <tab> type [<tab> ids]
    PMID <tab> relation <tab> id <tab> id [<tab> Novel|No]

An empty line separates documents. Offsets count characters of the title, one blank and the
abstract. Lines may end in CR LF.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from raybio.core.errors import DataError
from raybio.methods.mtb_mccl.documents.entities import (
    DOCUMENT,
    MENTION,
    RELATION,
    Mention,
    RawDocument,
    mention_fault,
    split_ids,
)
from raybio.store.quarantine import Quarantine
from raybio.store.sources import MAX_LINE_LENGTH, read_lines

TEXT_LINE = re.compile(r"([^|\t]+)\|([ta])\|(.*)", re.DOTALL)

STRAY = "line that belongs to no document"
UNKNOWN_LINE = "line that is neither text nor mention nor relation"
REPEATED_TEXT = "second title or abstract of a document"

MIN_LINE_LENGTH = 256
"""Shorter lines count as this long towards a document's ``MAX_LINE_LENGTH``.

Their fields take about as much memory.
"""

_NUMBER = re.compile(r"-?[0-9]{1,9}")


@dataclass
class _Lines:
    """The lines of a document that is being read.

    Attributes:
        document_id: PMID.
        line: number of the first line.
        texts: "t" and "a" -> title and abstract.
        rows: (line number, fields) of mentions and relations.
        length: of all lines together.
    """

    document_id: str
    line: int
    texts: dict[str, str] = field(default_factory=dict)
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
    length: int = 0


def read_pubtator(path: Path, quarantine: Quarantine) -> Iterator[RawDocument]:
    """Yield the documents of a file, in order.

    Args:
        path: the file, plain or gzip.
        quarantine: receives mentions whose text is not the text at their offsets, and lines that
            have none of the above forms.

    Raises:
        DataError: if the file is truncated or not UTF-8, or a document is longer than
            ``MAX_LINE_LENGTH``. Documents yielded before must be discarded.
    """
    pending: _Lines | None = None
    for number, raw_line in enumerate(read_lines(path, "a file in PubTator's format"), start=1):
        line = raw_line.rstrip("\r\n")
        text = TEXT_LINE.fullmatch(line)
        document_id = (text[1] if text else line.split("\t", 1)[0]).strip()
        starts_document = text is not None and (
            pending is None or text[2] == "t" or pending.document_id != document_id
        )
        if pending is not None and (not line.strip() or starts_document):
            yield _document(pending, path, quarantine)
            pending = None
        if text is not None and starts_document:
            pending = _Lines(document_id, number)
        if not line.strip():
            continue
        if pending is None or pending.document_id != document_id:
            quarantine.saw(MENTION, 1)
            quarantine.add(MENTION, STRAY, path.name, number, line)
            continue
        pending.length += max(len(raw_line), MIN_LINE_LENGTH)
        if pending.length > MAX_LINE_LENGTH:
            raise DataError(
                f"{path}: the document {pending.document_id[:40]!r} of line {pending.line} is "
                f"longer than {MAX_LINE_LENGTH >> 20} MiB at line {number} (a line counts as "
                f"{MIN_LINE_LENGTH} characters at least), want an empty line between documents. "
                "Split the document, or remove it"
            )
        if text is None:
            pending.rows.append((number, line.split("\t")))
        elif text[2] in pending.texts:
            quarantine.add(DOCUMENT, REPEATED_TEXT, path.name, number, line)
        else:
            pending.texts[text[2]] = text[3]
    if pending is not None:
        yield _document(pending, path, quarantine)


def _document(lines: _Lines, path: Path, quarantine: Quarantine) -> RawDocument:
    title = lines.texts.get("t", "")
    abstract = lines.texts.get("a")
    text = title if abstract is None else f"{title} {abstract}"
    mentions: list[Mention] = []
    relations: list[tuple[str, str, str]] = []
    for number, row in lines.rows:
        if len(row) >= 5 and _NUMBER.fullmatch(row[1]) and _NUMBER.fullmatch(row[2]):
            quarantine.saw(MENTION, 1)
            start = int(row[1])
            end = int(row[2])
            name = row[3]
            fault = mention_fault(text, start, end, name)
            if fault:
                detail = f"{lines.document_id}: {name!r} at {start}-{end}"
                quarantine.add(MENTION, fault, path.name, number, detail)
            else:
                ids = split_ids(row[5] if len(row) > 5 else "")
                mentions.append(Mention(start, end, row[4].strip(), ids))
        elif len(row) in (4, 5):
            relations.append((row[1].strip(), row[2].strip(), row[3].strip()))
        else:
            quarantine.saw(RELATION, 1)
            quarantine.add(RELATION, UNKNOWN_LINE, path.name, number, "\t".join(row))
    return RawDocument(
        lines.document_id,
        text,
        tuple(mentions),
        tuple(relations),
        lines.line,
        passage_starts=(0,) if abstract is None else (0, len(title) + 1),
    )
