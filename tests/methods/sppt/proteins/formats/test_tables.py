import csv
import gzip
import io

import numpy as np
import pyarrow as pa
import pytest

from raybio.core.errors import DataError
from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.proteins.formats.tables import NO_TAXID, read_proteins
from raybio.methods.sppt.table_columns import find_delimiter, read_table
from raybio.store.quarantine import Quarantine

HEADER = b"protein_id\tspecies_taxid\tsequence\n"


def proteins(path, **options):
    quarantine = Quarantine()
    rows = [
        row
        for batch in read_proteins(path, quarantine, PrepareConfig(), **options)
        for row in batch.to_pylist()
    ]
    return [(row["key"], row["group"], row["sequence"], row["line"]) for row in rows], quarantine


def test_every_kind_of_bad_line_is_set_aside_with_its_line_number(tmp_path):
    (tmp_path / "p.tsv").write_bytes(
        HEADER
        + b"a\t1\tACD\r\n"
        + b"b\t1\n"  # 3: too few columns
        + b"c\t\tACD\n"  # 4: no species
        + b"\n"  # 5: nothing
        + b"\t1\tACD\n"  # 6: no id
        + b"d\t1\t\n"  # 7: no sequence
        + b"e\t1\tnull\n"  # 8: no sequence
        + b"f\t1\tAC?\n"  # 9: illegal
        + b"\xff\t1\tACD\n"  # 10: not text
        + b"g\t1\tACD\textra\n"  # 11: too many columns
        + b"h\t1\t"
        + b"A" * 1_000_000
        + b"\n"  # 12: 1 MB sequence
        + b'"i"\t2\tacd\n'  # 13: quotes have no meaning
        + b"j\tyeast\tACD\nk\t9606.0\tACD\nl\t09606\tACD\n"  # 14 to 16: no taxids
    )
    rows, quarantine = proteins(tmp_path / "p.tsv")
    assert rows == [("a", "1", b"ACD", 2), ('"i"', "2", b"ACD", 13)]
    lines = {
        reason: [example.line for example in kept]
        for reason, kept in quarantine.examples_by_reason.items()
    }
    assert lines == {
        "line with too many or too few columns": [3, 11],
        "no species": [4, 5],
        "no id": [6],
        "no sequence": [7, 8],
        "letter that is not an amino acid": [9],
        "id that is not UTF-8 text": [10],
        "sequence longer than 100,000 letters": [12],
        NO_TAXID: [14, 15, 16],
    }
    assert [example.detail for example in quarantine.examples_by_reason[NO_TAXID]] == [
        "j yeast",
        "k 9606.0",
        "l 09606",
    ]


def test_line_numbers_stay_right_over_many_blocks_with_skipped_lines(tmp_path):
    rng = np.random.default_rng(0)
    lines, kept = [], []
    for number in range(2, 3000):
        if rng.random() < 0.1:
            lines.append(b"only one column\n")
        else:
            lines.append(b"p%d\t1\tACDEF\n" % number)
            kept.append(number)
    (tmp_path / "p.tsv").write_bytes(HEADER + b"".join(lines))
    rows, quarantine = proteins(tmp_path / "p.tsv", block_bytes=1000)
    assert [row[3] for row in rows] == kept
    assert [row[0] for row in rows] == [f"p{number}" for number in kept]
    assert quarantine.count_by_reason == {"line with too many or too few columns": 2998 - len(kept)}


def test_columns_may_stand_in_any_order_among_others(tmp_path):
    (tmp_path / "p.tsv").write_bytes(b"note\tsequence\tprotein_id\tspecies_taxid\nx\tACD\ta\t7\n")
    assert proteins(tmp_path / "p.tsv")[0] == [("a", "7", b"ACD", 2)]


