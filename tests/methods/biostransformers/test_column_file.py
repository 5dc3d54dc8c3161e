"""Files written block by block are those that pyarrow writes at once."""

import numpy as np
import pyarrow as pa
import pytest

from raybio.methods.biostransformers.column_file import Binary, ColumnFile, Dictionary, Numbers

INT16 = Numbers(np.dtype(np.int16))


def write_at_once(path, columns):
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    options = pa.ipc.IpcWriteOptions(allow_64bit=True)
    with path.open("wb") as file, pa.ipc.new_file(file, batch.schema, options=options) as writer:
        writer.write_batch(batch)


@pytest.mark.parametrize("num_rows", [0, 1, 7, 100])
@pytest.mark.parametrize("block", [1, 3, 1000])
@pytest.mark.parametrize("longest", [0, 9])
def test_blocks_give_the_bytes_of_the_whole(tmp_path, num_rows, block, longest):
    rng = np.random.default_rng(num_rows)
    texts = [rng.bytes(int(rng.integers(longest + 1))) for _ in range(num_rows)]
    names = pa.array(["", "genetics", "*metabolism"])
    index = rng.integers(3, size=num_rows).astype(np.int32)
    values = {
        "number": rng.integers(-9, 9, num_rows).astype(np.int16),
        "text": pa.array(texts, pa.large_binary()),
        "name": index,
        "other": pa.array(texts[::-1], pa.large_binary()),
        "flag": rng.random(num_rows) < 0.5,
    }
    num_bytes = sum(map(len, texts))
    columns = {
        "number": INT16,
        "text": Binary(num_bytes),
        "name": Dictionary(names),
        "other": Binary(num_bytes),
        "flag": Numbers(np.dtype(np.uint8)),
    }
    whole = values | {
        "number": pa.array(values["number"]),
        "name": pa.DictionaryArray.from_arrays(pa.array(index), names),
        "flag": pa.array(values["flag"].astype(np.uint8)),
    }
    write_at_once(tmp_path / "whole", whole)
    with ColumnFile(tmp_path / "blocks", num_rows, columns) as file:
        # Column after column, and the last one first: they may come in any order.
        for name in reversed(columns):
            for first in range(0, num_rows, block):
                file.append(name, values[name][first : first + block])
    assert (tmp_path / "blocks").read_bytes() == (tmp_path / "whole").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blocks", "whole"]


def test_columns_that_are_too_long_or_too_short_are_refused(tmp_path):
    text = pa.array([b"abc"], pa.large_binary())
    with ColumnFile(tmp_path / "x", 1, {"a": INT16, "t": Binary(3)}) as file:
        file.append("t", text)
        file.append("a", np.zeros(1))
        with pytest.raises(ValueError, match="x: a has more than 1 values"):
            file.append("a", np.zeros(1))
    with (
        pytest.raises(ValueError, match="x: a has 1 values, want 2"),
        ColumnFile(tmp_path / "x", 2, {"a": INT16}) as file,
    ):
        file.append("a", np.zeros(1))
    with (
        pytest.raises(ValueError, match="x: t has more than 2 bytes"),
        ColumnFile(tmp_path / "x", 1, {"t": Binary(2)}) as file,
    ):
        file.append("t", text)
