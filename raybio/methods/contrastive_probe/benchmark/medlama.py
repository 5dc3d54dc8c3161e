"""A benchmark of factual knowledge: queries "what does relation R tie to X", each with all right answers among names.

``read_medlama`` reads MedLAMA's released files and those that ``build_medlama`` writes: a file a relation,
``<relation>_<rows>.csv`` (full set) and ``<relation>_<rows>_hard.csv``, UTF-8, with at least the columns ``head_cui``,
``head_name``, ``rel``, ``tail_names`` and ``tail_cuis``. Gold are the names in ``tail_names`` between " || ", and an
answer is right when it is equal to one of them, letter for letter; ``tail_cuis`` names a CUI for each.

The prompts of MedLAMA's 19 relations: the paper's Table 5, and the ``prompts.csv`` of a benchmark's folder.

The released ``prompts.csv`` has two typos ("anatomic_site", "associatied"), a blank before each stop, and a twentieth
relation that no file has.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from raybio.core.errors import DataError
from raybio.store.sources import bounded_lines

Subset = Literal["full", "hard"]


Prompts = Literal["human", "default", "released"]


SEPARATOR = " || "


COLUMNS = ("head_cui", "head_name", "rel", "tail_names", "tail_cuis")


FILE_NAME = re.compile(r"(?P<relation>.+)_(?P<rows>\d+)(?P<hard>_hard)?\.csv")


@dataclass(frozen=True)
class ProbeBenchmark:
    """Queries (head entity, relation) with gold answers among names.

    Q queries, C names, R relations, P (query, answer) pairs by query, E (name, CUI) pairs by name.

    Attributes:
        relations: (R,) ascending.
        prompts: (R,) each with one "[X]" and one "[Y]".
        names: (C,) all heads and tails, distinct, ascending by code point.
        is_tail_C: is some query's answer.
        relation_Q: int16, the relation of each query; queries of a relation stand in the order of their file.
        head_Q: int32, the head's number among the names.
        indptr_Q1: int64, (Q + 1,) where each query's answers begin.
        answer_P: int32, numbers of names, ascending and distinct within a query.
        cuis: all CUIs, ascending.
        cui_indptr_C1: int64, (C + 1,) where each name's CUIs begin; a name may have several.
        cui_E: int32, numbers of CUIs, ascending and distinct within a name.
        whole: the benchmark of which these are some queries, None for all of them.
        number_in_whole_Q: of each query among those of the whole, None for all of them.
    """

    relations: tuple[str, ...]
    prompts: tuple[str, ...]
    names: tuple[str, ...]
    is_tail_C: NDArray[np.bool_]
    relation_Q: NDArray[np.int16]
    head_Q: NDArray[np.int32]
    indptr_Q1: NDArray[np.int64]
    answer_P: NDArray[np.int32]
    cuis: tuple[str, ...]
    cui_indptr_C1: NDArray[np.int64]
    cui_E: NDArray[np.int32]
    whole: "ProbeBenchmark | None" = None
    number_in_whole_Q: NDArray[np.int64] | None = None

    @cached_property
    def is_tail_RC(self) -> NDArray[np.bool_]:
        """(R, C) is the answer of some query of the relation, in the whole benchmark."""
        whole = self.whole or self
        is_tail_RC = np.zeros((len(self.relations), len(self.names)), dtype=bool)
        is_tail_RC[np.repeat(whole.relation_Q, np.diff(whole.indptr_Q1)), whole.answer_P] = True
        return is_tail_RC

    def queries(self, mask_token: str) -> list[str]:
        """Each query's prompt with the head's name for [X] and the mask token for [Y]."""
        # [Y] first: a head may hold such letters, a mask token does not.
        masked = [prompt.replace("[Y]", mask_token) for prompt in self.prompts]
        pairs = zip(self.relation_Q.tolist(), self.head_Q.tolist(), strict=True)
        return [masked[relation].replace("[X]", self.names[head]) for relation, head in pairs]

    @cached_property
    def in_own_words(self) -> "ProbeBenchmark":
        """The same queries, each relation's asked by the relation's own words."""
        return replace(self, prompts=tuple(map(default_prompt, self.relations)))

    def sample(self, queries_per_relation: int, seed: int) -> "ProbeBenchmark":
        """So many queries of each relation at most, drawn by chance; names and relations stay as they are."""
        rng = np.random.default_rng(seed)
        shuffled = rng.permutation(len(self.relation_Q))
        place_Q = np.empty(
            len(shuffled), dtype=np.int64
        )  # among the shuffled queries of its relation
        for relation in range(len(self.relations)):
            members = shuffled[self.relation_Q[shuffled] == relation]
            place_Q[members] = np.arange(len(members))
        chosen = np.flatnonzero(place_Q < queries_per_relation)
        indptr_Q1, answer_P = _ragged(
            [self.answer_P[self.indptr_Q1[q] : self.indptr_Q1[q + 1]].tolist() for q in chosen]
        )
        return replace(
            self,
            relation_Q=self.relation_Q[chosen],
            head_Q=self.head_Q[chosen],
            indptr_Q1=indptr_Q1,
            answer_P=answer_P,
            whole=self.whole or self,
            number_in_whole_Q=chosen
            if self.number_in_whole_Q is None
            else self.number_in_whole_Q[chosen],
        )


class ProbeQuery(NamedTuple):
    """One query as a file has it; ``cuis`` are (name, CUI) pairs of the head and of answers."""

    relation: str
    head: str
    answers: Sequence[str]
    cuis: Sequence[tuple[str, str]]


def read_medlama(
    folder: str | Path, subset: Subset = "full", prompts: Prompts = "human"
) -> ProbeBenchmark:
    """Read the full or the hard set; names are those of the chosen set alone.

    Args:
        folder: holds the files, or holds one folder that does; ``prompts.csv`` may stand in either.
        subset: which files.
        prompts: "human": ``prompts.csv`` where it has the relation, else the paper's Table 5, and Table 5 too where the
            released file is that with typos and a blank before the stop; "default": the relation's own words;
            "released": what ``prompts.csv`` has under ``human_prompt``, unmended.

    Raises:
        DataError: for files that are missing, torn or of another layout, with file and line.
    """
    files = _files(Path(folder), subset)
    known = read_prompts([files[0].parent, Path(folder)], prompts)
    queries = [query for path in files for query in read_queries(path)]
    if not queries:
        raise DataError(
            f"{files[0].parent}: the files of the {subset} set hold no query, want one at least"
        )
    return benchmark_of(queries, known)


def medlama_rows(
    path: Path, columns: Sequence[str] = COLUMNS
) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, row) of one file, checked: every wanted column is there and filled, and the file is whole.

    Raises:
        DataError: with file and line.
    """
    named = FILE_NAME.fullmatch(path.name)
    num_rows, line = 0, 1
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(bounded_lines(file, path), strict=True)
            missing = [column for column in columns if column not in (reader.fieldnames or ())]
            if missing:
                raise DataError(
                    f"{path}, line 1: has no column {', '.join(missing)}; want {', '.join(columns)}"
                )
            for row in reader:
                line, num_rows = reader.line_num, num_rows + 1
                if None in row or any(not (row[column] or "").strip() for column in columns):
                    raise DataError(
                        f"{path}, line {line}: {str(row)[:80]}, want a text in each of {', '.join(columns)}"
                    )
                yield line, row
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}), want a MedLAMA file") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}, after line {line}: is no CSV in UTF-8 ({error}). Fetch the file again."
        ) from None
    if named and num_rows != int(named["rows"]):
        raise DataError(
            f"{path}: holds {num_rows:,} rows, its name says {named['rows']}. Fetch the file again."
        )


