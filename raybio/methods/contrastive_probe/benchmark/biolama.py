"""Reader of BioLAMA (Sung et al., 2021), and of either benchmark by the layout of its folder.

The folder of a source (``CTD/``, ``wikidata/``, ``umls/``) holds:

- ``triples_processed/<relation>/{train,dev,test}.jsonl``: objects with ``sub_label``, ``sub_uri``,
  ``obj_labels``, ``obj_uris`` and optionally ``obj_aliases`` (a list of names for each object).
- ``prompts/manual.jsonl``: objects with ``relation`` and ``template``.

Aliases of an object are correct answers, and so are names that differ from one in case only, as in
the authors' evaluation. Each of these names is a candidate.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from raybio.core.errors import DataError
from raybio.methods.contrastive_probe.benchmark.medlama import read_medlama
from raybio.methods.contrastive_probe.benchmark.probe_benchmark import (
    ProbeBenchmark,
    ProbeQuery,
    build_benchmark,
)
from raybio.methods.contrastive_probe.benchmark.prompts import prompt_problem
from raybio.methods.contrastive_probe.config import Prompts, Subset
from raybio.methods.contrastive_probe.published import BIOLAMA_SOURCES
from raybio.store.json import Record
from raybio.store.sources import read_lines

_TRIPLES = "triples_processed"


def read_benchmark(
    folder: str | Path, subset: Subset = "full", prompts: Prompts = "human"
) -> ProbeBenchmark:
    """Read BioLAMA's test split if the folder holds ``triples_processed``, else MedLAMA.

    Raises:
        DataError: for files that are missing or of another layout; for a hard set of BioLAMA.
    """
    check_subset(folder, subset)
    if not is_biolama(folder):
        return read_medlama(folder, subset, prompts)
    return read_biolama(folder, prompts)


def check_subset(folder: str | Path, subset: Subset) -> None:
    """Check that a benchmark may have a set of queries.

    Raises:
        DataError: for a hard set of BioLAMA.
    """
    if subset == "hard" and is_biolama(folder):
        raise DataError(f"{folder}: is BioLAMA, which has no hard set. Choose the full one.")


def is_biolama(folder: str | Path) -> bool:
    """Return whether a folder has the layout of a source of BioLAMA."""
    return (Path(folder) / _TRIPLES).is_dir()


def query_set_name(folder: Path, subset: str) -> str:
    """Return the name of a query set in reports.

    It is ``subset`` for MedLAMA, and the source for BioLAMA, in the paper's spelling if it has one.
    """
    if not is_biolama(folder):
        return subset
    name = folder.resolve().name
    for source in BIOLAMA_SOURCES:
        if source.lower() == name.lower():
            return source
    return name


def read_biolama(folder: str | Path, prompts: Prompts = "human") -> ProbeBenchmark:
    """Read the test split of one source.

    Args:
        folder: such as ``CTD/``.
        prompts: "default" ignores ``manual.jsonl`` and uses the default prompt of each relation.

    Raises:
        DataError: for files that are missing or of another layout, with file and line.
    """
    triples = Path(folder) / _TRIPLES
    queries = []
    for path in sorted(triples.glob("*/test.jsonl")):
        queries += [_query(record, path.parent.name) for record in _records(path)]
    if not queries:
        raise DataError(
            f"{triples}: holds no query in <relation>/test.jsonl, want BioLAMA's layout"
        )
    prompt_by_relation = {}
    if prompts != "default":
        prompt_by_relation = _read_templates(Path(folder) / "prompts" / "manual.jsonl")
    return build_benchmark(_without_case(queries), prompt_by_relation)


def _without_case(queries: Sequence[ProbeQuery]) -> list[ProbeQuery]:
    """Return the queries; names that differ from an answer in case only are answers, too."""
    names_by_folded: dict[str, set[str]] = {}
    for query in queries:
        for name in (query.head, *query.answers):
            names_by_folded.setdefault(name.casefold(), set()).add(name)
    extended = []
    for query in queries:
        folded = dict.fromkeys(name.casefold() for name in query.answers)
        answers = [name for text in folded for name in sorted(names_by_folded[text])]
        extended.append(query._replace(answers=answers))
    return extended


def _records(path: Path) -> Iterator[Record]:
    try:
        for line_number, line in enumerate(read_lines(path, "a file of BioLAMA's"), start=1):
            if line.strip():
                yield Record.of(path, f"on line {line_number}", json.loads(line))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}, line {line_number}: is no JSON ({error}). Fetch the file again."
        ) from None


def _query(record: Record, relation: str) -> ProbeQuery:
    head = record.text("sub_label")
    labels = record.texts("obj_labels")
    uris = record.texts("obj_uris")
    if not labels or len(labels) != len(uris):
        raise record.wrong("obj_uris", f"as many as obj_labels ({len(labels)}), one at least")
    pairs = list(zip(labels, uris, strict=True))
    if "obj_aliases" in record.fields:
        aliases: Any = record.fields["obj_aliases"]
        if not isinstance(aliases, list) or len(aliases) != len(uris):
            raise record.wrong("obj_aliases", f"a list of {len(uris)} lists of names")
        for names, uri in zip(aliases, uris, strict=True):
            # A separate record, so that an error names the field.
            checked = Record(record.path, record.name, {"obj_aliases": names}).texts("obj_aliases")
            pairs += [(name, uri) for name in checked]
    answers = list(dict.fromkeys(name for name, _ in pairs))
    return ProbeQuery(relation, head, answers, [(head, record.text("sub_uri")), *pairs])


def _read_templates(path: Path) -> dict[str, str]:
    prompts = {}
    for record in _records(path):
        prompt = record.text("template")
        problem = prompt_problem(prompt)
        if problem:
            raise DataError(f"{path}, record {record.name}: {problem}")
        prompts[record.text("relation")] = prompt
    return prompts
