"""UMLS in its Rich Release Format: relations and names of concepts, from MRREL.RRF and MRCONSO.RRF, in bounded memory.

A line a row, "|" after each column, UTF-8, no header, quotes without meaning; ``.gz`` too. MRREL says CUI2 -RELA->
CUI1, and which atoms (AUI) a source tied where it says so. In MRCONSO an atom is a string of a source for a concept
(CUI). SUPPRESS other than N marks what is obsolete (O), or suppressed one by one (E) or by its type (Y).
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from raybio.data.quarantine import Quarantine
from raybio.errors import DataError

MRCONSO = (
    "CUI", "LAT", "TS", "LUI", "STT", "SUI", "ISPREF", "AUI", "SAUI", "SCUI", "SDUI", "SAB", "TTY", "CODE", "STR",
    "SRL", "SUPPRESS", "CVF",
)  # fmt: skip
MRREL = (
    "CUI1", "AUI1", "STYPE1", "REL", "CUI2", "AUI2", "STYPE2", "RELA", "RUI", "SRUI", "SAB", "SL", "RG", "DIR",
    "SUPPRESS", "CVF",
)  # fmt: skip
BLOCK_BYTES = 16 << 20
_ROW = re.compile(r"Row #(\d+)")


@dataclass(frozen=True)
class Names:
    """English names that are not suppressed: by atom, and the preferred one by concept."""

    name_by_aui: dict[str, str]
    name_by_cui: dict[str, str]

    def of(self, aui: str, cui: str) -> str | None:
        """The atom's own name, else its concept's, else None."""
        return self.name_by_aui.get(aui) or self.name_by_cui.get(cui)


def rrf_file(folder: Path, name: str) -> Path:
    """``folder/name``, or with ``.gz``.

    Raises:
        DataError: if neither is there.
    """
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(f"{folder}: holds no {name} or {name}.gz, want UMLS's folder META, as MetamorphoSys writes it")


def read_relations(
    path: Path,
    relations: Collection[str],
    vocabularies: Collection[str],
    quarantine: Quarantine,
    *,
    block_bytes: int = BLOCK_BYTES,
) -> pa.Table:
    """Rows of MRREL whose RELA and SAB are wanted, without suppressed ones.

    Args:
        path: MRREL.RRF.
        relations: values of RELA.
        vocabularies: values of SAB.
        quarantine: takes the suppressed rows.
        block_bytes: how much is read at once.

    Returns:
        Columns RELA, CUI1, AUI1 (the tail), CUI2, AUI2 (the head) and ``line``.

    Raises:
        DataError: for a file that is torn or of another layout, with its line.
    """
    columns = ("RELA", "CUI1", "AUI1", "CUI2", "AUI2", "SAB", "SUPPRESS")
    wanted, sources = pa.array(sorted(relations)), pa.array(sorted(vocabularies))
    kept = []
    for batch in _read_rrf(path, MRREL, columns, block_bytes):
        quarantine.saw("relation", len(batch))
        is_wanted = pc.and_(pc.is_in(batch["RELA"], wanted), pc.is_in(batch["SAB"], sources))
        found = batch.filter(is_wanted)
        kept.append(_without_suppressed(found, "relation", "CUI2", path, quarantine))
    empty = pa.schema([*((column, pa.string()) for column in columns), ("line", pa.int64())])
    return pa.Table.from_batches(kept, schema=empty).drop_columns(["SAB", "SUPPRESS"])


def read_names(
    path: Path, auis: pa.Array, cuis: pa.Array, quarantine: Quarantine, *, block_bytes: int = BLOCK_BYTES
) -> Names:
    """English names, not suppressed, of the given atoms and concepts.

    A concept's preferred name is that of the atom with TS P, STT PF and ISPREF Y; where that one is left out, of the
    atom that comes nearest to it, the lowest AUI among equals.

    Raises:
        DataError: for a file that is torn or of another layout, with its line.
    """
    name_by_aui: dict[str, str] = {}
    best_by_cui: dict[str, tuple[tuple[bool, bool, bool, str], str]] = {}
    columns = ("CUI", "LAT", "TS", "STT", "ISPREF", "AUI", "STR", "SUPPRESS")
    known_auis = set(auis.to_pylist())
    for batch in _read_rrf(path, MRCONSO, columns, block_bytes):
        quarantine.saw("name", len(batch))
        batch = batch.filter(pc.or_(pc.is_in(batch["AUI"], auis), pc.is_in(batch["CUI"], cuis)))
        batch = _without_suppressed(batch, "name", "AUI", path, quarantine)
        is_english = pc.equal(batch["LAT"], "ENG")
        _set_aside(batch, pc.invert(is_english), "name", "name that is not English", "AUI", path, quarantine)
        for row in batch.filter(is_english).to_pylist():
            name = row["STR"].strip()
            if not name:
                continue
            if row["AUI"] in known_auis:
                name_by_aui[row["AUI"]] = name
            rank = (row["TS"] != "P", row["STT"] != "PF", row["ISPREF"] != "Y", row["AUI"])
            if row["CUI"] not in best_by_cui or rank < best_by_cui[row["CUI"]][0]:
                best_by_cui[row["CUI"]] = (rank, name)
    return Names(name_by_aui, {cui: name for cui, (_, name) in best_by_cui.items()})


def _read_rrf(path: Path, layout: Sequence[str], columns: Sequence[str], block_bytes: int) -> Iterator[pa.RecordBatch]:
    """The wanted columns and the line of each row, block by block."""
    num_read = 0
    try:
        with pa.csv.open_csv(
            str(path),
            # Without threads, Arrow names the row of an error.
            read_options=pa.csv.ReadOptions(
                use_threads=False, block_size=block_bytes, column_names=[*layout, "after the last bar"]
            ),
            parse_options=pa.csv.ParseOptions(
                delimiter="|", quote_char=False, escape_char=False, ignore_empty_lines=False
            ),
            convert_options=pa.csv.ConvertOptions(
                include_columns=columns,
                column_types=dict.fromkeys(columns, pa.string()),
                strings_can_be_null=False,
            ),
        ) as reader:
            for batch in reader:
                line = np.arange(num_read + 1, num_read + len(batch) + 1)
                num_read += len(batch)
                yield batch.append_column("line", pa.array(line))
    except (OSError, EOFError, pa.ArrowException) as error:
        row = _ROW.search(str(error))
        where = f", line {row[1]}" if row else f", after line {num_read:,}"
        raise DataError(
            f"{path}{where}: {error}; want {len(layout)} columns of UMLS's Rich Release Format in UTF-8, with a bar "
            "after each. Make or fetch the file again."
        ) from None


def _without_suppressed(
    batch: pa.RecordBatch, kind: str, shown: str, path: Path, quarantine: Quarantine
) -> pa.RecordBatch:
    is_kept = pc.equal(batch["SUPPRESS"], "N")
    _set_aside(batch, pc.invert(is_kept), kind, f"suppressed {kind}", shown, path, quarantine)
    return batch.filter(is_kept)


def _set_aside(
    batch: pa.RecordBatch, is_out: pa.Array, kind: str, reason: str, shown: str, path: Path, quarantine: Quarantine
) -> None:
    out = batch.filter(is_out)
    first = out.slice(0, quarantine.num_examples)
    examples = zip(first["line"].to_pylist(), first[shown].to_pylist(), strict=True)
    quarantine.add_many(kind, reason, path.name, len(out), examples, is_bad=False)
