"""FASTA: streaming, plain or gzip. Bytes are handled a record at a time, never a letter at a time.

A record is a line ``>id description`` and the lines after it up to the next ``>`` at the start of a
line.

Plain tables with a header, tab-separated, ``.gz`` too: proteins (one a line) and links (two ids a
line).

They are read in blocks by Arrow's CSV parser; quotes have no meaning, and every line counts, so
that the line of a bad record can be named.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from raybio.core.errors import DataError
from raybio.methods.sppt.config import DEFAULT_MAX_LENGTH
from raybio.methods.sppt.graph_store import (
    Corpus,
    LinkCollector,
    concatenated,
    find,
    first_of_each,
    number_groups,
)
from raybio.methods.sppt.proteins.residues import PROTEIN_SCHEMA, clean, is_missing
from raybio.store.quarantine import Quarantine
from raybio.store.ragged import Spool
from raybio.store.sources import open_source

FASTA_BLOCK_BYTES = 8 << 20


WHITE_SPACE = b" \t\r\n\v\f"


class _Block(NamedTuple):
    """Whole records, without the first one's ``>``, and the line on which they begin."""

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
    """The records of a FASTA file, in blocks.

    Args:
        path: the file; gzip is recognised by its content.
        quarantine: takes empty, illegal and too long records. Ids that occur twice in the file are
            set aside as well by ``prepare``, which alone sees all files.
        strip_stop: remove one ``*`` at a sequence's end.
        max_length: longest sequence that is kept, in letters.
        block_bytes: how much is read at once; memory is a small multiple of it.

    Yields:
        Good records in ``PROTEIN_SCHEMA``: key = text from ``>`` to the first blank, group = "".

    Raises:
        DataError: if the file is missing, not FASTA, or a torn gzip.
    """
    name = Path(path).name
    for block in _blocks(Path(path), block_bytes, longest=2 * max_length + block_bytes):
        batch = _parse(block, name, quarantine)
        yield clean(batch, quarantine, name, strip_stop=strip_stop, max_length=max_length)


def _parse(block: _Block, name: str, quarantine: Quarantine) -> pa.RecordBatch:
    keys, sequences, lines, line = [], [], [], block.line
    for record in block.content.split(b"\n>"):
        header, _, body = record.partition(b"\n")
        words = header.split(None, 1)
        key = words[0] if words and header[:1] not in b" \t" else b""
        try:
            keys.append(key.decode())
            sequences.append(body.translate(None, WHITE_SPACE))
            lines.append(line)
        except UnicodeDecodeError:
            quarantine.saw("protein", 1)
            quarantine.add("protein", "id that is not UTF-8 text", name, line, repr(key))
        line += record.count(b"\n") + 1
    columns = [
        pa.array(keys, pa.string()),
        pa.array([""], pa.string()).take(pa.array([0] * len(keys), pa.int32())),
        pa.array(sequences, pa.large_binary()),
        pa.array(lines, pa.int64()),
    ]
    return pa.record_batch(columns, schema=PROTEIN_SCHEMA)


def _blocks(path: Path, block_bytes: int, longest: int) -> Iterator[_Block]:
    """Blocks of whole records.

    A record larger than ``longest`` bytes is cut there (and is then too long for every reader):
    memory stays bounded whatever the file holds.
    """
    line, num_dropped_lines, pending, has_begun = 1, 0, b"", False
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
                has_begun, pending = True, pending[1:]
            else:
                pending += chunk
            end = pending.rfind(b"\n>")
            if end >= 0:
                content, pending = pending[:end], pending[end + 2 :]
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


PROTEIN_COLUMNS = ("protein_id", "species_taxid", "sequence")


LINK_COLUMNS = ("protein_a", "protein_b")


LINK_SCHEMA = pa.schema([("a", pa.string()), ("b", pa.string()), ("line", pa.int64())])


TAXID = "^(0|[1-9][0-9]{0,9})$"


NO_TAXID = "species_taxid that is no taxid (want NCBI's number, such as 9606)"


BLOCK_BYTES = 16 << 20


