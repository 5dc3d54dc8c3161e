"""Files of proteins and files of links, in any common form; plain or gzip.

Links: ``link_files.py``. Proteins: FASTA, or tables with the columns ``protein_id``, ``sequence``
and ``species_taxid``. STRING's own files, as they are downloaded, are among them:

    511145.protein.links.v12.0.txt.gz        protein1 protein2 combined_score
                                             511145.b0001 511145.b0002 999
    511145.protein.sequences.v12.0.fa.gz     >511145.b0001
                                             MKRISTTITTTITITTGNGAG

Their ids are ``taxid.name``, and a link is listed in both directions. ``protein.physical.links``
and files with more columns (``.detailed``, ``.full``) are read as well. So are the files of all
species.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybio.core.errors import DataError
from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.corpus import (
    Corpus,
    LinkCollector,
    check_has_links,
    group_order,
    number_groups,
)
from raybio.methods.sppt.ids import concatenate, find_ids, is_first_occurrence
from raybio.methods.sppt.proteins.formats.fasta import read_fasta
from raybio.methods.sppt.proteins.formats.id_rule import (
    FORMS,
    FormChoice,
    IdRule,
    advise,
    choose_form,
)
from raybio.methods.sppt.proteins.formats.link_files import (
    SCORE_COLUMNS,
    LinkFile,
    check_labels,
    read_layout,
    sample_ids,
)
from raybio.methods.sppt.proteins.formats.links import (
    LINKS_BLOCK_BYTES,
    MAX_SCORE,
    ScoreRange,
    SkippedProteins,
    read_links,
    rows_by_id,
    taxid_of,
)
from raybio.methods.sppt.proteins.formats.residues import PROTEIN_SCHEMA, clean
from raybio.methods.sppt.table_columns import BLOCK_BYTES, is_missing, read_table, skip_rows
from raybio.store.quarantine import Quarantine
from raybio.store.ragged import Spool
from raybio.store.sources import begins_with
from raybio.store.table_rows import choose_columns, is_typed_table, shown_names

ID_COLUMNS = ("protein_id", "id", "entry", "accession")
SPECIES_COLUMNS = ("species_taxid", "taxid", "organism (id)", "organism_id")
SEQUENCE_COLUMNS = ("sequence", "seq")
"""Names of the column of sequences, in lower case, by rank; including UniProt's."""

WANTED = "a table with the columns protein_id, species_taxid and sequence, or FASTA"

REPEATED = "duplicate id"
"""Reason to skip all records of an id except the first."""

OTHER_SPECIES = (
    "id that another species has, too (the first is kept; want ids such as 9606.name in links and "
    "proteins, or one species by --taxid)"
)
"""Reason to skip a record whose id occurred in another species, as names of genes do."""

TAXID = "^(0|[1-9][0-9]{0,9})$"
NO_TAXID = "species_taxid that is no taxid (want NCBI's number, such as 9606)"
NO_SPECIES = (
    "protein without a species (want OX=9606 in its header, an id such as 9606.name, or --taxid "
    "for a single species)"
)

MAX_ADVISED = 200_000
"""Maximum number of proteins among which advice looks for ids."""


class _Proteins(NamedTuple):
    """Distinct proteins (N,) of all files, and how their ids were read.

    Attributes:
        words: ids as in the files.
        keys: ids of the store.
        group_N: number of each protein's species.
        names: taxid of each species.
        spooled_N: number of each sequence in the spool.
        choice: how ``keys`` are made of ``words``.
        skipped: proteins of other species, which ``--taxid`` does not select.
    """

    words: pa.Array
    keys: pa.Array
    group_N: np.ndarray
    names: list[str]
    spooled_N: np.ndarray
    choice: FormChoice
    skipped: SkippedProteins

    def advise(self, unknown: Sequence[str]) -> str:
        """Return what would make ids of links match proteins; "" if nothing is needed.

        Args:
            unknown: ids of links, as the rule makes them, that are not among the proteins.
        """
        if not unknown:
            return ""
        ids = self.keys[:MAX_ADVISED].to_pylist()
        if self.choice.num_found and not any(self.choice.num_found.values()):
            # No form fits without options, so any form may fit with one.
            for form in reversed(FORMS):
                rule = replace(self.choice.rule, form=form)
                ids = rule(self.words[:MAX_ADVISED]).to_pylist() + ids
        return advise(unknown, ids, self.choice.rule.strip_prefixes)


