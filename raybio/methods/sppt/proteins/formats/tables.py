"""Files of proteins and files of links: tab-separated tables, or STRING's; plain or gzip.

The files are recognized by their first line: ``string_db`` describes STRING's.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybio.core.errors import DataError
from raybio.methods.sppt.config import DEFAULT_MAX_LENGTH, PrepareConfig
from raybio.methods.sppt.corpus import Corpus, LinkCollector, number_groups
from raybio.methods.sppt.ids import concatenate, find_ids, is_first_occurrence
from raybio.methods.sppt.proteins.formats import string_db
from raybio.methods.sppt.proteins.formats.columns import BLOCK_BYTES, read_columns, skip_rows
from raybio.methods.sppt.proteins.formats.residues import PROTEIN_SCHEMA, clean, is_missing
from raybio.store.quarantine import Quarantine
from raybio.store.ragged import Spool

PROTEIN_COLUMNS = ("protein_id", "species_taxid", "sequence")
LINK_COLUMNS = ("protein_a", "protein_b")
LINK_SCHEMA = pa.schema([("a", pa.string()), ("b", pa.string()), ("line", pa.int64())])
TAXID = "^(0|[1-9][0-9]{0,9})$"
NO_TAXID = "species_taxid that is no taxid (want NCBI's number, such as 9606)"


@dataclass(frozen=True)
class Tables:
    """Proteins and links, in tab-separated tables or STRING's files, for ``prepare_proteins``.

    Several files are read one after the other, such as those of several species.

    Attributes:
        edges: tables ``protein_a protein_b``, or STRING's ``protein.links``.
        proteins: tables ``protein_id species_taxid sequence``, or FASTA with ids ``taxid.name``.
    """

    edges: Sequence[Path]
    proteins: Sequence[Path]

    @property
    def files(self) -> dict[str, list[Path]]:
        """The files of links and those of proteins."""
        return {"edges": list(self.edges), "proteins": list(self.proteins)}

    def read(self, spool: Spool, quarantine: Quarantine, config: PrepareConfig) -> Corpus:
        """Read the proteins, then the links among them.

        Raises:
            DataError: if a file is missing, torn or has too many bad records; if a species of
                ``config.taxids`` has no protein; or if there are no scores for
                ``config.min_score``.
        """
        for path in self.edges:
            if config.min_score and not string_db.has_scores(path):
                raise DataError(
                    f"--min-score {config.min_score}: {path} has no scores. Want STRING's "
                    f"protein.links, which begins with {' '.join(string_db.COLUMNS)!r}"
                )
        keys, group_N, names, spooled_N = self._read_proteins(spool, quarantine, config)
        links = LinkCollector(quarantine, keys)
        for path in self.edges:
            if string_db.has_scores(path):
                blocks = string_db.read_links(
                    path, keys, group_N, config.taxids, config.min_score, quarantine
                )
            else:
                blocks = _links_of_table(path, keys, group_N, config.taxids, quarantine)
            for u_E, v_E, line_E in blocks:
                links.add(u_E, v_E, line_E, path.name)
        quarantine.check("link")
        return Corpus(keys, group_N, spooled_N, links.merged(), names, names)

    def _read_proteins(
        self, spool: Spool, quarantine: Quarantine, config: PrepareConfig
    ) -> tuple[pa.Array, np.ndarray, list[str], np.ndarray]:
        options: dict[str, Any] = {"strip_stop": config.strip_stop, "max_length": config.max_length}
        keys = []
        groups = []
        lines = []
        num_by_file = []
        for path in self.proteins:
            if string_db.is_fasta(path):
                batches = string_db.read_sequences(path, config.taxids, quarantine, **options)
            else:
                batches = read_proteins(path, quarantine, taxids=config.taxids, **options)
            num_before = spool.num_rows
            for batch in batches:
                spool.append(batch.column("sequence"))
                keys.append(batch.column("key"))
                groups.append(batch.column("group"))
                lines.append(batch.column("line"))
            num_by_file.append(spool.num_rows - num_before)
        key = concatenate(keys, pa.large_string())
        is_first = is_first_occurrence(key)
        _count_repeated(self.proteins, num_by_file, ~is_first, key, lines, quarantine)
        quarantine.check("protein")
        first = self.proteins[0]
        if not len(key) and not config.taxids:
            raise DataError(f"{first}: holds no good protein, want at least two")
        kept = pa.array(is_first)
        group_N, names = number_groups(concatenate(groups, pa.string()).filter(kept))
        string_db.check_taxids(config.taxids, names, first)
        return key.filter(kept), group_N, names, np.flatnonzero(is_first)


def _count_repeated(
    paths: Sequence[Path],
    num_by_file: list[int],
    is_repeated: np.ndarray,
    key: pa.Array,
    lines: list[pa.Array],
    quarantine: Quarantine,
) -> None:
    """Count the proteins whose id occurred before, and keep the first few of each file."""
    line = concatenate(lines, pa.int64())
    start = 0
    for path, num in zip(paths, num_by_file, strict=True):
        block = slice(start, start + num)
        shown = [key[block]]
        repeated = is_repeated[block]
        skip_rows(repeated, "duplicate id", "protein", path, line[block], shown, quarantine)
        start += num


def _links_of_table(
    path: Path,
    keys: pa.Array,
    group_N: np.ndarray,
    taxids: Collection[str],
    quarantine: Quarantine,
) -> Iterator[string_db.Links]:
    """Yield the links of a table between known proteins of one species.

    The ids of a table do not say the species. So with ``taxids``, a link with an unknown id counts
    as one of another species, which is no defect.
    """
    for batch in read_links(path, quarantine):
        a, b, line = batch.columns
        u_E = find_ids(a, keys)
        v_E = find_ids(b, keys)
        is_unknown = (u_E < 0) | (v_E < 0)
        is_across = ~is_unknown & (group_N[u_E] != group_N[v_E])
        if taxids:
            num_unknown = int(is_unknown.sum())
            quarantine.add_many(
                "link", string_db.NOT_KEPT, path.name, num_unknown, [], is_bad=False
            )
        else:
            skip_rows(is_unknown, string_db.NO_PROTEIN, "link", path, line, [a, b], quarantine)
        skip_rows(is_across, string_db.ACROSS, "link", path, line, [a, b], quarantine)
        good = ~(is_unknown | is_across)
        yield string_db.Links(u_E[good], v_E[good], line.to_numpy()[good])


def read_proteins(
    path: str | Path,
    quarantine: Quarantine,
    *,
    taxids: Collection[str] = (),
    strip_stop: bool = False,
    max_length: int = DEFAULT_MAX_LENGTH,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield the proteins of a table with columns ``protein_id``, ``species_taxid``, ``sequence``.

    Other columns are ignored.

    Args:
        path: the table.
        quarantine: takes bad records. Repeated ids are skipped by the caller, which sees all
            blocks.
        taxids: proteins of other species are skipped; empty: none are.
        strip_stop: remove one ``*`` at a sequence's end.
        max_length: longest sequence that is kept.
        block_bytes: bytes that are read at once.

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
        skip_rows(without_group, "no species", "protein", path, line, [key], quarantine)
        skip_rows(
            is_bad & ~without_group, NO_TAXID, "protein", path, line, [key, group], quarantine
        )
        quarantine.saw("protein", int(is_bad.sum()))
        batch = pa.record_batch([key, group, sequence, line], schema=PROTEIN_SCHEMA)
        is_kept = ~is_bad
        if taxids:
            is_kept &= np.asarray(pc.is_in(group, value_set=pa.array(sorted(taxids))))
        batch = batch.filter(pa.array(is_kept))
        yield clean(
            batch, quarantine, Path(path).name, strip_stop=strip_stop, max_length=max_length
        )


def read_links(
    path: str | Path, quarantine: Quarantine, *, block_bytes: int = BLOCK_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yield the links of a table with columns ``protein_a`` and ``protein_b``, in ``LINK_SCHEMA``.

    Other columns are ignored.

    Raises:
        DataError: as ``read_proteins``.
    """
    for a, b, line in read_columns(
        path, LINK_COLUMNS, (pa.string(), pa.string()), "link", quarantine, block_bytes
    ):
        quarantine.saw("link", len(a))
        without_id = is_missing(a) | is_missing(b)
        skip_rows(without_id, "link without an id", "link", path, line, [a, b], quarantine)
        yield pa.record_batch([a, b, line], schema=LINK_SCHEMA).filter(pa.array(~without_id))
