"""Build a benchmark in MedLAMA's layout from UMLS: a sample of heads for each relation of MRREL.

Reproduced from the authors' code: the 19 relations and three vocabularies; head = CUI2/AUI2 and
tail = CUI1/AUI1; names of atoms before those of concepts; queries by (head CUI, head name,
relation); at most 10 answers; 1,000 queries a relation; the hardness filter.

Different: suppressed rows and names that are not English are skipped, and the sample does not
depend on the order of rows. The authors' manual filtering cannot be repeated, so the queries are
not theirs.
"""

import csv
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from raybio.core.errors import DataError, StoreError
from raybio.core.files import atomic_folder, check_writable_folder
from raybio.core.randomness import derive_seed
from raybio.core.records import write_record
from raybio.methods.contrastive_probe.benchmark.config import MedlamaConfig
from raybio.methods.contrastive_probe.benchmark.hardness import Overlap, name_overlap
from raybio.methods.contrastive_probe.benchmark.medlama import SEPARATOR
from raybio.methods.contrastive_probe.benchmark.prompts import PROMPTS_FILE, write_prompts
from raybio.methods.contrastive_probe.benchmark.umls import (
    ConceptNames,
    read_concept_names,
    read_relations,
    rrf_file,
)
from raybio.methods.contrastive_probe.published import paper_prompts
from raybio.store.quarantine import Quarantine
from raybio.store.sources import describe_files

VOCABULARIES = ("MED-RT", "NCI", "SNOMEDCT_US")

MANIFEST = "manifest.json"
KIND = "medlama_benchmark"

COLUMNS = (
    "head_cui", "head_name", "rel", "tail_cuis_list", "tail_names_list", "tail_names", "tail_cuis",
    "tail_cuis_len", "tail_names_len", "avg_match", "avg_rouge_l",
)  # fmt: skip


class _Head(NamedTuple):
    cui: str
    name: str


_Answers = set[tuple[str, str]]
"""(name, CUI) pairs of the tails of a head."""


