"""Parts of a bulk embedding and the joined file: what is verified, and what is forced to the disk
when.
"""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raybio.core.errors import DataError, StoreError
from raybio.core.files import atomic_folder, disk_problem
from raybio.runtime.embed_parts import (
    PartError,
    Parts,
    check_output,
    check_shards,
    cut_of,
    join,
    model_digest_of,
    write_shards,
)
from raybio.runtime.search.embeddings import num_embeddings, read_embeddings
from raybio.training.durable import commit_folder, copy_file, write_json
from tests.runtime_fixtures import fill

MADE_FROM = {"input_digest": "of the input", "model_digest": "of the model"}


def table(start: int, num_rows: int = 20) -> pa.Table:
    rows = np.arange(start, start + num_rows)
    values = pa.array((rows[:, None] + np.arange(4)).reshape(-1), pa.float32())
    return pa.table(
        {
            "key": [f"p{row}" for row in rows],
            "embedding": pa.FixedSizeListArray.from_arrays(values, 4),
        }
    )


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    made = Parts(tmp_path / "out.parquet.parts")
    made.folder.mkdir()
    for number in range(3):
        made.write(number, table(20 * number), **MADE_FROM)
    return made


def joined(parts: Parts, out: Path) -> int:
    return join(
        parts,
        ["of the input"] * 3,
        out,
        origin="this",
        part_digest="of the model",
        model_digest="of the model",
        cut="",
    )


@pytest.mark.parametrize("num_bytes", [1, 7])
def test_no_byte_of_a_part_can_be_another_or_missing(num_bytes: int, parts: Parts) -> None:
    path = parts.output(1)
    content = path.read_bytes()
    assert parts.fault(1, **MADE_FROM) is None

    def assert_damaged() -> None:
        with pytest.raises(PartError, match="is damaged"):
            parts.read(1, **MADE_FROM)

    for place in range(0, len(content), num_bytes * 5):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert_damaged()
        path.write_bytes(content[:place])
        assert_damaged()
    path.write_bytes(content)
    assert parts.read(1, **MADE_FROM).equals(table(20))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"version": 0}', "\0" * 40])
def test_a_part_whose_record_is_torn_or_of_another_version_is_not_used(
    text: str, parts: Parts
) -> None:
    parts.record(1).write_text(text)
    assert parts.fault(1, **MADE_FROM) == "has no record of this version"
    parts.record(1).unlink()
    assert parts.fault(1, **MADE_FROM) == "has no record of this version"


def test_a_part_of_another_model_or_input_is_not_used(parts: Parts) -> None:
    assert (
        parts.fault(1, input_digest="of the input", model_digest="x") == "comes from another model"
    )
    assert (
        parts.fault(1, input_digest="x", model_digest="of the model") == "comes from another input"
    )


def test_parts_of_a_longer_cut_are_deleted(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "out.parquet.parts")
    parts.folder.mkdir()
    inputs = parts.cut(iter([table(0), table(20), table(40), table(60)]))
    for number in range(4):
        parts.write(number, table(20 * number), **MADE_FROM)
    parts.finish_cut("this", inputs[:2], {})
    numbers = {path.stem[-6:] for path in parts.folder.iterdir() if path.stem != "manifest"}
    assert numbers == {"000000", "000001"}


def test_a_part_that_breaks_before_it_is_joined_leaves_no_output(
    parts: Parts, tmp_path: Path
) -> None:
    content = bytearray(parts.output(2).read_bytes())
    content[100] ^= 1
    parts.output(2).write_bytes(content)
    with pytest.raises(
        StoreError, match=r"part-000002.parquet is damaged, although it was just embedded"
    ):
        joined(parts, tmp_path / "out.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet.parts"]


def test_a_changed_byte_of_a_value_in_a_finished_file_is_found(
    parts: Parts, tmp_path: Path
) -> None:
    out = tmp_path / "out.parquet"
    assert joined(parts, out) == check_output(out, "this") == 60
    np.testing.assert_array_equal(
        pq.read_table(out)
        .column("embedding")
        .combine_chunks()
        .flatten()
        .to_numpy()
        .reshape(-1, 4)[:, 0],
        np.arange(60),
    )
    with pytest.raises(StoreError, match="comes from another model or input"):
        check_output(out, "another")
    content = out.read_bytes()
    # Not the footer, whose statistics nobody reads: keys and values are in the pages before it.
    pages = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for place in range(4, pages, 9):
        out.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            assert check_output(out, "this") == 60
            assert pq.read_table(out).equals(pq.read_table(pa.BufferReader(content))), (
                place
            )  # a header's statistics
        except StoreError as error:
            assert "is damaged" in str(error)
    for end in (0, 3, pages, len(content) - 1):
        out.write_bytes(content[:end])
        with pytest.raises(StoreError, match="is damaged, or no Parquet file"):
            check_output(out, "this")


FACTS = {
    "origin": "this",
    "part_digest": "of the model",
    "model_digest": "of the model",
    "cut": "one line",
}


