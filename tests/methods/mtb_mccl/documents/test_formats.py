import dataclasses
import gzip
import json

import pytest

from raybio.core.errors import DataError
from raybio.methods.mtb_mccl.documents import pubtator
from raybio.methods.mtb_mccl.documents.bioc import (
    DISCONTINUOUS,
    INCOMPLETE_MENTION,
    INCOMPLETE_RELATION,
    MISPLACED_PASSAGES,
    WITHOUT_ID,
)
from raybio.methods.mtb_mccl.documents.entities import (
    OTHER_TEXT,
    OUTSIDE,
    Mention,
    resolve_entities,
)
from raybio.methods.mtb_mccl.documents.formats import NO_TEXT, NO_UTF8, read_documents
from raybio.methods.mtb_mccl.documents.pubtator import REPEATED_TEXT, STRAY, UNKNOWN_LINE
from raybio.store.quarantine import Quarantine
from tests.paths import SHARED_DATA

DATA = SHARED_DATA
PUBTATOR = (
    "1|t|BRAF in melanoma.\r\n1|a|It binds.\r\n"
    "1\t0\t4\tBRAF\tGene\t673,7\r\n1\t8\t16\tmelanoma\tDisease\r\n"
    "1\tBind\t673\tc|DEL|1_2|\tNovel\r\n\r\n2|t|Nothing|here\r\n2|a|\r\n"
)
JSON = {
    "documents": [
        {
            "id": 1,
            "passages": [
                {
                    "offset": 0,
                    "text": "BRAF in melanoma.",
                    "annotations": [
                        {
                            "infons": {"type": "Gene", "identifier": "673,7"},
                            "text": "BRAF",
                            "locations": [{"offset": 0, "length": 4}],
                        },
                        {
                            "infons": {"type": "Disease"},
                            "text": "melanoma",
                            "locations": [{"offset": 8, "length": 8}],
                        },
                    ],
                },
                {"offset": 18, "text": "It binds."},
            ],
            "relations": [{"infons": {"type": "Bind", "entity1": "673", "entity2": "c|DEL|1_2|"}}],
        },
        {"id": "2", "passages": [{"offset": 0, "text": "Nothing|here "}]},
    ]
}
XML = (
    "<?xml version='1.0'?><!DOCTYPE collection SYSTEM 'BioC.dtd'><collection><source>x</source>"
    "<document><id>1</id><passage><offset>0</offset><text>BRAF in melanoma.</text>"
    "<annotation><infon key='identifier'>673,7</infon><infon key='type'>Gene</infon>"
    "<location offset='0' length='4'/><text>BRAF</text></annotation>"
    "<annotation><infon key='type'>Disease</infon><location offset='8' length='8'/>"
    "<text>melanoma</text></annotation>"
    "</passage><passage><sentence><offset>18</offset><text>It binds.</text></sentence></passage>"
    "<relation><infon key='entity1'>673</infon><infon key='entity2'>c|DEL|1_2|</infon>"
    "<infon key='type'>Bind</infon>"
    "</relation></document>"
    "<document><id>2</id><passage><offset>0</offset><text>Nothing|here </text></passage></document>"
    "</collection>"
)
DOCRED = [
    {
        "title": "Bern",
        "sents": [["Bern", "is", "in"], ["Switzer", "land", "55", "%"]],
        "vertexSet": [
            [{"name": "Switzer land", "sent_id": 1, "pos": [0, 2], "type": "LOC"}],
            [{"name": "0.\nBern", "sent_id": 0, "pos": [0, 1], "type": "LOC"}],
            [{"name": "55%", "sent_id": 1, "pos": [2, 4], "type": "NUM"}],
        ],
        "labels": [{"h": 1, "t": 0, "r": "P17", "evidence": [0]}],
    }
]


def read(path, content, quarantine=None):
    raw = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return list(read_documents(path, quarantine or Quarantine()))


def counts_of(path, content):
    quarantine = Quarantine()
    documents = read(path, content, quarantine)
    return documents, dict(quarantine.count_by_reason)


