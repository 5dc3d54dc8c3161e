"""Read PubTator files."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

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
from raybio.store.sources import read_lines

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
            fault = mention_fault(text, start, end, name)
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
