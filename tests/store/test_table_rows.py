"""Tables of inputs with named columns."""

from pathlib import Path

import pytest

from raybio.store.table_rows import read_input_rows


@pytest.mark.parametrize(
    ("header", "keys"),
    [
        ("protein_id\tspecies_taxid\tsequence", ["a", "b"]),
        ("protein_id\tid\tsequence", ["9606", "562"]),
        ("name\tspecies_taxid\tsequence", ["1", "2"]),
    ],
)
def test_rows_have_the_ids_of_their_table_or_numbers(
    tmp_path: Path, header: str, keys: list[str]
) -> None:
    path = tmp_path / "proteins.tsv"
    path.write_text(f"{header}\na\t9606\tMKV\nb\t562\tACD\n")
    (rows,) = read_input_rows(path, "sequence")
    assert rows.keys == keys
    assert rows.contents == ["MKV", "ACD"]