@pytest.mark.parametrize(
    "content", [PUBTATOR, "\ufeff" + PUBTATOR, json.dumps(JSON), json.dumps(JSON, indent=1), XML]
)
@pytest.mark.parametrize("name", ["any", "any.gz"])
def test_pubtator_and_bioc_are_recognized_and_agree(tmp_path, name, content):
    first, second = read(tmp_path / name, content)
    assert (first.document_id, first.text) == ("1", "BRAF in melanoma. It binds.")
    assert first.mentions == (
        Mention(0, 4, "Gene", {"673": "673", "7": "7"}),
        Mention(8, 16, "Disease", {}),
    )
    assert first.relations == (("Bind", "673", "c|DEL|1_2|"),)
    assert (second.document_id, second.text, second.mentions, second.is_docred) == (
        "2",
        "Nothing|here ",
        (),
        False,
    )


def test_docreds_tokens_are_joined_by_blanks_and_vertices_are_ids(tmp_path):
    (one,) = read(tmp_path / "dev.json.gz", json.dumps(DOCRED))
    assert (one.document_id, one.text, one.is_docred) == (
        "Bern",
        "Bern is in Switzer land 55 %",
        True,
    )
    assert one.mentions == (
        Mention(11, 23, "LOC", {"0": "0"}),
        Mention(0, 4, "LOC", {"1": "1"}),
        Mention(24, 28, "NUM", {"2": "2"}),
    )
    assert one.relations == (("P17", "1", "0"),)


def test_lines_of_pubtator_are_distinguished_and_named_where_they_are_bad(tmp_path):
    content = (
        "1|t|Über BRAF\n1|a|x\n1\t5\t9\tBRAF\tGene\t1\n"
        "1\t0\t4\tBRAF\tGene\t1\n1\t5\t99\tBRAF\tGene\t1\n"
        "1\t-5\t9\tBRAF\tGene\t1\n1\t9\t5\tBRAF\tGene\t1\n1 5 9 BRAF Gene 1\n"
        "2\t5\t9\tBRAF\tGene\t1\n1\ta\tb\n1|a|y\n\n"
        "1\t5\t9\tBRAF\tGene\t1\n3|t|Next\n4|t|No empty line between\n4\tBind\t1\t2\n"
    )
    quarantine = Quarantine()
    documents = read(tmp_path / "f.PubTator", content, quarantine)
    assert [one.text for one in documents] == ["Über BRAF x", "Next", "No empty line between"]
    assert [one.line for one in documents] == [1, 14, 15]
    assert [len(one.mentions) for one in documents] == [1, 0, 0]
    assert documents[2].relations == (("Bind", "1", "2"),)
    assert quarantine.count_by_reason == {
        OTHER_TEXT: 1,
        OUTSIDE: 3,
        STRAY: 3,
        UNKNOWN_LINE: 1,
        REPEATED_TEXT: 1,
    }
    assert str(quarantine.examples_by_reason[OTHER_TEXT][0]) == "f.PubTator:4 (1: 'BRAF' at 0-4)"
    assert [example.line for example in quarantine.examples_by_reason[STRAY]] == [8, 9, 13]


def test_what_bioc_lacks_is_set_aside(tmp_path):
    document = json.loads(json.dumps(JSON["documents"][0]))
    gene, disease = document["passages"][0]["annotations"]
    gene["locations"].append({"offset": 5, "length": 2})
    disease["locations"][0]["offset"] = "8"
    document["relations"][0]["infons"].pop("entity1")
    far = {"id": "3", "passages": [{"offset": 10**9, "text": "x"}]}
    twice = {"id": "4", "passages": [{"offset": 0, "text": "abc"}, {"offset": 2, "text": "c"}]}
    half = {"id": "5", "passages": [{"offset": 0, "text": "\ud800"}]}
    documents, counts = counts_of(
        tmp_path / "a.json", json.dumps({"documents": [document, far, twice, half]})
    )
    assert [(len(one.mentions), len(one.relations)) for one in documents] == [(0, 0)]
    assert counts == {
        DISCONTINUOUS: 1,
        INCOMPLETE_MENTION: 1,
        INCOMPLETE_RELATION: 1,
        MISPLACED_PASSAGES: 2,
        NO_UTF8: 1,
    }


