"""The prompts of MedLAMA's 19 relations: the paper's Table 5, and the ``prompts.csv`` of a benchmark's folder.

The released ``prompts.csv`` has two typos ("anatomic_site", "associatied"), a blank before each stop, and a twentieth
relation that no file has.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from raybio.data.source_files import bounded_lines
from raybio.errors import DataError

TABLE_5: dict[str, str] = {
    "associated_morphology_of": "[X] is associated morphology of [Y].",
    "disease_has_abnormal_cell": "[X] has the abnormal cell [Y].",
    "disease_has_associated_anatomic_site": "The disease [X] can stem from the associated anatomic site [Y].",
    "disease_has_normal_cell_origin": "The disease [X] stems from the normal cell [Y].",
    "disease_has_normal_tissue_origin": "The disease [X] stems from the normal tissue [Y].",
    "disease_mapped_to_gene": "The disease [X] is mapped to gene [Y].",
    "disease_may_have_associated_disease": "The disease [X] might have the associated disease [Y].",
    "disease_may_have_finding": "[X] may have [Y].",
    "disease_may_have_molecular_abnormality": "The disease [X] may have molecular abnormality [Y].",
    "gene_associated_with_disease": "The gene [X] is associated with disease [Y].",
    "gene_encodes_gene_product": "The gene [X] encodes gene product [Y].",
    "gene_product_encoded_by_gene": "The gene product [X] is encoded by gene [Y].",
    "gene_product_has_associated_anatomy": "The gene product [X] has the associated anatomy [Y].",
    "gene_product_has_biochemical_function": "[X] has biochemical function [Y].",
    "gene_product_plays_role_in_biological_process": "The gene product [X] plays role in biological process [Y].",
    "has_physiologic_effect": "[X] has physiologic effect of [Y].",
    "may_prevent": "[X] may be able to prevent [Y].",
    "may_treat": "[X] might treat [Y].",
    "occurs_after": "[X] occurs after [Y].",
}
"""The 19 relations, ascending, with the paper's manual prompts."""

_TYPOS = {"anatomic_site": "anatomic site", "associatied": "associated", " .": "."}
_COLUMNS = ("pid", "default_prompt", "human_prompt")


def default_prompt(relation: str) -> str:
    """The relation's own words between the two places."""
    return f"[X] {' '.join(relation.replace('_', ' ').split())} [Y]."


def prompt_problem(prompt: str) -> str | None:
    """What is wrong with a prompt, None if nothing is."""
    if prompt.count("[X]") == 1 and prompt.count("[Y]") == 1:
        return None
    return f"{prompt!r}, want one [X] for the head and one [Y] for the answer"


def read_prompts(folders: Sequence[Path], kind: Literal["human", "default", "released"]) -> dict[str, str]:
    """Prompts by relation, of the first ``prompts.csv`` that one of ``folders`` has; without one, Table 5 or none.

    Raises:
        DataError: for a file of another layout, a prompt without one [X] and one [Y], or a relation that stands there
            twice, with file and line.
    """
    path = next((folder / "prompts.csv" for folder in folders if (folder / "prompts.csv").is_file()), None)
    if path is None:
        return {} if kind == "default" else dict(TABLE_5)
    column = "default_prompt" if kind == "default" else "human_prompt"
    found: dict[str, str] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(bounded_lines(file, path), strict=True)
            if tuple(reader.fieldnames or ()) != _COLUMNS:
                raise DataError(f"{path}, line 1: has {reader.fieldnames}, want the columns {', '.join(_COLUMNS)}")
            for row in reader:
                relation, prompt = row["pid"], row[column] or ""
                if problem := prompt_problem(prompt):
                    raise DataError(f"{path}, line {reader.line_num}: {problem}")
                if relation in found:
                    raise DataError(f"{path}, line {reader.line_num}: {relation} has a prompt already. Keep one.")
                found[relation] = _mended(relation, prompt) if kind == "human" else prompt
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is no CSV in UTF-8 ({error})") from None
    return found if kind == "default" else TABLE_5 | found


def write_prompts(path: Path, relations: Sequence[str]) -> None:
    """A ``prompts.csv`` for relations, some of which may be Table 5's."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for relation in relations:
            default = default_prompt(relation)
            writer.writerow([relation, default, TABLE_5.get(relation, default)])


def _mended(relation: str, prompt: str) -> str:
    """Table 5's prompt where the file has it in the released spelling; else the file's own."""
    clean = prompt
    for released, wanted in _TYPOS.items():
        clean = clean.replace(released, wanted)
    return clean if clean == TABLE_5.get(relation) else prompt
