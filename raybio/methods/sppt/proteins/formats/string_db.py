"""STRING's own files, as they are downloaded: ``protein.links`` and ``protein.sequences``.

    511145.protein.links.v12.0.txt.gz        protein1 protein2 combined_score
                                             511145.b0001 511145.b0002 999
    511145.protein.sequences.v12.0.fa.gz     >511145.b0001
                                             MKRISTTITTTITITTGNGAG

Ids are ``taxid.name``; columns are divided by one blank; the score runs from 0 to 1000; a link is
listed in both directions. ``protein.physical.links`` and files with more columns (``.detailed``,
``.full``) are read as well. So are the files of all species.

Shape letters: N proteins, E links of a block.
"""

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raybio.core.errors import DataError
from raybio.methods.sppt.ids import find_ids
from raybio.methods.sppt.proteins.formats.columns import read_columns, skip_rows
from raybio.methods.sppt.proteins.formats.fasta import read_fasta
from raybio.methods.sppt.proteins.formats.residues import PROTEIN_SCHEMA
from raybio.store.quarantine import Quarantine
from raybio.store.sources import open_source

COLUMNS = ("protein1", "protein2", "combined_score")
MAX_SCORE = 1000
LINKS_BLOCK_BYTES = 8 << 20
"""Bytes of links that are read at once, about 200,000 lines."""

NO_TAXID = "id that does not begin with a taxid and a dot (want 511145.b0001)"
NO_SCORE = f"link whose score is no integer from 0 to {MAX_SCORE}"
NO_SPECIES = "link of a species that has no protein (--taxid selects species)"
NO_PROTEIN = "link with an id that is not among the proteins"
NOT_KEPT = "link of a species that is not in --taxid"
ACROSS = "link between two species"


class Links(NamedTuple):
    """Links of a block between known proteins of one species: row numbers and lines (E,)."""

    u_E: np.ndarray
    v_E: np.ndarray
    line_E: np.ndarray


def has_scores(path: Path) -> bool:
    """Return whether a file of links is STRING's, by the names of its columns."""
    with open_source(path, "a table of links") as file:
        return tuple(file.readline(1 << 12).decode(errors="replace").split()[:2]) == COLUMNS[:2]


def is_fasta(path: Path) -> bool:
    """Return whether a file of proteins is FASTA: its first character is ``>``."""
    with open_source(path, "a table of proteins, or FASTA") as file:
        return file.read(1 << 12).lstrip()[:1] == b">"


def taxid_of(key: str) -> str:
    """Return the taxid of an id, "" if it has none."""
    taxid, dot, name = key.partition(".")
    return taxid if dot and name and taxid.isascii() and taxid.isdigit() else ""


