"""SNAP's Tree of life: ``<taxid>.txt`` with one link a line, a species table, FASTA sequences.

Ids in the network files lack the ``taxid.`` prefix of the sequences. The files do not state whether
a link is listed in one direction or both, or whether a protein may be paired with itself. So both
directions are merged, and self pairs are skipped. Links name the proteins; proteins without a
sequence are skipped with their links, and counted.

Shape letters: N proteins, E links, R records of a block.
"""

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from raybio.core.errors import DataError
from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.corpus import Corpus, LinkCollector, group_order
from raybio.methods.sppt.ids import concatenate, is_first_occurrence
from raybio.methods.sppt.proteins.formats.fasta import read_fasta
from raybio.methods.sppt.proteins.formats.tables import check_taxids
from raybio.methods.sppt.table_columns import NULL_WORDS, is_missing
from raybio.store.quarantine import Quarantine
from raybio.store.ragged import Spool
from raybio.store.sources import bounded_lines, open_source
from raybio.store.table_rows import shown_names

INTERACTOME = re.compile(r"([0-9]+)\.txt(\.gz)?")
SPECIES_COLUMNS = ("Species_ID", "Compact_name", "Official_NCBI_name")
FASTA_ENDINGS = (".fa", ".fasta", ".faa", ".fa.gz", ".fasta.gz", ".faa.gz")
NO_SEQUENCE = "protein that links name but no sequence has (dropped)"


class Interactome(NamedTuple):
    """One species: protein ids with prefix, links (E, 2), and the first line of each protein."""

    keys: pa.Array
    edge_E2: np.ndarray
    line_N: np.ndarray


@dataclass(frozen=True)
class TreeOfLife:
    """The files of SNAP's Tree of life, for ``prepare_proteins``.

    Attributes:
        interactomes: folder with ``<taxid>.txt`` or ``<taxid>.txt.gz``, or the folder that its
            archive unpacks to.
        species: ``treeoflife.species.tsv``.
        sequences: one FASTA file for all species, or a folder with a file a species.
    """

    interactomes: Path
    species: Path
    sequences: Path

    @property
    def files(self) -> dict[str, list[Path]]:
        """The files of each input, in the order in which they are read."""
        return {
            "interactomes": list_interactomes(self.interactomes),
            "species": [Path(self.species)],
            "sequences": list_sequences(self.sequences),
        }

    def read(self, spool: Spool, quarantine: Quarantine, config: PrepareConfig) -> Corpus:
        """Read the links of each species, then the sequences of the proteins that they name."""
        label_by_taxid = read_species(self.species, quarantine)
        if config.min_score:
            raise DataError(
                f"--min-score {config.min_score:g}: the Tree of life has no scores. Want STRING's "
                "protein.links or a table with a score, with --edges and --proteins"
            )
        paths = list_interactomes(self.interactomes)
        if config.taxids:
            present = {taxid_of_file(path) for path in paths}
            check_taxids(config.taxids, present, present, self.interactomes)
            paths = [path for path in paths if taxid_of_file(path) in config.taxids]
        taxids = [taxid_of_file(path) for path in paths]
        for path, taxid in zip(paths, taxids, strict=True):
            if taxid not in label_by_taxid:
                reason = "interactome of a species that is not in the species table"
                quarantine.add("species", reason, path.name, 1)
        quarantine.check("species")
        interactomes = [read_interactome(path, quarantine) for path in paths]
        quarantine.check("link")
        network, group_N = _join(interactomes)
        spooled_N = _spool_sequences(
            list_sequences(self.sequences),
            network.keys,
            spool,
            quarantine,
            strip_stop=config.strip_stop,
            max_length=config.max_length,
        )
        _count_without_sequence(network, spooled_N, group_N, paths, quarantine)
        labels = [label_by_taxid.get(taxid, taxid) for taxid in taxids]
        return Corpus(network.keys, group_N, spooled_N, network.edge_E2, taxids, labels)


def list_interactomes(folder: str | Path) -> list[Path]:
    """Return the network files of a folder and its subfolders, by taxid.

    ``__MACOSX`` and hidden files are no data.

    Raises:
        DataError: if there is none, or two of a species next to each other, plain and gzip.
    """
    files = {
        path
        for path in Path(folder).rglob("*.txt*")
        if INTERACTOME.fullmatch(path.name) and "__MACOSX" not in path.parts
    }
    for path in files:
        if path.with_name(f"{path.name}.gz") in files:
            raise DataError(
                f"{path}: {path.name}.gz lies next to it, want one network a species. Remove one "
                "of the two"
            )
    if not files:
        raise DataError(
            f"{folder}: holds no <taxid>.txt or <taxid>.txt.gz, want the folder that "
            "treeoflife.interactomes.zip unpacks to"
        )
    return sorted(files, key=lambda path: (int(taxid_of_file(path)), str(path)))


