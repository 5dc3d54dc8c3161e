"""BioLAMA (Sung et al., 2021), one of its three sources, as a probe's benchmark; and the benchmark of any folder.

A source's folder (``CTD/``, ``wikidata/``, ``umls/``) holds ``triples_processed/<relation>/{train,dev,test}.jsonl``,
an object a line with ``sub_label``, ``sub_uri``, ``obj_labels``, ``obj_uris`` and perhaps ``obj_aliases`` (a list of
names for each object), and ``prompts/manual.jsonl``, objects with ``relation`` and ``template``. The authors count an
object's aliases as right answers, and so does this reader; they compare without regard to case, which names among
candidates do not need.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raybio.core.errors import DataError
from raybio.methods.contrastive_probe.benchmark.medlama import (
    ProbeBenchmark,
    ProbeQuery,
    Prompts,
    Subset,
    benchmark_of,
    prompt_problem,
    read_medlama,
)
from raybio.store.json import Record
from raybio.store.sources import read_lines


def read_benchmark(
    folder: str | Path, subset: Subset = "full", prompts: Prompts = "human"
) -> ProbeBenchmark:
    """BioLAMA's test split if the folder holds ``triples_processed``, else MedLAMA by ``read_medlama``.

    Raises:
        DataError: for files that are missing or of another layout; for BioLAMA's hard set, which there is not.
    """
    if not (Path(folder) / "triples_processed").is_dir():
        return read_medlama(folder, subset, prompts)
    if subset == "hard":
        raise DataError(f"{folder}: is BioLAMA's, which has no hard set. Ask for the full one.")
    return read_biolama(folder, prompts)


def read_biolama(folder: str | Path, prompts: Prompts = "human") -> ProbeBenchmark:
    """Read the test split of one source.

    Args:
        folder: such as ``CTD/``.
        prompts: "default" leaves ``manual.jsonl`` alone: a relation is asked by its own name.

    Raises:
        DataError: for files that are missing or of another layout, with file and line.
    """
    place = Path(folder) / "triples_processed"
    files = sorted(place.glob("*/test.jsonl"))
    queries = [
        _query(record, record.path.parent.name) for path in files for record in _records(path)
    ]
    if not queries:
        raise DataError(f"{place}: holds no query in <relation>/test.jsonl, want BioLAMA's layout")
    return benchmark_of(
        queries, {} if prompts == "default" else _prompts(Path(folder) / "prompts" / "manual.jsonl")
    )


def _records(path: Path) -> Iterator[Record]:
    try:
        for number, line in enumerate(read_lines(path, "a file of BioLAMA's"), start=1):
            if line.strip():
                yield Record.of(path, f"on line {number}", json.loads(line))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}, line {number}: is no JSON ({error}). Fetch the file again."
        ) from None


def _query(record: Record, relation: str) -> ProbeQuery:
    head, labels, uris = (
        record.text("sub_label"),
        record.texts("obj_labels"),
        record.texts("obj_uris"),
    )
    if not labels or len(labels) != len(uris):
        raise record.wrong("obj_uris", f"as many as obj_labels ({len(labels)}), one at least")
    pairs = list(zip(labels, uris, strict=True))
    if "obj_aliases" in record.fields:
        aliases: Any = record.fields["obj_aliases"]
        if not isinstance(aliases, list) or len(aliases) != len(uris):
            raise record.wrong("obj_aliases", f"a list of {len(uris)} lists of names")
        for names, uri in zip(aliases, uris, strict=True):
            pairs += [
                (name, uri)
                for name in Record(record.path, record.name, {"obj_aliases": names}).texts(
                    "obj_aliases"
                )
            ]
    answers = list(dict.fromkeys(name for name, _ in pairs))
    return ProbeQuery(relation, head, answers, [(head, record.text("sub_uri")), *pairs])


def _prompts(path: Path) -> dict[str, str]:
    prompts = {}
    for record in _records(path):
        prompt = record.text("template")
        if problem := prompt_problem(prompt):
            raise DataError(f"{path}, record {record.name}: {problem}")
        prompts[record.text("relation")] = prompt
    return prompts
