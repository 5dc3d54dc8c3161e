import gzip

import numpy as np
import pytest
from lxml import etree

from raybio.core.errors import DataError
from raybio.methods.biostransformers.formats.columns import ARTICLE_SCHEMA
from raybio.methods.biostransformers.formats.medline import REASONS, read_medline
from raybio.store.quarantine import Quarantine
from tests.methods.biostransformers.formats.medline_files import (
    article_set,
    citation,
    deletion,
    write_medline,
)
from tests.paths import SHARED_DATA

MEDLINE = SHARED_DATA / "medline_xml"
needs_medline = pytest.mark.skipif(
    not MEDLINE.exists(), reason="the folder of real data is not beside this repository"
)
# Citations, with abstract, structured, with MeSH, DeleteCitation PMIDs: from the folder's README.
COUNTS = {
    "medline16n0902.xml.gz": (604, 526, 215, 94, 1),
    "pubmed_result_Fulltext_search.xml.gz": (208, 171, 50, 205, 0),
    "pubmed_result_main_finding_recognition.xml.gz": (121, 102, 31, 112, 0),
    "pubmed_result_ArticleSearch.xml.gz": (106, 106, 47, 80, 0),
    "pubmed_result_pubMR.xml.gz": (93, 92, 10, 93, 0),
}


def read(path, **options):
    """Articles as dictionaries, deletions, quarantine."""
    quarantine, rows, deleted = Quarantine(), [], []
    for batch in read_medline(path, quarantine, **options):
        batch.articles.validate(full=True)
        assert batch.articles.schema == ARTICLE_SCHEMA
        assert batch.deleted.dtype == np.int64
        rows += batch.articles.to_pylist()
        deleted += batch.deleted.tolist()
    return rows, deleted, quarantine


def read_one(folder, text):
    """The only article of a file that holds one citation."""
    rows, _, quarantine = read(write_medline(folder / "x.xml", text))
    assert not quarantine.count_by_reason
    return rows[0]


def citations_of(path):
    return list(etree.parse(gzip.open(path)).getroot().iter("MedlineCitation"))


@needs_medline
@pytest.mark.parametrize("name", COUNTS)
def test_the_real_files_give_the_counts_that_were_counted_by_hand(name):
    rows, deleted, quarantine = read(MEDLINE / name)
    structured = {
        int(one.findtext("PMID"))
        for one in citations_of(MEDLINE / name)
        if len(one.findall("Article/Abstract/AbstractText")) > 1
    }
    with_abstract = {row["pmid"] for row in rows if row["abstract"]}
    found = (
        len(rows),
        len(with_abstract),
        len(structured & with_abstract),
        sum(1 for row in rows if row["mesh"]),
        len(deleted),
    )
    assert found == COUNTS[name]
    assert set(quarantine.count_by_reason) <= {"not an article"}


@needs_medline
def test_all_real_files_together_hold_1132_articles_and_997_abstracts():
    rows = [row for name in COUNTS for row in read(MEDLINE / name)[0]]
    assert len({row["pmid"] for row in rows}) == 1132
    assert len({row["pmid"] for row in rows if row["abstract"]}) == 997


@needs_medline
@pytest.mark.parametrize("name", COUNTS)
def test_the_real_files_give_what_plain_xpath_gives(name):
    rows, _, _ = read(MEDLINE / name, articles_per_batch=7)
    for row, one in zip(rows, citations_of(MEDLINE / name), strict=True):
        assert row["pmid"] == int(one.xpath("string(PMID)"))
        texts = [
            "".join(text.xpath(".//text()")).split()
            for text in one.xpath("Article/Abstract/AbstractText")
        ]
        labels = [
            text.get("Label", "").split() for text in one.xpath("Article/Abstract/AbstractText")
        ]
        words = [
            word for label, text in zip(labels, texts, strict=True) for word in [*label, *text]
        ]
        assert "".join(row["abstract"].split()).replace(":", "") == "".join(words).replace(":", "")
        assert [heading["name"] for heading in row["mesh"]] == one.xpath(".//DescriptorName/text()")
        assert [q["ui"] for heading in row["mesh"] for q in heading["qualifiers"]] == one.xpath(
            ".//QualifierName/@UI"
        )
        expected = "".join(one.xpath("Article/ArticleTitle//text()")).strip("[]. ")
        assert row["title"].strip("[]. ") == " ".join(expected.split())
        assert (
            str(row["year"])
            == one.xpath("string(.//PubDate/*[self::Year or self::MedlineDate])")[:4]
        )


