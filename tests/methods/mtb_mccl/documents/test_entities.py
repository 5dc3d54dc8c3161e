import pytest

from raybio.methods.mtb_mccl.documents.entities import (
    REPEATED,
    SECOND_LABEL,
    SEVERAL_TYPES,
    UNKNOWN_ENTITY,
    Mention,
    RawDocument,
    resolve_entities,
    split_ids,
    type_rank,
)
from raybio.store.quarantine import Quarantine
from raybio.store.relation_labels import NAMED_NA, SELF_RELATION

TEXT = "BRAF V600E and Aspirin, aspirin or ASPIRIN in Melanoma"


def mention(name, kind, *ids, nth=0):
    start = -1
    for _ in range(nth + 1):
        start = TEXT.index(name, start + 1)
    return Mention(start, start + len(name), kind, {one: one for one in ids})


def entities(mentions, relations=(), is_docred=False, quarantine=None):
    raw = RawDocument("1", TEXT, tuple(mentions), tuple(relations), 7, is_docred)
    return resolve_entities(raw, quarantine or Quarantine(), "file")


@pytest.mark.parametrize(
    ("column", "ids"),
    [
        ("3175", ("3175",)),
        ("1,2;3, 2", ("1", "2", "3")),
        (" CVCL_0023", ("CVCL_0023",)),
        ("-", ()),
        ("-1", ()),
        ("", ()),
        ("D003,-1", ("D003",)),
        ("c|DEL|1314_1328|", ("c|DEL|1314_1328|",)),
        ("D003|D004", ("D003|D004",)),
        ("p|SUB|V|600|E", ("p|SUB|V|600|E",)),
        ("MESH:D003924", ("D003924",)),
        ("mesh:D1;OMIM:600807", ("D1", "OMIM:600807")),
        ("OMIM_615962", ("OMIM:615962",)),
        ("7157(Tax:9606),22(Tax:10090)", ("7157", "22")),
        ("p|SUB|V|600|E;Gene:673;RS#:113488022;Disease:D1,D2;VariantGroup:0", ("rs113488022",)),
        (
            "tmVar:p|SUB|V|600|E;HGVS:p.V600E;VariantGroup:0;CorrespondingGene:673",
            ("p|SUB|V|600|E",),
        ),
        ("c|Allele|G,A|5;Gene:1,2;VariantGroup:0", ("c|Allele|G,A|5",)),
    ],
)
def test_ids_are_split_and_written_as_all_corpora_do(column, ids):
    assert tuple(split_ids(column)) == ids


@pytest.mark.parametrize(
    ("column", "written_by_id"),
    [
        ("MESH:D003924", {"D003924": "MESH:D003924"}),
        (" 7157(Tax:9606), 22 ", {"7157": "7157(Tax:9606)", "22": "22"}),
        ("D1,MESH:D1;OMIM_2", {"D1": "D1", "OMIM:2": "OMIM_2"}),
        ("MESH:D003|MESH:D004,-", {"D003|MESH:D004": "MESH:D003|MESH:D004"}),
        (
            "p|SUB|V|600|E;RS#:113488022;VariantGroup:0",
            {"rs113488022": "p|SUB|V|600|E;RS#:113488022;VariantGroup:0"},
        ),
        ("-", {}),
    ],
)
def test_ids_keep_how_the_file_writes_them(column, written_by_id):
    assert split_ids(column) == written_by_id


def test_mentions_of_one_type_and_id_are_one_entity_numbered_by_first_mention():
    found = entities(
        [
            mention("Melanoma", "DiseaseOrPhenotypicFeature", "D1"),
            mention("ASPIRIN", "Chemical", "C1"),
            mention("Aspirin", "ChemicalEntity", "C1"),
            mention("BRAF", "Gene", "673"),
        ]
    )
    assert found.types_E == ("Gene", "Chemical", "Disease")
    assert found.keys_E == ("Gene:673", "Chemical:C1", "Disease:D1")
    assert found.spans_M == ((0, 4), (15, 22), (35, 42), (46, 54))
    assert found.links_C == ((0, 0), (1, 1), (2, 1), (3, 2))


