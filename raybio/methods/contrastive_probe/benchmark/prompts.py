"""Prompts of relations, from Table 5 of the paper and from the ``prompts.csv`` of a benchmark.

The released ``prompts.csv`` has two typos ("anatomic_site", "associatied"), a space before each
full stop, and a twentieth relation without a file.
"""

import csv
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from raybio.core.errors import DataError
from raybio.methods.contrastive_probe.config import Prompts
from raybio.methods.contrastive_probe.published import paper_prompts
from raybio.store.data_sets import is_table
from raybio.store.table_rows import choose_columns, read_columns

PROMPTS_FILE = "prompts.csv"

_COLUMNS = ("pid", "default_prompt", "human_prompt")
_CORRECTIONS = {"anatomic_site": "anatomic site", "associatied": "associated", " .": "."}


def read_prompts(folders: Sequence[Path], kind: Prompts) -> dict[str, str]:
    """Return relation -> prompt from the first of ``folders`` with a table of prompts.

    Relations that are not in the file get the prompt of Table 5, if it has one and ``kind`` is not
    "default". An empty default prompt counts as missing.

    Raises:
        DataError: for another layout, a prompt without one [X] and one [Y], or a repeated relation;
            with file and line.
    """
    path = next((file for folder in folders for file in prompt_files(folder)), None)
    if path is None:
        return {} if kind == "default" else dict(paper_prompts())
    column = "default_prompt" if kind == "default" else "human_prompt"
    prompts: dict[str, str] = {}
    select = partial(choose_columns, path, required=_COLUMNS)
    for block in read_columns(path, f"the columns {', '.join(_COLUMNS)}", select):
        for line, *values in zip(block.lines, *block.columns, strict=True):
            row = dict(zip(_COLUMNS, values, strict=True))
            relation = row["pid"]
            prompt = row[column]
            if kind == "default" and not prompt.strip():
                continue
            problem = prompt_problem(prompt)
            if problem:
                raise DataError(f"{path}, line {line}: {problem}")
            if relation in prompts:
                raise DataError(f"{path}, line {line}: {relation} has a prompt already. Keep one.")
            prompts[relation] = _corrected(relation, prompt) if kind == "human" else prompt
    return prompts if kind == "default" else paper_prompts() | prompts


def prompt_files(folder: Path) -> list[Path]:
    """Return the tables of prompts in a folder: ``prompts.csv``, or in another form."""
    name = PROMPTS_FILE.removesuffix(".csv")
    return [path for path in sorted(folder.glob(f"{name}.*")) if is_table(path)]


def write_prompts(path: Path, relations: Sequence[str]) -> None:
    """Write a ``prompts.csv`` for relations, with the prompts of Table 5 where it has them."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for relation in relations:
            default = default_prompt(relation)
            writer.writerow([relation, default, paper_prompts().get(relation, default)])


def default_prompt(relation: str) -> str:
    """Return the words of the relation's name between [X] and [Y]."""
    return f"[X] {' '.join(relation.replace('_', ' ').split())} [Y]."


def prompt_problem(prompt: str) -> str | None:
    """Return what is wrong with a prompt, or None."""
    if prompt.count("[X]") == 1 and prompt.count("[Y]") == 1:
        return None
    return f"{prompt!r:.60}, want one [X] for the head and one [Y] for the answer"


def _corrected(relation: str, prompt: str) -> str:
    """Return the prompt of Table 5 if ``prompt`` is its released spelling, else ``prompt``."""
    corrected = prompt
    for released, correction in _CORRECTIONS.items():
        corrected = corrected.replace(released, correction)
    return corrected if corrected == paper_prompts().get(relation) else prompt
