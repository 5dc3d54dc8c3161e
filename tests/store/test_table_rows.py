"""Tables of inputs with named columns."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raybio.runtime.search.embeddings import read_embeddings
from raybio.store.table_rows import parquet_batches, read_input_rows


def test_a_file_is_read_in_the_memory_of_one_row_group(tmp_path: Path) -> None:
    path = tmp_path / "many.parquet"
    numbers = pa.array(np.random.default_rng(0).normal(size=1000 * 64).astype(np.float32))
    vectors = pa.FixedSizeListArray.from_arrays(numbers, 64)
    group = pa.table({"key": [str(row) for row in range(1000)], "embedding": vectors})
    with pq.ParquetWriter(path, group.schema) as writer:
        for _ in range(40):
            writer.write_table(group)
    before = pa.total_allocated_bytes()
    for read in (lambda: read_embeddings(path), lambda: parquet_batches(pq.ParquetFile(path))):
        num_rows = 0
        most = 0
        for block in read():
            num_rows += len(block[0])
            most = max(most, pa.total_allocated_bytes() - before)
        assert num_rows == 40_000
        assert most < 10 * group.nbytes


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
