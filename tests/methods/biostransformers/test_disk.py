"""Disk of a preparation: refused before anything is read or written. Files of holes are as large as they say."""

import gzip
import re
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raybio.core.errors import StoreError
from raybio.methods.biostransformers.disk import (
    PART_OF_GZIP,
    PART_OF_XML,
    STORE_OF_PARTS,
    TABLE_OF_GZIP,
    Need,
    check_disk_of_files,
    check_disk_of_parts,
    check_disk_of_tables,
    check_free_space,
)
from raybio.methods.biostransformers.formats.medline_parts import (
    FileReport,
    parse_file,
    part_path,
)
from raybio.methods.biostransformers.prepare import prepare_medline, prepare_pairs
from tests.paths import SHARED_DATA

SIZE = 15 << 40


def file_of_holes(path, start=b"<?xml"):
    with path.open("wb") as file:
        file.write(start)
        file.truncate(SIZE)
    return path


def test_amounts_below_a_gigabyte_are_not_shown_as_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=2_000_000))
    needs = [Need(tmp_path, 0, "parsed files"), Need(tmp_path, 3.04e7, "the store and its sorting")]
    with pytest.raises(StoreError) as refused:
        check_free_space(needs, "--out")
    assert "2 MB free, want about 30.4 MB (30.4 MB of the store" in str(refused.value)


def wanted_terabytes(error):
    """Return what is free, all that is wanted, and its parts, each with three digits."""
    sizes = re.findall(r"([0-9.,]+) ([kMGT]B)", str(error))
    scale_by_unit = {"kB": 1e-9, "MB": 1e-6, "GB": 1e-3, "TB": 1}
    return [float(number.replace(",", "")) * scale_by_unit[unit] for number, unit in sizes]


@pytest.mark.parametrize(("start", "ratio"), [(b"<?xml", PART_OF_XML), (b"\x1f\x8b", PART_OF_GZIP)])
def test_files_that_need_more_disk_than_there_is_are_refused(tmp_path, start, ratio):
    files = [file_of_holes(tmp_path / "x.xml", start), tmp_path / "missing.xml"]
    with pytest.raises(
        StoreError, match=r"free, want about .* choose another --out or --parts"
    ) as e:
        prepare_medline(tmp_path / "folder" / "store", files, parts=tmp_path / "parts")
    free, total, parsed, stored = wanted_terabytes(e.value)
    assert free < total == pytest.approx(parsed + stored, rel=0.01)
    assert parsed == pytest.approx(SIZE * ratio / 1e12, rel=0.01)
    assert stored == pytest.approx(parsed * STORE_OF_PARTS, rel=0.01)
    assert [path.name for path in tmp_path.iterdir()] == ["x.xml"]


def test_parts_that_exist_are_not_counted_again(tmp_path):
    path = file_of_holes(tmp_path / "x.xml")
    part_path(path, tmp_path).write_bytes(b"a part")
    check_disk_of_files([path], parts=tmp_path, out=tmp_path)


def test_tables_that_need_more_disk_than_there_is_are_refused(tmp_path):
    path = file_of_holes(tmp_path / "x.tsv", b"\x1f\x8b")
    with pytest.raises(StoreError, match="choose another --out") as refused:
        prepare_pairs(tmp_path / "store", [path])
    assert wanted_terabytes(refused.value)[2] > SIZE * TABLE_OF_GZIP / 1e12
    assert [path.name for path in tmp_path.iterdir()] == ["x.tsv"]


def test_folders_of_tables_and_unpacked_columns_count(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=0))
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "train-00000-of-00001.parquet"
    texts = [f"{number} " + "text " * 1000 for number in range(100)]
    pq.write_table(pa.table({"text": texts}), path, compression="zstd")
    assert path.stat().st_size < 100_000
    for given in (path, tmp_path / "data"):
        with pytest.raises(StoreError, match=r"\(601 kB of articles, 661 kB of the store"):
            check_disk_of_tables([given], out=tmp_path)


def test_parts_are_weighed_before_they_are_sorted(tmp_path):
    part = str(file_of_holes(tmp_path / "x.arrow"))
    with pytest.raises(StoreError, match="of the store and its sorting"):
        check_disk_of_parts([FileReport("", part, 1, 1, 0, {}, "")], out=tmp_path)


@pytest.mark.skipif(
    not (SHARED_DATA / "medline_xml").exists(),
    reason="the folder of real data is not beside this repository",
)
def test_the_ratios_hold_for_real_files(tmp_path):
    """The computed bytes of parts and store are enough, and at most three times what is taken."""
    files = sorted((SHARED_DATA / "medline_xml").glob("*.gz"))
    gzip_bytes = sum(path.stat().st_size for path in files)
    xml_bytes = sum(len(gzip.decompress(path.read_bytes())) for path in files)
    part_bytes = sum(parse_stat(path, tmp_path) for path in files)
    assert part_bytes < PART_OF_GZIP * gzip_bytes < 3 * part_bytes
    assert part_bytes < PART_OF_XML * xml_bytes < 3 * part_bytes
    store = prepare_medline(tmp_path / "store", files)
    store_bytes = sum(path.stat().st_size for path in store.path.iterdir())
    assert store_bytes < STORE_OF_PARTS * part_bytes < 3 * store_bytes


def parse_stat(path, folder):
    parse_file(path, folder)
    return part_path(path, folder).stat().st_size
