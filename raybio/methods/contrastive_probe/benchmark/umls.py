"""Relations and names of concepts from UMLS's MRREL.RRF and MRCONSO.RRF, in bounded memory.

The Rich Release Format has one row per line in UTF-8, with "|" after each column, no header and no
quoting; ``.gz`` is read too.

- A row of MRREL states CUI2 -RELA-> CUI1, and the related atoms (AUI) if the source names them.
- A row of MRCONSO is an atom: a string of a source for a concept (CUI).
- SUPPRESS other than N marks obsolete rows (O) and suppressed ones (E, Y).
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from raybio.core.errors import DataError
from raybio.store.quarantine import Quarantine

MRCONSO = (
    "CUI", "LAT", "TS", "LUI", "STT", "SUI", "ISPREF", "AUI", "SAUI", "SCUI", "SDUI", "SAB", "TTY",
    "CODE", "STR", "SRL", "SUPPRESS", "CVF",
)  # fmt: skip

MRREL = (
    "CUI1", "AUI1", "STYPE1", "REL", "CUI2", "AUI2", "STYPE2", "RELA", "RUI", "SRUI", "SAB", "SL",
    "RG", "DIR", "SUPPRESS", "CVF",
)  # fmt: skip

BLOCK_BYTES = 16 << 20

_ROW = re.compile(r"Row #(\d+)")


@dataclass(frozen=True)
class ConceptNames:
    """English names that are not suppressed: of atoms, and the preferred one of each concept."""

    name_by_aui: dict[str, str]
    name_by_cui: dict[str, str]

    def of(self, aui: str, cui: str) -> str | None:
        """Return the name of the atom, else of the concept, else None."""
        return self.name_by_aui.get(aui) or self.name_by_cui.get(cui)


def rrf_file(folder: Path, name: str) -> Path:
    """Return ``folder/name``, or the same with ``.gz``.

    Raises:
        DataError: if neither exists.
    """
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(
        f"{folder}: holds no {name} or {name}.gz, "
        "want UMLS's folder META, as MetamorphoSys writes it"
    )


def read_relations(
    path: Path,
    relations: Collection[str],
    vocabularies: Collection[str],
    quarantine: Quarantine,
    *,
    block_bytes: int = BLOCK_BYTES,
) -> pa.Table:
    """Read the rows of MRREL with given RELA and SAB that are not suppressed.

    Args:
        path: MRREL.RRF.
        relations: values of RELA.
        vocabularies: values of SAB.
        quarantine: records the suppressed rows.
        block_bytes: bytes read at once.

    Returns:
        Columns RELA, CUI1, AUI1 (the tail), CUI2, AUI2 (the head) and ``line``.

    Raises:
        DataError: for a file that is truncated or of another layout, with its line.
    """
    columns = ("RELA", "CUI1", "AUI1", "CUI2", "AUI2", "SAB", "SUPPRESS")
    relation_array = pa.array(sorted(relations))
    vocabulary_array = pa.array(sorted(vocabularies))
    kept = []
    for batch in _read_rrf(path, MRREL, columns, block_bytes):
        quarantine.saw("relation", len(batch))
        is_wanted = pc.and_(
            pc.is_in(batch["RELA"], relation_array), pc.is_in(batch["SAB"], vocabulary_array)
        )
        wanted = batch.filter(is_wanted)
        kept.append(_without_suppressed(wanted, "relation", "CUI2", path, quarantine))
    schema = pa.schema([*((column, pa.string()) for column in columns), ("line", pa.int64())])
    return pa.Table.from_batches(kept, schema=schema).drop_columns(["SAB", "SUPPRESS"])


def read_concept_names(
    path: Path,
    auis: pa.Array,
    cuis: pa.Array,
    quarantine: Quarantine,
    *,
    block_bytes: int = BLOCK_BYTES,
) -> ConceptNames:
    """Read the English names of given atoms and concepts that are not suppressed.

    The preferred name of a concept is the atom with TS P, STT PF and ISPREF Y. If that one is
    suppressed, it is the atom that comes closest; ties go to the lowest AUI.

    Raises:
        DataError: for a file that is truncated or of another layout, with its line.
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
        reason = "name that is not English"
        _record_skipped(batch, pc.invert(is_english), "name", reason, "AUI", path, quarantine)
        for row in batch.filter(is_english).to_pylist():
            name = row["STR"].strip()
            if not name:
                continue
            if row["AUI"] in known_auis:
                name_by_aui[row["AUI"]] = name
            rank = (row["TS"] != "P", row["STT"] != "PF", row["ISPREF"] != "Y", row["AUI"])
            if row["CUI"] not in best_by_cui or rank < best_by_cui[row["CUI"]][0]:
                best_by_cui[row["CUI"]] = (rank, name)
    name_by_cui = {cui: name for cui, (_, name) in best_by_cui.items()}
    return ConceptNames(name_by_aui, name_by_cui)


def _read_rrf(
    path: Path, layout: Sequence[str], columns: Sequence[str], block_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yield blocks of the given columns and ``line``, the line of each row."""
    num_read = 0
    # Only without threads does Arrow name the row of an error.
    read_options = pa.csv.ReadOptions(
        use_threads=False, block_size=block_bytes, column_names=[*layout, "after the last bar"]
    )
    parse_options = pa.csv.ParseOptions(
        delimiter="|", quote_char=False, escape_char=False, ignore_empty_lines=False
    )
    convert_options = pa.csv.ConvertOptions(
        include_columns=columns,
        column_types=dict.fromkeys(columns, pa.string()),
        strings_can_be_null=False,
    )
    try:
        with pa.csv.open_csv(
            str(path),
            read_options=read_options,
            parse_options=parse_options,
            convert_options=convert_options,
        ) as reader:
            for batch in reader:
                line = np.arange(num_read + 1, num_read + len(batch) + 1)
                num_read += len(batch)
                yield batch.append_column("line", pa.array(line))
    except (OSError, EOFError, pa.ArrowException) as error:
        row = _ROW.search(str(error))
        where = f", line {row[1]}" if row else f", after line {num_read:,}"
        raise DataError(
            f"{path}{where}: {error}; want {len(layout)} columns of UMLS's Rich Release Format in "
            "UTF-8, with a bar after each. Make or fetch the file again."
        ) from None


def _without_suppressed(
    batch: pa.RecordBatch, kind: str, shown: str, path: Path, quarantine: Quarantine
) -> pa.RecordBatch:
    is_kept = pc.equal(batch["SUPPRESS"], "N")
    reason = f"suppressed {kind}"
    _record_skipped(batch, pc.invert(is_kept), kind, reason, shown, path, quarantine)
    return batch.filter(is_kept)


def _record_skipped(
    batch: pa.RecordBatch,
    is_skipped: pa.Array,
    kind: str,
    reason: str,
    shown: str,
    path: Path,
    quarantine: Quarantine,
) -> None:
    skipped = batch.filter(is_skipped)
    first = skipped.slice(0, quarantine.num_examples)
    examples = zip(first["line"].to_pylist(), first[shown].to_pylist(), strict=True)
    quarantine.add_many(kind, reason, path.name, len(skipped), examples, is_bad=False)
