"""Read DocRED's JSON."""

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