def taxid_of_file(path: Path) -> str:
    """Return the taxid in the name of a network file."""
    return path.name.split(".")[0]


def list_sequences(path: str | Path) -> list[Path]:
    """Return the FASTA file itself, or those of a folder by name.

    Raises:
        DataError: if there is none.
    """
    path = Path(path)
    if not path.is_dir():
        return [path]
    files = [
        file
        for file in path.iterdir()
        if file.name.endswith(FASTA_ENDINGS) and not file.name.startswith(".")
    ]
    if not files:
        raise DataError(f"{path}: holds no FASTA file, want <taxid>.fa or <taxid>.fa.gz")
    return sorted(files, key=lambda file: group_order(file.name.split(".")[0]))


def read_species(path: str | Path, quarantine: Quarantine) -> dict[str, str]:
    """Return the official name of each taxid.

    Raises:
        DataError: if the file is missing or is not the species table.
    """
    path = Path(path)
    label_by_taxid: dict[str, str] = {}
    number = 1
    with open_source(path, "treeoflife.species.tsv") as file:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="replace")
        lines = (line.rstrip("\n") for line in bounded_lines(text, path))
        header = next(lines, "").split("\t")
        if header[:3] != list(SPECIES_COLUMNS):
            raise DataError(
                f"{path}: has the columns {shown_names(header)}; want "
                f"{', '.join(SPECIES_COLUMNS)}, tab-separated"
            )
        for number, line in enumerate(lines, start=2):
            taxid, *names = line.split("\t")
            if not (taxid.isascii() and taxid.isdigit() and names):
                quarantine.add(
                    "species", "species without taxid or name", path.name, number, line[:40]
                )
            elif taxid in label_by_taxid:
                quarantine.add("species", "duplicate species", path.name, number, taxid)
            else:
                official = names[1] if len(names) > 1 else ""
                label_by_taxid[taxid] = official.strip() or names[0].strip()
    quarantine.saw("species", number - 1)
    return label_by_taxid


def read_interactome(path: Path, quarantine: Quarantine) -> Interactome:
    """Read one species' network.

    Raises:
        DataError: if the file cannot be read.
    """
    a, b, line_E = _read_pairs(path, quarantine)
    encoded = pa.concat_arrays([a, b]).dictionary_encode()
    code = np.asarray(encoded.indices, dtype=np.int64)
    links = LinkCollector(quarantine, encoded.dictionary)
    links.add(code[: len(a)], code[len(a) :], line_E, path.name)
    line_N = np.full(len(encoded.dictionary), np.iinfo(np.int64).max)
    np.minimum.at(line_N, code, np.concatenate([line_E, line_E]))
    keys = pc.binary_join_element_wise(f"{taxid_of_file(path)}.", encoded.dictionary, "")
    return Interactome(keys, links.merged(), line_N)


def _join(interactomes: list[Interactome]) -> tuple[Interactome, np.ndarray]:
    """Return one network of all species, and the number of each protein's species (N,)."""
    sizes = [len(interactome.keys) for interactome in interactomes]
    first = np.cumsum([0, *sizes])
    edges = []
    for interactome, start in zip(interactomes, first[:-1], strict=True):
        edges.append(interactome.edge_E2 + start)
    network = Interactome(
        concatenate([interactome.keys for interactome in interactomes], pa.large_string()),
        np.concatenate(edges),
        np.concatenate([interactome.line_N for interactome in interactomes]),
    )
    return network, np.repeat(np.arange(len(interactomes), dtype=np.int32), sizes)


def _count_without_sequence(
    network: Interactome,
    spooled_N: np.ndarray,
    group_N: np.ndarray,
    paths: list[Path],
    quarantine: Quarantine,
) -> None:
    """Count the named proteins without a sequence, and their links."""
    quarantine.saw("named protein", len(network.keys))
    without = np.flatnonzero(spooled_N < 0)
    for node in without[: quarantine.num_examples].tolist():
        file = paths[group_N[node]].name
        key = network.keys[node].as_py()
        quarantine.add("named protein", NO_SEQUENCE, file, int(network.line_N[node]), key)
    num_more = max(len(without) - quarantine.num_examples, 0)
    quarantine.add_many("named protein", NO_SEQUENCE, "", num_more, [])
    num_lost_links = int((spooled_N[network.edge_E2] < 0).any(axis=1).sum())
    reason = "link of a protein without sequence (dropped)"
    quarantine.add_many("link", reason, "", num_lost_links, [], is_bad=False)
    quarantine.check("named protein")


