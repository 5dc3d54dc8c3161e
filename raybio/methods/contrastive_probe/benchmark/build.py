"""A benchmark in MedLAMA's layout from UMLS (facts §2.3): what MRREL ties to a head, for a sample of heads a relation.

Reproduced from the authors' code: the 19 relations and three vocabularies, head = CUI2/AUI2 and tail = CUI1/AUI1, names
of atoms before those of concepts, queries by (head CUI, head name, relation), at most 10 answers, 1,000 queries a
relation, the hardness filter. Different: suppressed rows and names that are not English are left out, the sample does
not depend on the order of rows, and the authors' filtering by hand cannot be repeated; so the queries are not theirs.

UMLS in its Rich Release Format: relations and names of concepts, from MRREL.RRF and MRCONSO.RRF, in bounded memory.

A line a row, "|" after each column, UTF-8, no header, quotes without meaning; ``.gz`` too. MRREL says CUI2 -RELA->
CUI1, and which atoms (AUI) a source tied where it says so. In MRCONSO an atom is a string of a source for a concept
(CUI). SUPPRESS other than N marks what is obsolete (O), or suppressed one by one (E) or by its type (Y).
"""

import csv
import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from raybio.core.errors import DataError, StoreError
from raybio.core.files import atomic_folder, check_writable_folder
from raybio.core.randomness import derive_seed
from raybio.methods.contrastive_probe.benchmark.config import MedlamaConfig
from raybio.methods.contrastive_probe.benchmark.medlama import SEPARATOR, TABLE_5, write_prompts
from raybio.methods.contrastive_probe.benchmark.statistics import Overlap, name_overlap
from raybio.store.quarantine import Quarantine
from raybio.store.sources import describe_files

VOCABULARIES = ("MED-RT", "NCI", "SNOMEDCT_US")


MANIFEST = "manifest.json"


KIND = "medlama_benchmark"


COLUMNS = (
    "head_cui", "head_name", "rel", "tail_cuis_list", "tail_names_list", "tail_names", "tail_cuis", "tail_cuis_len",
    "tail_names_len", "avg_match", "avg_rouge_l",
)  # fmt: skip


class _Head(NamedTuple):
    cui: str
    name: str


@dataclass(frozen=True)
class _Query:
    """Answers are distinct (name, CUI) pairs, ascending."""

    relation: str
    head: _Head
    answers: list[tuple[str, str]]
    overlap: Overlap

    @property
    def row(self) -> list[Any]:
        """In the order of ``COLUMNS``; of several CUIs of a name, ``tail_cuis`` has the first."""
        cui_by_name = {name: cui for name, cui in reversed(self.answers)}
        names = sorted(cui_by_name)
        return [
            *self.head,
            self.relation,
            [cui for _, cui in self.answers],
            [name for name, _ in self.answers],
            SEPARATOR.join(names),
            SEPARATOR.join(cui_by_name[name] for name in names),
            len(names),
            len(names),
            *self.overlap,
        ]


