"""Small files that unpack to much are refused or read in small blocks, by the headers of pages."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raybio.core.errors import DataError
from raybio.runtime.search.embeddings import read_embeddings
from raybio.store import parquet_pages, table_rows
from raybio.store.parquet_pages import read_pages
from raybio.store.table_rows import ROWS_AT_ONCE, read_columns

WHOLE = 1 << 20
LONGEST = 1 << 16


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (parquet_pages, table_rows):
        monkeypatch.setattr(module, "MAX_WHOLE_BYTES", WHOLE)
        monkeypatch.setattr(module, "MAX_LINE_LENGTH", LONGEST)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no page be read."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a row group is read")

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fail)


def texts_of(path: Path) -> list[list[str]]:
    return [block.columns[0] for block in read_columns(path, "text", lambda _: ["text"])]


def write(path: Path, column: object, **options: object) -> Path:
    pq.write_table(pa.table({"text": column}), path, compression="zstd", **options)
    return path


@pytest.mark.usefixtures("small_limits", "unread")
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize(
    ("length", "words"),
    [
        (3 * WHOLE, r"a page unpacks to 3,1\d\d,\d\d\d bytes, want at most 1,048,576\. Write"),
        (4 * LONGEST, r"1 values take 262,\d\d\d bytes, want at most 0 MiB a value\. Split"),
    ],
)
def test_a_long_text_in_a_small_file_is_refused_before_it_is_unpacked(
    tmp_path: Path, dictionary: bool, length: int, words: str
) -> None:
    """One of 300 MiB in 10 kB took 1.2 GiB."""
    path = tmp_path / "bomb.parquet"
    schema = pa.schema({"text": pa.string()})
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=dictionary) as writer:
        writer.write_table(pa.table({"text": ["short"]}))
        writer.write_table(pa.table({"text": ["x" * length]}))
    assert path.stat().st_size < 3000
    with pytest.raises(AssertionError):
        texts_of(path)
    with pq.ParquetFile(path) as file:
        assert parquet_pages.rows_in_bounds(path, file, 0, ["text"], 9) == 9
        with pytest.raises(DataError, match=rf"bomb\.parquet, row group 1, column 'text': {words}"):
            parquet_pages.rows_in_bounds(path, file, 1, ["text"], 9)


@pytest.mark.usefixtures("small_limits", "unread")
def test_embeddings_with_a_long_key_are_refused_before_they_are_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.parquet"
    table = pa.table({"key": ["x" * 3 * WHOLE], "embedding": [[1.0]]})
    pq.write_table(table, path, compression="zstd")
    with pytest.raises(DataError, match=r"row group 0, column 'key': a page unpacks to"):
        next(read_embeddings(path))


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
        {"use_dictionary": False, "write_batch_size": 4},
        {"compression": "snappy", "data_page_version": "2.0"},
    ],
    ids=["dictionary", "prefixes", "plain", "second version"],
)
def test_a_text_that_many_rows_repeat_is_read_in_small_blocks(
    tmp_path: Path, options: dict[str, object]
) -> None:
    path = tmp_path / "repeated.parquet"
    table = pa.table({"text": ["x" * 50_000] * 500, "other": [1] * 500})
    pq.write_table(table, path, **({"compression": "zstd", "data_page_size": 1 << 18} | options))
    blocks = texts_of(path)
    assert sum(map(len, blocks)) == 500
    assert max(sum(map(len, block)) for block in blocks) <= WHOLE
    assert {text for block in blocks for text in block} == {"x" * 50_000}


@pytest.mark.usefixtures("small_limits", "unread")
@pytest.mark.parametrize("value", [0, "word " * 1000], ids=["numbers", "texts"])
def test_a_row_with_very_many_equal_items_is_refused_before_it_is_unpacked(
    tmp_path: Path, value: object
) -> None:
    num_items = (20 if value == 0 else 1) * WHOLE
    items = pa.DictionaryArray.from_arrays(np.zeros(num_items, np.int32), [value])
    lists = pa.ListArray.from_arrays([0, 1, len(items)], items)
    path = write(tmp_path / "bomb.parquet", lists)
    assert path.stat().st_size < 20_000
    with pytest.raises(DataError, match=r"'text\.list\.element': .* bytes unpack to lists of up"):
        texts_of(path)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_long_text_among_short_ones_is_refused_with_its_row(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"long.{suffix}"
    rows = ["short"] * ROWS_AT_ONCE + ["x" * LONGEST, "x" * (LONGEST + 1)]
    table = pa.table({"text": rows})
    if suffix == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(DataError, match=r"column text, row 4,098: has 65,537 characters, want at"):
        texts_of(path)


@pytest.mark.usefixtures("small_limits")
def test_a_text_that_many_rows_of_an_arrow_file_repeat_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.arrow"
    table = pa.table({"text": pa.array(["x" * 50_000] * 500).dictionary_encode()})
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match=r"bomb\.arrow: .* repeat texts .* up to 25,000,000 bytes"):
        texts_of(path)


CODECS = ["none", "snappy", "gzip", "brotli", "lz4", "zstd"]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", CODECS)
def test_pages_are_those_of_the_file_and_ordinary_ones_are_read_in_large_blocks(
    tmp_path: Path, codec: str, version: str
) -> None:
    num_rows = 10_000
    columns = {
        "text": [f"row {number}" * 9 for number in range(num_rows)],
        "label": ["no", "maybe"] * (num_rows // 2),
        "lists": [["a" * (number % 7), "b"] for number in range(num_rows)],
        "number": pa.array(np.random.default_rng(0).normal(size=num_rows)),
        "missing": pa.array([None, 1] * (num_rows // 2)),
    }
    path = tmp_path / "table.parquet"
    pq.write_table(
        pa.table(columns),
        path,
        compression=codec,
        data_page_version=version,
        data_page_size=1 << 14,
        dictionary_pagesize_limit=1 << 16,
    )
    longest_by_column = {}
    with pq.ParquetFile(path) as file, path.open("rb") as raw:
        for number in range(len(columns)):
            column = file.metadata.row_group(0).column(number)
            dictionary, *pages = read_pages(raw, column)
            assert dictionary.is_dictionary
            assert len(pages) > 1 or column.path_in_schema != "number"
            assert sum(page.num_values for page in pages) == column.num_values
            end = column.dictionary_page_offset + column.total_compressed_size
            assert pages[-1].offset + pages[-1].num_packed == end
            longest = parquet_pages._longest_value(raw, dictionary, column)
            longest_by_column[column.path_in_schema] = longest
        assert parquet_pages.rows_in_bounds(path, file, 0, None, ROWS_AT_ONCE) == ROWS_AT_ONCE
    assert longest_by_column["label"] == len("maybe")
    assert longest_by_column["lists.list.element"] == 6
    assert longest_by_column["number"] == 8
    assert [len(block) for block in texts_of(path)] == [4096, 4096, 1808]
    assert [text for block in texts_of(path) for text in block] == columns["text"]


@pytest.mark.parametrize("content", [b"\xff" * 64, b"\x00", b"\x15\x03" + b"\x15\x03" * 31])
def test_a_damaged_page_header_is_an_error_that_names_the_file(
    tmp_path: Path, content: bytes
) -> None:
    path = write(tmp_path / "damaged.parquet", ["a text"] * 99)
    with path.open("r+b") as file:
        file.seek(4)
        file.write(content)
    with pytest.raises(DataError, match=r"damaged\.parquet: cannot be read as Parquet \(the page"):
        texts_of(path)