@needs_medline
def test_a_citation_has_the_line_on_which_it_begins_even_far_into_a_file():
    with gzip.open(MEDLINE / "medline16n0902.xml.gz", "rb") as file:
        expected = [
            number
            for number, line in enumerate(file, start=1)
            if line.startswith(b"<MedlineCitation ")
        ]
    assert expected[-1] > 65_535
    assert [row["line"] for row in read(MEDLINE / "medline16n0902.xml.gz")[0]] == expected


@pytest.mark.parametrize("suffix", [".xml", ".xml.gz", ".dat"])
@pytest.mark.parametrize("rows_a_batch", [1, 2, 1000])
def test_plain_and_gzip_files_give_the_same_whatever_they_are_called(
    tmp_path, suffix, rows_a_batch
):
    content = article_set(*(citation(pmid) for pmid in range(1, 6)), others=deletion(8, 9)).encode()
    (tmp_path / f"x{suffix}").write_bytes(content if suffix == ".xml" else gzip.compress(content))
    rows, deleted, _ = read(tmp_path / f"x{suffix}", articles_per_batch=rows_a_batch)
    assert ([row["pmid"] for row in rows], deleted) == ([1, 2, 3, 4, 5], [8, 9])


def test_the_root_of_before_2017_is_read(tmp_path):
    content = f"<MedlineCitationSet>{citation(7, version=2)}{deletion(3)}</MedlineCitationSet>"
    (tmp_path / "x.xml").write_text(content)
    rows, deleted, _ = read(tmp_path / "x.xml")
    assert [(row["pmid"], row["version"], row["line"]) for row in rows] == [(7, 2, 1)]
    assert deleted == [3]


def test_sections_keep_their_labels_and_other_abstracts_are_left_out(tmp_path):
    sections = (
        '<AbstractText Label="AIMS">To see.</AbstractText>'
        '<AbstractText Label=" METHODS: ">We  looked.</AbstractText>'
        '<AbstractText Label="EMPTY"/><AbstractText>It was.</AbstractText>'
        "<CopyrightInformation>Copyright 2001.</CopyrightInformation>"
    )
    other = '<OtherAbstract Language="fre"><AbstractText>Pour voir.</AbstractText></OtherAbstract>'
    row = read_one(tmp_path, citation(abstract=sections, after=other))
    assert row["abstract"] == "AIMS: To see. METHODS: We looked. It was."


