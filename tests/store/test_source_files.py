import contextlib
import gzip
import os
import tracemalloc

import pyarrow as pa
import pytest

from raybio.core.errors import DataError
from raybio.methods.biostransformers.formats.tables import read_pair_table
from raybio.methods.biostransformers.zero_shot.datasets.hallmarks import read_pmids
from raybio.methods.contrastive_probe.sentences import read_names, read_sentences
from raybio.methods.mtb_mccl.documents.pubtator import read_pubtator
from raybio.methods.sppt.node_labels import read_node_labels
from raybio.methods.sppt.proteins.formats.fasta import read_fasta
from raybio.methods.sppt.proteins.formats.tree_of_life import (
    SPECIES_COLUMNS,
    read_interactome,
    read_species,
)
from raybio.methods.sppt.synthetic.prepare import prepare_topics
from raybio.store import sources as source_files
from raybio.store.json import read_json_object, stream_object
from raybio.store.quarantine import Quarantine
from raybio.store.sources import describe_files
from raybio.store.xml import stream_elements

READERS = {
    "fasta": (lambda path: list(read_fasta(path, Quarantine())), b">p\nACDE\n"),
    "json": (read_json_object, b'{"a": [1]}'),
    "pair table": (
        lambda path: list(read_pair_table(path, Quarantine())),
        b"1\ttitle\tabstract\tterm\n",
    ),
    "sentences": (lambda path: read_sentences(path, Quarantine()), b"one sentence of words\n"),
    "xml": (
        lambda path: len(list(stream_elements(path, roots=("a",), tags=("b",)))),
        b"<a><b>1</b></a>",
    ),
}
EACH = pytest.mark.parametrize(("read", "content"), READERS.values(), ids=READERS)


@EACH
def test_gzip_is_recognized_by_its_content(read, content, tmp_path):
    (tmp_path / "plain.gz").write_bytes(content)
    (tmp_path / "packed").write_bytes(gzip.compress(content))
    assert read(tmp_path / "plain.gz") == read(tmp_path / "packed")


@pytest.mark.parametrize("space", [b"", b"\n", b" \r\n\t" * 3000], ids=["none", "a line", "blocks"])
def test_the_first_character_is_found_behind_any_white_space(space, tmp_path):
    path = tmp_path / "x"
    for content in (space + b">p\nACDE\n", gzip.compress(space + b">p\nACDE\n")):
        path.write_bytes(content)
        assert source_files.begins_with(path, b">", "a FASTA file")
        assert not source_files.begins_with(path, b"p", "a FASTA file")
    path.write_bytes(space)
    assert not source_files.begins_with(path, b">", "a FASTA file")


@EACH
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_gzip_is_named_with_what_to_do(read, content, damage, tmp_path):
    packed = bytearray(gzip.compress(content))
    if damage == "cut":
        del packed[-9:]
    else:
        packed[-6] ^= 1  # of the checksum
    path = tmp_path / "x.gz"
    path.write_bytes(packed)
    with pytest.raises(
        DataError, match=r"x\.gz: the gzip stream is torn or damaged .* Fetch the file again"
    ):
        read(path)


@EACH
def test_paths_that_are_no_files_are_refused_without_blocking(read, content, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "pipe", tmp_path / ("x" * 300)):
        with pytest.raises(DataError, match=f"{path.name}: cannot be read .*, want "):
            read(path)


SPECIES_HEADER = "\t".join(SPECIES_COLUMNS) + "\n"
LONG_LINE_MIB = 128
MOST_MIB = 96
LINE_READERS = {
    "sentences": lambda path, out: read_sentences(path, Quarantine()),
    "names": lambda path, out: read_names(path),
    "topics": lambda path, out: prepare_topics(out, [path]),
    "pair table": lambda path, out: list(read_pair_table(path, Quarantine())),
    "pubtator": lambda path, out: list(read_pubtator(path, Quarantine())),
    "labels": lambda path, out: read_node_labels(path, pa.array(["a"], pa.large_string())),
    "links": lambda path, out: read_interactome(path, Quarantine()),
}