def test_a_mention_with_several_ids_belongs_to_several_entities():
    found = entities([mention("BRAF", "Gene", "1", "2"), mention("V600E", "Gene", "2")])
    assert found.keys_E == ("Gene:1", "Gene:2")
    assert found.links_C == ((0, 0), (0, 1), (1, 1))


def test_mentions_at_one_place_are_one_with_all_their_entities():
    found = entities(
        [
            mention("BRAF", "Gene", "1"),
            mention("BRAF", "Disease", "D1"),
            mention("BRAF", "Gene", "1"),
        ]
    )
    assert found.spans_M == ((0, 4),)
    assert found.links_C == ((0, 0), (0, 1))


def test_without_an_id_text_in_lower_case_and_type_are_the_entity():
    found = entities(
        [
            mention("Aspirin", "Chemical"),
            mention("aspirin", "Drug"),
            mention("ASPIRIN", "Gene"),
            mention("V600E", "Odd"),
        ]
    )
    assert found.keys_E == ("Odd:~v600e", "Chemical:~aspirin", "Gene:~aspirin")
    assert found.links_C == ((0, 0), (1, 1), (2, 1), (3, 2))


def test_docred_goes_by_vertex_and_is_known_by_its_first_name():
    found = entities(
        [
            mention("ASPIRIN", "MISC", "4"),
            mention("BRAF", "ORG", "4"),
            mention("Melanoma", "ORG", "0"),
        ],
        [("P1", "4", "0"), ("P2", "4", "0"), ("P1", "0", "4"), ("P1", "4", "0")],
        is_docred=True,
        quarantine=(quarantine := Quarantine()),
    )
    assert found.keys_E == ("ORG:~braf", "ORG:~melanoma")
    assert found.relations_P == ((0, 1, "P1"), (0, 1, "P2"), (1, 0, "P1"))
    assert quarantine.count_by_reason == {REPEATED: 1}


def test_an_undirected_relation_goes_from_the_earlier_type_and_keeps_its_first_label():
    quarantine = Quarantine()
    mentions = [
        mention("Aspirin", "Chemical", "C1"),
        mention("BRAF", "Gene", "1"),
        mention("V600E", "Gene", "2"),
    ]
    relations = [
        ("Bind", "C1", "1"),
        ("Association", "1", "C1"),
        ("Bind", "1", "C1"),
        ("Bind", "2", "1"),
    ]
    relations += [("Bind", "9", "1"), ("Bind", "1", "1"), ("NA", "2", "C1")]
    found = entities(mentions, relations, quarantine=quarantine)
    assert found.relations_P == ((0, 2, "Bind"), (0, 1, "Bind"))
    expected = {SECOND_LABEL: 1, REPEATED: 1, UNKNOWN_ENTITY: 1, SELF_RELATION: 1, NAMED_NA: 1}
    assert quarantine.count_by_reason == expected
    assert str(quarantine.examples_by_reason[UNKNOWN_ENTITY][0]) == "file:7 (1: Bind 9 1)"


def test_an_id_of_two_types_is_the_entity_that_is_mentioned_first_and_counted():
    quarantine = Quarantine()
    mentions = [
        mention("Melanoma", "Gene", "9"),
        mention("V600E", "Species", "9"),
        mention("BRAF", "Gene", "1"),
    ]
    assert entities(mentions, [("Bind", "9", "1")], quarantine=quarantine).relations_P == (
        (0, 1, "Bind"),
    )
    assert quarantine.count_by_reason == {SEVERAL_TYPES: 1}


def test_known_types_come_before_others():
    assert sorted(["Zebra", "CellLine", "Any", "Disease", "Gene"], key=type_rank) == [
        "Gene", "Disease", "CellLine", "Any", "Zebra",
    ]  # fmt: skip