def test_markup_and_formulas_keep_their_text_and_white_space_is_collapsed(tmp_path):
    marked = (
        "10<sup>3</sup> of\n\t <i>E. <b>coli</b></i> <!-- unseen --><?unseen?>"
        "at\u2009p\u00a0&lt;\u2028"
        '<mml:math xmlns:mml="http://www.w3.org/1998/Math/MathML"><mml:mi>x</mml:mi>\n<mml:mn>2</mml:mn></mml:math>.'
        "<![CDATA[ <raw>]]>"
    )
    row = read_one(
        tmp_path, citation(title=marked, abstract=f"<AbstractText>{marked}</AbstractText>")
    )
    assert row["title"] == row["abstract"] == "103 of E. coli at p < x 2. <raw>"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("[Rats and men].", "Rats and men."),
        ("[Rats and men]", "Rats and men"),
        ("[Rats or men?].", "Rats or men?"),
        ("[<i>Rattus</i> [and] men (author's transl)].", "Rattus [and] men (author's transl)."),
        ("[[18F]FDG in rats].", "[18F]FDG in rats."),
        ("[18F]FDG in rats.", "[18F]FDG in rats."),
        ("[18F]FDG and [11C].", "[18F]FDG and [11C]."),
        ("[Rats.", "[Rats."),
        ("[Rats [and men].", "[Rats [and men]."),
        ("Rats [and men].", "Rats [and men]."),
        ("[Not Available].", ""),
        ("[In process citation]", ""),
        ("[].", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_the_brackets_of_a_translated_title_are_taken_off_and_no_others(
    tmp_path, written, expected
):
    assert read_one(tmp_path, citation(title=written))["title"] == expected


@pytest.mark.parametrize("title", ["", None, "[Not Available]."])
def test_an_article_with_a_vernacular_title_only_is_kept(tmp_path, title):
    vernacular = "<VernacularTitle>Ratten <i>und</i> Menschen.</VernacularTitle>"
    row = read_one(tmp_path, citation(title=title, abstract=None, extra=vernacular))
    assert (row["title"], row["vernacular_title"], row["abstract"]) == (
        "",
        "Ratten und Menschen.",
        "",
    )


def test_a_heading_is_major_if_it_or_one_of_its_qualifiers_is(tmp_path):
    row = read_one(
        tmp_path,
        citation(
            mesh='<MeshHeading><DescriptorName UI="D1" MajorTopicYN="Y">Rats</DescriptorName>'
            "</MeshHeading>"
            '<MeshHeading><DescriptorName UI="D2" MajorTopicYN="N">Men</DescriptorName>'
            '<QualifierName UI="Q1" MajorTopicYN="N">blood</QualifierName>'
            '<QualifierName UI="Q2" MajorTopicYN="Y">drug  effects</QualifierName></MeshHeading>'
            "<MeshHeading><DescriptorName>Mice</DescriptorName></MeshHeading>"
        ),
    )
    blood, drugs = (
        {"name": "blood", "ui": "Q1", "is_major": False},
        {"name": "drug effects", "ui": "Q2", "is_major": True},
    )
    assert row["mesh"] == [
        {"name": "Rats", "ui": "D1", "is_major": True, "qualifiers": []},
        {"name": "Men", "ui": "D2", "is_major": True, "qualifiers": [blood, drugs]},
        {"name": "Mice", "ui": "", "is_major": False, "qualifiers": []},
    ]


def test_headings_and_qualifiers_stay_with_their_articles_across_a_batch(tmp_path):
    rng = np.random.default_rng(2)
    counts = [
        [int(count) for count in rng.integers(0, 4, int(rng.integers(0, 5)))] for _ in range(40)
    ]
    texts = [
        "".join(
            f"<MeshHeading><DescriptorName>h{pmid}.{at}</DescriptorName>"
            + "".join(
                f"<QualifierName>q{pmid}.{at}.{number}</QualifierName>" for number in range(count)
            )
            + "</MeshHeading>"
            for at, count in enumerate(own)
        )
        for pmid, own in enumerate(counts)
    ]
    path = write_medline(
        tmp_path / "x.xml", *(citation(pmid + 1, mesh=text) for pmid, text in enumerate(texts))
    )
    for row, (pmid, own) in zip(
        read(path, articles_per_batch=13)[0], enumerate(counts), strict=True
    ):
        found = [
            (heading["name"], [one["name"] for one in heading["qualifiers"]])
            for heading in row["mesh"]
        ]
        assert found == [
            (f"h{pmid}.{at}", [f"q{pmid}.{at}.{number}" for number in range(count)])
            for at, count in enumerate(own)
        ]


@pytest.mark.parametrize(
    ("published", "dates", "expected"),
    [
        ("<PubDate><Year>1999</Year></PubDate>", "", 1999),
        ("<PubDate><MedlineDate>Fall 1998-1999</MedlineDate></PubDate>", "", 1998),
        ("<PubDate><MedlineDate>no. 20011 of 2002 Dec</MedlineDate></PubDate>", "", 2002),
        (
            "<PubDate><Year>soon</Year></PubDate>",
            "<DateCompleted><Year>2003</Year></DateCompleted>",
            2003,
        ),
        (
            "",
            "<DateCreated><Year>2004</Year></DateCreated><DateCompleted><Year>2005</Year></DateCompleted>",
            2005,
        ),
        ("", "<DateCreated><Year>2004</Year></DateCreated><DateCompleted/>", 2004),
        ("<PubDate/>", "<DateRevised><Year>2006</Year></DateRevised>", 0),
    ],
)
def test_the_year_is_the_first_one_that_is_known(tmp_path, published, dates, expected):
    assert read_one(tmp_path, citation(published=published, dates=dates))["year"] == expected


def test_what_is_no_article_is_set_aside_with_line_and_reason_and_the_rest_is_kept(tmp_path):
    book = (
        '<PubmedBookArticle><BookDocument><PMID Version="1">77</PMID></BookDocument>'
        "</PubmedBookArticle>\n"
    )
    bad = [
        citation(None),
        citation("12x"),
        citation(0),
        citation(10**18),
        citation(5, version="one"),
        citation(6, title="[Not Available].", abstract="<AbstractText> </AbstractText>"),
        citation(7, abstract="<AbstractText>a&nbsp;b</AbstractText>"),
        citation(8, mesh="<MeshHeading><DescriptorName>a&nbsp;b</DescriptorName></MeshHeading>"),
    ]
    others = f"{book}<PubmedArticle/>\n<News>x</News>\n{book}{deletion(5, 'x')}"
    path = write_medline(tmp_path / "x.xml", citation(1), *bad, citation(2), others=others)
    rows, deleted, quarantine = read(path)
    assert ([row["pmid"] for row in rows], deleted) == ([1, 2], [5])
    assert quarantine.count_by_reason == {
        "no PMID": 1,
        "no legal PMID": 4,
        "neither title nor abstract": 1,
        "text with an entity that is not declared": 2,
        "not an article": 2,
        "PubmedArticle without a MedlineCitation": 1,
        "unknown element": 1,
        "deletion without a legal PMID": 1,
    }
    assert quarantine.num_seen("citation") == 2 + 8 + 2 + 1 + 1
    lines = path.read_text().split("\n")
    for reason, examples in quarantine.examples_by_reason.items():
        assert reason in REASONS
        assert all(lines[example.line - 1].startswith("<") for example in examples)
    assert quarantine.examples_by_reason["not an article"][0].detail == "PMID 77"
    with pytest.raises(DataError, match="10 of 14 citation records are bad"):
        quarantine.check("citation")


def test_a_file_of_deletions_alone_is_read(tmp_path):
    path = tmp_path / "x.xml"
    path.write_text(
        "<PubmedArticleSet><DeleteCitation><PMID Version='1'>13</PMID></DeleteCitation>"
        "</PubmedArticleSet>"
    )
    (batch,) = read_medline(path, Quarantine())
    assert (batch.articles.num_rows, batch.deleted.tolist()) == (0, [13])


def test_books_are_not_held_against_a_file(tmp_path):
    path = write_medline(tmp_path / "x.xml", citation(), others="<PubmedBookArticle/>" * 50)
    rows, _, quarantine = read(path)
    assert len(rows) == 1
    quarantine.check("citation")


def test_a_heading_without_a_name_is_counted_and_its_article_kept(tmp_path):
    path = write_medline(tmp_path / "x.xml", citation(mesh="<MeshHeading/>"))
    rows, _, quarantine = read(path)
    assert rows[0]["mesh"] == []
    assert quarantine.count_by_reason == {"heading without a name": 1}
    quarantine.check("heading")