PUBTATOR3 = {
    "PubTator3": [
        {
            "_id": "7|None",
            "id": "7",
            "infons": {},
            "passages": [
                {
                    "infons": {"journal": "J;2024", "year": "2024", "type": "title"},
                    "offset": 0,
                    "text": "NFKBIZ in lymphoma.",
                    "sentences": [],
                    "annotations": [
                        {
                            "id": "2",
                            "infons": {
                                "identifier": "64332",
                                "type": "Gene",
                                "valid": True,
                                "normalized": [64332],
                                "database": "ncbi_gene",
                                "normalized_id": 64332,
                                "biotype": "gene",
                                "name": "NFKBIZ",
                                "accession": "@GENE_NFKBIZ",
                            },
                            "text": "NFKBIZ",
                            "locations": [{"offset": 0, "length": 6}],
                        },
                        {
                            "id": "3",
                            "infons": {
                                "identifier": "MESH:D008223",
                                "type": "Disease",
                                "normalized": ["D008223"],
                                "database": "ncbi_mesh",
                                "normalized_id": "D008223",
                            },
                            "text": "lymphoma",
                            "locations": [{"offset": 10, "length": 8}],
                        },
                    ],
                    "relations": [],
                }
            ],
            "relations": [
                {
                    "id": "R1",
                    "infons": {
                        "score": "0.99",
                        "role1": {"identifier": "MESH:D008223", "type": "Disease"},
                        "role2": {"identifier": "64332", "type": "Gene", "name": "NFKBIZ"},
                        "type": "Association",
                    },
                    "nodes": [{"refid": "0", "role": "1,0"}],
                }
            ],
            "pmid": 7,
            "relations_display": [{"name": "associate|@DISEASE_Lymphoma|@GENE_NFKBIZ"}],
        }
    ]
}
PUBTATOR3_XML = (
    "<collection><source>PubTator</source><document><id>7</id><passage><offset>0</offset>"
    "<text>NFKBIZ in lymphoma.</text>"
    "<annotation id='2'><infon key='identifier'>64332</infon><infon key='type'>Gene</infon>"
    "<location offset='0' length='6'/><text>NFKBIZ</text></annotation>"
    "<annotation id='3'><infon key='identifier'>MESH:D008223</infon>"
    "<infon key='type'>Disease</infon><location offset='10' length='8'/><text>lymphoma</text>"
    "</annotation></passage><relation id='R1'><infon key='score'>0.99</infon>"
    "<infon key='role1'>Disease|MESH:D008223</infon><infon key='role2'>Gene|64332</infon>"
    "<infon key='type'>Association</infon><node refid='0' role='1,0'/></relation>"
    "</document></collection>"
)


@pytest.mark.parametrize("content", [json.dumps(PUBTATOR3), PUBTATOR3_XML])
def test_the_export_of_pubtator3_is_read(tmp_path, content):
    quarantine = Quarantine()
    (raw,) = read(tmp_path / "export", content, quarantine)
    assert raw.mentions == (
        Mention(0, 6, "Gene", {"64332": "64332"}),
        Mention(10, 18, "Disease", {"D008223": "MESH:D008223"}),
    )
    assert raw.relations == (("Association", "MESH:D008223", "64332"),)
    document = resolve_entities(raw, quarantine, "export")
    assert document.relations_P == ((0, 1, "Association"),)
    assert not quarantine.count_by_reason


@pytest.mark.parametrize("name", ["MESH", "Identifier", "NCBI Gene", "ncbi_taxonomy", "concept_id"])
def test_ids_of_bioc_may_have_other_names(tmp_path, name):
    content = XML.replace("key='identifier'", f"key='{name}'")
    documents, counts = counts_of(tmp_path / "a.xml", content)
    assert documents == read(tmp_path / "b.xml", XML)
    assert documents[0].mentions[0].ids == {"673": "673", "7": "7"}
    assert counts == {WITHOUT_ID: 1}


def test_the_layout_of_bc5cdr_is_read(tmp_path):
    content = XML.replace("key='identifier'>673,7", "key='MESH'>673")
    content = content.replace("key='type'>Bind", "key='relation'>CID")
    content = content.replace("key='entity1'", "key='Chemical'").replace("entity2", "Disease")
    (raw, _), counts = counts_of(tmp_path / "a.xml", content)
    assert raw.relations == (("CID", "673", "c|DEL|1_2|"),)
    assert counts == {WITHOUT_ID: 1}


