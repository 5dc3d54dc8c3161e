"""Read DocRED's JSON (Yao et al., 2019) and Re-DocRED's (Tan et al., 2022).

A file is a list of objects with ``title``, ``sents`` (tokens), ``vertexSet`` (entities with their
mentions) and ``labels``. A document's text is its tokens, joined by blanks. Entities have no id of
a knowledge base; their id is the number of their vertex.
"""

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from raybio.methods.mtb_mccl.documents.entities import (
    MENTION,
    OTHER_TEXT,
    OUTSIDE,
    Mention,
    RawDocument,
)
from raybio.store.json import Record, stream_records
from raybio.store.quarantine import Quarantine


def read_docred(path: Path, quarantine: Quarantine) -> Iterator[RawDocument]:
    """Yield the documents of a file, in order; a document's id is its title.

    A mention's name must equal its tokens except for white space: DocRED's texts are tokenized, but
    not all names are. If a name has several lines, the last one counts; others are list numbers.

    Args:
        path: the file, plain or gzip.
        quarantine: receives mentions whose name is not the text at their position.

    Raises:
        DataError: as ``stream_records``, and for a document of another form.
    """
    for line, value in stream_records(path):
        record = Record.of(path, f"at line {line}", value)
        sentences = _lists(record, "sents")
        if not all(isinstance(token, str) for sentence in sentences for token in sentence):
            raise record.wrong("sents", "lists of words")
        tokens = [token for sentence in sentences for token in sentence]
        first_token_S1 = list(accumulate((len(sentence) for sentence in sentences), initial=0))
        offset_T1 = list(accumulate((len(token) + 1 for token in tokens), initial=0))
        title = record.text("title")
        text = " ".join(tokens)
        mentions = []
        for number, vertex in enumerate(_lists(record, "vertexSet")):
            for fields in vertex:
                mention = Record.of(path, f"{title!r}, a mention of vertex {number}", fields)
                span = _span(mention, first_token_S1, offset_T1)
                fault = _fault(text, span, mention)
                quarantine.saw(MENTION, 1)
                if span is None or fault:
                    detail = f"{title}: {mention.fields.get('name')!r}"
                    quarantine.add(MENTION, fault, path.name, line, detail)
                else:
                    ids = {str(number): str(number)}
                    mentions.append(Mention(*span, mention.text("type"), ids))
        relations = _relations(record)
        yield RawDocument(title, text, tuple(mentions), relations, line, is_docred=True)


def _lists(record: Record, field: str) -> list[list[Any]]:
    value = record.fields.get(field)
    if not isinstance(value, list) or not all(isinstance(item, list) for item in value):
        raise record.wrong(field, "a list of lists")
    return value


def _span(
    mention: Record, first_token_S1: list[int], offset_T1: list[int]
) -> tuple[int, int] | None:
    """Return the offsets of a mention's characters; None if there are no such tokens."""
    sentence = mention.fields.get("sent_id")
    position = mention.fields.get("pos")
    if not isinstance(sentence, int):
        raise mention.wrong("sent_id", "the number of a sentence")
    if not (
        isinstance(position, list)
        and len(position) == 2
        and all(isinstance(number, int) for number in position)
    ):
        raise mention.wrong("pos", "two numbers")
    if not 0 <= sentence < len(first_token_S1) - 1:
        return None
    start = first_token_S1[sentence] + position[0]
    end = first_token_S1[sentence] + position[1]
    if not first_token_S1[sentence] <= start < end <= first_token_S1[sentence + 1]:
        return None
    return offset_T1[start], offset_T1[end] - 1


def _fault(text: str, span: tuple[int, int] | None, mention: Record) -> str:
    if span is None or span[0] == span[1]:
        return OUTSIDE
    name = mention.text("name").split("\n")[-1]
    return "" if "".join(text[slice(*span)].split()) == "".join(name.split()) else OTHER_TEXT


def _relations(record: Record) -> tuple[tuple[str, str, str], ...]:
    """Return (relation, head, tail) of all labels; a file without relations has none."""
    value = record.fields.get("labels") or []
    if not isinstance(value, list):
        raise record.wrong("labels", "a list of objects")
    labels = [Record.of(record.path, record.name, fields) for fields in value]
    for label in labels:
        if not all(isinstance(label.fields.get(end), int) for end in ("h", "t")):
            raise label.wrong("h", "the number of a vertex, and one in 't'")
    return tuple(
        (label.text("r"), str(label.fields["h"]), str(label.fields["t"])) for label in labels
    )
