import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raybio.core.errors import DataError
from raybio.methods.biostransformers.formats.tables import read_pair_table
from raybio.store.quarantine import Quarantine
from tests.paths import SHARED_DATA

SHARED = SHARED_DATA / "biostransformers" / "validation_data_3M.csv.gz"


def read(path, **settings):
    quarantine = Quarantine(**settings)
    rows = [row for batch in read_pair_table(path, quarantine) for row in batch.to_pylist()]
    return [
        (r["pmid"], r["title"], r["abstract"], [m["name"] for m in r["mesh"]]) for r in rows
    ], quarantine


@pytest.mark.parametrize("compress", [False, True])
def test_the_tab_separated_layout_has_as_many_terms_as_columns(tmp_path, compress):
    content = (
        b"1\tA title\tAn  abstract\tHumans\tAged, 80 and over\n\n"
        b"2\tAnother\t\n3\tThird\t\tMice\t\r\n"
    )
    path = tmp_path / "articles.tsv"
    path.write_bytes(gzip.compress(content) if compress else content)
    rows, quarantine = read(path)
    assert rows == [
        (1, "A title", "An abstract", ["Humans", "Aged, 80 and over"]),
        (2, "Another", "", []),
        (3, "Third", "", ["Mice"]),
    ]
    assert quarantine.count_by_reason == {"article without MeSH term (kept)": 1}


def test_the_released_layout_reads_quoted_terms_and_leaves_the_random_ones(tmp_path):
    path = tmp_path / "released.csv"
    path.write_text('12,"Title, with comma","Aged, 80 and over;Humans","X;Y"\n13,Plain,Mice,Z\n')
    rows, _ = read(path)
    assert rows == [
        (12, "Title, with comma", "", ["Aged, 80 and over", "Humans"]),
        (13, "Plain", "", ["Mice"]),
    ]


@pytest.mark.parametrize("is_first", [False, True])
def test_a_first_row_of_the_released_layout_may_have_many_terms(tmp_path, is_first):
    path = tmp_path / "released.csv"
    rows = ["1,A title,a;b;c,d;e;f\n", "2,Other,a,b\n"]
    path.write_text("".join(rows if is_first else rows[::-1]))
    assert sorted(read(path)[0]) == [(1, "A title", "", ["a", "b", "c"]), (2, "Other", "", ["a"])]


def test_a_carriage_return_alone_ends_no_line(tmp_path):
    path = tmp_path / "articles.tsv"
    path.write_bytes(b"1\tT\tfirst\rsecond\tHumans\tMice\r\n2\tU\t\tMice\r3\tV\t\tRats\n")
    rows, quarantine = read(path)
    assert rows == [(1, "T", "first second", ["Humans", "Mice"])]
    assert quarantine.count_by_reason == {"terms with a carriage return": 1}


@pytest.mark.parametrize("label", ["terms", "label"])
def test_articles_may_have_a_column_of_the_name_text(tmp_path, label):
    path = tmp_path / "articles.csv"
    path.write_text(f"pmid,text,title,abstract,{label}\n1,whole,A title,Its abstract,Mice;Rats\n")
    assert read(path)[0] == [(1, "A title", "Its abstract", ["Mice", "Rats"])]


@pytest.mark.parametrize("other", ["", '"pmid": 1, "title": "a", "abstract": "b", '])
def test_half_of_a_character_is_refused_with_its_line(tmp_path, other):
    path = tmp_path / "texts.jsonl"
    cut = '"cut emoji \\ud83d"'
    line = f'{{{other}"terms": {cut}}}' if other else f'{{"text": {cut}, "label": "x"}}'
    path.write_text(f"\n{line}\n")
    with pytest.raises(DataError, match=r"texts\.jsonl, line 2: .* half of a character"):
        read(path)


def test_a_label_that_is_not_a_number_is_missing(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "a", "label": NaN}\n{"text": "b", "label": "x"}\n')
    pq.write_table(pa.table({"text": ["a"], "label": [float("nan")]}), tmp_path / "texts.parquet")
    assert [row[3] for row in read(path)[0]] == [[], ["x"]]
    assert [row[3] for row in read(tmp_path / "texts.parquet")[0]] == [[]]


