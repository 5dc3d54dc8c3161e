"""Prompts of relations, from Table 5 of the paper and from the ``prompts.csv`` of a benchmark.

The released ``prompts.csv`` has two typos ("anatomic_site", "associatied"), a space before each
full stop, and a twentieth relation without a file.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from raybio.core.errors import DataError
from raybio.methods.contrastive_probe.published import paper_prompts
from raybio.store.sources import bounded_lines

Prompts = Literal["human", "default", "released"]
"""Wording of the queries; see ``read_medlama``."""

PROMPTS_FILE = "prompts.csv"

_COLUMNS = ("pid", "default_prompt", "human_prompt")
_CORRECTIONS = {"anatomic_site": "anatomic site", "associatied": "associated", " .": "."}


def read_prompts(folders: Sequence[Path], kind: Prompts) -> dict[str, str]:
    """Return relation -> prompt from the first of ``folders`` with a ``prompts.csv``.

    Relations that are not in the file get the prompt of Table 5, if it has one and ``kind`` is not
    "default".

    Raises:
        DataError: for another layout, a prompt without one [X] and one [Y], or a repeated relation;
            with file and line.
    """
    path = next(
        (folder / PROMPTS_FILE for folder in folders if (folder / PROMPTS_FILE).is_file()), None
    )
    if path is None:
        return {} if kind == "default" else dict(paper_prompts())
    column = "default_prompt" if kind == "default" else "human_prompt"
    prompts: dict[str, str] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(bounded_lines(file, path), strict=True)
            if tuple(reader.fieldnames or ()) != _COLUMNS:
                raise DataError(
                    f"{path}, line 1: has {reader.fieldnames}, "
                    f"want the columns {', '.join(_COLUMNS)}"
                )
            for row in reader:
                relation = row["pid"]
                prompt = row[column] or ""
                problem = prompt_problem(prompt)
                if problem:
                    raise DataError(f"{path}, line {reader.line_num}: {problem}")
                if relation in prompts:
                    raise DataError(
                        f"{path}, line {reader.line_num}: {relation} has a prompt already. "
                        "Keep one."
                    )
                prompts[relation] = _corrected(relation, prompt) if kind == "human" else prompt
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is no CSV in UTF-8 ({error})") from None
    return prompts if kind == "default" else paper_prompts() | prompts


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
    return f"{prompt!r}, want one [X] for the head and one [Y] for the answer"


def _corrected(relation: str, prompt: str) -> str:
    """Return the prompt of Table 5 if ``prompt`` is its released spelling, else ``prompt``."""
    corrected = prompt
    for released, correction in _CORRECTIONS.items():
        corrected = corrected.replace(released, correction)
    return corrected if corrected == paper_prompts().get(relation) else prompt
