"""Reader of MedLAMA's files, the released ones and those that ``build_medlama`` writes.

Each relation has the files ``<relation>_<rows>.csv`` (full set) and ``<relation>_<rows>_hard.csv``,
or tables in another form of ``table_rows`` (``.parquet``), with at least the columns ``head_cui``,
``head_name``, ``rel``, ``tail_names`` and ``tail_cuis``. The gold answers are the names in
``tail_names``, separated by " || ", or a list of JSON lines or Parquet. ``tail_cuis`` holds a CUI
for each of them. A prediction is correct if it equals one of them, letter for letter.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from raybio.core.errors import DataError
from raybio.methods.contrastive_probe.benchmark.probe_benchmark import (
    ProbeBenchmark,
    ProbeQuery,
    build_benchmark,
)
from raybio.methods.contrastive_probe.benchmark.prompts import default_prompt, read_prompts
from raybio.methods.contrastive_probe.config import Prompts, Subset
from raybio.store.table_rows import choose_columns, read_columns

SEPARATOR = " || "
COLUMNS = ("head_cui", "head_name", "rel", "tail_names", "tail_cuis")
FILE_NAME = re.compile(
    r"(?P<relation>.+)_(?P<rows>\d+)(?P<hard>_hard)?\.(csv|tsv|jsonl|parquet)(\.gz)?"
)


def read_medlama(
    folder: str | Path, subset: Subset = "full", prompts: Prompts = "human"
) -> ProbeBenchmark:
    """Read the full or the hard set; candidate names are those of this set only.

    Args:
        folder: holds the files, or one folder that does; ``prompts.csv`` may be in either.
        subset: which files.
        prompts: wording of the queries. "human": ``human_prompt`` of ``prompts.csv`` with the
            released typos corrected, else Table 5 of the paper. "default": ``default_prompt`` of
            ``prompts.csv``, else the words of the relation's name. "released": ``human_prompt`` of
            ``prompts.csv`` as it is.

    Raises:
        DataError: for files that are missing, truncated or of another layout, with file and line.
    """
    files = _files_of_subset(Path(folder), subset)
    folders = [files[0].parent, Path(folder)]
    prompt_by_relation = read_prompts(folders, prompts)
    default_by_relation = read_prompts(folders, "default")
    queries = [query for path in files for query in read_queries(path)]
    if not queries:
        raise DataError(
            f"{files[0].parent}: the files of the {subset} set hold no query, want one at least"
        )
    benchmark = build_benchmark(queries, prompt_by_relation)
    by_name = [default_prompt(relation) for relation in benchmark.relations]
    own = [
        default_by_relation.get(relation, prompt)
        for relation, prompt in zip(benchmark.relations, by_name, strict=True)
    ]
    # Released default prompts are the words of the names, with a space before each full stop.
    if ["".join(prompt.split()) for prompt in own] == ["".join(each.split()) for each in by_name]:
        return benchmark
    return replace(benchmark, default_prompts=tuple(own))


def medlama_files(folder: Path) -> dict[Subset, list[Path]]:
    """Return the files of both sets in order of relation; see ``read_medlama`` for ``folder``.

    The hard set has no files if, by their names, all of them are without rows.

    Raises:
        DataError: if there are none, or several of one relation.
    """
    folders = [folder, *sorted(path for path in folder.glob("*/") if not path.name.startswith("."))]
    holding = [path for path in folders if _holds_tables(path)]
    if len(holding) != 1:
        found = " and ".join(map(str, holding)) or "none"
        raise DataError(
            f"{folder}: want one folder with <relation>_<rows>.csv files, found {found}"
        )
    files: dict[Subset, dict[str, Path]] = {"full": {}, "hard": {}}
    num_hard = 0
    for path in sorted(holding[0].iterdir()):
        match = FILE_NAME.fullmatch(path.name)
        if not match:
            continue
        subset: Subset = "hard" if match["hard"] else "full"
        other = files[subset].setdefault(match["relation"], path)
        if other != path:
            raise DataError(f"{path}: {other.name} has the same relation. Keep one of them.")
        if subset == "hard":
            num_hard += int(match["rows"])
    if num_hard == 0:
        files["hard"].clear()
    return {
        subset: [path_by_relation[relation] for relation in sorted(path_by_relation)]
        for subset, path_by_relation in files.items()
    }


def read_queries(path: Path) -> Iterator[ProbeQuery]:
    """Yield the queries of one file.

    Raises:
        DataError: with file and line.
    """
    match = FILE_NAME.fullmatch(path.name)
    for line, row in medlama_rows(path):
        answers = row["tail_names"].split(SEPARATOR)
        cuis = row["tail_cuis"].split(SEPARATOR)
        if len(answers) != len(cuis) or not all(name.strip() for name in answers):
            raise DataError(
                f"{path}, line {line}: {len(answers)} tail_names for {len(cuis)} tail_cuis, "
                f"want a CUI for each name, all separated by {SEPARATOR!r}"
            )
        if match and row["rel"] != match["relation"]:
            raise DataError(
                f"{path}, line {line}: rel is {row['rel']!r:.60}, want the file's "
                f"{match['relation']!r}"
            )
        pairs = [(row["head_name"], row["head_cui"]), *zip(answers, cuis, strict=True)]
        yield ProbeQuery(row["rel"], row["head_name"], answers, pairs)


def medlama_rows(
    path: Path, columns: Sequence[str] = COLUMNS
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, row) of one file; check that it is complete and all ``columns`` are filled.

    Raises:
        DataError: with file and line.
    """
    match = FILE_NAME.fullmatch(path.name)
    num_rows = 0
    select = partial(choose_columns, path, required=columns)
    wanted = f"the columns {', '.join(columns)}"
    for block in read_columns(path, wanted, select, separator=SEPARATOR):
        for line, *values in zip(block.lines, *block.columns, strict=True):
            num_rows += 1
            row = dict(zip(columns, values, strict=True))
            if not all(value.strip() for value in values):
                raise DataError(
                    f"{path}, line {line}: {str(row)[:80]}, "
                    f"want a text in each of {', '.join(columns)}"
                )
            yield line, row
    if match and num_rows != int(match["rows"]):
        raise DataError(
            f"{path}: holds {num_rows:,} rows, its name says {match['rows']}. Fetch the file again."
        )


def _holds_tables(folder: Path) -> bool:
    return any(FILE_NAME.fullmatch(path.name) for path in folder.glob("*"))


def _files_of_subset(folder: Path, subset: Subset) -> list[Path]:
    files = medlama_files(folder)[subset]
    if not files:
        pattern = "<relation>_<rows>" + ("_hard" if subset == "hard" else "")
        other = "full" if subset == "hard" else "hard"
        raise DataError(
            f"{folder}: has no files of the {subset} set, want {pattern}.csv; "
            f"or choose the {other} set"
        )
    return files