def test_a_mention_of_bioc_without_an_id_is_counted_with_its_infons(tmp_path):
    content = json.dumps(JSON).replace('"identifier"', '"ontology"')
    quarantine = Quarantine()
    documents = read(tmp_path / "a.json", content, quarantine)
    assert [mention.ids for mention in documents[0].mentions] == [{}, {}]
    assert quarantine.count_by_reason == {WITHOUT_ID: 2}
    assert (
        quarantine.examples_by_reason[WITHOUT_ID][0].detail == "1: 'BRAF', infons: type, ontology"
    )
    assert not quarantine.num_bad("mention")
    # "-" says that there is none.
    content = json.dumps(JSON).replace('"type": "Disease"', '"type": "Disease", "identifier": "-"')
    assert counts_of(tmp_path / "b.json", content)[1] == {}


def test_docreds_mentions_at_no_place_and_with_other_names_are_set_aside(tmp_path):
    document = json.loads(json.dumps(DOCRED[0]))
    document["vertexSet"][0][0]["name"] = "Austria"
    document["vertexSet"][1] = [
        {"name": "x", "type": "LOC", "sent_id": s, "pos": p} for s, p in [(9, [0, 1]), (0, [2, 5])]
    ]
    documents, counts = counts_of(
        tmp_path / "a.json", json.dumps([document, {**DOCRED[0], "sents": [], "vertexSet": []}])
    )
    assert [len(one.mentions) for one in documents] == [1]
    assert counts == {OTHER_TEXT: 1, OUTSIDE: 2, NO_TEXT: 1}


BOMB = (
    '<!DOCTYPE collection [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'
    "<collection><document>&b;</document></collection>"
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty, want documents in PubTator's format"),
        ("PMID\tstart\tend\n", "begins with 'PMID"),
        (b"1|t|x\n1|a|\xff\n", "line 2 is not UTF-8"),
        (b"[\xff", "not UTF-8"),
        ("[{", "line 1: is no JSON"),
        (
            json.dumps(DOCRED)[:-1] + ",\n]",
            "line 2: is no JSON of the wanted form .a comma before ]",
        ),
        ("[" * 100_000, "is no JSON"),
        ('[{"title": "a", "title": "b"}]', "names 'title' twice"),
        ("[] []", "more after its end"),
        ("[1]", "at line 1: is a int, want an object"),
        ('[{"title": "a", "sents": [[1]]}]', "field 'sents'"),
        ('[{"title": "a", "sents": [["b"]], "vertexSet": {}}]', "field 'vertexSet'"),
        ('{"documents": [{}]}', "field 'id'"),
        ('{"documents": [{"id": "1", "passages": {"a": 1}}]}', "field 'passages'"),
        ('{"documents": []', "is no JSON of the wanted form .ends, want ','"),
        ('{"papers": []}', "holds no 'documents'"),
        ('{"documents": 1}', "is no list"),
        (BOMB, "declares the entity 'a', which is refused"),
        ("<collection><document></collection>", "is not well-formed XML"),
        ("<articles/>", "the root element is <articles>, want <collection>"),
    ],
)
def test_a_broken_or_evil_file_is_refused_by_name(tmp_path, content, message):
    with pytest.raises(DataError, match=message) as refused:
        read(tmp_path / "file.gz", content)
    assert str(tmp_path / "file.gz") in str(refused.value)


@pytest.mark.parametrize("content", [PUBTATOR, json.dumps(JSON), XML, json.dumps(DOCRED)])
def test_a_torn_gzip_is_refused(tmp_path, content):
    (tmp_path / "torn.gz").write_bytes(gzip.compress(content.encode())[:-9])
    with pytest.raises(DataError, match="the gzip stream is torn"):
        list(read_documents(tmp_path / "torn.gz", Quarantine()))


def test_json_longer_than_a_block_is_read_with_its_lines(tmp_path):
    documents = [{**DOCRED[0], "title": f"{number} {'é' * 3000}"} for number in range(200)]
    content = "[" + ",\n".join(json.dumps(one, ensure_ascii=False) for one in documents) + "\n]\n"
    found = read(tmp_path / "long.json", content)
    assert [one.document_id for one in found] == [one["title"] for one in documents]
    assert [one.line for one in found] == list(range(1, 201))


def real(name):
    path = DATA / name
    return path if path.exists() else pytest.skip(f"../shared/data/{name} is not there")