def read_sequences(
    path: Path,
    taxids: Collection[str],
    quarantine: Quarantine,
    *,
    strip_stop: bool,
    max_length: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the proteins of some species, or of all species if ``taxids`` is empty.

    Yields:
        Good records in ``PROTEIN_SCHEMA``; group: the taxid.

    Raises:
        DataError: as ``read_fasta``.
    """
    for batch in read_fasta(path, quarantine, strip_stop=strip_stop, max_length=max_length):
        groups = [taxid_of(key) for key in batch.column("key").to_pylist()]
        without = np.array([not group for group in groups], dtype=bool)
        shown = [batch.column("key")]
        skip_rows(without, NO_TAXID, "protein", path, batch.column("line"), shown, quarantine)
        kept = [bool(group) and (not taxids or group in taxids) for group in groups]
        columns = [batch.column("key"), pa.array(groups, pa.string()), *batch.columns[2:]]
        yield pa.record_batch(columns, schema=PROTEIN_SCHEMA).filter(pa.array(kept, pa.bool_()))


def read_links(
    path: Path,
    keys: pa.Array,
    group_N: np.ndarray,
    taxids: Collection[str],
    min_score: int,
    quarantine: Quarantine,
    *,
    block_bytes: int = LINKS_BLOCK_BYTES,
) -> Iterator[Links]:
    """Yield the links between known proteins, in memory that does not depend on the file's size.

    Args:
        path: STRING's file of links, plain or ``.gz``.
        keys: ids of the proteins (N,).
        group_N: group number of each protein, such as its species.
        taxids: links of other species are skipped; empty: none are.
        min_score: links with a lower score are skipped.
        quarantine: takes bad lines. What the settings exclude is counted, and is no defect.
        block_bytes: bytes that are read at once.

    Raises:
        DataError: as ``read_columns``.
    """
    rows = _RowsById(keys, taxids)
    kinds = (pa.string(), pa.string(), pa.string())
    too_low = f"link with a score below {min_score} (--min-score)"
    excluded = NOT_KEPT
    for a, b, score, line in read_columns(
        path, COLUMNS, kinds, "link", quarantine, block_bytes, delimiter=" "
    ):
        quarantine.saw("link", len(a))
        score_E = _scores(score)
        u_E = rows.find(a)
        v_E = rows.find(b)
        is_excluded = (u_E == EXCLUDED) | (v_E == EXCLUDED)
        is_bad = ~is_excluded & (score_E < 0)
        is_low = ~is_excluded & ~is_bad & (score_E < min_score)
        rest = ~(is_excluded | is_bad | is_low)
        is_strange = rest & ((u_E == NO_GROUP) | (v_E == NO_GROUP))
        is_unknown = rest & ~is_strange & ((u_E < 0) | (v_E < 0))
        rest &= ~(is_strange | is_unknown)
        is_across = rest & (group_N[u_E] != group_N[v_E])
        for is_skipped, reason in ((is_excluded, excluded), (is_low, too_low)):
            quarantine.add_many("link", reason, path.name, int(is_skipped.sum()), [], is_bad=False)
        for is_skipped, reason in (
            (is_bad, NO_SCORE),
            (is_strange, NO_SPECIES),
            (is_unknown, NO_PROTEIN),
            (is_across, ACROSS),
        ):
            shown = [a, b, score] if reason == NO_SCORE else [a, b]
            skip_rows(is_skipped, reason, "link", path, line, shown, quarantine)
        good = rest & ~is_across
        yield Links(u_E[good], v_E[good], line.to_numpy()[good])


def _scores(score: pa.Array) -> np.ndarray:
    """Return the scores (E,), -1 where there is none."""
    try:
        # A whole block at once. Only a block with a bad score is read value by value.
        score_E = np.asarray(score.cast(pa.int32()))
    except pa.ArrowInvalid:
        texts = score.to_pylist()
        score_E = np.array(
            [int(text) if re.fullmatch("[0-9]{1,4}", text) else -1 for text in texts],
            dtype=np.int64,
        )
    return np.where(score_E <= MAX_SCORE, score_E, -1)


UNKNOWN = -1
NO_GROUP = -2
EXCLUDED = -3


class _RowsById:
    """Rows of proteins by id, looked up among the proteins of the species that a block names.

    STRING's files are sorted by species. So the table that a block is looked up in has the size of
    a species, even where there are millions of proteins; files in another order are read as well.
    """

    def __init__(self, keys: pa.Array, taxids: Collection[str]) -> None:
        self._taxids = taxids
        number_by_taxid: dict[str, int] = {}
        numbers = np.empty(len(keys), dtype=np.int32)
        row = 0
        for chunk in range(0, len(keys), 1 << 16):
            for key in keys[chunk : chunk + (1 << 16)].to_pylist():
                numbers[row] = number_by_taxid.setdefault(taxid_of(key), len(number_by_taxid))
                row += 1
        # Proteins by species. The files of STRING have them in this order already.
        self._row_N = np.argsort(numbers, kind="stable")
        self._keys = keys if (np.diff(numbers) >= 0).all() else keys.take(pa.array(self._row_N))
        first_G = np.searchsorted(numbers[self._row_N], np.arange(len(number_by_taxid) + 1))
        self._range_by_taxid = {
            taxid: (int(first_G[number]), int(first_G[number + 1]))
            for taxid, number in number_by_taxid.items()
        }

    def find(self, ids: pa.Array) -> np.ndarray:
        """Return the row of each id (E,), or ``UNKNOWN``, ``NO_GROUP`` or ``EXCLUDED``."""
        encoded = ids.dictionary_encode()
        distinct = encoded.dictionary
        taxids = [taxid_of(key) for key in distinct.to_pylist()]
        row_D = np.full(len(distinct), UNKNOWN, dtype=np.int64)
        for number, taxid in enumerate(taxids):
            if self._taxids and taxid not in self._taxids:
                row_D[number] = EXCLUDED
            elif taxid not in self._range_by_taxid:
                row_D[number] = NO_GROUP
        ranges = sorted(self._range_by_taxid[t] for t in {*taxids} & self._range_by_taxid.keys())
        if ranges:
            known = pa.concat_arrays([self._keys[start:stop] for start, stop in ranges])
            known_row = np.concatenate([self._row_N[start:stop] for start, stop in ranges])
            index_D = find_ids(distinct, known)
            is_found = (index_D >= 0) & (row_D == UNKNOWN)
            row_D[is_found] = known_row[index_D[is_found]]
        row_E: np.ndarray = row_D[np.asarray(encoded.indices)]
        return row_E


def check_taxids(taxids: Collection[str], found: Collection[str], path: Path) -> None:
    """Refuse taxids of which a file has no protein.

    Raises:
        DataError: naming the first of them.
    """
    missing = sorted(set(taxids) - set(found))
    if missing:
        raise DataError(
            f"--taxid {missing[0]}: no protein of this species in {path}, or in files given with "
            "it. Want the taxid that the files have; a strain has its own (E. coli K-12 MG1655: "
            "511145)"
        )