@dataclass(frozen=True)
class _Query:
    """One row of a file; answers are distinct (name, CUI) pairs, ascending."""

    relation: str
    head: _Head
    answers: list[tuple[str, str]]
    overlap: Overlap

    @property
    def row(self) -> list[Any]:
        """Cells in the order of ``COLUMNS``; ``tail_cuis`` has the first CUI of each name."""
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
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Write the files of the full and the hard set, ``prompts.csv`` and ``manifest.json``.

    Either all files are written or none. The same rows in any order, with the same settings, give
    the same files.

    Args:
        umls: folder with MRCONSO.RRF and MRREL.RRF.
        out: folder of the benchmark.
        config: settings.
        force: replace an existing benchmark.
        log: called with progress messages.

    Returns:
        The manifest: sources, parameters, counts of each relation, and skipped rows by reason.

    Raises:
        DataError: for files that are missing, of another layout, or without any of the relations.
        StoreError: if ``out`` exists and is not replaced, or cannot be written.
    """
    config = config or MedlamaConfig()
    out = Path(out).resolve()
    quarantine = Quarantine()
    _check_replaceable(out, force)
    mrrel = rrf_file(Path(umls), "MRREL.RRF")
    mrconso = rrf_file(Path(umls), "MRCONSO.RRF")
    log(f"reading {mrrel}")
    table = read_relations(mrrel, paper_prompts(), VOCABULARIES, quarantine)
    auis = _distinct(table, "AUI")
    cuis = _distinct(table, "CUI")
    log(f"reading {mrconso}: names for {len(table):,} relations of {len(cuis):,} concepts")
    names = read_concept_names(mrconso, auis, cuis, quarantine)
    answers_by_relation = _group(table, names, mrrel.name, quarantine)
    if not answers_by_relation:
        raise DataError(
            f"{mrrel}: none of its {quarantine.num_seen('relation'):,} rows is a relation of "
            "MedLAMA's with English names on both sides; want RELA such as may_treat, of "
            f"{', '.join(VOCABULARIES)}"
        )
    queries = {
        relation: _sample(relation, answers_by_relation[relation], config)
        for relation in sorted(answers_by_relation)
    }
    if not any(queries.values()):
        raise DataError(
            f"{mrrel}: every head has more than {config.max_answers} answers. "
            "Allow more with --max-answers."
        )
    manifest = {
        "kind": KIND,
        "sources": {"relations": describe_files([mrrel]), "names": describe_files([mrconso])},
        "parameters": config.to_mapping(),
        "read": {kind: quarantine.num_seen(kind) for kind in ("relation", "name")},
        "relations": {
            relation: _counts(answers_by_relation[relation], queries[relation], config)
            for relation in queries
        },
        "without_queries": sorted(paper_prompts().keys() - queries.keys()),
        "skipped": quarantine.summary(),
    }
    log(f"writing {out}")
    try:
        _write(out, queries, manifest)
    except OSError as error:
        raise StoreError(f"{out}: cannot be written ({error}). Choose another --out.") from None
    return manifest


def _distinct(table: pa.Table, name: str) -> pa.Array:
    chunks = [*table[f"{name}1"].chunks, *table[f"{name}2"].chunks]
    return pa.chunked_array(chunks, pa.string()).unique()


def _group(
    table: pa.Table, names: ConceptNames, file: str, quarantine: Quarantine
) -> dict[str, dict[_Head, _Answers]]:
    """Return relation -> head -> its answers."""
    answers: dict[str, dict[_Head, _Answers]] = defaultdict(lambda: defaultdict(set))
    for batch in table.to_batches():
        for row in batch.to_pylist():
            head = names.of(row["AUI2"], row["CUI2"])
            tail = names.of(row["AUI1"], row["CUI1"])
            if head is None or tail is None:
                nameless = row["CUI2"] if head is None else row["CUI1"]
                reason = "relation of a concept without an English name"
                quarantine.add("relation", reason, file, row["line"], nameless, is_bad=False)
                continue
            answers_of_head = answers[row["RELA"]][_Head(row["CUI2"], head)]
            answer = (tail, row["CUI1"])
            if answer in answers_of_head:
                reason = "duplicate relation"
                quarantine.add("relation", reason, file, row["line"], head, is_bad=False)
            answers_of_head.add(answer)
    return answers


def _sample(
    relation: str, answers_by_head: dict[_Head, _Answers], config: MedlamaConfig
) -> list[_Query]:
    """Return the queries of a relation, ascending by head; a hash of each head selects them."""
    allowed = [
        head
        for head, answers in answers_by_head.items()
        if _num_names(answers) <= config.max_answers
    ]
    allowed.sort(key=lambda head: (derive_seed(config.seed, relation, *head), head))
    queries = []
    for head in sorted(allowed[: config.per_relation]):
        answers = sorted(answers_by_head[head])
        names = sorted({name for name, _ in answers})
        overlap = name_overlap(head.name, names, legacy=config.legacy)
        queries.append(_Query(relation, head, answers, overlap))
    return queries


def _num_names(answers: _Answers) -> int:
    return len({name for name, _ in answers})


def _counts(
    answers_by_head: dict[_Head, _Answers], queries: Sequence[_Query], config: MedlamaConfig
) -> dict[str, int]:
    return {
        "heads": len(answers_by_head),
        "too_many_answers": sum(
            _num_names(answers) > config.max_answers for answers in answers_by_head.values()
        ),
        "full": len(queries),
        "hard": sum(query.overlap.is_hard for query in queries),
        "head_among_answers": sum(query.head.name in dict(query.answers) for query in queries),
    }


def _check_replaceable(out: Path, force: bool) -> None:
    """Refuse to overwrite: ``force`` replaces a benchmark of this builder and nothing else."""
    if not out.exists():
        check_writable_folder(out)
        return
    # The new benchmark is written next to the old one before it replaces it.
    check_writable_folder(out.resolve().parent)
    if not out.is_dir() or (any(out.iterdir()) and not _is_benchmark(out)):
        raise StoreError(
            f"{out}: holds something other than a benchmark that was built here. "
            "Choose another --out."
        )
    if any(out.iterdir()) and not force:
        raise StoreError(
            f"{out}: holds a benchmark already. Replace it with --force, or choose another --out."
        )


def _is_benchmark(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / MANIFEST).read_bytes())["kind"] == KIND)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _write(out: Path, queries: dict[str, list[_Query]], manifest: dict[str, Any]) -> None:
    with atomic_folder(out) as folder:
        for relation, full in queries.items():
            hard = [query for query in full if query.overlap.is_hard]
            _write_rows(folder / f"{relation}_{len(full)}.csv", full)
            _write_rows(folder / f"{relation}_{len(hard)}_hard.csv", hard)
        write_prompts(folder / PROMPTS_FILE, list(queries))
        write_record(folder / MANIFEST, "built benchmark", manifest)


def _write_rows(path: Path, queries: Sequence[_Query]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(query.row for query in queries)
