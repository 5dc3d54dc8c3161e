"""Documents that were written with relations are read back with them."""

from pathlib import Path

import pytest

from raybio.methods.mtb_mccl.documents.bioc import WITHOUT_ID
from raybio.methods.mtb_mccl.documents.entities import (
    EntityDocument,
    Mention,
    RawDocument,
    resolve_entities,
    split_ids,
)
from raybio.methods.mtb_mccl.documents.formats import read_documents
from raybio.methods.mtb_mccl.documents.write import (
    FoundRelation,
    RelationEnd,
    write_bioc_json,
    write_pubtator,
)
from raybio.store.quarantine import Quarantine

TMVAR = "tmVar:p|SUB|V|600|E;HGVS:p.V600E;VariantGroup:0;CorrespondingGene:673;RS#:113488022"
TWO_VARIANTS = TMVAR.replace("RS#:113488022", "Disease:D1,D2")
WRITERS = pytest.mark.parametrize("write", [write_pubtator, write_bioc_json])


def document(text: str, *mentions: tuple[str, str, str]) -> RawDocument:
    """A document with mentions (name, type, column of ids)."""
    found = []
    for name, kind, ids in mentions:
        start = text.index(name)
        found.append(Mention(start, start + len(name), kind, split_ids(ids)))
    return RawDocument("1", text, tuple(found), (), 1)


def written_and_read(
    write, path: Path, raw: RawDocument
) -> tuple[EntityDocument, EntityDocument, Quarantine]:
    """Return entities of the document, and those read back with a relation of the first two."""
    before = resolve_entities(raw, Quarantine(), "given")
    first, second = (
        RelationEnd(before.written_ids_E[entity], mention.start, mention.end)
        for entity, mention in enumerate(raw.mentions[:2])
    )
    write(path, [(raw, [FoundRelation("Bind", first, second, False, 0.5)])])
    quarantine = Quarantine()
    (read,) = read_documents(path, quarantine)
    return before, resolve_entities(read, quarantine, path.name), quarantine


@WRITERS
@pytest.mark.parametrize(
    "raw",
    [
        document("V600E in melanoma", ("V600E", "Mutation", TMVAR), ("melanoma", "Disease", "D1")),
        document("V600E in mice", ("V600E", "Mutation", TWO_VARIANTS), ("mice", "Species", "9")),
        document("Acute, asthma; MESH:x", ("Acute, asthma; MESH:x", "Disease", "-")),
        document("Aspirin or asthma", ("Aspirin", "Chemical", ""), ("asthma", "Disease", "-1")),
        document("Aspirin or asthma", ("Aspirin", "Chemical", ""), ("asthma", "Disease", "D1")),
    ],
    ids=["variant", "variant without rs number", "odd name", "no ids", "one id"],
)
def test_relations_are_read_back_whatever_ids_their_ends_have(tmp_path, write, raw) -> None:
    if len(raw.mentions) == 1:  # of the odd name and of an entity that has an id
        raw = document(raw.text + " of mice", (raw.text, "Disease", ""), ("mice", "Species", "9"))
    before, after, quarantine = written_and_read(write, tmp_path / "out", raw)
    assert after.keys_E == before.keys_E
    ((head, tail, label),) = after.relations_P
    assert ({head, tail}, label) == ({0, 1}, "Bind")
    # PubTator's column says that there is no id, BioC leaves the infon out.
    assert set(quarantine.count_by_reason) <= {WITHOUT_ID}


def test_every_mention_of_pubtator_has_six_columns_and_every_text_one_line(tmp_path: Path) -> None:
    raw = document(
        "Aspirin\u2028or\x85asth\x0bma,\x0c a\ttext\r\n\x1c",
        ("Aspirin", "Chemical", "-"),
        ("asth\x0bma", "Disease", "D1"),
    )
    path = tmp_path / "out"
    before, after, _ = written_and_read(write_pubtator, path, raw)
    text, *mentions, relation = path.read_text(encoding="utf-8").rstrip("\n").splitlines()
    assert text == "1|t|Aspirin or asth ma,  a text   "
    assert [line.split("\t") for line in mentions] == [
        ["1", "0", "7", "Aspirin", "Chemical", "-"],
        ["1", "11", "18", "asth ma", "Disease", "D1"],
    ]
    assert relation == "1\tBind\t~aspirin\tD1"
    assert after.keys_E == before.keys_E
