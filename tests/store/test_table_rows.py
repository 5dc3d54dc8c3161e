"""Tables of inputs with named columns."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raybio.core.errors import DataError
from raybio.core.files import replaced_file
from raybio.runtime.search.embeddings import read_embeddings
from raybio.store import table_rows
from raybio.store.table_rows import (
    ROWS_AT_ONCE,
    column_names,
    parquet_batches,
    read_columns,
    read_input_rows,
)
from tests.paths import ROOT


def test_a_file_is_read_in_the_memory_of_one_row_group(tmp_path: Path) -> None:
    path = tmp_path / "many.parquet"
    numbers = pa.array(np.random.default_rng(0).normal(size=1000 * 64).astype(np.float32))
    vectors = pa.FixedSizeListArray.from_arrays(numbers, 64)
    group = pa.table({"key": [str(row) for row in range(1000)], "embedding": vectors})
    with pq.ParquetWriter(path, group.schema) as writer:
        for _ in range(40):
            writer.write_table(group)
    before = pa.total_allocated_bytes()
    for read in (
        lambda: read_embeddings(path),
        lambda: parquet_batches(path, pq.ParquetFile(path)),
    ):
        num_rows = 0
        most = 0
        for block in read():
            num_rows += len(block[0])
            most = max(most, pa.total_allocated_bytes() - before)
        assert num_rows == 40_000
        assert most < 10 * group.nbytes


WHOLE = 1 << 20
LONGEST = 1 << 16


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "MAX_WHOLE_BYTES", WHOLE)
    monkeypatch.setattr(table_rows, "MAX_LINE_LENGTH", LONGEST)


def texts_of(path: Path) -> list[list[str]]:
    return [block.columns[0] for block in read_columns(path, "text", lambda _: ["text"])]


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize(
    ("length", "words"),
    [
        (3 * WHOLE, r"\d+ bytes unpack to 3,1\d\d,\d\d\d, want at most 1,000 times as many"),
        (4 * LONGEST, r"1 values take 262,\d\d\d bytes, want at most 0 MiB a value"),
    ],
)
def test_a_long_text_in_a_small_file_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, words: str
) -> None:
    """One of 300 MiB in 10 kB took 1.2 GiB."""
    path = tmp_path / "bomb.parquet"
    table = pa.table({"key": ["x" * length], "text": ["short"], "embedding": [[1.0]]})
    pq.write_table(table, path, compression="zstd", use_dictionary=False)
    monkeypatch.delattr(pq.ParquetFile, "iter_batches")
    for read in (texts_of, lambda path: list(read_embeddings(path))):
        with pytest.raises(DataError, match=rf"bomb\.parquet, row group 0, column 'key': {words}"):
            read(path)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_long_text_among_short_ones_is_refused_with_its_row(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"long.{suffix}"
    rows = ["short"] * ROWS_AT_ONCE + ["x" * LONGEST, "x" * (LONGEST + 1)]
    write_table(pa.table({"text": rows}), path)
    with pytest.raises(DataError, match=r"column text, row 4,098: has 65,537 characters, want at"):
        texts_of(path)


@pytest.mark.usefixtures("small_limits")
def test_a_text_that_many_rows_of_an_arrow_file_repeat_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.arrow"
    write_table(pa.table({"text": pa.array(["x" * 50_000] * 500).dictionary_encode()}), path)
    with pytest.raises(DataError, match=r"bomb\.arrow: .* repeat texts .* up to 25,000,000 bytes"):
        texts_of(path)


def write_table(table: pa.Table, path: Path) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


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


def test_booleans_and_numbers_are_the_same_texts_in_every_form(tmp_path: Path) -> None:
    rows = [
        {"label": True, "score": 1.0, "id": 1e20, "number": 0.1},
        {"label": False, "score": 2.5, "id": 2.0, "number": 1e-7},
        {"label": None, "score": -0.0, "id": None, "number": 123456789.0},
    ]
    names = list(rows[0])
    expected = [
        ["True", "False", ""],
        ["1.0", "2.5", "-0.0"],
        ["1e+20", "2.0", ""],
        ["0.1", "1e-07", "123456789.0"],
    ]
    cells = ["" if value is None else str(value) for row in rows for value in row.values()]
    lines = [",".join(cells[start : start + 4]) for start in range(0, len(cells), 4)]
    (tmp_path / "a.csv").write_text("\n".join([",".join(names), *lines, ""]))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, tmp_path / "a.parquet")
    coded = pa.table([column.dictionary_encode() for column in table.columns], names=names)
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), coded.schema) as writer:
        writer.write_table(coded)
    for kind in ("csv", "jsonl", "parquet", "arrow"):
        (block,) = read_columns(tmp_path / f"a.{kind}", "columns", lambda _: names)
        assert block.columns == expected, kind


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([0.1, 1 / 3, 1e-7, 3.0, None], pa.float32(), ["0.1", "0.33333334", "1e-07", "3.0", ""]),
        ([0.1, None, 3.0], pa.float16(), ["0.1", "", "3.0"]),
        ([[0.1, 1.0], None, [], [2.0]], pa.list_(pa.float32()), ["0.1|1.0", "", "", "2.0"]),
        ([[True, None], [False]], pa.large_list(pa.bool_()), ["True|", "False"]),
        ([["a", "b"], None, ["c"]], pa.list_(pa.large_string()), ["a|b", "", "c"]),
        ([[["a", "b"], ["c"]], [[]]], pa.list_(pa.list_(pa.string())), ["a|b|c", ""]),
        ([], pa.list_(pa.string()), None),
    ],
)
def test_values_of_parquet_are_texts_with_the_digits_of_their_type(
    tmp_path: Path, values: list, kind: pa.DataType, expected: list[str] | None
) -> None:
    if kind == pa.float16():
        values = [None if value is None else np.float16(value) for value in values]
    table = pa.table({"a": pa.array(values, kind)})
    pq.write_table(table, tmp_path / "a.parquet")
    blocks = list(read_columns(tmp_path / "a.parquet", "a", lambda _: ["a"], separator="|"))
    assert [block.columns for block in blocks] == ([] if expected is None else [[expected]])
    # A slice of a file, as an Arrow stream is read.
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    blocks = list(read_columns(tmp_path / "a.arrow", "a", lambda _: ["a"], separator="|"))
    assert [block.columns for block in blocks] == ([] if expected is None else [[expected]])


def test_a_table_whose_first_column_is_no_text_has_names(tmp_path: Path) -> None:
    columns = {"meta": [{"a": 1}], "sequence": ["MKV"]}
    for name, is_there in (("with", True), ("without", False)):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table(columns | ({"id": ["x"]} if is_there else {})), path)
        assert column_names(path) == {"meta", "sequence", *(["id"] if is_there else [])}
    for suffix, text in (
        (".jsonl", '{"meta": {"a": 1}, "text": "b"}\n' * 3),
        (".csv", "meta,text\n1,a\n"),
    ):
        path = (tmp_path / "table").with_suffix(suffix)
        path.write_text(text)
        assert column_names(path) == {"meta", "text"}


@pytest.mark.parametrize("end", ['ends with a quote"\tclass 4', 'ends\tclass 4"', 'ends\t"'])
def test_a_quote_that_encloses_rows_is_no_bad_line(tmp_path: Path, end: str) -> None:
    """Whatever column the quote is closed in."""
    rows = [f"{number}\tText {number}\tnote\tclass 1" for number in range(1000)]
    rows[5] = '5\t"Quoted start of a text\tnote\tclass 5'
    rows[900] = f"900\tText 900\t{end}"
    path = tmp_path / "texts.tsv"
    path.write_text("\n".join(["id\ttext\tnote\tlabel", *rows]))
    bad: list[int] = []
    with pytest.raises(DataError, match=r"line 7: a field in quotes goes on to line 902"):
        list(read_columns(path, "", lambda names: names, skip=lambda line, _: bad.append(line)))
    assert bad == []


CANARY = """
import pickle, sys
from pathlib import Path
import pyarrow as pa
import pyarrow.parquet as pq
import ray.data
from raybio.core.errors import DataError
from raybio.core.files import replaced_file
from raybio.store.table_rows import read_input_rows

