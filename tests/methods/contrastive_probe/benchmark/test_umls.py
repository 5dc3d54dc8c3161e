import pyarrow as pa
import pytest

from raybio.core.errors import DataError
from raybio.methods.contrastive_probe.benchmark.umls import (
    MRCONSO,
    MRREL,
    read_concept_names,
    read_relations,
)
from raybio.store.quarantine import Quarantine
from tests.methods.contrastive_probe.benchmark.umls_files import conso_row, rel_row, write_umls

SMALL = 512


def test_a_row_has_every_column_and_a_bar_after_each():
    assert conso_row("C1", "A1", "Aspirin").count("|") == len(MRCONSO)
    assert rel_row("C1 A1", "may_treat", "C2").count("|") == len(MRREL)


def test_small_blocks_and_one_block_give_the_same_rows(tmp_path):
    folder = write_umls(tmp_path)
    whole, parts = Quarantine(), Quarantine()
    tables = [
        read_relations(folder / "MRREL.RRF", {"may_treat"}, {"NCI"}, whole),
        read_relations(folder / "MRREL.RRF", {"may_treat"}, {"NCI"}, parts, block_bytes=SMALL),
    ]
    assert tables[1].equals(tables[0]) and len(tables[0]) > 10
    lines = (folder / "MRREL.RRF").read_text(encoding="utf-8").splitlines()
    for row in tables[1].to_pylist():
        columns = dict(zip(MRREL, lines[row["line"] - 1].split("|"), strict=False))
        assert {name: columns[name] for name in row if name != "line"} == {
            n: row[n] for n in row if n != "line"
        }
    auis, cuis = tables[0]["AUI2"].unique(), tables[0]["CUI2"].unique()
    names = [
        read_concept_names(folder / "MRCONSO.RRF", auis, cuis, whole),
        read_concept_names(folder / "MRCONSO.RRF", auis, cuis, parts, block_bytes=SMALL),
    ]
    assert names[0] == names[1] and set(names[0].name_by_cui) == set(cuis.to_pylist())
    assert whole.summary() == parts.summary()


@pytest.mark.parametrize(
    "broken",
    [b"C1|A1\n", rel_row("C1", "may_treat", "C2").replace("NCI", "\xff").encode("latin-1")],
)
def test_a_bad_row_is_named_by_its_line_in_any_block(tmp_path, broken):
    row = rel_row("C1", "may_treat", "C2").encode()
    (tmp_path / "MRREL.RRF").write_bytes(row * 50 + broken + row)
    with pytest.raises(DataError, match=r"MRREL\.RRF, line 51: "):
        read_relations(
            tmp_path / "MRREL.RRF", {"may_treat"}, {"NCI"}, Quarantine(), block_bytes=SMALL
        )


def test_quotes_and_spaces_have_no_special_meaning(tmp_path):
    names = ['"Aspirin', "Laennec's", 'a ""b"" \\', " blank "]
    rows = [conso_row(f"C{number}", f"A{number}", name) for number, name in enumerate(names)]
    (tmp_path / "MRCONSO.RRF").write_bytes("".join(rows).replace("\n", "\r\n").encode())
    cuis = pa.array([f"C{number}" for number in range(4)])
    found = read_concept_names(
        tmp_path / "MRCONSO.RRF", pa.array([], pa.string()), cuis, Quarantine()
    )
    assert list(found.name_by_cui.values()) == ['"Aspirin', "Laennec's", 'a ""b"" \\', "blank"]
    assert found.name_by_aui == {}