def test_the_labels_of_one_text_are_united_and_no_number_is_a_pmid(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("text,label\nfirst,a;b\nsecond,c\nfirst,d\n")
    (one, first, _, labels), (two, second, _, others) = read(path)[0]
    assert (first, labels, second, others) == ("first", ["a", "b", "d"], "second", ["c"])
    assert one != two and min(one, two) > 10**15
    assert [row[0] for row in read(path)[0]] == [one, two]


@pytest.mark.parametrize(
    "header",
    [
        "PMID\tTitle\tAbstract\tMeSH",
        " pmid \ttitle",
        "ID\ttitle\t\tMeSH",
        "\ufeffPMID\tTI\tAB\tMH\tMH",
    ],
)
def test_a_header_is_known_as_one_and_is_not_held_against_the_table(tmp_path, header):
    path = tmp_path / "articles.tsv"
    path.write_text(f"{header}\n1\tA title\t\tMice\n", encoding="utf-8")
    rows, quarantine = read(path, max_bad_share=0)
    assert rows == [(1, "A title", "", ["Mice"])]
    assert quarantine.count_by_reason == {"header (no article)": 1}
    quarantine.check("article")


def test_columns_that_are_no_terms_are_refused(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("pmid\ttitle\tabstract\tyear\tmesh\n1\tA title\tIts text\t2001\tMice\n")
    with pytest.raises(DataError, match="column 'year' would be read as terms"):
        list(read_pair_table(path, Quarantine()))


def test_a_header_counts_on_the_first_line_alone(tmp_path):
    path = tmp_path / "articles.tsv"
    path.write_text("1\tA title\t\tMice\nPMID\tTitle\tAbstract\tMeSH\n")
    assert read(path)[1].count_by_reason == {"article without PMID": 1}


def test_terms_joined_in_one_column_are_set_aside_with_their_article(tmp_path):
    path = tmp_path / "articles.tsv"
    path.write_text("1\tone\t\tMice;Rats\n2\ttwo\t\tMice\n")
    rows, quarantine = read(path)
    assert [row[0] for row in rows] == [2]
    assert quarantine.num_seen("article") == 2


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        ("1,one,Mice,X\n2,two, with comma,Mice,X\n", "5 columns, want 4: 2,two, with comma,Mice,X"),
        ("1,one,Mice,X\n2,two,Mice\n", "3 columns, want 4: 2,two,Mice"),
        ("text,label\ntwo, with comma,Mice\none,Mice\n", "3 columns, want 2: two, with comma,Mice"),
    ],
)
def test_a_row_of_another_width_is_set_aside_and_never_cut_to_fit(tmp_path, content, detail):
    path = tmp_path / "articles.csv"
    path.write_text(content)
    rows, quarantine = read(path)
    assert [row[1:] for row in rows] == [("one", "", ["Mice"])]
    (example,) = quarantine.examples_by_reason["line with too many or too few columns"]
    assert (example.line, example.detail) == (2, detail)


def test_a_later_row_of_other_columns_than_released_is_skipped(tmp_path):
    path = tmp_path / "released.csv"
    path.write_text("1,one,Mice;Rats,X;Y\n2,two,Mice;Rats,X\n3,three,It is a sentence.,X\n")
    rows, quarantine = read(path)
    assert [row[0] for row in rows] == [1]
    ((_, examples),) = quarantine.examples_by_reason.items()
    assert [example.line for example in examples] == [2, 3]
    assert quarantine.num_seen("article") == 3


def test_a_pmid_beyond_what_a_store_can_hold_is_set_aside(tmp_path):
    path = tmp_path / "articles.tsv"
    path.write_text(
        f"{2**31}\tone\t\tMice\n{2**63}\ttwo\t\tMice\n"
        f"{'9' * 5000}\tthree\t\tMice\n-4\tfour\t\tMice\n"
    )
    rows, quarantine = read(path)
    assert [row[0] for row in rows] == [2**31]
    assert quarantine.count_by_reason == {"article without PMID": 3}


def test_bad_lines_are_set_aside_with_line_and_reason(tmp_path):
    path = tmp_path / "articles.tsv"
    path.write_text("1\tgood\t\tA\nx9\tno pmid\t\tA\n3\t\t\tA\n")
    rows, quarantine = read(path)
    assert [row[0] for row in rows] == [1]
    found = {
        reason: [example.line for example in kept]
        for reason, kept in quarantine.examples_by_reason.items()
    }
    assert found == {"article without PMID": [2], "article without title and abstract": [3]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"one,two\n", "the first line has 2 columns"),
        (b"", "is empty"),
        (b"1\tt\xff\t\tA\n", "is not UTF-8 .* Convert it first"),
        ("1\ttitle\t\tMice\n".encode("utf-16"), "is not UTF-8"),
        (b"PK\x03\x04\xff\xfe", "is not UTF-8"),
        (b"text,label\n", "holds no article"),
        (b"PMID\tTitle\tAbstract\tMeSH\n\n", "holds no article"),
        (
            b"PMID\tAbstract\tTitle\n1\tb\ta\n",
            r"has the columns \['pmid', 'abstract', 'title'\], want PMID, title",
        ),
        (
            b"id\tabstract\ttitle\tmesh\n1\tb\ta\tMice\n",
            r"has the columns \['id', 'abstract', 'title', 'mesh'\], want PMID, title",
        ),
        (
            b"pmid\ttitle\tmesh1\tmesh2\n1\ta\tMice\tRats\n",
            "column 'mesh1' would be read as abstracts; want PMID, title, abstract",
        ),
        (b"\n", "the first line has 0 columns"),
        (gzip.compress(b"1\tt\t\tA\n" * 1000, mtime=0)[:-20], "torn or damaged"),
        (b'12,a,b,c\n13,"never closed,Mice,Z\n', "line 2: is no table"),
        (
            b'12,Title,"An abstract, with a comma",Mice;Rats\n',
            "line 1: has columns of 1 and 2 terms .*'An abstract, with a comma'.*want PMID, title",
        ),
        (b'1,Title,"An abstract of one sentence.",Mice\n', "line 1: .*'An abstract of one sent"),
        (b"1,Title,Is it so? " + b"It is so " * 20 + b",Mice\n", "line 1: .*'Is it so"),
    ],
)
def test_files_of_other_kinds_are_refused(tmp_path, content, message):
    path = tmp_path / "articles"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nothing\.tsv: cannot be read"):
        read(tmp_path / "nothing.tsv")


@pytest.mark.skipif(not SHARED.exists(), reason="real data is not at hand")
def test_the_authors_released_file_is_read_whole():
    rows, quarantine = read(SHARED)
    assert len(rows) == 18_940
    assert not quarantine.count_by_reason
    assert len({term for row in rows for term in row[3]}) == 987
