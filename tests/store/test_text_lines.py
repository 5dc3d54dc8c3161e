import gzip
from pathlib import Path

import pytest

from raybio.core.errors import DataError
from raybio.store.quarantine import Quarantine
from raybio.store.text_lines import read_text_lines


def read(path: Path, content: str) -> tuple[list[tuple[str, str]], dict[str, int]]:
    path.write_text(content, encoding="utf-8", newline="")
    quarantine = Quarantine()
    rows = [row for batch in read_text_lines(path, quarantine) for row in batch.to_pylist()]
    return [(row["key"], row["text"]) for row in rows], dict(quarantine.count_by_reason)


def test_a_line_is_a_text_and_its_number_the_key(tmp_path: Path) -> None:
    rows, bad = read(tmp_path / "texts", "\ufeffAsthma.\r\n\n  \nβ-blockers: 1 > 0\nlast")
    assert rows == [("1", "Asthma."), ("4", "β-blockers: 1 > 0"), ("5", "last")]
    assert bad == {"empty line": 2}


def test_ids_come_before_a_tab_if_the_first_line_has_one(tmp_path: Path) -> None:
    rows, bad = read(
        tmp_path / "texts", "a\tfirst\nb\tsecond\twith a tab\nthird\n\tfourth\ne\t \n>f\tsixth\n"
    )
    assert rows == [("a", "first"), ("b", "second\twith a tab"), (">f", "sixth")]
    assert bad == {
        "no tab between id and text": 1,
        "no id before the tab": 1,
        "no text after the tab": 1,
    }


def test_a_tab_is_refused_if_the_first_line_has_none(tmp_path: Path) -> None:
    rows, bad = read(tmp_path / "texts", "first\nb\tsecond\n")
    assert rows == [("1", "first")]
    assert bad == {"tab in a file whose first line has none": 1}


def test_files_of_several_blocks_and_gzip_are_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "texts"
    path.write_bytes(gzip.compress(b"".join(b"text %d\n" % number for number in range(9000))))
    batches = list(read_text_lines(path, Quarantine()))
    keys = [key for batch in batches for key in batch.column("key").to_pylist()]
    assert keys == [str(number) for number in range(1, 9001)]
    assert max(map(len, batches)) <= 4096


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n>p1\nMKT\n", "line 2: begins with '>' like a FASTA file"),
        (b"a\n\xff\n", "line 2 is not UTF-8"),
    ],
)
def test_files_of_other_formats_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "texts").write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_text_lines(tmp_path / "texts", Quarantine()))
    with pytest.raises(DataError, match="no such file"):
        list(read_text_lines(tmp_path / "nothing", Quarantine()))