@pytest.fixture(scope="module")
def long_line(tmp_path_factory):
    """A valid first line, then one line of words longer than the maximum."""
    path = tmp_path_factory.mktemp("long") / "lines.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"first\tlabel\n")
        for _ in range(LONG_LINE_MIB):
            file.write(b"word " * ((1 << 20) // 5))
        file.write(b"\nanother\tlabel\n")
    return path


@pytest.mark.parametrize("read", LINE_READERS.values(), ids=LINE_READERS)
def test_an_overlong_line_is_refused_with_its_number_in_bounded_memory(read, long_line, tmp_path):
    with contextlib.suppress(DataError, OSError):
        read(tmp_path / "absent", tmp_path / "store")  # imports what it needs
    tracemalloc.start()
    try:
        with pytest.raises(
            DataError, match=r"lines\.gz: line 2 is longer than 16 MiB, want one record a line"
        ):
            read(long_line, tmp_path / "store")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MOST_MIB << 20
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("read", "first"),
    [(lambda path: read_species(path, Quarantine()), SPECIES_HEADER), (read_pmids, "1234567\n")],
    ids=["species", "pmids"],
)
def test_a_short_table_is_read_by_bounded_lines_too(read, first, tmp_path, monkeypatch):
    monkeypatch.setattr(source_files, "MAX_LINE_LENGTH", 64)
    path = tmp_path / "lines"
    path.write_text(first + "1" * 65 + "\n")
    with pytest.raises(DataError, match="lines: line 2 is longer than"):
        read(path)


def test_a_line_of_maximum_length_is_read_in_bytes_and_in_text(tmp_path, monkeypatch):
    monkeypatch.setattr(source_files, "MAX_LINE_LENGTH", 8)
    path = tmp_path / "lines"
    path.write_bytes("1234567\n\näöü\n12345678".encode())
    assert list(source_files.read_lines(path, "lines")) == ["1234567\n", "\n", "äöü\n", "12345678"]
    path.write_bytes(b"1\n12345678\n1\n")
    with pytest.raises(
        DataError, match=r"lines: line 2 is longer than .* Split the line, or remove it"
    ):
        list(source_files.read_lines(path, "lines"))
    with path.open() as file, pytest.raises(DataError, match="line 2 is longer"):
        list(source_files.bounded_lines(file, path))


def test_what_is_read_as_a_whole_has_a_limit_after_unpacking(tmp_path, monkeypatch):
    """A line of 200 MB in 0.2 MB took gigabytes."""
    monkeypatch.setattr(source_files, "MAX_WHOLE_BYTES", 1000)
    fitting = tmp_path / "fitting.json.gz"
    fitting.write_bytes(gzip.compress(b'{"a": "' + b"x" * 900 + b'"}'))
    assert len(read_json_object(fitting)["a"]) == 900
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b'{"a": "' + b"x" * 1000 + b'"}'))
    with pytest.raises(DataError, match=r"bomb\.json\.gz: has more than 1,000 bytes"):
        read_json_object(bomb)


def test_an_input_that_cannot_be_read_is_an_error_of_the_data(tmp_path):
    with pytest.raises(DataError, match=r"a.csv: cannot be read \(No such file or directory\)"):
        describe_files([tmp_path / "a.csv"])


@pytest.mark.parametrize("number", ["1.5", "1e5", "-1.5e-7", "15"])
def test_numbers_of_json_may_lie_across_blocks(tmp_path, monkeypatch, number):
    path = tmp_path / "a.json"
    path.write_text(f'{{"a": {number}, "b": [{number},{number}], "c": {number}}}')
    for num_bytes in range(1, 40):
        monkeypatch.setattr("raybio.store.json.BLOCK_BYTES", num_bytes)
        value = float(number)
        assert dict(stream_object(path)) == {"a": value, "b": [value, value], "c": value}