def test_gzip_is_read_alike(tmp_path):
    (tmp_path / "p.tsv.gz").write_bytes(gzip.compress(HEADER + b"a\t1\tACD\n"))
    assert proteins(tmp_path / "p.tsv.gz")[0] == [("a", "1", b"ACD", 2)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"name\tspecies_taxid\tsequence\n",
            r"has no column 'protein_id' \(or id, entry, accession\); found name, species_taxid",
        ),
        (
            b"protein_id,sequence\n",
            r"has no column 'species_taxid' .*, or --taxid for a single species; found protein_id,",
        ),
        (b"", "is empty, want a table with the columns protein_id"),
    ],
)
def test_a_table_with_other_columns_is_refused_with_what_was_found_and_wanted(
    tmp_path, content, message
):
    (tmp_path / "p.tsv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        proteins(tmp_path / "p.tsv")


def test_a_missing_table_is_named(tmp_path):
    with pytest.raises(
        DataError, match=r"p\.tsv: cannot be read .there is no such file., want a table"
    ):
        proteins(tmp_path / "p.tsv")


def test_a_torn_gzip_is_named(tmp_path):
    letters = (
        np.random.default_rng(0).choice(np.frombuffer(b"ACDE", dtype=np.uint8), 50_000).tobytes()
    )
    whole = gzip.compress(HEADER + b"a\t1\t" + letters + b"\n")
    (tmp_path / "p.tsv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"p\.tsv\.gz: the gzip stream is torn"):
        proteins(tmp_path / "p.tsv.gz")


def test_a_line_longer_than_a_block_is_refused_with_the_reason(tmp_path):
    (tmp_path / "p.tsv").write_bytes(HEADER + b"a\t1\t" + b"A" * 10_000 + b"\n")
    with pytest.raises(DataError, match="a line is longer than"):
        proteins(tmp_path / "p.tsv", block_bytes=1000)


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_fields_in_quotes_may_have_line_breaks_in_any_block(tmp_path, delimiter):
    rng = np.random.default_rng(0)
    rows = []
    for number in range(300):
        words = rng.choice(['a "hot" spot', "b\nc", "\n\n", "d, e; f", "", "g"], 3)
        rows.append((f"k{number}", " ".join(words).strip()))
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=delimiter, lineterminator="\n")
    writer.writerows([("id", "text"), *rows])
    (tmp_path / "t.csv").write_text(buffer.getvalue(), newline="")

    def read(block_bytes):
        blocks = read_table(
            tmp_path / "t.csv",
            "a table",
            lambda names: names,
            (pa.string(), pa.large_string()),
            "article",
            Quarantine(),
            block_bytes,
        )
        return [
            row for block in blocks for row in zip(*map(pa.Array.to_pylist, block), strict=True)
        ]

    # Each record is a line.
    expected = [(*row, number) for number, row in enumerate(rows, start=2)]
    for block_bytes in (*range(200, 230), 1 << 20):
        assert read(block_bytes) == expected


@pytest.mark.parametrize("block_bytes", [64, 200, 1 << 20])
@pytest.mark.parametrize("end", ["", "\n"])
def test_a_quote_that_begins_a_text_of_a_csv_does_not_swallow_the_rows_below_it(
    tmp_path, block_bytes, end
):
    rows = ["P1,x,MKV", 'P2,"5 prime,MKV', "P3,x,MKV", "P4,x,MKV", 'P9,"y",MKV', "P10,x,MKV"]
    path = tmp_path / "t.csv"

    def read(rows):
        path.write_text("\n".join(["id,title,sequence", *rows]) + end)
        blocks = read_table(
            path,
            "a table",
            lambda names: ["id", "sequence"],
            (pa.string(), pa.large_binary()),
            "protein",
            Quarantine(max_bad_share=1),
            block_bytes,
        )
        return [key for block in blocks for key in block[0].to_pylist()]

    with pytest.raises(DataError, match="want quotes only around whole fields, doubled inside"):
        read(rows)
    rows[1] = 'P2,"""5 prime""",MKV'
    assert read(rows) == ["P1", "P2", "P3", "P4", "P9", "P10"]


def test_a_line_that_is_no_text_and_has_another_number_of_columns_is_one_bad_line(tmp_path):
    lines = [b"a\t1\tACD", b"\xff\xfe", "b\u00e9\t1\tACD".encode(), b"c\xff\t1\tACD"]
    lines += [b"d\t1\tA\xffC", b"e\t1\tACD"]
    (tmp_path / "p.tsv").write_bytes(HEADER + b"\n".join(lines))
    for block_bytes in (40, 47, 64, 1 << 20):
        rows, quarantine = proteins(tmp_path / "p.tsv", block_bytes=block_bytes)
        assert [(row[0], row[3]) for row in rows] == [("a", 2), ("b\u00e9", 4), ("e", 7)]
        found = {
            reason: [(example.line, example.detail) for example in kept]
            for reason, kept in quarantine.examples_by_reason.items()
        }
        assert found["line with too many or too few columns"] == [
            (3, "1 columns, want 3: '\ufffd\ufffd'")
        ]
        assert found["id that is not UTF-8 text"] == [(5, repr(b"c\xff"))]
        assert [line for line, _ in found["letter that is not an amino acid"]] == [6]


@pytest.mark.parametrize(
    ("line", "delimiter"),
    [
        ("id;name, synonyms;sequence", ";"),
        ("id,name; synonyms,sequence", ","),
        ("a;b, c", ","),
        ("a; b, c\td", "\t"),
        ("a b", " "),
        ("a", ""),
    ],
)
def test_the_delimiter_is_a_tab_else_what_the_first_line_has_most_of(line, delimiter):
    assert find_delimiter(line) == delimiter
