"""FASTA, plain or gzip, read in blocks of whole records.

A record is a line ``>id description`` and the lines after it up to the next ``>`` at the start of a
line. UniProt's descriptions have the species: ``OX=9606``. Bytes are handled a record at a time,
never a letter at a time.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from raybio.core.errors import DataError
from raybio.methods.sppt.config import DEFAULT_MAX_LENGTH
from raybio.methods.sppt.proteins.formats.residues import PROTEIN_SCHEMA, clean
from raybio.store.quarantine import Quarantine
from raybio.store.ragged import Ragged
from raybio.store.sources import open_source

FASTA_BLOCK_BYTES = 8 << 20
WHITE_SPACE = b" \t\r\n\v\f"
SPECIES = re.compile(rb"\sOX=(0|[1-9][0-9]{0,9})(?=\s|$)")
"""NCBI's taxid in a header of UniProt."""


NUCLEOTIDES = b"ACGTUN"
MAX_NUCLEOTIDE_SHARE = 0.95
"""Maximum fraction of ``NUCLEOTIDES`` among the letters of proteins; real ones have a quarter."""

MIN_LETTERS = 1000
"""Minimum number of letters to tell: a few peptides may consist of G and A."""


class _Block(NamedTuple):
    """Whole records without the first ``>``, and the line on which they begin."""

    content: bytes
    line: int


def read_fasta(
    path: str | Path,
    quarantine: Quarantine,
    *,
    strip_stop: bool = False,
    max_length: int = DEFAULT_MAX_LENGTH,
    block_bytes: int = FASTA_BLOCK_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a FASTA file in blocks.

    Args:
        path: the file; gzip is recognized by its content.
        quarantine: takes empty, illegal and too long records. Repeated ids are skipped by the
            caller, which sees all files.
        strip_stop: remove one ``*`` at a sequence's end.
        max_length: longest sequence that is kept, in letters.
        block_bytes: bytes that are read at once; memory is a small multiple of it.

    Yields:
        Good records in ``PROTEIN_SCHEMA``: key = text from ``>`` to the first blank, group = the
        taxid after ``OX=``, "" where there is none.

    Raises:
        DataError: if the file is missing, not FASTA, or a torn gzip; or if its first block holds
            nucleotides.
    """
    name = Path(path).name
    is_first = True
    for block in _blocks(Path(path), block_bytes, longest=2 * max_length + block_bytes):
        batch = _parse(block, name, quarantine)
        cleaned = clean(batch, quarantine, name, strip_stop=strip_stop, max_length=max_length)
        if is_first:
            _check_proteins(path, cleaned.column("sequence"))
        is_first = False
        yield cleaned


def _check_proteins(path: str | Path, sequences: pa.Array) -> None:
    """Refuse sequences of DNA or RNA, whose letters are those of amino acids, too.

    Raises:
        DataError: naming their share.
    """
    letters = Ragged.of(sequences).value_T.tobytes()
    share = 1 - len(letters.translate(None, NUCLEOTIDES)) / max(len(letters), 1)
    if len(letters) >= MIN_LETTERS and share > MAX_NUCLEOTIDE_SHARE:
        raise DataError(
            f"{path}: {share:.1%} of the letters are A, C, G, T, U or N, as in DNA and RNA; want "
            "proteins, one letter an amino acid. Translate the sequences. If they are proteins, "
            "give them as a table"
        )


def _parse(block: _Block, name: str, quarantine: Quarantine) -> pa.RecordBatch:
    keys = []
    groups = []
    sequences = []
    lines = []
    line = block.line
    for record in block.content.split(b"\n>"):
        header, _, body = record.partition(b"\n")
        words = header.split(None, 1)
        key = words[0] if words and header[:1] not in b" \t" else b""
        try:
            keys.append(key.decode())
            species = SPECIES.search(header) if b"OX=" in header else None
            groups.append(species[1].decode() if species else "")
            sequences.append(body.translate(None, WHITE_SPACE))
            lines.append(line)
        except UnicodeDecodeError:
            quarantine.saw("protein", 1)
            quarantine.add("protein", "id that is not UTF-8 text", name, line, repr(key))
        line += record.count(b"\n") + 1
    columns = [
        pa.array(keys, pa.string()),
        pa.array(groups, pa.string()),
        pa.array(sequences, pa.large_binary()),
        pa.array(lines, pa.int64()),
    ]
    return pa.record_batch(columns, schema=PROTEIN_SCHEMA)


def _blocks(path: Path, block_bytes: int, longest: int) -> Iterator[_Block]:
    """Yield blocks of whole records.

    A record larger than ``longest`` bytes is cut there, and is then too long for every reader. So
    memory stays bounded for any file.
    """
    line = 1
    num_dropped_lines = 0
    pending = b""
    has_begun = False
    with open_source(path, "a FASTA file") as file:
        while chunk := file.read(block_bytes):
            if not has_begun:
                pending += chunk
                stripped = pending.lstrip(WHITE_SPACE)
                line += pending.count(b"\n", 0, len(pending) - len(stripped))
                pending = stripped
                if not pending:
                    continue
                if not pending.startswith(b">"):
                    raise DataError(
                        f"{path}, line {line}: begins with {pending[:20]!r}, want '>' and an id: "
                        "is this a FASTA file?"
                    )
                has_begun = True
                pending = pending[1:]
            else:
                pending += chunk
            end = pending.rfind(b"\n>")
            if end >= 0:
                content = pending[:end]
                pending = pending[end + 2 :]
                if num_dropped_lines:
                    cut, _, content = content.partition(b"\n>")
                    yield _Block(cut, line)
                    line += cut.count(b"\n") + 1 + num_dropped_lines
                    num_dropped_lines = 0
                    if not content:
                        continue
                yield _Block(content, line)
                line += content.count(b"\n") + 1
            elif len(pending) > longest:
                # The last byte stays: it may be the line end before the next record's '>'.
                num_dropped_lines += pending.count(b"\n", longest, len(pending) - 1)
                pending = pending[:longest] + pending[-1:]
    if has_begun:
        yield _Block(pending, line)