def build_medlama(
    umls: str | Path,
    out: str | Path,
    config: MedlamaConfig | None = None,
    *,
    force: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Write the benchmark: files of the full and the hard set, ``prompts.csv``, ``manifest.json``; all or nothing.

    The same rows in whatever order, and the same settings, give the same files.

    Args:
        umls: folder with MRCONSO.RRF and MRREL.RRF.
        out: folder of the benchmark.
        config: settings.
        force: replace a benchmark that is there already.
        say: told what is being done.

    Returns:
        The manifest: sources, parameters, what each relation has, what was left out and why.

    Raises:
        DataError: for files that are missing or of another layout, or that hold none of the relations.
        StoreError: if ``out`` holds something, or cannot be written.
    """
    config, quarantine, out = config or MedlamaConfig(), Quarantine(), Path(out).resolve()
    _refuse_what_is_there(out, force)
    mrrel, mrconso = rrf_file(Path(umls), "MRREL.RRF"), rrf_file(Path(umls), "MRCONSO.RRF")
    say(f"reading {mrrel}")
    table = read_relations(mrrel, TABLE_5, VOCABULARIES, quarantine)
    auis, cuis = (_distinct(table, name) for name in ("AUI", "CUI"))
    say(f"reading {mrconso}: names for {len(table):,} relations of {len(cuis):,} concepts")
    names = read_names(mrconso, auis, cuis, quarantine)
    answers = _group(table, names, mrrel.name, quarantine)
    if not answers:
        raise DataError(
            f"{mrrel}: none of its {quarantine.num_seen('relation'):,} rows is a relation of MedLAMA's with English "
            f"names on both sides; want RELA such as may_treat, of {', '.join(VOCABULARIES)}"
        )
    queries = {
        relation: _drawn(relation, answers[relation], config) for relation in sorted(answers)
    }
    if not any(queries.values()):
        raise DataError(
            f"{mrrel}: every head has more than {config.max_answers} answers. Allow more by --max-answers."
        )
    manifest = {
        "kind": KIND,
        "sources": {"relations": describe_files([mrrel]), "names": describe_files([mrconso])},
        "parameters": config.to_mapping(),
        "read": {kind: quarantine.num_seen(kind) for kind in ("relation", "name")},
        "relations": {
            relation: _facts(answers[relation], queries[relation], config) for relation in queries
        },
        "without_queries": sorted(TABLE_5.keys() - queries.keys()),
        "left_out": quarantine.summary(),
    }
    say(f"writing {out}")
    try:
        _write(out, queries, manifest)
    except OSError as error:
        raise StoreError(f"{out}: cannot be written ({error}). Choose another --out.") from None
    return manifest


def _distinct(table: pa.Table, name: str) -> pa.Array:
    return pa.chunked_array(
        [*table[f"{name}1"].chunks, *table[f"{name}2"].chunks], pa.string()
    ).unique()


@dataclass(frozen=True)
class Names:
    """English names that are not suppressed: by atom, and the preferred one by concept."""

    name_by_aui: dict[str, str]
    name_by_cui: dict[str, str]

    def of(self, aui: str, cui: str) -> str | None:
        """The atom's own name, else its concept's, else None."""
        return self.name_by_aui.get(aui) or self.name_by_cui.get(cui)


def _group(
    table: pa.Table, names: Names, file: str, quarantine: Quarantine
) -> dict[str, dict[_Head, set[tuple[str, str]]]]:
    """Relation -> head -> (name, CUI) pairs of its tails."""
    answers: dict[str, dict[_Head, set[tuple[str, str]]]] = defaultdict(lambda: defaultdict(set))
    for batch in table.to_batches():
        for row in batch.to_pylist():
            head, tail = names.of(row["AUI2"], row["CUI2"]), names.of(row["AUI1"], row["CUI1"])
            if head is None or tail is None:
                nameless = row["CUI2"] if head is None else row["CUI1"]
                reason = "relation of a concept without an English name"
                quarantine.add("relation", reason, file, row["line"], nameless, is_bad=False)
                continue
            known, answer = answers[row["RELA"]][_Head(row["CUI2"], head)], (tail, row["CUI1"])
            if answer in known:
                quarantine.add(
                    "relation", "relation that came before", file, row["line"], head, is_bad=False
                )
            known.add(answer)
    return answers


def _drawn(
    relation: str, answers: dict[_Head, set[tuple[str, str]]], config: MedlamaConfig
) -> list[_Query]:
    """A relation's queries, ascending by head; which ones is a matter of each head's own hash."""
    few = {
        head: tails for head, tails in answers.items() if _num_names(tails) <= config.max_answers
    }
    drawn = sorted(few, key=lambda head: (derive_seed(config.seed, relation, *head), head))[
        : config.per_relation
    ]
    queries = []
    for head in sorted(drawn):
        names = sorted({name for name, _ in few[head]})
        overlap = name_overlap(head.name, names, legacy=config.legacy)
        queries.append(_Query(relation, head, sorted(few[head]), overlap))
    return queries


def _num_names(tails: set[tuple[str, str]]) -> int:
    return len({name for name, _ in tails})


def _facts(
    answers: dict[_Head, set[tuple[str, str]]], queries: Sequence[_Query], config: MedlamaConfig
) -> dict[str, int]:
    return {
        "found": len(answers),
        "too_many_answers": sum(
            _num_names(tails) > config.max_answers for tails in answers.values()
        ),
        "full": len(queries),
        "hard": sum(query.overlap.is_hard for query in queries),
        "head_among_answers": sum(query.head.name in dict(query.answers) for query in queries),
    }


def _refuse_what_is_there(out: Path, force: bool) -> None:
    """--force replaces a benchmark that was built here (or an empty folder), never a folder of something else."""
    if not out.exists():
        check_writable_folder(out)
        return
    check_writable_folder(out.resolve().parent)  # in which the new one is written
    if not out.is_dir() or (any(out.iterdir()) and not _is_benchmark(out)):
        raise StoreError(
            f"{out}: holds what is no benchmark that was built here. Choose another --out."
        )
    if any(out.iterdir()) and not force:
        raise StoreError(
            f"{out}: a benchmark is there already. Replace it with --force, or choose another --out."
        )


def _is_benchmark(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / MANIFEST).read_text())["kind"] == KIND)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write(out: Path, queries: dict[str, list[_Query]], manifest: dict[str, Any]) -> None:
    with atomic_folder(out) as folder:
        for relation, full in queries.items():
            hard = [query for query in full if query.overlap.is_hard]
            _write_rows(folder / f"{relation}_{len(full)}.csv", full)
            _write_rows(folder / f"{relation}_{len(hard)}_hard.csv", hard)
        write_prompts(folder / "prompts.csv", list(queries))
        (folder / MANIFEST).write_text(
            json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )


def _write_rows(path: Path, queries: Sequence[_Query]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(query.row for query in queries)


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


def rrf_file(folder: Path, name: str) -> Path:
    """``folder/name``, or with ``.gz``.

    Raises:
        DataError: if neither is there.
    """
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(
        f"{folder}: holds no {name} or {name}.gz, want UMLS's folder META, as MetamorphoSys writes it"
    )


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
    path: Path,
    auis: pa.Array,
    cuis: pa.Array,
    quarantine: Quarantine,
    *,
    block_bytes: int = BLOCK_BYTES,
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
        _set_aside(
            batch,
            pc.invert(is_english),
            "name",
            "name that is not English",
            "AUI",
            path,
            quarantine,
        )
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


def _read_rrf(
    path: Path, layout: Sequence[str], columns: Sequence[str], block_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The wanted columns and the line of each row, block by block."""
    num_read = 0
    try:
        with pa.csv.open_csv(
            str(path),
            # Without threads, Arrow names the row of an error.
            read_options=pa.csv.ReadOptions(
                use_threads=False,
                block_size=block_bytes,
                column_names=[*layout, "after the last bar"],
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
    batch: pa.RecordBatch,
    is_out: pa.Array,
    kind: str,
    reason: str,
    shown: str,
    path: Path,
    quarantine: Quarantine,
) -> None:
    out = batch.filter(is_out)
    first = out.slice(0, quarantine.num_examples)
    examples = zip(first["line"].to_pylist(), first[shown].to_pylist(), strict=True)
    quarantine.add_many(kind, reason, path.name, len(out), examples, is_bad=False)
