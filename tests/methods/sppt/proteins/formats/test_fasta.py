import gzip

import numpy as np
import pytest

from raybio.core.errors import DataError
from raybio.methods.sppt.proteins.formats.fasta import read_fasta
from raybio.store.quarantine import Quarantine

RESIDUES = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", dtype=np.uint8)
MESSY = (
    b"\n>a first protein\r\nACD\r\nefg*\r\n\n>empty\n>digit\nAC1D\n"
    b"> blank id\nAC\n>stop\nAC*C\n>long\n"
    + b"A" * 60
    + b"\n"
    + b"A\n" * 400
    + b">b J\nUOJ\n>\xff\nAA\n>nothing\nNaN\n>last\n"
    + b"AC DE\n\tF"
)


def read(path, **options):
    quarantine = Quarantine()
    rows = [row for batch in read_fasta(path, quarantine, **options) for row in batch.to_pylist()]
    return [(row["key"], row["sequence"], row["line"]) for row in rows], quarantine


def parsed_slowly(content):
    """(id, letters, line) of every record, a line at a time."""
    found = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.startswith(b">"):
            words = line[1:].split()
            has_id = bool(words) and line[1:2] not in b" \t"
            found.append([words[0].decode("latin-1") if has_id else "", b"", number])
        elif found:
            found[-1][1] += b"".join(line.split())
    return [tuple(record) for record in found]


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 7, 50, 64, 1 << 20])
def test_bad_records_are_set_aside_with_their_line_whatever_the_size_of_a_block(
    tmp_path, block_bytes
):
    (tmp_path / "messy.fa").write_bytes(MESSY)
    rows, quarantine = read(
        tmp_path / "messy.fa", strip_stop=True, max_length=20, block_bytes=block_bytes
    )
    assert rows == [("a", b"ACDEFG", 2), ("b", b"UOJ", 415), ("last", b"ACDEF", 421)]
    lines = {
        reason: [example.line for example in kept]
        for reason, kept in quarantine.examples_by_reason.items()
    }
    assert lines == {
        "no sequence": [6, 419],
        "letter that is not an amino acid": [7],
        "no id": [9],
        "stop symbol '*' in the sequence (--strip-stop removes it at the end)": [11],
        "sequence longer than 20 letters": [13],
        "id that is not UTF-8 text": [417],
    }


@pytest.mark.parametrize("is_gzip", [False, True])
def test_reading_in_blocks_equals_reading_a_line_at_a_time(tmp_path, is_gzip):
    rng = np.random.default_rng(1)
    content = b""
    for number in range(300):
        letters = rng.choice(RESIDUES, int(rng.integers(1, 200))).tobytes()
        width, end = int(rng.integers(1, 80)), [b"\n", b"\r\n"][int(rng.integers(2))]
        lines = [letters[at : at + width] for at in range(0, len(letters), width)]
        content += (
            b">p%d some words" % number + end + end.join(lines) + end * int(rng.integers(1, 3))
        )
    path = tmp_path / ("x.fa.gz" if is_gzip else "x.fa")
    path.write_bytes(gzip.compress(content) if is_gzip else content)
    rows, quarantine = read(path, block_bytes=997)
    assert rows == parsed_slowly(content)
    assert not quarantine.count_by_reason


def test_a_record_of_many_megabytes_is_cut_and_set_aside_and_the_next_one_is_whole(tmp_path):
    (tmp_path / "x.fa").write_bytes(b">huge\n" + b"ACDEFGHIKL\n" * 1_000_000 + b">small\nACD\n")
    rows, quarantine = read(tmp_path / "x.fa", max_length=1000, block_bytes=1 << 16)
    assert rows == [("small", b"ACD", 1_000_002)]
    assert quarantine.count_by_reason == {"sequence longer than 1,000 letters": 1}


@pytest.mark.parametrize("keep", [0.3, 0.9, 0.999])
def test_a_torn_gzip_is_named(tmp_path, keep):
    whole = gzip.compress(
        b">p\n" + np.random.default_rng(0).choice(RESIDUES, 50_000).tobytes() + b"\n"
    )
    path = tmp_path / "torn.fa.gz"
    path.write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(DataError, match=r"torn\.fa\.gz: the gzip stream is torn"):
        read(path)


def test_a_flipped_byte_in_a_gzip_is_found(tmp_path):
    content = bytearray(gzip.compress(b">p\n" + b"ACDEFGHIKL" * 5000 + b"\n"))
    content[len(content) // 2] ^= 0x55
    (tmp_path / "x.fa.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.fa\.gz: the gzip stream is torn or damaged"):
        read(tmp_path / "x.fa.gz")


def test_a_file_that_is_not_fasta_is_refused_with_what_it_begins_with(tmp_path):
    (tmp_path / "x.fa").write_bytes(b"\nprotein_id\tsequence\n")
    with pytest.raises(DataError, match=r"line 2: begins with b'protein_id.*want '>'"):
        read(tmp_path / "x.fa")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.fa: cannot be read"):
        read(tmp_path / "none.fa")


@pytest.mark.parametrize("letters", ["ACGT", "acgtn", "ACGU", "ACGT" * 10 + "R"])
def test_nucleotides_are_refused(tmp_path, letters):
    path = tmp_path / "genes.fa.gz"
    gene = letters * (2000 // len(letters))
    path.write_bytes(gzip.compress(f">a\n{gene[:700]}\n{gene[700:]}\n>b\n{gene}\n".encode()))
    with pytest.raises(
        DataError, match=r"genes\.fa\.gz: (97\.6|100\.0)% of the letters are .* Translate the seq"
    ):
        list(read_fasta(path, Quarantine()))


@pytest.mark.parametrize("sequence", ["GA" * 400, "GAGAGS" * 400, "ACGTN" * 400 + "MKLVFW" * 20])
def test_proteins_of_few_kinds_of_letters_are_no_nucleotides(tmp_path, sequence):
    path = tmp_path / "p.fa"
    path.write_text(f">a\n{sequence}\n")
    assert [len(batch) for batch in read_fasta(path, Quarantine())] == [1]