@pytest.mark.parametrize(
    ("one", "other", "counts"),
    [
        ("Train.PubTator.gz", "Train.BioC.XML.gz", (400, 13_351, 4178)),
        ("Dev.PubTator.gz", "Dev.BioC.JSON.gz", (100, 3533, 1162)),
        ("Test.PubTator.gz", "Test.BioC.JSON.gz", (100, 3535, 1163)),
    ],
)
def test_biored_has_the_counts_of_its_readme_and_is_the_same_in_both_formats(one, other, counts):
    quarantine = Quarantine()
    found = list(read_documents(real(f"biored/{one}"), quarantine))
    same = [
        dataclasses.replace(raw, line=0)
        for raw in read_documents(real(f"biored/{other}"), quarantine)
    ]
    assert [dataclasses.replace(raw, line=0) for raw in found] == same
    assert (
        len(found),
        sum(len(raw.mentions) for raw in found),
        sum(len(raw.relations) for raw in found),
    ) == counts
    assert not quarantine.count_by_reason


@pytest.mark.parametrize(
    ("split", "num_labels", "num_bad"), [("dev", 17_284, 0), ("test", 17_448, 1)]
)
def test_re_docred_has_the_counts_of_its_readme(split, num_labels, num_bad):
    quarantine = Quarantine()
    found = list(read_documents(real(f"re_docred/{split}_revised.json.gz"), quarantine))
    assert (len(found), sum(len(raw.relations) for raw in found)) == (500, num_labels)
    assert quarantine.count_by_reason.total() == num_bad


@pytest.mark.parametrize(
    ("name", "num_documents", "num_mentions", "num_bad"),
    [
        ("BC5CDR_TrainDev", 1000, 18_974, 0),
        ("BC5CDR_Test", 500, 9796, 0),
        ("NCBIdisease_TrainDev", 693, 5932, 1),
        ("NCBIdisease_Test", 100, 960, 0),
        ("NLMgene_Train", 450, 13_797, 11),
        ("NLMgene_Test", 100, 3053, 0),
        ("GNormPlus_Train", 432, 5793, 35),
        ("GNormPlus_Test", 262, 4849, 4),
        ("tmVar3_Train", 342, 7957, 21),
        ("tmVar3_Test", 158, 4625, 0),
        ("SPECIES_Train", 639, 3053, 0),
        ("SPECIES_Test", 160, 739, 0),
        ("DrugProt_Test", 750, 18_339, 0),
        ("BioRED_TrainDev", 500, 16_884, 0),
        ("BioRED_Test", 100, 3535, 0),
    ],
)
def test_the_annotated_corpora_have_the_counts_of_their_readme(
    name, num_documents, num_mentions, num_bad
):
    quarantine = Quarantine()
    found = list(read_documents(real(f"pubtator_ner/{name}.PubTator.gz"), quarantine))
    assert (len(found), quarantine.num_seen("mention")) == (num_documents, num_mentions)
    assert num_mentions - sum(len(raw.mentions) for raw in found) == num_bad
    assert set(quarantine.count_by_reason) <= {OTHER_TEXT, OUTSIDE}


@pytest.mark.parametrize(
    ("line", "num_lines"),
    [("1", 65_536), ("1\t0\t4\tBRAF\tGene", 65_536), ("1\t" + "x" * 1000, 16_727)],
)
def test_a_document_of_pubtator_has_a_limit_however_short_its_lines_are(
    tmp_path, monkeypatch, line, num_lines
):
    """One of 60 MB in 61 kB of gzip took half a gigabyte."""
    largest = 0
    document = pubtator._document

    def note_size(lines, *others):
        nonlocal largest
        largest = max(largest, len(lines.rows))
        return document(lines, *others)

    monkeypatch.setattr(pubtator, "_document", note_size)
    path = tmp_path / "bomb.gz"
    fitting = num_lines - 2
    path.write_bytes(gzip.compress(("1|t|BRAF\n" + f"{line}\n" * fitting).encode(), 1))
    assert len(list(pubtator.read_pubtator(path, Quarantine()))) == 1
    assert largest == fitting
    path.write_bytes(gzip.compress(("2|t|a\n\n1|t|BRAF\n" + f"{line}\n" * 80_000).encode(), 1))
    with pytest.raises(
        DataError,
        match=r"bomb\.gz: the document '1' of line 3 is longer than 16 MiB at line .*Split the doc",
    ):
        list(pubtator.read_pubtator(path, Quarantine()))
    assert largest == fitting