@dataclass(frozen=True)
class Tables:
    """Files of links and of proteins, for ``prepare_proteins``.

    Several files are read one after the other, such as those of several species.

    Attributes:
        edges: tables of links.
        proteins: FASTA, or tables of proteins.
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
            DataError: if a file is missing, torn, in no known form or has too many bad records; if
                a species of ``config.taxids`` has no protein; if there are no scores for
                ``config.min_score``; if there is no ``config.min_score`` for labels; or if no ids
                of links are those of proteins.
        """
        layouts = [read_layout(Path(path)) for path in self.edges]
        for layout in layouts:
            if config.min_score:
                _check_score(layout, config.min_score)
            else:
                check_labels(layout, block_bytes=LINKS_BLOCK_BYTES)
        proteins = self._read_proteins(layouts, spool, quarantine, config)
        keys = proteins.keys
        rows = rows_by_id(keys, proteins.group_N, proteins.names, config.taxids, proteins.skipped)
        links = LinkCollector(quarantine, keys, spool.path.parent)
        unknown: dict[str, None] = {}
        scores = ScoreRange()
        for layout in layouts:
            blocks = read_links(
                layout,
                rows,
                proteins.group_N,
                quarantine,
                rule=proteins.choice.rule,
                min_score=config.min_score,
                unknown=unknown,
                scores=scores,
            )
            for u_E, v_E, line_E in blocks:
                links.add(u_E, v_E, line_E, layout.path.name)
        advice = proteins.advise(list(unknown))
        # The first protein of a repeated id is kept, so that its links are known.
        num_repeated = sum(quarantine.count_by_reason[each] for each in (REPEATED, OTHER_SPECIES))
        num_skipped = quarantine.num_bad("protein") - num_repeated
        if advice and num_skipped:
            advice += f"; skipped proteins ({num_skipped:,}) count as unknown"
        quarantine.check("link", advice)
        check_has_links(self.edges, quarantine)
        if scores.low <= scores.high < config.min_score:
            files = ", ".join(map(str, self.edges))
            raise DataError(
                f"--min-score {config.min_score:g}: no link of {files} has it; the scores run from "
                f"{scores.low:g} to {scores.high:g}. Want --min-score {scores.high:g} at most"
            )
        edge_E2 = links.merged()
        if not len(edge_E2) and advice:
            raise DataError(f"{self.edges[0]}: no link is between two proteins. {advice}.")
        read_as = _grouped(f"{layout.path.name}: {layout}" for layout in layouts)
        if proteins.choice.num_found:
            read_as.append(str(proteins.choice))
        if advice:
            read_as.append(f"skipped links: {advice}")
        names = proteins.names
        return Corpus(
            keys, proteins.group_N, proteins.spooled_N, edge_E2, names, names, read_as=read_as
        )

    def _read_proteins(
        self,
        layouts: Sequence[LinkFile],
        spool: Spool,
        quarantine: Quarantine,
        config: PrepareConfig,
    ) -> _Proteins:
        words = []
        groups = []
        lines = []
        num_by_file = []
        present: set[str] = set()
        skipped = []
        rule = IdRule(strip_prefixes=config.strip_prefixes, strip_version=config.strip_version)
        for path in self.proteins:
            num_before = spool.num_rows
            for batch in read_proteins(path, quarantine, config):
                kept = batch
                if config.taxids:
                    present.update(batch.column("group").unique().to_pylist())
                    wanted = pa.array(sorted(config.taxids))
                    is_wanted = pc.is_in(batch.column("group"), value_set=wanted)
                    kept = batch.filter(is_wanted)
                    skipped.append(_without_taxid(batch.filter(pc.invert(is_wanted)), rule))
                spool.append(kept.column("sequence"))
                words.append(kept.column("key"))
                groups.append(kept.column("group"))
                lines.append(kept.column("line"))
            num_by_file.append(spool.num_rows - num_before)
        word = concatenate(words, pa.large_string())
        choice = choose_form(_sample_ids(layouts), word, rule)
        key = choice.rule(word)
        is_first = is_first_occurrence(key)
        group = concatenate(groups, pa.string())
        repeated = _repeated(key, group, is_first)
        _count_repeated(self.proteins, num_by_file, repeated, key, lines, quarantine)
        quarantine.check("protein")
        first = self.proteins[0]
        if not len(key) and not config.taxids:
            raise DataError(f"{first}: holds no good protein, want at least two")
        kept_N = pa.array(is_first)
        group_N, names = number_groups(group.filter(kept_N))
        check_taxids(config.taxids, names, present, first)
        rows = np.flatnonzero(is_first)
        keys = key.filter(kept_N)
        # One array where the ids are the words: STRING's files of all species have millions.
        kept_words = keys if key is word else word.filter(kept_N)
        others = SkippedProteins(
            choice.rule(concatenate(skipped, pa.large_string())),
            present - set(config.taxids) if config.taxids else set(),
        )
        return _Proteins(kept_words, keys, group_N, names, rows, choice, others)


