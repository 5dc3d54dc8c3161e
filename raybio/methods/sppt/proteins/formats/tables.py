"""Tables of proteins, one a line, and of links, two ids a line: tab-separated, plain or gzip."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybio.core.errors import DataError
from raybio.methods.sppt.config import DEFAULT_MAX_LENGTH
from raybio.methods.sppt.corpus import Corpus, LinkCollector, number_groups
from raybio.methods.sppt.ids import concatenate, find_ids, is_first_occurrence
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
    """A table of proteins and a table of links, for ``prepare_proteins``."""

    edges: Path
    proteins: Path

    @property
    def files(self) -> dict[str, list[Path]]:
        """The two tables."""
        return {"edges": [Path(self.edges)], "proteins": [Path(self.proteins)]}

    def read(
        self, spool: Spool, quarantine: Quarantine, *, strip_stop: bool, max_length: int
    ) -> Corpus:
        """Read the proteins, then the links among them."""
        keys, group_N, names, spooled_N = self._read_proteins(
            spool, quarantine, strip_stop, max_length
        )
        links = LinkCollector(quarantine, keys)
        file = Path(self.edges).name
        for batch in read_links(self.edges, quarantine):
            a, b, line = batch.columns
            u_E = find_ids(a, keys)
            v_E = find_ids(b, keys)
            is_unknown = (u_E < 0) | (v_E < 0)
            is_across = ~is_unknown & (group_N[u_E] != group_N[v_E])
            skip_rows(
                is_unknown,
                "link with an id that is not among the proteins",
                "link",
                file,
                line,
                [a, b],
                quarantine,
            )
            skip_rows(is_across, "link between two species", "link", file, line, [a, b], quarantine)
            good = ~(is_unknown | is_across)
            links.add(u_E[good], v_E[good], line.to_numpy()[good], file)
        quarantine.check("link")
        return Corpus(keys, group_N, spooled_N, links.merged(file), names, names)

    def _read_proteins(
        self, spool: Spool, quarantine: Quarantine, strip_stop: bool, max_length: int
    ) -> tuple[pa.Array, np.ndarray, list[str], np.ndarray]:
        keys = []
        groups = []
        lines = []
        for batch in read_proteins(
            self.proteins, quarantine, strip_stop=strip_stop, max_length=max_length
        ):
            spool.append(batch.column("sequence"))
            keys.append(batch.column("key"))
            groups.append(batch.column("group"))
            lines.append(batch.column("line"))
        key = concatenate(keys, pa.large_string())
        is_first = is_first_occurrence(key)
        repeated = pa.array(np.flatnonzero(~is_first)[: quarantine.num_examples])
        line = concatenate(lines, pa.int64())
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
        group_N, names = number_groups(concatenate(groups, pa.string()).filter(kept))
        return key.filter(kept), group_N, names, np.flatnonzero(is_first)


def read_proteins(
    path: str | Path,
    quarantine: Quarantine,
    *,
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
        batch = batch.filter(pa.array(~is_bad))
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