path, canary = map(Path, sys.argv[1:])

class Payload:
    def __reduce__(self):
        return Path.touch, (canary,)

content = pa.array([pickle.dumps(Payload())], pa.large_binary())
metadata = {"ARROW:extension:name": "ray.data.arrow_pickled_object"}
item = pa.field("item", pa.large_binary(), metadata=metadata)
column = pa.ListArray.from_arrays([0, 1], content).cast(pa.list_(item))
schema = pa.schema([pa.field("text", pa.list_(item))])
pq.write_table(pa.table([column], schema=schema), path)
# The file is what it is meant to be: reading it as it stands runs the code.
pq.read_table(path).column("text").to_pylist()
assert canary.exists()
canary.unlink()
try:
    list(read_input_rows(path, "text"))
except DataError as error:
    print(error)
assert not canary.exists()
"""


def test_a_column_that_would_be_unpickled_is_refused_although_ray_data_is_imported(
    tmp_path: Path,
) -> None:
    arguments = [sys.executable, "-c", CANARY, str(tmp_path / "a.parquet"), str(tmp_path / "ran")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "column text: has the extension type ray.data.arrow_pickled_object, want" in done.stdout


@pytest.mark.parametrize("wrap", [lambda kind: kind, pa.list_, pa.large_list])
def test_extension_types_are_refused_at_any_depth(tmp_path: Path, wrap) -> None:
    path = tmp_path / "a.parquet"
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16], pa.binary(16)))
    kind = wrap(pa.uuid())
    column = ids if kind == pa.uuid() else type_array(kind, ids)
    pq.write_table(pa.table({"text": column}), path)
    with pytest.raises(DataError, match=r"column text: has the extension type arrow\.uuid, want"):
        list(read_input_rows(path, "text"))


def type_array(kind: pa.DataType, items: pa.Array) -> pa.Array:
    """A column of one list of the items."""
    array = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return array.from_arrays([0, len(items)], items)


def test_a_table_is_on_the_disk_before_its_name_and_the_name_before_the_end(
    tmp_path: Path, disk_order: list[object]
) -> None:
    path = tmp_path / "table.tsv"
    with replaced_file(path) as partial:
        partial.write_text("twelve bytes")
    assert disk_order[:2] == [12, path]
    assert len(disk_order) == 3