def read_proteins(
    path: str | Path,
    quarantine: Quarantine,
    config: PrepareConfig,
    *,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield the proteins of FASTA or of a table, of all species.

    Args:
        path: the file.
        quarantine: takes bad records. Repeated ids are skipped by the caller, which sees all
            blocks.
        config: its taxid, if it is a single one, is the species of proteins whose file has none.
        block_bytes: bytes that are read at once.

    Yields:
        Good records in ``PROTEIN_SCHEMA``; the key is the whole first word of a FASTA header.

    Raises:
        DataError: if the file is missing, torn, lacks a column or has a record that is larger than
            a block.
    """
    path = Path(path)
    only_taxid = config.taxids[0] if len(config.taxids) == 1 else ""
    if not is_typed_table(path) and is_fasta(path):
        yield from _read_fasta(path, quarantine, config, only_taxid)
        return
    for key, group, sequence, line in _table_blocks(path, quarantine, only_taxid, block_bytes):
        without_group = is_missing(group)
        is_bad = ~np.asarray(pc.match_substring_regex(group, TAXID))
        skip_rows(without_group, "no species", "protein", path, line, [key], quarantine)
        skip_rows(
            is_bad & ~without_group, NO_TAXID, "protein", path, line, [key, group], quarantine
        )
        quarantine.saw("protein", int(is_bad.sum()))
        batch = pa.record_batch([key, group, sequence, line], schema=PROTEIN_SCHEMA)
        yield clean(
            batch.filter(pa.array(~is_bad)),
            quarantine,
            path.name,
            strip_stop=config.strip_stop,
            max_length=config.max_length,
        )


def _without_taxid(proteins: pa.RecordBatch, rule: IdRule) -> pa.Array:
    """Return the first words of the proteins whose id is not their taxid, a dot and a name."""
    word = proteins.column("key")
    parts = pc.split_pattern(rule(word), pattern=".", max_splits=1)
    begins_with_taxid = pc.equal(pc.list_element(parts, 0), proteins.column("group"))
    return word.filter(pc.invert(begins_with_taxid))


def _read_fasta(
    path: Path, quarantine: Quarantine, config: PrepareConfig, only_taxid: str
) -> Iterator[pa.RecordBatch]:
    """Yield the proteins of FASTA.

    The species is that of ``OX=`` in the header, else the taxid before the first dot of the id,
    else the only taxid.
    """
    batches = read_fasta(
        path, quarantine, strip_stop=config.strip_stop, max_length=config.max_length
    )
    for batch in batches:
        groups = []
        for key, group in zip(
            batch.column("key").to_pylist(), batch.column("group").to_pylist(), strict=True
        ):
            groups.append(group or taxid_of(key) or only_taxid)
        without = np.array([not group for group in groups], dtype=bool)
        shown = [batch.column("key")]
        skip_rows(without, NO_SPECIES, "protein", path, batch.column("line"), shown, quarantine)
        columns = [batch.column("key"), pa.array(groups, pa.string()), *batch.columns[2:]]
        yield pa.record_batch(columns, schema=PROTEIN_SCHEMA).filter(pa.array(~without))


def _table_blocks(
    path: Path, quarantine: Quarantine, only_taxid: str, block_bytes: int
) -> Iterator[tuple[pa.Array, ...]]:
    """Yield id, taxid, sequence and line of each row of a table."""
    select = partial(_protein_columns, path, only_taxid)
    kinds = (pa.string(), pa.large_binary(), pa.string())
    blocks = read_table(path, WANTED, select, kinds, "protein", quarantine, block_bytes)
    for key, sequence, *group, line in blocks:
        taxids = group[0] if group else pa.repeat(only_taxid, len(key))
        yield key, taxids, sequence, line


def _protein_columns(path: Path, only_taxid: str, names: Sequence[str]) -> list[str]:
    """Return the columns of ids and sequences, and of species if there is one."""
    required = (ID_COLUMNS, SEQUENCE_COLUMNS)
    if only_taxid:
        return choose_columns(path, names, required, (SPECIES_COLUMNS,))
    without = SPECIES_COLUMNS[0] not in names
    advice = ", or --taxid for a single species" if without else ""
    return choose_columns(path, names, (*required, SPECIES_COLUMNS), advice=advice)


def is_fasta(path: Path) -> bool:
    """Return whether a file of proteins is FASTA: it begins with ``>``."""
    return begins_with(path, b">", WANTED)


def _sample_ids(layouts: Sequence[LinkFile]) -> pa.Array:
    """Return the distinct ids of the first blocks of all files of links."""
    samples = [sample_ids(layout, block_bytes=LINKS_BLOCK_BYTES) for layout in layouts]
    return pc.unique(concatenate(samples, pa.large_string()))


def _check_score(file: LinkFile, min_score: float) -> None:
    """Refuse a minimum score for a file without scores, or with scores on another scale.

    Raises:
        DataError: it says what to give instead.
    """
    if not file.has_scores:
        wanted = f"a column named {', '.join(SCORE_COLUMNS[:-1])} or {SCORE_COLUMNS[-1]}"
        advice = f"Want {wanted}, such as STRING's protein.links have"
        if file.unread:
            advice = f"Want {wanted}: rename one of its others ({shown_names(file.unread)})"
        elif not file.is_named:
            advice = f"Want a third column, or a header with {wanted}"
        raise DataError(f"--min-score {min_score:g}: {file.path} has no scores ({file}). {advice}")
    if file.has_string_scores and min_score < 1:
        raise DataError(
            f"--min-score {min_score:g}: the scores of {file.path} are STRING's, integers up to "
            f"{MAX_SCORE}. Want --min-score {MAX_SCORE * min_score:g}; if they are others, name "
            f"the column {SCORE_COLUMNS[1]}"
        )


def check_taxids(
    taxids: Collection[str], kept: Collection[str], present: Collection[str], path: Path
) -> None:
    """Refuse taxids of which no protein is kept.

    Args:
        taxids: the wanted species.
        kept: species of the proteins that are kept.
        present: species that the files have.
        path: the first of the files.

    Raises:
        DataError: naming the first of the missing species, and those that are present.
    """
    missing = sorted(set(taxids) - set(kept))
    if missing:
        others = sorted(set(present) - {""}, key=group_order)
        raise DataError(
            f"--taxid {missing[0]}: no protein of this species in {path}, or in files given with "
            f"it, whose species are {shown_names(others) or 'not named'}. A strain has a taxid of "
            "its own (E. coli K-12 MG1655: 511145)"
        )


def _repeated(key: pa.Array, group: pa.Array, is_first_N: np.ndarray) -> dict[str, np.ndarray]:
    """Return masks of the proteins whose id occurred before (N,), by reason."""
    row = np.flatnonzero(~is_first_N)
    kept = pa.array(is_first_N)
    first = find_ids(key.take(pa.array(row)), key.filter(kept))
    first_group = group.filter(kept).take(pa.array(first))
    is_other = np.asarray(pc.not_equal(group.take(pa.array(row)), first_group))
    masks = {}
    for reason, rows in ((REPEATED, row[~is_other]), (OTHER_SPECIES, row[is_other])):
        masks[reason] = np.zeros(len(key), dtype=bool)
        masks[reason][rows] = True
    return masks


def _count_repeated(
    paths: Sequence[Path],
    num_by_file: list[int],
    repeated: dict[str, np.ndarray],
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
        for reason, is_repeated_N in repeated.items():
            is_bad = is_repeated_N[block]
            skip_rows(is_bad, reason, "protein", path, line[block], shown, quarantine)
        start += num


def _grouped(remarks: Iterator[str]) -> list[str]:
    """Return the remarks "file: how it is read", merged for files that are read alike."""
    files_by_form: dict[str, list[str]] = {}
    for remark in remarks:
        file, _, form = remark.partition(": ")
        files_by_form.setdefault(form, []).append(file)
    grouped = []
    for form, files in files_by_form.items():
        more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
        grouped.append(f"{files[0]}{more}: {form}")
    return grouped