@dataclass(frozen=True)
class Tables:
    """A table of proteins and a table of links, as ``read_proteins`` and ``read_links`` take them."""

    edges: Path
    proteins: Path

    @property
    def files(self) -> dict[str, list[Path]]:
        """The two tables."""
        return {"edges": [Path(self.edges)], "proteins": [Path(self.proteins)]}

    def read(
        self, spool: Spool, quarantine: Quarantine, *, strip_stop: bool, max_length: int
    ) -> Corpus:
        """Proteins first; links are then looked up among them."""
        keys, group_N, names, spooled_N = self._read_proteins(
            spool, quarantine, strip_stop, max_length
        )
        links = LinkCollector(quarantine, keys)
        file = Path(self.edges).name
        for batch in read_links(self.edges, quarantine):
            a, b, line = batch.columns
            u_E, v_E = find(a, keys), find(b, keys)
            is_unknown = (u_E < 0) | (v_E < 0)
            is_across = ~is_unknown & (group_N[u_E] != group_N[v_E])
            set_aside_rows(
                is_unknown,
                "link with an id that is not among the proteins",
                "link",
                file,
                line,
                [a, b],
                quarantine,
            )
            set_aside_rows(
                is_across, "link between two species", "link", file, line, [a, b], quarantine
            )
            good = ~(is_unknown | is_across)
            links.add(u_E[good], v_E[good], line.to_numpy()[good], file)
        quarantine.check("link")
        return Corpus(keys, group_N, spooled_N, links.merged(file), names, names)

    def _read_proteins(
        self, spool: Spool, quarantine: Quarantine, strip_stop: bool, max_length: int
    ) -> tuple[pa.Array, np.ndarray, list[str], np.ndarray]:
        keys, groups, lines = [], [], []
        for batch in read_proteins(
            self.proteins, quarantine, strip_stop=strip_stop, max_length=max_length
        ):
            spool.append(batch.column("sequence"))
            keys.append(batch.column("key"))
            groups.append(batch.column("group"))
            lines.append(batch.column("line"))
        key = concatenated(keys, pa.large_string())
        is_first = first_of_each(key)
        repeated = pa.array(np.flatnonzero(~is_first)[: quarantine.num_examples])
        line = concatenated(lines, pa.int64())
        quarantine.add_many(
            "protein",
            "duplicate id",
            Path(self.proteins).name,
            int((~is_first).sum()),
            zip(line.take(repeated).to_pylist(), key.take(repeated).to_pylist(), strict=True),
        )
        quarantine.check("protein")
        if not len(key):
            raise DataError(
                f"{self.proteins}: holds no good protein, want one a line below the header"
            )
        kept = pa.array(is_first)
        group_N, names = number_groups(concatenated(groups, pa.string()).filter(kept))
        return key.filter(kept), group_N, names, np.flatnonzero(is_first)


