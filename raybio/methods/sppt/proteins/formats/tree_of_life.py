"""The SNAP Tree-of-life layout: ``<taxid>.txt`` with one "A B" a line, a species table, sequences as ``>taxid.id``.

Ids in the network files lack the ``taxid.`` prefix of the sequences. Whether a link is listed in
one direction or both, or a protein paired with itself, is stated nowhere: both are merged. Proteins
exist only by their links; those without a sequence are dropped with their links and counted.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from raybio.core.errors import DataError
from raybio.methods.sppt.corpus import Corpus, LinkCollector, group_order
from raybio.methods.sppt.ids import concatenate, is_first_occurrence
from raybio.methods.sppt.proteins.formats.fasta import read_fasta
from raybio.methods.sppt.proteins.formats.residues import NULL_WORDS, is_missing
from raybio.store.quarantine import Quarantine
from raybio.store.ragged import Spool
from raybio.store.sources import bounded_lines, open_source

SPECIES_COLUMNS = ("Species_ID", "Compact_name", "Official_NCBI_name")


FASTA_ENDINGS = (".fa", ".fasta", ".faa", ".fa.gz", ".fasta.gz", ".faa.gz")


NO_SEQUENCE = "protein that links name but no sequence has (dropped)"


class Interactome(NamedTuple):
    """One species: ids of its proteins (with prefix), links between them (E, 2), line that first names each."""

    keys: pa.Array
    edge_E2: np.ndarray
    line_N: np.ndarray


@dataclass(frozen=True)
class TreeOfLife:
    """The SNAP Tree-of-life download.

    Attributes:
        interactomes: folder with ``<taxid>.txt``, or the folder that its archive unpacks to.
        species: ``treeoflife.species.tsv``.
        sequences: one FASTA file for all species, or a folder with a file a species.
    """

    interactomes: Path
    species: Path
    sequences: Path

    @property
    def files(self) -> dict[str, list[Path]]:
        """All files, in the order in which they are read."""
        return {
            "interactomes": list_interactomes(self.interactomes),
            "species": [Path(self.species)],
            "sequences": list_sequences(self.sequences),
        }

    def read(
        self, spool: Spool, quarantine: Quarantine, *, strip_stop: bool, max_length: int
    ) -> Corpus:
        """Links first, species by species; then the sequences of the proteins that they name."""
        label_by_taxid = read_species(self.species, quarantine)
        paths = list_interactomes(self.interactomes)
        taxids = [path.stem for path in paths]
        for path in paths:
            if path.stem not in label_by_taxid:
                quarantine.add(
                    "species",
                    "interactome of a species that is not in the species table",
                    path.name,
                    1,
                )
        quarantine.check("species")
        interactomes = [read_interactome(path, quarantine) for path in paths]
        quarantine.check("link")
        first = np.cumsum([0] + [len(one.keys) for one in interactomes])
        keys = concatenate([one.keys for one in interactomes], pa.large_string())
        edge_E2 = np.concatenate(
            [one.edge_E2 + start for one, start in zip(interactomes, first[:-1], strict=True)]
        )
        line_N = np.concatenate([one.line_N for one in interactomes])
        group_N = np.repeat(np.arange(len(taxids), dtype=np.int32), np.diff(first))
        spooled_N = _spool_sequences(
            list_sequences(self.sequences),
            keys,
            spool,
            quarantine,
            strip_stop=strip_stop,
            max_length=max_length,
        )
        quarantine.saw("named protein", len(keys))
        without = np.flatnonzero(spooled_N < 0)
        for node in without[: quarantine.num_examples]:
            file, key = paths[group_N[node]].name, keys[int(node)].as_py()
            quarantine.add("named protein", NO_SEQUENCE, file, int(line_N[node]), key)
        num_more = max(len(without) - quarantine.num_examples, 0)
        quarantine.add_many("named protein", NO_SEQUENCE, "", num_more, [])
        num_lost = int((spooled_N[edge_E2] < 0).any(axis=1).sum())
        quarantine.add_many(
            "link", "link of a protein without sequence (dropped)", "", num_lost, [], is_bad=False
        )
        quarantine.check("named protein")
        labels = [label_by_taxid.get(taxid, taxid) for taxid in taxids]
        return Corpus(keys, group_N, spooled_N, edge_E2, taxids, labels)


def list_interactomes(folder: str | Path) -> list[Path]:
    """The network files of a folder (or of its one subfolder), by taxid; ``__MACOSX`` and hidden files are no data.

    Raises:
        DataError: if there is none.
    """
    found = [
        path
        for path in Path(folder).rglob("*.txt")
        if path.stem.isdigit() and "__MACOSX" not in path.parts and not path.name.startswith(".")
    ]
    if not found:
        raise DataError(
            f"{folder}: holds no <taxid>.txt, want the folder that treeoflife.interactomes.zip "
            "unpacks to"
        )
    return sorted(found, key=lambda path: (int(path.stem), str(path)))


def list_sequences(path: str | Path) -> list[Path]:
    """The FASTA file itself, or those of a folder by name.

    Raises:
        DataError: if there is none.
    """
    path = Path(path)
    if not path.is_dir():
        return [path]
    found = [
        file
        for file in path.iterdir()
        if file.name.endswith(FASTA_ENDINGS) and not file.name.startswith(".")
    ]
    if not found:
        raise DataError(f"{path}: holds no FASTA file, want <taxid>.fa or <taxid>.fa.gz")
    return sorted(found, key=lambda file: group_order(file.name.split(".")[0]))


def read_species(path: str | Path, quarantine: Quarantine) -> dict[str, str]:
    """Official name by taxid.

    Raises:
        DataError: if the file is missing or is not the species table.
    """
    path = Path(path)
    label_by_taxid: dict[str, str] = {}
    number = 1
    with open_source(path, "treeoflife.species.tsv") as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace")
        lines = (line.rstrip("\n") for line in bounded_lines(text, path))
        header = next(lines, "").split("\t")
        if header[:3] != list(SPECIES_COLUMNS):
            raise DataError(
                f"{path}: has the columns {header[:5]}, want {', '.join(SPECIES_COLUMNS)}, "
                "tab-separated"
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
                label_by_taxid[taxid] = names[-1].strip() or names[0].strip()
    quarantine.saw("species", number - 1)
    return label_by_taxid


def read_interactome(path: Path, quarantine: Quarantine) -> Interactome:
    """One species' network.

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
    keys = pc.binary_join_element_wise(f"{path.stem}.", encoded.dictionary, "")
    return Interactome(keys, links.merged(path.name), line_N)