def _read_pairs(path: Path, quarantine: Quarantine) -> tuple[pa.Array, pa.Array, np.ndarray]:
    """Return the ids and the line of each pair."""
    pairs = _regular_pairs(path)
    if pairs is None:
        return _irregular_pairs(path, quarantine)
    a, b = pairs
    quarantine.saw("link", len(a))
    return a, b, np.arange(1, len(a) + 1)


def _regular_pairs(path: Path) -> tuple[pa.Array, pa.Array] | None:
    """Return the columns of a file of lines "A B"; None if any line differs."""
    if path.stat().st_size == 0:
        return None
    try:
        table = pa.csv.read_csv(
            path,
            read_options=pa.csv.ReadOptions(use_threads=False, column_names=["a", "b"]),
            parse_options=pa.csv.ParseOptions(
                delimiter=" ", quote_char=False, ignore_empty_lines=False
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types={"a": pa.string(), "b": pa.string()}, strings_can_be_null=False
            ),
        )
    except (pa.ArrowInvalid, OSError):
        return None
    a, b = (table.column(name).combine_chunks() for name in ("a", "b"))
    return None if is_missing(a).any() or is_missing(b).any() else (a, b)


def _irregular_pairs(path: Path, quarantine: Quarantine) -> tuple[pa.Array, pa.Array, np.ndarray]:
    """Read line by line: any white space divides ids, and the quarantine names each bad line."""
    pairs = []
    line_E = []
    number = 0
    with open_source(path, "two ids a line") as file:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="replace")
        for number, line in enumerate(bounded_lines(text, path), start=1):
            pair = line.split()
            if len(pair) != 2:
                quarantine.add(
                    "link", "line without exactly two ids", path.name, number, " ".join(pair)
                )
            elif "\ufffd" in pair[0] + pair[1]:
                quarantine.add(
                    "link", "id that is not UTF-8 text", path.name, number, " ".join(pair)
                )
            elif pair[0] in NULL_WORDS or pair[1] in NULL_WORDS:
                quarantine.add("link", "link without an id", path.name, number, " ".join(pair))
            else:
                pairs.append(pair)
                line_E.append(number)
    quarantine.saw("link", number)
    a, b = (pa.array([pair[end] for pair in pairs], pa.string()) for end in (0, 1))
    return a, b, np.asarray(line_E, dtype=np.int64)


def _spool_sequences(
    paths: list[Path],
    keys: pa.Array,
    spool: Spool,
    quarantine: Quarantine,
    *,
    strip_stop: bool,
    max_length: int,
) -> np.ndarray:
    """Spool the sequences of the named proteins; return their numbers in the spool, -1 for none."""
    node_by_key = {key: node for node, key in enumerate(keys.to_pylist())}
    spooled_N = np.full(len(keys), -1, dtype=np.int64)
    unnamed = ""  # the first id that no network names, for the error below
    for path in paths:
        for batch in read_fasta(path, quarantine, strip_stop=strip_stop, max_length=max_length):
            node_R = np.array(
                [node_by_key.get(key, -1) for key in batch.column("key").to_pylist()],
                dtype=np.int64,
            )
            row = np.flatnonzero(node_R >= 0)
            if not unnamed and len(row) < len(batch):
                unnamed = batch.column("key")[int(np.flatnonzero(node_R < 0)[0])].as_py()
            is_new = is_first_occurrence(pa.array(node_R[row])) & (spooled_N[node_R[row]] < 0)
            repeated = batch.take(pa.array(row[~is_new]))
            examples = zip(
                repeated.column("line").to_pylist(), repeated.column("key").to_pylist(), strict=True
            )
            quarantine.add_many("protein", "duplicate id", path.name, len(repeated), examples)
            row = row[is_new]
            spooled_N[node_R[row]] = spool.append(batch.column("sequence").take(pa.array(row)))
    quarantine.check("protein")
    if unnamed and len(keys) and (spooled_N < 0).all():
        taxid, first = keys[0].as_py().split(".", 1)
        if first.startswith(f"{taxid}."):
            raise DataError(
                f"{taxid}.txt: the ids begin with the taxid ({first!r}), want "
                f"{first.split('.', 1)[1]!r} alone, as in the Tree-of-life download; the "
                "sequences alone have taxid.protein"
            )
        raise DataError(
            f"{paths[0]}: no sequence is of a protein in the networks. An id here is "
            f"{unnamed!r}; want taxid.protein, such as {keys[0].as_py()!r}. Put the species' "
            "taxid and a dot before the ids"
        )
    return spooled_N
