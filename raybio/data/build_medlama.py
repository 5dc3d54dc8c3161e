"""A benchmark in MedLAMA's layout from UMLS (facts §2.3): what MRREL ties to a head, for a sample of heads a relation.

Reproduced from the authors' code: the 19 relations and three vocabularies, head = CUI2/AUI2 and tail = CUI1/AUI1, names
of atoms before those of concepts, queries by (head CUI, head name, relation), at most 10 answers, 1,000 queries a
relation, the hardness filter. Different: suppressed rows and names that are not English are left out, the sample does
not depend on the order of rows, and the authors' filtering by hand cannot be repeated; so the queries are not theirs.
"""

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pydantic import Field

from raybio.config import BaseConfig
from raybio.data.medlama_prompts import TABLE_5, write_prompts
from raybio.data.prepare import describe_files
from raybio.data.probe_benchmark import SEPARATOR
from raybio.data.quarantine import Quarantine
from raybio.data.umls import Names, read_names, read_relations, rrf_file
from raybio.errors import DataError, StoreError
from raybio.folders import demand_folder, whole_folder
from raybio.functional.hashing import derive_seed
from raybio.functional.name_overlap import Overlap, name_overlap

VOCABULARIES = ("MED-RT", "NCI", "SNOMEDCT_US")
MANIFEST = "manifest.json"
KIND = "medlama_benchmark"
COLUMNS = (
    "head_cui", "head_name", "rel", "tail_cuis_list", "tail_names_list", "tail_names", "tail_cuis", "tail_cuis_len",
    "tail_names_len", "avg_match", "avg_rouge_l",
)  # fmt: skip


class MedlamaConfig(BaseConfig):
    """How a benchmark is drawn from UMLS; all of it stands in the benchmark's manifest."""

    per_relation: int = Field(1000, ge=1, description="queries of a relation, at most")
    seed: int = Field(2021, ge=0, description="which queries are drawn")
    max_answers: int = Field(10, ge=1, description="queries with more distinct names among their answers are left out")
    legacy: bool = Field(False, description="judge hardness as the authors' code does, oddities included")


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
    queries = {relation: _drawn(relation, answers[relation], config) for relation in sorted(answers)}
    if not any(queries.values()):
        raise DataError(f"{mrrel}: every head has more than {config.max_answers} answers. Allow more by --max-answers.")
    manifest = {
        "kind": KIND,
        "sources": {"relations": describe_files([mrrel]), "names": describe_files([mrconso])},
        "parameters": config.to_mapping(),
        "read": {kind: quarantine.num_seen(kind) for kind in ("relation", "name")},
        "relations": {relation: _facts(answers[relation], queries[relation], config) for relation in queries},
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
    return pa.chunked_array([*table[f"{name}1"].chunks, *table[f"{name}2"].chunks], pa.string()).unique()


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
                quarantine.add("relation", "relation that came before", file, row["line"], head, is_bad=False)
            known.add(answer)
    return answers


def _drawn(relation: str, answers: dict[_Head, set[tuple[str, str]]], config: MedlamaConfig) -> list[_Query]:
    """A relation's queries, ascending by head; which ones is a matter of each head's own hash."""
    few = {head: tails for head, tails in answers.items() if _num_names(tails) <= config.max_answers}
    drawn = sorted(few, key=lambda head: (derive_seed(config.seed, relation, *head), head))[: config.per_relation]
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
        "too_many_answers": sum(_num_names(tails) > config.max_answers for tails in answers.values()),
        "full": len(queries),
        "hard": sum(query.overlap.is_hard for query in queries),
        "head_among_answers": sum(query.head.name in dict(query.answers) for query in queries),
    }


def _refuse_what_is_there(out: Path, force: bool) -> None:
    """--force replaces a benchmark that was built here (or an empty folder), never a folder of something else."""
    if not out.exists():
        demand_folder(out)
        return
    demand_folder(out.resolve().parent)  # in which the new one is written
    if not out.is_dir() or (any(out.iterdir()) and not _is_benchmark(out)):
        raise StoreError(f"{out}: holds what is no benchmark that was built here. Choose another --out.")
    if any(out.iterdir()) and not force:
        raise StoreError(f"{out}: a benchmark is there already. Replace it with --force, or choose another --out.")


def _is_benchmark(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / MANIFEST).read_text())["kind"] == KIND)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write(out: Path, queries: dict[str, list[_Query]], manifest: dict[str, Any]) -> None:
    with whole_folder(out) as folder:
        for relation, full in queries.items():
            hard = [query for query in full if query.overlap.is_hard]
            _write_rows(folder / f"{relation}_{len(full)}.csv", full)
            _write_rows(folder / f"{relation}_{len(hard)}_hard.csv", hard)
        write_prompts(folder / "prompts.csv", list(queries))
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_rows(path: Path, queries: Sequence[_Query]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(query.row for query in queries)