def _read_pairs(path: Path, quarantine: Quarantine) -> tuple[pa.Array, pa.Array, np.ndarray]:
    """Ids and line of each pair."""
    pairs = _regular_pairs(path)
    if pairs is None:
        return _irregular_pairs(path, quarantine)
    a, b = pairs
    quarantine.saw("link", len(a))
    return a, b, np.arange(1, len(a) + 1)


def _regular_pairs(path: Path) -> tuple[pa.Array, pa.Array] | None:
    """The columns of a file in which every line is two ids and one blank; None for any other file."""
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
    """Line by line: any white space divides ids, and each bad line is named."""
    pairs, line_E, number = [], [], 0
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
    """Spool the sequences of the named proteins; the number of each protein's in the spool, -1 for none."""
    node_by_key = {key: node for node, key in enumerate(keys.to_pylist())}
    spooled_N, stranger = np.full(len(keys), -1, dtype=np.int64), ""
    for path in paths:
        for batch in read_fasta(path, quarantine, strip_stop=strip_stop, max_length=max_length):
            node_R = np.array(
                [node_by_key.get(key, -1) for key in batch.column("key").to_pylist()],
                dtype=np.int64,
            )
            row = np.flatnonzero(node_R >= 0)
            if not stranger and len(row) < len(batch):
                stranger = batch.column("key")[int(np.flatnonzero(node_R < 0)[0])].as_py()
            is_new = is_first_occurrence(pa.array(node_R[row])) & (spooled_N[node_R[row]] < 0)
            repeated = batch.take(pa.array(row[~is_new]))
            examples = zip(
                repeated.column("line").to_pylist(), repeated.column("key").to_pylist(), strict=True
            )
            quarantine.add_many("protein", "duplicate id", path.name, len(repeated), examples)
            row = row[is_new]
            spooled_N[node_R[row]] = spool.append(batch.column("sequence").take(pa.array(row)))
    quarantine.check("protein")
    if stranger and len(keys) and (spooled_N < 0).all():
        taxid, first = keys[0].as_py().split(".", 1)
        if first.startswith(f"{taxid}."):
            raise DataError(
                f"{taxid}.txt: the ids begin with the taxid ({first!r}), want "
                f"{first.split('.', 1)[1]!r} alone, as in the Tree-of-life download; the "
                "sequences alone have taxid.protein"
            )
        raise DataError(
            f"{paths[0]}: no sequence is of a protein in the networks. An id here is "
            f"{stranger!r}; want taxid.protein, such as {keys[0].as_py()!r}. Put the species' "
            "taxid and a dot before the ids"
        )
    return spooled_N
