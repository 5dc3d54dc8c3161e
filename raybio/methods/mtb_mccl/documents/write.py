"""Write documents with predicted relations, in PubTator's format and as BioC JSON.

Texts, mentions and ids are copied from the input; its relations are replaced. In PubTator's format,
line ends in a text become blanks, so that offsets stay valid. In a relation, an entity without an
id is written as ``~`` and its name, by which ``raybio prepare documents`` recognizes it. BioC also
names the mentions of both ends.
"""

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from raybio.core.errors import DataError
from raybio.methods.mtb_mccl.documents.entities import Mention, RawDocument, id_of_name

NO_ID = "-"

_LINE_ENDS = re.compile(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
"""Characters at which some reader splits lines, so that no line may contain them."""


class RelationEnd(NamedTuple):
    """The head or the tail of a relation.

    Attributes:
        written_id: id as the input writes it; "" if there is none.
        start: offset of its first mention.
        end: offset behind its first mention.
    """

    written_id: str
    start: int
    end: int


class FoundRelation(NamedTuple):
    """A relation that was found in a document.

    Attributes:
        label: name of the relation.
        head: its head; of an unordered pair, the entity mentioned first.
        tail: its tail.
        is_ordered: whether the relation runs from head to tail.
        score: the score that decided.
    """

    label: str
    head: RelationEnd
    tail: RelationEnd
    is_ordered: bool
    score: float


Annotated = tuple[RawDocument, Sequence[FoundRelation]]


def write_pubtator(path: Path, documents: Iterable[Annotated]) -> int:
    """Write documents in PubTator's format; return the number of relations.

    Raises:
        DataError: for a document whose id the format cannot hold.
    """
    num_relations = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for raw, relations in documents:
            number = raw.document_id
            if "|" in number or _LINE_ENDS.search(number):
                raise DataError(
                    f"document {number!r}: PubTator's format has no ids with '|' or white space "
                    "such as tabs; want --out .json (BioC) or .tsv"
                )
            text = _LINE_ENDS.sub(" ", raw.text)
            start = raw.passage_starts[1] if len(raw.passage_starts) > 1 else 0
            if start and text[start - 1] == " ":
                file.write(f"{number}|t|{text[: start - 1]}\n{number}|a|{text[start:]}\n")
            else:
                file.write(f"{number}|t|{text}\n")
            for mention in raw.mentions:
                name = text[mention.start : mention.end]
                cells = [number, str(mention.start), str(mention.end), name, mention.type]
                file.write("\t".join([*cells, _written_ids(mention) or NO_ID]) + "\n")
            for relation in relations:
                ends = [_written_id(end, raw) for end in (relation.head, relation.tail)]
                file.write("\t".join([number, relation.label, *ends]) + "\n")
            file.write("\n")
            num_relations += len(relations)
    return num_relations


def write_bioc_json(path: Path, documents: Iterable[Annotated]) -> int:
    """Write documents as a collection of BioC JSON; return the number of relations."""
    num_relations = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write('{"source": "raybio", "date": "", "key": "", "infons": {}, "documents": [')
        for number, (raw, relations) in enumerate(documents):
            file.write(",\n" if number else "\n")
            file.write(json.dumps(_bioc_document(raw, relations), ensure_ascii=False))
            num_relations += len(relations)
        file.write("\n]}\n")
    return num_relations


def _bioc_document(raw: RawDocument, relations: Sequence[FoundRelation]) -> dict[str, Any]:
    starts = [*raw.passage_starts, len(raw.text) + 1]
    passages: list[dict[str, Any]] = []
    for start, stop in itertools.pairwise(starts):
        annotations = [
            _bioc_annotation(number, mention, raw.text)
            for number, mention in enumerate(raw.mentions)
            if start <= mention.start < stop
        ]
        # Blanks between passages belong to no passage.
        text = raw.text[start:stop] if stop > len(raw.text) else raw.text[start:stop].rstrip(" ")
        passages.append(
            {
                "offset": start,
                "infons": {},
                "text": text,
                "sentences": [],
                "annotations": annotations,
                "relations": [],
            }
        )
    written_relations = [
        _bioc_relation(number, relation, raw) for number, relation in enumerate(relations)
    ]
    return {
        "id": raw.document_id,
        "infons": {},
        "passages": passages,
        "relations": written_relations,
    }


def _bioc_annotation(number: int, mention: Mention, text: str) -> dict[str, Any]:
    infons = {"type": mention.type}
    if mention.ids:
        infons["identifier"] = _written_ids(mention)
    return {
        "id": f"M{number}",
        "infons": infons,
        "text": text[mention.start : mention.end],
        "locations": [{"offset": mention.start, "length": mention.end - mention.start}],
    }


def _bioc_relation(number: int, relation: FoundRelation, raw: RawDocument) -> dict[str, Any]:
    roles = ("head", "tail") if relation.is_ordered else ("", "")
    nodes = [
        {"refid": f"M{_mention_of(end, raw)}", "role": role}
        for end, role in zip((relation.head, relation.tail), roles, strict=True)
    ]
    infons = {
        "type": relation.label,
        "entity1": _written_id(relation.head, raw),
        "entity2": _written_id(relation.tail, raw),
        "score": f"{relation.score:.9g}",
    }
    return {"id": f"R{number}", "infons": infons, "nodes": nodes}


def _mention_of(end: RelationEnd, raw: RawDocument) -> int:
    """Return the number of the first mention of an entity."""
    here = [
        number
        for number, mention in enumerate(raw.mentions)
        if (mention.start, mention.end) == (end.start, end.end)
    ]
    same_id = [number for number in here if end.written_id in raw.mentions[number].ids.values()]
    return (same_id or here)[0]


def _written_ids(mention: Mention) -> str:
    return ",".join(mention.ids.values())


def _written_id(end: RelationEnd, raw: RawDocument) -> str:
    return end.written_id or id_of_name(raw.text[end.start : end.end])
