import gzip
import os

import pytest

from raybio.data.fasta import read_fasta
from raybio.data.json_records import read_json_object
from raybio.data.pair_tables import read_pair_table
from raybio.data.quarantine import Quarantine
from raybio.data.sentences import read_sentences
from raybio.data.xml_stream import stream_elements
from raybio.errors import DataError

READERS = {
    "fasta": (lambda path: list(read_fasta(path, Quarantine())), b">p\nACDE\n"),
    "json": (read_json_object, b'{"a": [1]}'),
    "pair table": (lambda path: list(read_pair_table(path, Quarantine())), b"1\ttitle\tabstract\tterm\n"),
    "sentences": (lambda path: read_sentences(path, Quarantine()), b"one sentence of words\n"),
    "xml": (lambda path: len(list(stream_elements(path, roots=("a",), tags=("b",)))), b"<a><b>1</b></a>"),
}
EACH = pytest.mark.parametrize(("read", "content"), READERS.values(), ids=READERS)


@EACH
def test_gzip_is_known_by_its_content_whatever_the_file_is_called(read, content, tmp_path):
    (tmp_path / "plain.gz").write_bytes(content)
    (tmp_path / "packed").write_bytes(gzip.compress(content))
    assert read(tmp_path / "plain.gz") == read(tmp_path / "packed")


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
    with pytest.raises(DataError, match=r"x\.gz: the gzip stream is torn or damaged .* Fetch the file again"):
        read(path)


@EACH
def test_what_is_no_file_is_refused_and_not_waited_for(read, content, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path, tmp_path / "absent", tmp_path / "pipe", tmp_path / ("x" * 300)):
        with pytest.raises(DataError, match=f"{place.name}: cannot be read .*, want "):
            read(place)