def read_queries(path: Path) -> Iterator[ProbeQuery]:
    """The queries of one file.

    Raises:
        DataError: with file and line.
    """
    named = FILE_NAME.fullmatch(path.name)
    for line, row in medlama_rows(path):
        answers, cuis = row["tail_names"].split(SEPARATOR), row["tail_cuis"].split(SEPARATOR)
        if len(answers) != len(cuis) or not all(name.strip() for name in answers):
            raise DataError(
                f"{path}, line {line}: {len(answers)} tail_names for {len(cuis)} tail_cuis, want a CUI for each name, "
                f"all separated by {SEPARATOR!r}"
            )
        if named and row["rel"] != named["relation"]:
            raise DataError(
                f"{path}, line {line}: rel is {row['rel']!r}, want the file's {named['relation']!r}"
            )
        pairs = [(row["head_name"], row["head_cui"]), *zip(answers, cuis, strict=True)]
        yield ProbeQuery(row["rel"], row["head_name"], answers, pairs)


def benchmark_of(
    queries: Sequence[ProbeQuery], prompt_by_relation: Mapping[str, str]
) -> ProbeBenchmark:
    """Number names, relations and CUIs; a relation without a prompt is asked by its own words.

    Raises:
        DataError: for a prompt without one [X] and one [Y], or more relations than int16 counts.
    """
    relations = tuple(sorted({query.relation for query in queries}))
    if len(relations) > np.iinfo(np.int16).max:
        raise DataError(f"{len(relations):,} relations, want at most {np.iinfo(np.int16).max:,}")
    prompts = tuple(
        prompt_by_relation.get(relation, default_prompt(relation)) for relation in relations
    )
    for relation, prompt in zip(relations, prompts, strict=True):
        if problem := prompt_problem(prompt):
            raise DataError(f"prompt of {relation}: {problem}")
    ordered = sorted(queries, key=lambda query: query.relation)
    tails = {name for query in ordered for name in query.answers}
    names = tuple(sorted(tails | {query.head for query in ordered}))
    number_by_relation, number_by_name = _numbers(relations), _numbers(names)
    answers = [sorted({number_by_name[name] for name in query.answers}) for query in ordered]
    cuis = tuple(sorted({cui for query in ordered for _, cui in query.cuis}))
    number_by_cui = _numbers(cuis)
    cuis_by_name: list[set[int]] = [set() for _ in names]
    for query in ordered:
        for name, cui in query.cuis:
            cuis_by_name[number_by_name[name]].add(number_by_cui[cui])
    indptr_Q1, answer_P = _ragged(answers)
    cui_indptr_C1, cui_E = _ragged([sorted(numbers) for numbers in cuis_by_name])
    return ProbeBenchmark(
        relations=relations,
        prompts=prompts,
        names=names,
        is_tail_C=np.array([name in tails for name in names], dtype=bool),
        relation_Q=np.array(
            [number_by_relation[query.relation] for query in ordered], dtype=np.int16
        ),
        head_Q=np.array([number_by_name[query.head] for query in ordered], dtype=np.int32),
        indptr_Q1=indptr_Q1,
        answer_P=answer_P,
        cuis=cuis,
        cui_indptr_C1=cui_indptr_C1,
        cui_E=cui_E,
    )