def test_a_folder_of_files_has_a_part_each_and_is_read_as_one_file(
    parts: Parts, tmp_path: Path
) -> None:
    out = tmp_path / "shards"
    inputs = ["of the input"] * 3
    assert write_shards(parts, inputs, out, **FACTS) == check_shards(out, "this") == 60
    names = [f"embeddings-0000{number}-of-00003.parquet" for number in range(3)]
    assert sorted(path.name for path in out.iterdir()) == names
    for number, name in enumerate(names):
        expected = table(20 * number)
        assert pq.read_table(out / name).replace_schema_metadata() == expected
    assert (cut_of(out), model_digest_of(out)) == ("one line", "of the model")
    blocks = [*read_embeddings(out)]
    assert [len(key_M) for key_M, _ in blocks] == [20] * 3 and num_embeddings(out) == 60
    assert [key for key_M, _ in blocks for key in key_M.to_pylist()] == [
        f"p{row}" for row in range(60)
    ]
    with pytest.raises(StoreError, match="comes from another model or input"):
        check_shards(out, "another")
    (out / names[1]).unlink()
    with pytest.raises(DataError, match="holds 2 of the 3 files"):
        check_shards(out, "this")
    with pytest.raises(DataError, match="holds 2 of the 3 files"):
        next(read_embeddings(out))


def test_a_part_that_breaks_before_it_is_written_leaves_no_folder(
    parts: Parts, tmp_path: Path
) -> None:
    parts.output(2).write_bytes(b"")
    with pytest.raises(StoreError, match="part-000002.parquet is damaged"):
        write_shards(parts, ["of the input"] * 3, tmp_path / "shards", **FACTS)
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet.parts"]


class Watched:
    """Records ``fsync`` and renames, in order, with the inode of the file or folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, int]] = []
        fsync, replace, rename, path_rename = os.fsync, os.replace, os.rename, Path.rename

        def seen(name: str, path: object) -> None:
            self.events.append((name, os.stat(path).st_ino))  # type: ignore[call-overload]

        def record_fsync(descriptor: int) -> None:
            self.events.append(("fsync", os.fstat(descriptor).st_ino))
            fsync(descriptor)

        def record_replace(source: object, target: object) -> None:
            seen("rename", source)
            replace(source, target)  # type: ignore[call-overload]

        def record_rename(source: object, target: object) -> None:
            seen("rename", source)
            rename(source, target)  # type: ignore[call-overload]

        def record_path_rename(self: Path, target: object) -> Path:
            seen("rename", self)
            return path_rename(self, target)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "fsync", record_fsync)
        monkeypatch.setattr(os, "replace", record_replace)
        monkeypatch.setattr(os, "rename", record_rename)
        monkeypatch.setattr(Path, "rename", record_path_rename)

    def is_durable(self, path: Path) -> bool:
        """Return whether the file was forced to the disk before it got its name, and the name after
        that.
        """
        number, folder = path.stat().st_ino, path.parent.stat().st_ino
        named = self.events.index(("rename", number))
        return ("fsync", number) in self.events[:named] and ("fsync", folder) in self.events[named:]


def test_every_part_record_and_output_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    parts = Parts(tmp_path / "out.parquet.parts")
    inputs = parts.cut(
        iter([pa.table({"key": ["a"], "content": [b"MKT"]}), pa.table({"key": [], "content": []})])
    )
    manifest = parts.finish_cut("this", inputs, {})
    parts.write(0, table(0), input_digest=inputs[0], model_digest="of the model")
    parts.write(1, table(0), input_digest=inputs[1], model_digest="of the model")
    files = sorted(parts.folder.iterdir())
    assert [path.name for path in files] == sorted(
        ["manifest.json", *(f"{kind}-00000{n}.{end}" for n in (0, 1) for kind, end in
         (("input", "arrow"), ("part", "parquet"), ("part", "json")))]
    )  # fmt: skip
    join(
        parts,
        manifest["inputs"],
        tmp_path / "out.parquet",
        origin="this",
        part_digest="of the model",
        model_digest="of the model",
        cut="",
    )
    assert [
        path.name for path in [*files, tmp_path / "out.parquet"] if not watched.is_durable(path)
    ] == []


def test_a_committed_folder_is_on_the_disk_with_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    (tmp_path / "written").mkdir()
    write_json(tmp_path / "written" / "a.json", {})
    copy_file(tmp_path / "written" / "a.json", tmp_path / "written" / "b.json")
    commit_folder(tmp_path / "written", tmp_path / "final")
    final = tmp_path / "final"
    assert watched.is_durable(final)
    synced = {number for name, number in watched.events if name == "fsync"}
    assert {path.stat().st_ino for path in final.iterdir()} <= synced


def test_all_of_a_whole_folder_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    with atomic_folder(tmp_path / "out") as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_text("content")
    out = tmp_path / "out"
    named = watched.events.index(("rename", out.stat().st_ino))
    before = {number for name, number in watched.events[:named] if name == "fsync"}
    assert {path.stat().st_ino for path in (out, out / "deep", out / "deep" / "file")} <= before
    assert watched.is_durable(out)


def test_a_full_disk_of_the_joined_file_is_named(parts: Parts, small_disk: Path) -> None:
    out = small_disk / "out.parquet"
    fill(small_disk)
    with pytest.raises(OSError, match="No space left") as caught:
        joined(parts, out)
    assert f"{out}: " in (disk_problem(caught.value) or "")
    assert not out.exists()