def read_proteins(
    path: str | Path,
    quarantine: Quarantine,
    *,
    strip_stop: bool = False,
    max_length: int = DEFAULT_MAX_LENGTH,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Proteins of a table with the columns ``protein_id``, ``species_taxid`` and ``sequence`` (others are ignored).

    Args:
        path: the table.
        quarantine: takes the bad records. Ids that occur twice are not its business: only the
            caller sees all blocks.
        strip_stop: remove one ``*`` at a sequence's end.
        max_length: longest sequence that is kept.
        block_bytes: how much is read at once.

    Yields:
        Good records in ``PROTEIN_SCHEMA``.

    Raises:
        DataError: if the file is missing, torn, lacks a column or has a record that is larger than
            a block.
    """
    kinds = (pa.string(), pa.string(), pa.large_binary())
    for key, group, sequence, line in read_columns(
        path, PROTEIN_COLUMNS, kinds, "protein", quarantine, block_bytes
    ):
        without_group = is_missing(group)
        is_bad = ~np.asarray(pc.match_substring_regex(group, TAXID))
        set_aside_rows(without_group, "no species", "protein", path, line, [key], quarantine)
        set_aside_rows(
            is_bad & ~without_group, NO_TAXID, "protein", path, line, [key, group], quarantine
        )
        quarantine.saw("protein", int(is_bad.sum()))
        batch = pa.record_batch([key, group, sequence, line], schema=PROTEIN_SCHEMA)
        batch = batch.filter(pa.array(~is_bad))
        yield clean(
            batch, quarantine, Path(path).name, strip_stop=strip_stop, max_length=max_length
        )


def read_links(
    path: str | Path, quarantine: Quarantine, *, block_bytes: int = BLOCK_BYTES
) -> Iterator[pa.RecordBatch]:
    """Links of a table with the columns ``protein_a`` and ``protein_b`` (others are ignored), in ``LINK_SCHEMA``.

    Raises:
        DataError: as ``read_proteins``.
    """
    for a, b, line in read_columns(
        path, LINK_COLUMNS, (pa.string(), pa.string()), "link", quarantine, block_bytes
    ):
        quarantine.saw("link", len(a))
        without_id = is_missing(a) | is_missing(b)
        set_aside_rows(without_id, "link without an id", "link", path, line, [a, b], quarantine)
        yield pa.record_batch([a, b, line], schema=LINK_SCHEMA).filter(pa.array(~without_id))


def read_columns(
    path: str | Path,
    columns: tuple[str, ...],
    kinds: tuple[pa.DataType, ...],
    record: str,
    quarantine: Quarantine,
    block_bytes: int,
) -> Iterator[tuple[pa.Array, ...]]:
    """The wanted columns and the line number of each record, block by block."""
    name, skipped = Path(path).name, []

    def set_aside(row: pa.csv.InvalidRow) -> str:
        skipped.append(row.number)
        reason = "line with too many or too few columns"
        detail = f"{row.actual_columns} columns, want {row.expected_columns}: {row.text[:40]!r}"
        quarantine.saw(record, 1)
        quarantine.add(record, reason, name, row.number, detail)
        return "skip"

    options = {
        "read_options": pa.csv.ReadOptions(use_threads=False, block_size=block_bytes),
        "parse_options": pa.csv.ParseOptions(
            delimiter="\t",
            quote_char=False,
            escape_char=False,
            ignore_empty_lines=False,
            invalid_row_handler=set_aside,
        ),
        "convert_options": pa.csv.ConvertOptions(
            include_columns=columns,
            column_types=dict.fromkeys(columns, pa.binary()),
            strings_can_be_null=False,
        ),
    }
    num_read = 0
    try:
        with pa.csv.open_csv(str(path), **options) as reader:
            for batch in reader:
                # Line 1 is the header; skipped lines before a record move it down.
                row = np.arange(num_read, num_read + len(batch))
                num_read += len(batch)
                line = pa.array(_physical_lines(row, np.asarray(skipped, dtype=np.int64)))
                batch = pa.record_batch([*batch.columns, line], names=[*columns, "line"])
                batch = _only_text(batch, columns, kinds, record, name, quarantine)
                strings = [
                    batch.column(column).cast(kind)
                    for column, kind in zip(columns, kinds, strict=True)
                ]
                yield *strings, batch.column("line")
    except (OSError, pa.ArrowException, EOFError) as error:
        raise DataError(_explain(path, columns, error)) from None


def _physical_lines(row: np.ndarray, skipped: np.ndarray) -> np.ndarray:
    """Lines of the kept records ``row`` (numbered from 0), given the lines (from 1, ascending) that were skipped.

    Skipped line s was preceded by ``s - 2 - (number skipped before it)`` kept records.
    """
    kept_before = skipped - 2 - np.arange(len(skipped))
    return row + 2 + np.searchsorted(kept_before, row, side="right")


def _only_text(
    batch: pa.RecordBatch,
    columns: tuple[str, ...],
    kinds: tuple[pa.DataType, ...],
    record: str,
    file: str,
    quarantine: Quarantine,
) -> pa.RecordBatch:
    """Without the records whose ids are not UTF-8; looked for one by one only where the block as a whole is not."""
    texts = [
        column for column, kind in zip(columns, kinds, strict=True) if kind != pa.large_binary()
    ]
    try:
        for column in texts:
            batch.column(column).cast(pa.large_string())
        return batch
    except pa.ArrowInvalid:
        bad = np.zeros(len(batch), dtype=bool)
        for column in texts:
            bad |= [not _is_utf8(value) for value in batch.column(column).to_pylist()]
        quarantine.saw(record, int(bad.sum()))
        shown = pa.array([repr(value) for value in batch.column(texts[0]).to_pylist()])
        set_aside_rows(
            bad,
            "id that is not UTF-8 text",
            record,
            file,
            batch.column("line"),
            [shown],
            quarantine,
        )
        return batch.filter(pa.array(~bad))


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def set_aside_rows(
    is_bad: np.ndarray,
    reason: str,
    record: str,
    path: str | Path,
    line: pa.Array,
    shown: list[pa.Array],
    quarantine: Quarantine,
) -> None:
    """Count bad rows of a block, and keep the first few with their lines and what ``shown`` has of them."""
    first = pa.array(np.flatnonzero(is_bad)[: quarantine.num_examples])
    details = zip(*(column.take(first).to_pylist() for column in shown), strict=True)
    examples = zip(line.take(first).to_pylist(), map(" ".join, details), strict=True)
    quarantine.add_many(record, reason, Path(path).name, int(is_bad.sum()), examples)


def _explain(path: str | Path, columns: tuple[str, ...], error: Exception) -> str:
    text = str(error)
    wanted = ", ".join(columns)
    if isinstance(error, FileNotFoundError):
        return f"{path}: does not exist, want a table with the columns {wanted}"
    if missing := re.search(r"Column '(.+)' in include_columns does not exist", text):
        found = ", ".join(_header(path)) or "nothing"
        return (
            f"{path}: has no column {missing[1]!r}; found {found}; want {wanted}, tab-separated, "
            "named in the first line"
        )
    if "Empty CSV file" in text:
        return f"{path}: is empty, want a header line with {wanted}"
    if "straddling object" in text:
        return f"{path}: a line is longer than {BLOCK_BYTES >> 20} MB, want one record a line"
    if str(path).endswith(".gz"):
        return f"{path}: the gzip stream is torn or is none ({text}). Fetch the file again."
    return f"{path}: cannot be read as a table with the columns {wanted} ({text})"


def _header(path: str | Path) -> list[str]:
    with pa.input_stream(str(path)) as file:
        first = file.read(4096).split(b"\n")[0]
    return [name for name in first.decode(errors="replace").strip().split("\t") if name]