def medlama_files(folder: Path) -> dict[Subset, list[Path]]:
    """The files of both sets, in order of relation; ``folder`` holds them, or one folder that does.

    Raises:
        DataError: if there are none, or several of one relation.
    """
    folders = [folder, *sorted(path for path in folder.glob("*/") if not path.name.startswith("."))]
    holding = [
        place
        for place in folders
        if any(FILE_NAME.fullmatch(path.name) for path in place.glob("*.csv"))
    ]
    if len(holding) != 1:
        found = "none" if not holding else " and ".join(str(place) for place in holding)
        raise DataError(
            f"{folder}: want one folder with <relation>_<rows>.csv files, found {found}"
        )
    files: dict[Subset, dict[str, Path]] = {"full": {}, "hard": {}}
    for path in sorted(holding[0].glob("*.csv")):
        if named := FILE_NAME.fullmatch(path.name):
            other = files["hard" if named["hard"] else "full"].setdefault(named["relation"], path)
            if other != path:
                raise DataError(f"{path}: {other.name} has the same relation. Keep one of them.")
    return {subset: [of[relation] for relation in sorted(of)] for subset, of in files.items()}


def _files(folder: Path, subset: Subset) -> list[Path]:
    files = medlama_files(folder)[subset]
    if not files:
        wanted = "<relation>_<rows>" + ("_hard" if subset == "hard" else "")
        raise DataError(
            f"{folder}: has no files of the {subset} set, want {wanted}.csv; or ask what there is, the "
            f"{'full' if subset == 'hard' else 'hard'} set"
        )
    return files


def _numbers(values: Iterable[str]) -> dict[str, int]:
    return {value: number for number, value in enumerate(values)}


def _ragged(rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    indptr = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=indptr[1:])
    flat: list[Any] = [number for row in rows for number in row]
    return indptr, np.array(flat, dtype=np.int32)


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


def read_prompts(
    folders: Sequence[Path], kind: Literal["human", "default", "released"]
) -> dict[str, str]:
    """Prompts by relation, of the first ``prompts.csv`` that one of ``folders`` has; without one, Table 5 or none.

    Raises:
        DataError: for a file of another layout, a prompt without one [X] and one [Y], or a relation that stands there
            twice, with file and line.
    """
    path = next(
        (folder / "prompts.csv" for folder in folders if (folder / "prompts.csv").is_file()), None
    )
    if path is None:
        return {} if kind == "default" else dict(TABLE_5)
    column = "default_prompt" if kind == "default" else "human_prompt"
    found: dict[str, str] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(bounded_lines(file, path), strict=True)
            if tuple(reader.fieldnames or ()) != _COLUMNS:
                raise DataError(
                    f"{path}, line 1: has {reader.fieldnames}, want the columns {', '.join(_COLUMNS)}"
                )
            for row in reader:
                relation, prompt = row["pid"], row[column] or ""
                if problem := prompt_problem(prompt):
                    raise DataError(f"{path}, line {reader.line_num}: {problem}")
                if relation in found:
                    raise DataError(
                        f"{path}, line {reader.line_num}: {relation} has a prompt already. Keep one."
                    )
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
